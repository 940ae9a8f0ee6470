"""``docker/inside.sh``: what a command inside an image sees. Needs root, for namespaces; the image holds a shell of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from synctool.images.base import from_folder

ROOT = Path(__file__).parents[3]
NEEDED = ("sh", "env", "cat")


def _namespaces() -> bool:
    if os.geteuid() or any(shutil.which(name) is None for name in (*NEEDED, "unshare", "ldd")):
        return False
    tried = ["unshare", "--mount", "--net", "--pid", "--fork", "mount", "-t", "sysfs", "-o", "ro", "sysfs", "/sys"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _namespaces(), reason="needs root and namespaces")
def test_a_command_inside_sees_what_a_container_shows(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("proc", "dev", "sys", "etc", "tmp", "opt/vime/src"):
        (root / name).mkdir(parents=True)
    for name in NEEDED:
        program = Path(shutil.which(name) or "").resolve()
        told = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
        for source, target in (
            (program, f"/usr/bin/{name}"),
            *((Path(one), one) for one in re.findall(r"/\S+\.so\S*", told)),
        ):
            place = root / target.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place)
    (root / "bin").symlink_to("usr/bin")
    from_folder(tmp_path / "layout", root, architecture="amd64")

    def inside(script: str) -> subprocess.CompletedProcess[str]:
        words = [str(ROOT / "docker/inside.sh"), str(tmp_path / "layout"), "sh", "-c", script]
        return subprocess.run(
            words, capture_output=True, text=True, check=False, env=os.environ | {"PYTHON": sys.executable}
        )

    seen = inside("cat /sys/devices/system/cpu/online /etc/hosts; cat /proc/net/dev; : > /dev/null; echo $HOME; exit 7")
    assert seen.returncode == 7, seen.stderr
    online, hosts, *rest = seen.stdout.splitlines()
    assert online == Path("/sys/devices/system/cpu/online").read_text().strip()
    assert hosts == f"127.0.0.1 localhost {os.uname().nodename}"
    assert "lo" in [line.partition(":")[0].strip() for line in rest]
    assert rest[-1] == "/tmp"
    assert inside("echo x > /sys/kernel/never").returncode != 0
