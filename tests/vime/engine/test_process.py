"""A server on a held port, owned by one process and gone with it. The server here is a few lines that obey the same contract."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vime.cluster import processes
from vime.engine.net import HeldPort, bracketed, hold_port
from vime.engine.process import EngineProcess
from vime.errors import EngineError, MachineError

# Answers /health on the inherited socket, has a child of its own, ends with its parent.
SERVER = """
import argparse, http.server, socket, subprocess, sys
from vime.engine.server import end_with_parent
p = argparse.ArgumentParser(); p.add_argument("--vime-socket-fd", type=int); p.add_argument("--vime-parent-fd", type=int)
p.add_argument("--mode", default="good"); a = p.parse_args()
end_with_parent(a.vime_parent_fd)
if a.mode == "crash":
    print("the reason of the crash", flush=True); sys.exit(3)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
import multiprocessing
semaphore = multiprocessing.get_context("spawn").Semaphore()
print("semaphore", semaphore._semlock.name, flush=True)
import tempfile
print("file", tempfile.mkstemp()[1], flush=True)
print("child", child.pid, flush=True)
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if a.mode == "sick" else 200); self.end_headers()
    def log_message(self, *x): pass
sock = socket.socket(fileno=a.vime_socket_fd); sock.listen()
server = http.server.HTTPServer(sock.getsockname(), H, bind_and_activate=False)
server.socket = sock; server.serve_forever()
"""
OWNER = """
import sys, time
from pathlib import Path
from vime.engine.net import hold_port
from vime.engine.process import EngineProcess
import os
engine = EngineProcess([sys.executable, "-c", sys.argv[1]], os.environ, hold_port("127.0.0.1"), Path(sys.argv[2]))
engine.wait_healthy(30)
print(engine.pid, flush=True); time.sleep(600)
"""


def launch(log: Path, mode: str = "good", port: HeldPort | None = None) -> EngineProcess:
    return EngineProcess(
        [sys.executable, "-c", SERVER, "--mode", mode], os.environ, port or hold_port("127.0.0.1"), log
    )


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineProcess]:
    process = launch(tmp_path / "engine.log")
    process.wait_healthy(30)
    yield process
    process.stop(0)


def child_of(log: Path) -> int:
    return int(log.read_text().split("child ")[1].split()[0])


def semaphore_of(log: Path) -> Path:
    return Path("/dev/shm") / ("sem." + log.read_text().split("semaphore /")[1].split()[0])


def folder_of(log: Path) -> Path:
    """Where the server's temporary files are."""
    return Path(log.read_text().split("file ")[1].split()[0]).parent


def removed(path: Path, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def gone(pid: int, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while processes.start_ticks(pid) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_held_port_cannot_be_taken_even_by_those_who_reuse_addresses() -> None:
    held = hold_port("127.0.0.1")
    thief = socket.socket()
    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with contextlib.closing(thief), pytest.raises(OSError, match="in use"):
        thief.bind(("127.0.0.1", held.port))
    with pytest.raises(MachineError, match=f"cannot bind 127.0.0.1:{held.port}"):
        hold_port("127.0.0.1", held.port)
    held.close()


def test_four_servers_start_beside_a_port_thief(tmp_path: Path) -> None:
    """Public reports verl#5889, #7859, #3977: a port that was probed, released and lost."""
    stolen: list[socket.socket] = []
    wanted: list[int] = []
    stop = threading.Event()

    def steal() -> None:
        while not stop.is_set():
            for port in list(wanted):
                sock = socket.socket()
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    sock.bind(("127.0.0.1", port))
                    sock.listen()
                    stolen.append(sock)
                except OSError:
                    sock.close()
            time.sleep(0.001)

    thief = threading.Thread(target=steal)
    thief.start()
    engines = []
    try:
        for number in range(4):
            port = hold_port("127.0.0.1")
            wanted.append(port.port)
            engines.append(launch(tmp_path / f"{number}.log", port=port))
        for one in engines:
            one.wait_healthy(30)
    finally:
        stop.set()
        thief.join()
        for one in engines:
            one.stop(0)
        for sock in stolen:
            sock.close()
    assert len({one.url for one in engines}) == 4
    assert stolen == []


def test_ipv6_addresses_are_bracketed_and_served() -> None:
    assert bracketed("::1") == "[::1]"
    assert bracketed("[::1]") == "[::1]"
    assert bracketed("10.0.0.1") == "10.0.0.1"
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        held = hold_port("::1")
    except MachineError:
        pytest.skip("no IPv6 loopback here")
    assert held.url == f"http://[::1]:{held.port}"
    held.close()


def test_a_healthy_server_answers_on_the_port_that_was_held(engine: EngineProcess) -> None:
    with urllib.request.urlopen(engine.url + "/health", timeout=5) as reply:
        assert reply.status == 200


def test_stop_ends_the_whole_group(engine: EngineProcess) -> None:
    child, semaphore, folder = child_of(engine.log), semaphore_of(engine.log), folder_of(engine.log)
    assert folder.name.startswith("engine-")
    engine.stop()
    assert not engine.alive
    assert gone(child)
    assert not folder.exists()
    assert removed(semaphore)
    assert engine.wait_death() is None
    engine.stop()  # again: nothing to do


def test_death_is_told_with_signal_and_log(engine: EngineProcess) -> None:
    os.kill(engine.pid, signal.SIGKILL)
    told = engine.wait_death()
    assert told is not None
    assert "was killed by SIGKILL" in told
    assert str(engine.log) in told
    child = child_of(engine.log)
    engine.stop(0)
    assert gone(child)


def test_a_crash_while_starting_shows_the_log(tmp_path: Path) -> None:
    process = launch(tmp_path / "engine.log", "crash")
    with pytest.raises(EngineError, match="ended with exit code 3 while it started") as caught:
        process.wait_healthy(30)
    assert caught.value.hint is not None
    assert "the reason of the crash" in caught.value.hint


def test_a_server_that_never_gets_healthy_is_given_up(tmp_path: Path) -> None:
    process = launch(tmp_path / "engine.log", "sick")
    with pytest.raises(EngineError, match="not healthy after 1 s"):
        process.wait_healthy(1.0)
    assert not process.alive


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda s: s.name)
def test_server_and_its_children_die_with_the_owner(
    tmp_path: Path, number: signal.Signals, make_owner: Callable[[Path], subprocess.Popen[str]]
) -> None:
    log = tmp_path / "engine.log"
    owner = make_owner(log)
    assert owner.stdout is not None
    server = int(owner.stdout.readline())
    child, semaphore, folder = child_of(log), semaphore_of(log), folder_of(log)
    assert semaphore.exists()
    assert folder.exists()
    owner.send_signal(number)
    owner.wait()
    assert gone(server)
    assert gone(child)
    assert removed(semaphore)
    assert removed(folder)


@pytest.fixture
def make_owner() -> Callable[[Path], subprocess.Popen[str]]:
    def make(log: Path) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", OWNER, SERVER, str(log)], stdout=subprocess.PIPE, text=True)

    return make
