"""Dies by SIGKILL after a delta was written into the local copy and before that is recorded: ``killed_apply.py ROOT SOURCE VERSION``."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from vllm.distributed.weight_transfer.local_checkpoint import LocalCheckpoint

if __name__ == "__main__":

    def die(manifest: Any, tensors: Any) -> None:
        if manifest.base_version is not None:
            os.kill(os.getpid(), signal.SIGKILL)

    LocalCheckpoint._verify = staticmethod(die)
    LocalCheckpoint(sys.argv[1]).stage(sys.argv[2], int(sys.argv[3]))
