"""Every command that our pages mark as run is run here, in the order of its page, and prints what the page shows."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from synctool.docs.check import page_paths

REPOSITORY = Path(__file__).resolve().parents[3]
_BLOCK = re.compile(r"<!-- run(?:: (\d+))? -->\n```console\n(.*?)```", re.DOTALL)


@dataclass
class Command:
    """A command of a page, what the page shows of its output, and how it ends."""

    text: str
    shown: list[str]
    expect: int


def commands(page: Path) -> list[Command]:
    found: list[Command] = []
    for code, block in _BLOCK.findall(page.read_text()):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Command(line[2:], [], int(code or 0)))
            elif line.startswith("> "):
                found[-1].text += "\n" + line[2:]
            else:
                found[-1].shown.append(line)
    return found


def pages() -> list[str]:
    files = [file.relative_to(REPOSITORY).as_posix() for file in (REPOSITORY / "docs").rglob("*")]
    return [path for path in page_paths(files, "docs") if commands(REPOSITORY / path)]


def shows(output: str, shown: list[str]) -> bool:
    """Whether the output is the shown lines, apart from blanks; ``...`` stands for any number of lines."""
    if not shown:
        return True
    lines = ["(?:.*\n)*" if line == "..." else re.escape(" ".join(line.split()) + "\n") for line in shown]
    plain = "".join(" ".join(line.split()) + "\n" for line in output.splitlines() if line.strip())
    return re.fullmatch("".join(lines), plain) is not None


@pytest.mark.parametrize("page", pages())
def test_page(page: str, tmp_path: Path) -> None:
    for name in ("examples", "train.py", "vime", "synctool"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    scripts = str(Path(sys.executable).parent)
    environment = os.environ | {
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1", "COLUMNS": "200", "GIT_CONFIG_GLOBAL": os.devnull,
    }  # fmt: skip
    folder = tmp_path
    for command in commands(REPOSITORY / page):
        if command.text.startswith("cd "):
            folder /= command.text[3:]
            continue
        done = subprocess.run(["bash", "-c", command.text], cwd=folder, env=environment, capture_output=True, text=True)
        output = done.stdout + done.stderr
        assert done.returncode == command.expect, f"{command.text}\n{output}"
        assert shows(output, command.shown), f"{command.text} prints\n{output}"


def test_the_check_of_output_can_fail() -> None:
    assert shows("a\n  b  c\nd\n", ["a", "...", "d"])
    assert shows("a\n  b  c\nd\n", ["...", "b c", "d"])
    assert not shows("a\nb\nd\n", ["a", "d"])
    assert not shows("a\nb\n", ["b"])
    assert not shows("a\nb\n", ["...", "c", "..."])
