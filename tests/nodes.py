"""Ray nodes of one cluster on this machine, each with an address of its own.

As root every node is a network namespace, joined to the others by a bridge: what one binds to its loopback no other reaches, as between
machines. Elsewhere they are loopback addresses: a server on one does not answer at another's, but gloo would find its peers in any case.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_MARK = "VIME_TEST_NODE"
#: A cluster without tokens: the variables of its nodes and of a driver that joins.
OPEN = {"RAY_AUTH_MODE": "disabled"}
_SECONDS = 120.0


@dataclass
class Node:
    """One node. `folder` is Ray's, the same on all nodes; `prefix`: what a command begins with that is to run on it."""

    name: str
    address: str
    folder: Path
    prefix: tuple[str, ...] = ()

    def start(self, head: Node, cpus: int) -> None:
        """Ray's processes of this node."""
        where = ["--head", "--port=0", "--include-dashboard=false"] if self is head else [f"--address={head.ray}"]
        ray = [str(Path(sys.executable).with_name("ray")), "start", "--disable-usage-stats"]
        resources = [f"--num-cpus={cpus}", f"--object-store-memory={100 << 20}"]
        light = {"RAY_enable_metrics_collection": "0", "RAY_prestart_worker_first_driver": "0"} | OPEN
        said = subprocess.run(
            [*self.prefix, *ray, *where, f"--node-ip-address={self.address}", *resources],
            # Ray notes its address below the folder: runs elsewhere on this machine must not join.
            env=os.environ | light | {_MARK: self.name, "RAY_TMPDIR": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        assert said.returncode == 0, said.stdout + said.stderr

    @property
    def ray(self) -> str:
        """The address of the cluster. Its port is whichever was free: Ray noted it when the head started."""
        return (self.folder / "ray" / "ray_current_cluster").read_text()

    def kill(self) -> None:
        """All its processes at once, as when a machine loses power."""
        while found := self._processes():
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def _processes(self) -> list[int]:
        marker = f"{_MARK}={self.name}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                alive = (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
                if alive and marker in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found


@dataclass
class Network:
    """`isolated`: nodes are namespaces; `why_not` says why they are not."""

    isolated: bool
    why_not: str = ""
    nodes: list[Node] = field(default_factory=list)


@contextlib.contextmanager
def network(count: int) -> Iterator[Network]:
    """`count` nodes that are not started yet; in the end all their processes are killed."""
    # Names and addresses by chance: what a killed run left, or another checkout uses at this moment, must not be met.
    name = f"vime{secrets.token_hex(4)}"
    loopback = f"127.{secrets.randbelow(254) + 1}.{secrets.randbelow(254) + 1}"
    why_not = _refuse_namespaces(f"{name}-probe")
    found = Network(isolated=not why_not, why_not=why_not)
    # Short: Ray's sockets are below it.
    with tempfile.TemporaryDirectory(prefix="vt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        try:
            for number in range(count):
                own, address = f"{name}-{number}", f"{loopback}.{number + 2}"
                found.nodes.append(
                    _namespace(name, number, Path(folder)) if found.isolated else Node(own, address, Path(folder))
                )
            yield found
        finally:
            for node in found.nodes:
                node.kill()
            if found.isolated:
                for number in range(count):
                    _ip("netns", "del", f"{name}-{number}")


def _refuse_namespaces(name: str) -> str:
    """Why this machine makes no namespaces (an ordinary user, a container without the capability, no iproute2); empty when it does."""
    try:
        said = _ip("netns", "add", name)
    except FileNotFoundError:
        return "there is no ip command"
    if said.returncode == 0:
        _ip("netns", "del", name)
        return ""
    return f"ip netns add: {said.stderr.strip()}"


def _namespace(name: str, number: int, folder: Path) -> Node:
    """The namespace `number`, on a bridge in the first one; the driver's is its first node's."""
    own, first, address = f"{name}-{number}", f"{name}-0", f"10.77.0.{number + 1}"
    _must("netns", "add", own)
    if number:
        _must("link", "add", f"to{number}", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", own)
        _must("-n", first, "link", "set", f"to{number}", "master", "eth0", "up")
    else:
        _must("-n", own, "link", "add", "eth0", "type", "bridge")
    _must("-n", own, "addr", "add", f"{address}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        _must("-n", own, "link", "set", device, "up")
    # Ray and others ask the routing table for the machine's address.
    _must("-n", own, "route", "add", "default", "dev", "eth0")
    return Node(own, address, folder, ("nsenter", f"--net=/run/netns/{own}"))


def _ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True)


def _must(*words: str) -> None:
    said = _ip(*words)
    assert said.returncode == 0, f"ip {' '.join(words)}: {said.stderr}"
