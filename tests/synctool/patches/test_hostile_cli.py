"""Hostile and broken stacks through the verbs: one clear answer with a documented exit code, and nothing written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .conftest import FILES, HEADER, House

HEAD = HEADER.format(subject="a change")
UTIL = "--- a/engine/sub/util.py\n+++ b/engine/sub/util.py\n"
NEW = "new file mode 100644\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+x\n"


def created(path: str) -> str:
    return f"diff --git a/{path} b/{path}\n" + NEW.format(path)


PATCHES = {
    "traversal": created("../x"),
    "inner traversal": created("engine/../../x"),
    "absolute": "diff --git a//etc/x b//etc/x\n" + NEW.format("/etc/x"),
    "git folder": created(".git/hooks/pre-commit"),
    "git folder in disguise": created(".GIT /config"),
    "git folder with ignored characters": created(".g\u200cit/config"),
    "short name": created("git~1/config"),
    "backslash": created('..\\x'),
    "symlink": "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n\\ No newline at end of file\n",
    "submodule": "diff --git a/m b/m\nnew file mode 160000\n--- /dev/null\n+++ b/m\n@@ -0,0 +1 @@\n+Subproject commit " + "1" * 40 + "\n",
    "odd mode": created("x").replace("100644", "104755"),
    "executable": created("x").replace("100644", "100755"),
    "truncated hunk": "diff --git a/engine/sub/util.py b/engine/sub/util.py\n" + UTIL + "@@ -1,3 +1,3 @@\n-A = 1\n+A = 2\n",
    "wrong counts": "diff --git a/engine/sub/util.py b/engine/sub/util.py\n" + UTIL + "@@ -1,9 +1,9 @@\n-A = 1\n+A = 2\n B = 2\n C = 3\n",
    "huge counts": "diff --git a/engine/sub/util.py b/engine/sub/util.py\n" + UTIL + "@@ -1,99999999999999999999 +1,1 @@\n-A = 1\n",
    "line ends": ("diff --git a/engine/sub/util.py b/engine/sub/util.py\n" + UTIL + "@@ -1,3 +1,3 @@\n-A = 1\n+A = 2\n B = 2\n C = 3\n").replace("\n", "\r\n"),
    "no final newline": ("diff --git a/engine/sub/util.py b/engine/sub/util.py\n" + UTIL + "@@ -1,3 +1,3 @@\n-A = 1\n+A = 2\n B = 2\n C = 3"),
    "bad quoting": 'diff --git "a/\\777" "b/\\777"\n' + NEW.format("x").replace("b/x", '"b/\\777"'),
    "binary without data": "diff --git a/engine/data.bin b/engine/data.bin\nindex 1..2 100644\nBinary files a/engine/data.bin and b/engine/data.bin differ\n",
    "binary garbage": "diff --git a/engine/data.bin b/engine/data.bin\nindex 1..2 100644\nGIT binary patch\nliteral 99\n!!!!\n\n",
    "nothing": "",
    "twice": created("x") + created("x"),
    "context of another version": "diff --git a/engine/sub/util.py b/engine/sub/util.py\n" + UTIL + "@@ -1,3 +1,3 @@\n-A = 9\n+A = 2\n B = 2\n C = 3\n",
}  # fmt: skip

VERBS = ("list", "lint", "status", "verify", "apply", "export")


def answers(house: House, out: Path) -> dict[str, int]:
    codes = {}
    site = house.root / "site"
    if not site.exists():
        house.install()
    installed = ("--site-packages", str(site))
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    for verb in VERBS:
        words = {"verify": ("--no-drift",), "apply": installed, "status": installed, "export": (str(out / "mails"),)}
        told = house.run(verb, *words.get(verb, ()), code=None)
        assert told["exit_code"] in (0, 1, 3, 4, 5, 6), (verb, told)
        if "error" in told:
            assert "\n" not in told["error"]["title"], told
        codes[verb] = told["exit_code"]
    if codes["apply"]:
        assert {path: path.read_bytes() for path in site.rglob("*") if path.is_file()} == before
    return codes


@pytest.mark.parametrize("kind", PATCHES)
def test_hostile_patches(house: House, tmp_path: Path, kind: str) -> None:
    (house.stack / "a.patch").write_bytes((HEAD + PATCHES[kind]).encode())
    (house.stack / "series").write_text("a.patch\n")
    codes = answers(house, tmp_path)
    if kind != "no final newline":  # git takes that one too
        assert codes["verify"] in (1, 3, 6), codes
        assert codes["apply"] in (1, 3, 6), codes
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "series",
    [b"gone.patch\n", b"a.patch\na.patch\n", b"../a.patch\n", b"/etc/passwd\n", b"a.patch\n\xff\n", b"\0\n", b"sub\n", b"pipe\n"],
)  # fmt: skip
def test_hostile_series(house: House, tmp_path: Path, series: bytes) -> None:
    house.add("a.patch", {"engine/sub/util.py": b"A = 10\nB = 2\nC = 3\n"})
    (house.stack / "sub").mkdir()
    os.mkfifo(house.stack / "pipe")
    (house.stack / "series").write_bytes(series)
    codes = answers(house, tmp_path)
    assert codes["verify"] in (3, 6), codes
    assert FILES["engine/sub/util.py"] == b"A = 1\nB = 2\nC = 3\n"


@pytest.mark.parametrize("pin", [b"", b"\xff", b"schema = 1\n", b"schema = 9\n", b"[", b'schema = 1\npackage = 3\n'])  # fmt: skip
def test_wrong_pins(house: House, tmp_path: Path, pin: bytes) -> None:
    (house.stack / "pin.toml").write_bytes(pin)
    assert set(answers(house, tmp_path).values()) <= {3, 6}


@pytest.mark.parametrize("name", ["pin.toml", "series"])
@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_named(house: House, tmp_path: Path, name: str, kind: str) -> None:
    path = house.stack / name
    path.unlink()
    if kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    assert set(answers(house, tmp_path).values()) == {3}
