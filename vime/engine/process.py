"""One server process seen from its owner: started on a held port, watched until healthy, ended for certain."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from vime.cluster.processes import kill_group, run_folder
from vime.engine.net import HeldPort
from vime.engine.server import FOLDER_VARIABLE
from vime.errors import EngineError

_POLL_SECONDS = 0.1
_LOG_LINES = 15


class EngineProcess:
    """A server in a process group of its own. It dies with the process that holds this object, whatever kills that.

    `command` gets ``--vime-socket-fd`` and ``--vime-parent-fd`` appended (see `server`). Output goes to `log`. Its temporary files
    (vLLM's sockets and rendezvous, which it leaves when it is killed) are in a folder that goes with it.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], port: HeldPort, log: Path) -> None:
        self.url = port.url
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="engine-", dir=run_folder()))
        socket_fd = port.sock.fileno()
        watched, self._lifeline = os.pipe()
        os.set_inheritable(watched, True)
        full = [*command, "--vime-socket-fd", str(socket_fd), "--vime-parent-fd", str(watched)]
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                full,
                env=dict(environment) | _temporary(self._folder, environment),
                pass_fds=(socket_fd, watched),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        os.close(watched)
        port.close()  # the child holds it from here on
        self._stopping = threading.Event()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_healthy(self, deadline: float, path: str = "/health") -> float:
        """Seconds until `path` answered 200. Raises EngineError when the process ends first or `deadline` seconds pass."""
        start = time.monotonic()
        while True:
            if not self.alive:
                shutil.rmtree(self._folder, ignore_errors=True)
                raise EngineError(
                    f"the server {self._ending()} while it started", where=self.url, hint=self._log_hint()
                )
            if _answers(self.url + path, timeout=2.0):
                return time.monotonic() - start
            if time.monotonic() - start > deadline:
                self.stop(0)
                raise EngineError(
                    f"the server was not healthy after {deadline:.0f} s",
                    where=self.url,
                    hint=f"allow more with --vllm-start-timeout; {self._log_hint()}",
                )
            time.sleep(_POLL_SECONDS)

    def wait_death(self) -> str | None:
        """Block until the process ends. What happened, or None when `stop` ended it."""
        self._process.wait()
        return None if self._stopping.is_set() else f"the server at {self.url} {self._ending()}; {self._log_hint()}"

    def stop(self, grace: float = 10.0) -> None:
        """End the whole process group: politely, then after `grace` seconds by SIGKILL. Safe to repeat."""
        self._stopping.set()
        if self.alive and grace > 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it ends just now
                os.killpg(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace)
        # Also when the leader is gone: members of its group may be left.
        kill_group(self._process.pid)
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _ending(self) -> str:
        code = self._process.returncode
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def _log_hint(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:] if self.log.exists() else []
        return "\n    ".join([f"end of {self.log}:", *lines])


def _temporary(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that lead temporary files there. What torch compiled stays where the next server finds it."""
    compiled = str(Path(tempfile.gettempdir()) / f"torchinductor_{os.getuid()}")
    kept = environment.get("TORCHINDUCTOR_CACHE_DIR", compiled)
    return {"TMPDIR": str(folder), FOLDER_VARIABLE: str(folder), "TORCHINDUCTOR_CACHE_DIR": kept}


def _answers(url: str, timeout: float) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=timeout) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError):
        return False
