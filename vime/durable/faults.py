"""Straw's errors as ours: what failed, where, and that nothing is lost."""

from __future__ import annotations

import contextlib
import errno
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from vime.errors import DataError, MachineError, VimeError

_RESUME = "what was written is kept; the same command resumes"


@contextlib.contextmanager
def told(folder: Path, doing: str) -> Iterator[None]:
    """Raise a VimeError that names `folder` and what was being done for any error of Straw or of the file system below it."""
    from straw import errors

    try:
        yield
    except VimeError:
        raise
    except (errors.CorruptData, errors.UnsupportedSchema, errors.InvalidReference) as error:
        raise DataError(
            f"{doing}: the queue is damaged: {error}",
            where=str(folder),
            hint="resume from a checkpoint that it belongs to with --ckpt-step, or name another queue with --rollout-queue-run-id",
        ) from error
    except errors.QuotaExceeded as error:
        raise MachineError(
            f"{doing}: no space is left: {error}", where=str(folder), hint=f"free some; {_RESUME}"
        ) from error
    except errors.UnsafeRecovery as error:
        raise MachineError(
            f"{doing}: {error}",
            where=str(folder),
            hint="another process may be writing to this queue: `vime ps` lists runs",
        ) from error
    except errors.QueueError as error:
        number = re.search(r"os error (\d+)", str(error))
        # Of a write that failed Straw says only that its outcome is unknown.
        hint = _hint(int(number[1])) if number else f"its disk may be full or failing ({_free(folder)} free); {_RESUME}"
        raise MachineError(f"{doing}: {error}", where=str(folder), hint=hint) from error
    except OSError as error:
        hint = _hint(error.errno)
        raise MachineError(f"{doing}: {error.strerror or error}", where=str(folder), hint=hint) from error


def _free(folder: Path) -> str:
    try:
        return f"{shutil.disk_usage(folder).free >> 20} MiB"
    except OSError:
        return "an unknown part"


def _hint(number: int | None) -> str:
    match number:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return f"free some space; {_RESUME}"
        case errno.EMFILE | errno.ENFILE:
            return f"raise the limit of open files (ulimit -n); {_RESUME}"
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return f"the folder must be writable for this user; {_RESUME}"
    return _RESUME
