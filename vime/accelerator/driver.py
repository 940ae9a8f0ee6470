"""Driver calls that torch has no name for. None of them can end a run: what fails is logged and reported, not raised."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

STACK_BYTES = 1024
#: CU_LIMIT_STACK_SIZE in cuda.h.
_STACK_LIMIT = 0


def reset_cuda_stack_size(
    load: Callable[[str], Any] = ctypes.CDLL, initialised: Callable[[], bool] | None = None
) -> int | None:
    """Give back the device memory that a deep kernel's stack left reserved: the limit a thread back to 1 KiB where it grew.

    The driver reserves (limit x threads the device can run), gigabytes after one recursive kernel, for as long as the process lives. Returns
    the bytes a thread that the limit was lowered by; 0 when it had not grown; None when nothing could be done (no CUDA driver, as on ROCm;
    CUDA not used yet by this process; the driver refused).
    """
    try:
        if not (initialised or _cuda_is_initialised)():
            return None
        driver = load("libcuda.so.1")
        size = ctypes.c_size_t()
        if _failed("cuCtxGetLimit", driver.cuCtxGetLimit(ctypes.byref(size), _STACK_LIMIT)):
            return None
        if size.value <= STACK_BYTES:
            return 0
        if _failed("cuCtxSetLimit", driver.cuCtxSetLimit(_STACK_LIMIT, ctypes.c_size_t(STACK_BYTES))):
            return None
        return size.value - STACK_BYTES
    except Exception as error:  # a library that is missing, of another kind, or odd
        log.debug("the stack limit was not reset: %s", error)
        return None


def _failed(call: str, code: int) -> bool:
    if code:
        log.warning("%s answered %d; the run goes on without it", call, code)
    return bool(code)


def _cuda_is_initialised() -> bool:
    import torch

    return torch.version.hip is None and torch.cuda.is_initialized()
