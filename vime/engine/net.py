"""Addresses and ports: held from the moment they are chosen, measured where they are used."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime.errors import MachineError

if TYPE_CHECKING:
    from torch.distributed import TCPStore


@dataclass
class HeldPort:
    """A bound socket that does not listen yet. Nobody else can bind its port until it is closed; its file descriptor is
    handed to the server that will listen on it, so the port is never free in between (verl#5889)."""

    host: str
    sock: socket.socket

    @property
    def port(self) -> int:
        return int(self.sock.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://{bracketed(self.host)}:{self.port}"

    def close(self) -> None:
        self.sock.close()


def hold_port(host: str, port: int = 0) -> HeldPort:
    """Bind `host`:`port`, 0 for any free one. Raises MachineError when it cannot be bound.

    SO_REUSEADDR stays off: with it, another process that sets it too could bind the same port before the server listens.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise MachineError(
            f"cannot bind {bracketed(host)}:{port}: {error.strerror}",
            hint="leave the port out to get a free one, or stop what uses it (`vime ps` lists our own)",
        ) from error
    sock.set_inheritable(True)
    return HeldPort(host, sock)


def open_rendezvous(host: str, world_size: int) -> TCPStore:
    """Where the ranks of torch.distributed meet, on a port of `host` that is held from the start: one that is free now is soon somebody else's."""
    from torch.distributed import TCPStore

    held = hold_port(host)
    held.sock.listen()
    return TCPStore(host, held.port, world_size, True, wait_for_workers=False, master_listen_fd=held.sock.detach())


def bracketed(host: str) -> str:
    """`host` as it stands in a URL: IPv6 in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def own_host() -> str:
    """The address of this machine that other nodes of the cluster reach, asked from the process itself (slime#2373)."""
    import ray.util

    return str(ray.util.get_node_ip_address())


def address_towards(host: str, port: int) -> str:
    """The address of this machine that a connection to `host` leaves from, so that its node reaches us there. Nothing is sent."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect((host, port))
        return str(sock.getsockname()[0])


def interface_of(host: str) -> str | None:
    """The network interface of this machine that has the address `host`; None when none has."""
    import psutil  # type: ignore[import-untyped]

    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == host for one in addresses):
            return str(name)
    return None
