"""Runs a module or script with vLLM's second model runner on a CPU: ``python interpreted.py -m MODULE ...`` or ``SCRIPT ...``.

Sampling masks and routed experts exist in that runner only, and its kernels are Triton's. Triton's interpreter executes them on CPU tensors,
slowly and exactly. Three things stand in the way, and are moved here, in the engine's processes too (which import this file again):
vLLM wants a Triton CPU backend; the interpreter lacks what the fused top-k/top-p kernel uses (vLLM's own torch version serves); and
the CPU platform switches asynchronous scheduling off, which ASYNC_SCHEDULING=1 undoes.
"""

from __future__ import annotations

import os
import runpy
import sys
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"

from triton import backends

backends.backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))

from vllm.v1.sample.ops import topk_topp_sampler  # noqa: E402 (reads what was set above)

topk_topp_sampler.HAS_TRITON = False

if os.environ.get("ASYNC_SCHEDULING") == "1":
    from vllm.platforms.cpu import CpuPlatform

    configure = CpuPlatform.check_and_update_config

    def configure_async(vllm_config: Any) -> None:
        configure(vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = staticmethod(configure_async)

if __name__ == "__main__":
    del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__")
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
