"""A base image from Debian's packages, for machines that can pull none: debootstrap, made into a layout."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from synctool.errors import EnvironmentFailure
from synctool.images.oci import EPOCH, Image, Writer, add_folder

#: Python and a compiler (torch and vLLM compile for the processor they meet), and what the sync tool calls.
PACKAGES = ("python3", "python3-venv", "python3-dev", "g++", "git", "libnuma1", "procps", "ca-certificates")
#: Caches and logs: they hold times and differ from run to run. Whatever needs them makes them again.
_LEFT_OUT = (
    "dev", "proc", "sys", "run", "tmp", "var/log", "var/tmp", "var/cache", "var/lib/apt/lists", "etc/machine-id", "etc/resolv.conf",
    "etc/hostname", "debootstrap", "var/lib/dpkg/status-old", "var/lib/dpkg/diversions-old", "var/lib/systemd",
)  # fmt: skip
#: debootstrap and the interpreter's own compiled files also hold times of the run.
_LEFT_OUT_SUFFIXES = (".pyc", "/aux-cache", ".log")


def from_debian(layout: Path, *, suite: str, mirror: str, architecture: str) -> Image:
    """Write a layout with one layer. Needs root and debootstrap.

    Raises:
        EnvironmentFailure: debootstrap is missing or failed; its last line says why.
    """
    tool = shutil.which("debootstrap")
    if tool is None:
        raise EnvironmentFailure("debootstrap is not installed", hint="apt-get install debootstrap")
    with tempfile.TemporaryDirectory(prefix="vime-base-") as scratch:
        root = Path(scratch) / "root"
        ended = subprocess.run(
            [
                tool,
                "--variant=minbase",
                f"--arch={architecture}",
                f"--include={','.join(PACKAGES)}",
                suite,
                str(root),
                mirror,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            lines = (ended.stdout + ended.stderr).strip().splitlines() or ["no output"]
            raise EnvironmentFailure(f"debootstrap failed: {lines[-1]}", hint="it needs root and a Debian mirror")
        return from_folder(layout, root, architecture=architecture)


def from_folder(layout: Path, root: Path, *, architecture: str) -> Image:
    """Write a root file system as an image with one layer."""
    writer = Writer(layout)
    layer = writer.layer(lambda archive: add_folder(archive, root, _left_out))
    config = {
        "created": EPOCH,
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
        "history": [{"created": EPOCH, "created_by": "vime-sync image base"}],
    }
    return writer.image(config, [layer])


def _left_out(path: str) -> bool:
    return path in _LEFT_OUT or path.endswith(_LEFT_OUT_SUFFIXES)
