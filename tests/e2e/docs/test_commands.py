"""Every command of our pages is run: those marked ``<!-- run -->`` here, in the order of their page, with what the page shows of their output; those marked
``<!-- run by FILE -->`` by that test or CI description. A block with neither mark fails, and so does a command in a sentence whose verb or option is none.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from synctool.docs.check import page_paths

REPOSITORY = Path(__file__).resolve().parents[3]
_ANY_BLOCK = re.compile(r"(?:<!-- (run[^>]*?) -->\n)?```(?:console|bash|shell|sh)\n(.*?)```", re.DOTALL)
_INLINE = re.compile(r"`((?:vime-sync|vime) [^`]+)`")
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


def made_by(target: str) -> list[str]:
    """The targets of the Makefile that make this one, too."""
    rules = re.findall(r"^([a-z-]+):([^=#\n]*)", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    return [name for name, needs in rules if target in needs.split()]


def all_pages() -> list[str]:
    files = [file.relative_to(REPOSITORY).as_posix() for file in (REPOSITORY / "docs").rglob("*")]
    return page_paths(files, "docs")


@pytest.mark.parametrize("page", all_pages())
def test_every_block_says_where_it_is_run(page: str) -> None:
    for mark, block in _ANY_BLOCK.findall((REPOSITORY / page).read_text()):
        assert mark, (
            f"{page}: mark this block with '<!-- run -->', or with '<!-- run by FILE -->' that names the test:\n{block}"
        )
        if not mark.startswith("run by "):
            continue
        file = REPOSITORY / mark.removeprefix("run by ")
        assert file.is_file(), f"{page}: {file} does not exist"
        for line in block.splitlines():
            verb = [word for word in line.split(" #")[0].split() if not word.startswith("-")][-1]
            runs = any(f'"{name}"' in file.read_text() for name in (verb, *made_by(verb)))
            assert runs, f"{page}: {file} does not run: {line}"


def spoken(page: str) -> list[str]:
    """Commands of ours in sentences and blocks; places that a reader fills in are left as they are."""
    text = (REPOSITORY / page).read_text()
    lines = [line.removeprefix("$ ") for _, block in _ANY_BLOCK.findall(text) for line in block.splitlines()]
    found = [line.split(" #")[0] for line in lines if line.startswith(("vime-sync ", "vime "))]
    return found + _INLINE.findall(text)


@pytest.mark.parametrize("page", [*all_pages(), "README.md", "CONTRIBUTING.md"])
def test_spoken_commands_have_verbs_and_options_that_there_are(page: str) -> None:
    from synctool.cli.app import cli as sync
    from vime.cli.app import cli as runtime

    for text in spoken(page):
        program, *words = text.replace("|", " ").split()
        command: click.Command = {"vime-sync": sync, "vime": runtime}[program]
        context = click.Context(command)
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            found = command.get_command(context, words[0])
            assert found is not None, f"{page}: {text}: no verb {words[0]!r}"
            command, words = found, words[1:]
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {
            "--help",
            "--json",
            "-C",
        }
        for word in words[: words.index("--")] if "--" in words else words:
            name = word.strip("[]").split("=")[0]
            assert not re.fullmatch(r"--?[a-zA-Z][\w-]*", name) or name in known, f"{page}: {text}: no option {name}"


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
