"""Build hosts: where ssh would really go, and whether policy lets an image be built there.

``ssh -G`` prints what ssh would do for a host after all of its configuration, so a jump that an alias hides is seen. Nothing is connected to.
"""

from __future__ import annotations

import platform as platform_of_machine
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from synctool.errors import EnvironmentFailure, UsageError
from synctool.images.permission import Refusal

if TYPE_CHECKING:
    from synctool.policy.model import Policy

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]*")


@dataclass(frozen=True, slots=True)
class Route:
    """How ssh would reach a host. ``jump`` is ProxyJump, ``command`` is ProxyCommand; empty: none."""

    host: str
    name: str
    user: str = ""
    port: int = 22
    jump: str = ""
    command: str = ""

    def told(self) -> str:
        """The route in words."""
        via = f" through jump host {self.jump}" if self.jump else " through a ProxyCommand" if self.command else ""
        return f"{self.host} is {self.name}:{self.port}{via}"


def resolve(host: str, config: Path | None = None) -> Route:
    """Ask ssh. ``config`` is another configuration file than the user's.

    Raises:
        UsageError: not a host name (a leading dash would be an option of ssh).
        EnvironmentFailure: no ssh, or it refuses its configuration.
    """
    if not _HOST.fullmatch(host):
        raise UsageError(f"not a host name: {host!r}")
    tool = shutil.which("ssh")
    if tool is None:
        raise EnvironmentFailure("ssh is not installed, so the route to a build host cannot be known")
    command = [tool, *(["-F", str(config)] if config else []), "-G", "--", host]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise EnvironmentFailure(f"ssh -G failed: {ended.stderr.strip()}", where=host)
    return parse(host, ended.stdout)


def parse(host: str, text: str) -> Route:
    """A route from the output of ``ssh -G``: one keyword and its value a line, keywords in small letters."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.strip().partition(" ")
        values.setdefault(key.lower(), value.strip())
    jump, command = ("" if values.get(key, "none") == "none" else values[key] for key in ("proxyjump", "proxycommand"))
    return Route(
        host, values.get("hostname", host), values.get("user", ""), int(values.get("port", "22")), jump, command
    )


def local_platform() -> str:
    """``linux/amd64`` or ``linux/arm64``: what this machine runs."""
    machine = platform_of_machine.machine().lower()
    return "linux/" + {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def refuse_host(policy: Policy, platform: str, host: str | None) -> tuple[str, Refusal | None]:
    """The build host of a platform, and why it may not be used. ``host`` chooses among several; None: the first that policy names.

    Raises:
        UsageError: policy names no such host for this platform.
    """
    known = [rule for rule in policy.build_hosts if rule.platform == platform]
    if host is not None and all(rule.host != host for rule in known):
        raise UsageError(
            f"policy names no build host {host!r} for {platform}",
            where=policy.file,
            hint=f"it names: {', '.join(rule.host for rule in known) or 'none'}; add it as a [[build_host]]",
        )
    for rule in known:
        if host in (None, rule.host):
            route = resolve(rule.host)
            return rule.host, refuse_route(route, names=rule.names, jumps=rule.jumps, where=policy.where(rule))
    reason = f"this machine is {local_platform()}, and policy names no build host for {platform}"
    return "", Refusal("no-host", reason, f"add a [[build_host]] to {policy.file}")


def refuse_route(route: Route, *, names: Iterable[str], jumps: Iterable[str], where: str) -> Refusal | None:
    """Why a route may not be used, or None. ``names`` and ``jumps`` are the host names and jump hosts that policy allows.

    A ProxyCommand is refused always: what it does cannot be known without running it.
    """
    hint = f"policy: {where}"
    if route.command and not route.jump:
        return Refusal("proxy-command", f"{route.told()}: where it leads cannot be known", hint)
    if route.jump and route.jump not in set(jumps):
        return Refusal("jump-host", f"{route.told()}, which policy does not allow", hint)
    if route.name not in set(names):
        return Refusal("host-name", f"{route.told()}, which is not the host that policy names", hint)
    return None
