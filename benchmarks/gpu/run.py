"""The runtime on GPUs against its peers in the same run: one command, JSON out.

    python benchmarks/gpu/run.py [--parts host,trainer,...] [--gpus 0] [--out benchmarks/results/gpu.json] [--seconds 480]

Each part is a process of its own on a GPU of its own; several GPUs run parts side by side, those that need two run alone. A part that
fails leaves the others alone, and is in the result with its error. Parts: see PARTS. Models are random weights in real shapes, since a
benchmark host may reach no model hub; what must be learnt is the toy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.marked import told  # noqa: E402


@dataclass(frozen=True)
class Part:
    """`file` with `arguments`; `gpus` it needs; seconds it may take."""

    file: str
    arguments: tuple[str, ...] = ()
    gpus: int = 1
    seconds: int = 240


PARTS: dict[str, Part] = {
    "host": Part("host.py"),
    "kernels": Part("fused_kernels.py"),
    "learn": Part("learn.py"),
    "learn-resident": Part("learn.py", ("--steps", "15", "--resident")),
    "trainer-0.6b": Part("trainer.py", ("0.6b",)),
    "trainer-4b": Part("trainer.py", ("4b", "--tokens", "32768")),
    "rollout-0.6b": Part("rollout.py", ("0.6b",)),
    "weights-0.6b": Part("weights.py", ("0.6b", "--cycles", "100")),
    "weights-4b": Part("weights.py", ("4b", "--cycles", "0")),
    "trl": Part("against_trl.py"),
    "patched": Part("patched.py", seconds=420),
    "nccl-4b": Part("nccl.py", ("4b",), gpus=2),
    "parallel": Part("parallel.py", gpus=2),
    "reshard": Part("reshard.py", gpus=2),
    "kills": Part("kills.py", gpus=2, seconds=430),
    "schedules": Part("schedules.py", gpus=2, seconds=600),
}
DEFAULT = (
    "host",
    "kernels",
    "learn",
    "trainer-0.6b",
    "trainer-4b",
    "rollout-0.6b",
    "weights-0.6b",
    "weights-4b",
    "learn-resident",
    "trl",
    "patched",
)


def run_part(name: str, gpus: list[str], logs: Path, deadline: float) -> dict[str, Any]:
    part = PARTS[name]
    left = min(part.seconds, deadline - time.monotonic())
    if left < 20:
        return {"error": "not run: the time was up"}
    environment = os.environ | {
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "PYTHONUNBUFFERED": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
    }
    command = [sys.executable, str(Path(__file__).parent / part.file), *part.arguments]
    log = logs / f"{name}.log"
    with open(log, "w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            process.wait(left)
        except subprocess.TimeoutExpired:
            end(process)
            known = told(log.read_text(errors="replace"))
            return (known[-1] if known else {"partial": tail(log)}) | {"error": f"ended after {left:.0f} s"}
        finally:
            end(process)
    if found := told(log.read_text(errors="replace")):
        return found[-1]
    return {"error": f"exit code {process.returncode} without a result", "partial": tail(log)}


def end(process: subprocess.Popen[Any]) -> None:
    """What is left of a part and its children."""
    import signal

    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def tail(log: Path) -> str:
    return log.read_text(errors="replace")[-1500:]


def identity() -> dict[str, Any]:
    """Versions, the engine's patch stack, the source's commit: what the figures belong to."""
    import importlib.metadata as metadata

    from vime.engine.patch_stack import installed_stack

    def version(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    names = ("torch", "triton", "vllm", "megatron-core", "ray", "transformers", "trl", "straw-queue", "numpy")
    stack = installed_stack()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return {
        "commit": os.environ.get("VIME_COMMIT") or commit or None,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in names},
        "patch_stack": {"digest": stack.digest, "patches": list(stack.patches)} if stack else None,
        "cores": len(os.sched_getaffinity(0)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(DEFAULT), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--gpus", default="0", help="numbers of the GPUs to use")
    parser.add_argument(
        "--seconds", type=float, default=480.0, help="for everything; parts that do not fit are left out"
    )
    parser.add_argument("--logs", type=Path, default=None, help="folder for the parts' output")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "gpu.json")
    args = parser.parse_args()
    names = args.parts.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    began, deadline = time.monotonic(), time.monotonic() + args.seconds
    gpus = args.gpus.split(",")
    logs = args.logs or args.out.parent / "gpu-logs"
    logs.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {
        "identity": identity(),
        "command": f"python benchmarks/gpu/run.py --parts {args.parts}",
        "parts": {},
    }

    def keep(name: str, result: dict[str, Any]) -> None:
        report["parts"][name] = result
        report["seconds"] = round(time.monotonic() - began, 1)
        temporary = args.out.with_suffix(f".{name}.tmp")
        temporary.write_text(json.dumps(report, indent=1) + "\n")
        temporary.replace(args.out)
        print(f"[{report['seconds']:.0f} s] {name}: {json.dumps(result)[:900]}", flush=True)

    free: Queue[str] = Queue()
    for gpu in gpus:
        free.put(gpu)

    def one(name: str) -> None:
        gpu = free.get()
        try:
            keep(name, run_part(name, [gpu], logs, deadline))
        finally:
            free.put(gpu)

    args.out.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(len(gpus)) as pool:
        list(pool.map(one, [name for name in names if PARTS[name].gpus == 1]))
    for name in names:
        if PARTS[name].gpus > 1:
            enough = len(gpus) >= PARTS[name].gpus
            keep(
                name,
                run_part(name, gpus[: PARTS[name].gpus], logs, deadline)
                if enough
                else {"error": "not run: too few GPUs"},
            )


if __name__ == "__main__":
    main()
