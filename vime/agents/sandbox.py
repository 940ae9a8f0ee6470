"""Where an agent's tools run. The protocol is small, so that a container or a remote machine can stand behind it; here a folder and processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from vime.cluster.processes import run_folder
from vime.errors import UsageError

_MOST_OUTPUT = 1 << 16


@dataclass(frozen=True)
class Executed:
    """How a command ended. `code` is None after a timeout; output that was too long is cut in the middle."""

    code: int | None
    stdout: str
    stderr: str

    @property
    def timed_out(self) -> bool:
        return self.code is None


@runtime_checkable
class Sandbox(Protocol):
    """Files and commands of one trajectory. Paths are relative to its working folder."""

    async def exec(self, command: str, timeout: float = 30.0, env: Mapping[str, str] | None = None) -> Executed:
        """Run a shell command. A timeout is a result, not an error."""
        ...

    async def write_file(self, path: str, content: str) -> None:
        """Raises UsageError for a path outside the working folder."""
        ...

    async def read_file(self, path: str) -> str:
        """Raises UsageError for a path outside the working folder, FileNotFoundError when there is none."""
        ...

    async def close(self) -> None: ...


class LocalSandbox:
    """A temporary folder and subprocesses of this user, bounded in time, memory and output.

    It keeps mistakes apart, not attackers: a command can read what this user can read. For untrusted code put a container behind the protocol.
    """

    def __init__(self, memory_bytes: int = 1 << 30, cpu_seconds: int = 60) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="vime-sandbox-", dir=run_folder("sandboxes")))
        self._limits = (
            (resource.RLIMIT_AS, memory_bytes),
            (resource.RLIMIT_CPU, cpu_seconds),
            (resource.RLIMIT_CORE, 0),
        )

    async def exec(self, command: str, timeout: float = 30.0, env: Mapping[str, str] | None = None) -> Executed:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            command,
            cwd=self.folder,
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": str(self.folder), "LANG": "C.UTF-8"}
            | dict(env or {}),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            preexec_fn=self._limit,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        reading = asyncio.gather(_bounded(process.stdout), _bounded(process.stderr))
        try:
            async with asyncio.timeout(timeout):
                code: int | None = await process.wait()
        except TimeoutError:
            code = None
        finally:
            # Also what it left in the background: its output would never end.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        stdout, stderr = await reading
        return Executed(code, stdout, stderr)

    async def write_file(self, path: str, content: str) -> None:
        target = self._inside(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")

    async def read_file(self, path: str) -> str:
        return self._inside(path).read_text(encoding="utf-8", errors="replace")

    async def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _inside(self, path: str) -> Path:
        target = (self.folder / path).resolve()
        if not target.is_relative_to(self.folder.resolve()):
            raise UsageError(f"{path!r} is outside the sandbox")
        return target

    def _limit(self) -> None:
        for kind, most in self._limits:
            resource.setrlimit(kind, (most, most))


@contextlib.asynccontextmanager
async def local_sandbox() -> AsyncIterator[LocalSandbox]:
    """A sandbox that is gone at the end."""
    sandbox = LocalSandbox()
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def _bounded(stream: asyncio.StreamReader) -> str:
    """All of a stream is read, so that its writer never blocks; beginning and end are kept."""
    head, tail = b"", b""
    while chunk := await stream.read(1 << 14):
        room = _MOST_OUTPUT // 2 - len(head)
        head += chunk[: max(room, 0)]
        tail = (tail + chunk[max(room, 0) :])[-_MOST_OUTPUT // 2 :]
    gap = "\n[...]\n" if len(tail) == _MOST_OUTPUT // 2 else ""
    return head.decode(errors="replace") + gap + tail.decode(errors="replace")
