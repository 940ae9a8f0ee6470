"""The machine itself: what the GPU does at best, and whether its memory can be mapped by another process."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from common import ROOT, attempt, report


def best_matmul() -> float:
    """bf16 TFLOP/s of 8192 x 8192 x 8192 on random data."""
    import torch

    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return round(2 * 8192**3 / _seconds(lambda: a @ b) / 1e12, 1)


def best_copy() -> float:
    """TB/s of a copy on the device, bytes read and written."""
    import torch

    a = torch.empty(1 << 32, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    return round(2 * a.nbytes / _seconds(lambda: b.copy_(a)) / 1e12, 3)


def host_copy() -> dict[str, float]:
    """GB/s between pinned host memory and the device."""
    import torch

    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    return {
        "to_device": round(1.073741824 / _seconds(lambda: device.copy_(host, non_blocking=True)), 1),
        "to_host": round(1.073741824 / _seconds(lambda: host.copy_(device, non_blocking=True)), 1),
    }


def mapping() -> str:
    """A second process maps this one's memory, reads it and says what it read."""
    import torch

    from vime.transport import ipc

    slot = torch.arange(256, dtype=torch.uint8, device="cuda").repeat(1 << 16)
    code = (
        f"import sys, torch; sys.path.insert(0, {str(ROOT)!r}); from vime.transport import ipc; torch.zeros(1, device='cuda');"
        "t = ipc.attach(sys.stdin.buffer.read(), torch.device('cuda', 0)); print(int(t.to(torch.int64).sum()))"
    )
    done = subprocess.run([sys.executable, "-c", code], input=ipc.share(slot), capture_output=True, timeout=90)
    expected = int(slot.to(torch.int64).sum())
    if done.returncode or int(done.stdout) != expected:
        raise RuntimeError(done.stderr.decode()[-300:])
    return "works"


def doctor() -> Any:
    import json

    done = subprocess.run(
        [sys.executable, "-c", "from vime.cli.app import main; main()", "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=150,
    )
    found = json.loads(done.stdout)
    rows = next(value for value in found.values() if isinstance(value, list))
    return [f"{row['level']} {row['check']}: {row['found']}" for row in rows]


def _seconds(work: Any) -> float:
    from triton.testing import do_bench

    return float(do_bench(work, warmup=20, rep=60, return_mode="median")) / 1e3


def part() -> dict[str, Any]:
    import torch

    result: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "capability": torch.cuda.get_device_capability(),
        "memory_gib": round(torch.cuda.get_device_properties(0).total_memory / 2**30, 1),
        "cuda": torch.version.cuda,
    }
    attempt(result, "matmul_tflops", best_matmul)
    attempt(result, "copy_tb_s", best_copy)
    attempt(result, "host_copy_gb_s", host_copy)
    attempt(result, "ipc", mapping)
    attempt(result, "doctor", doctor)
    return result


report(part)
