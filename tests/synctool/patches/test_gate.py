"""The parse gate finds what compile() finds, counts what it saw, and never passes on nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synctool.errors import UsageError
from synctool.git import Entry, Repo, Tree
from synctool.patches.gate import find_interpreter, left_overs, python_files, run_gate

from .conftest import House, git

BROKEN = {
    "syntax.py": b"def f(:\n",
    "return.py": b"return 1\n",  # a parser alone accepts these two
    "await.py": b"x = 1\nawait x\n",
    "tabs.py": b"if 1:\n\tx\n        y\n",
    "nul.py": b"x = 1\0\n",
    "cookie.py": b"# -*- coding: no-such -*-\nx = 1\n",
    "bytes.py": b"x = '\xff'\n",
    "deep.py": b"(" * 5000 + b")" * 5000,
    "merge.py": b"<<<<<<< ours\nx = 1\n=======\nx = 2\n>>>>>>> theirs\n",
}
FINE = {
    "latin.py": b"# -*- coding: latin-1 -*-\nx = '\xe9'\n",
    "bom.py": b"\xef\xbb\xbfx = 1\n",
    "crlf.py": b"x = 1\r\nif x:\r\n    y = 2\r\n",
    "escape.py": b"x = '\\d'\n",
    "empty.py": b"",
    "would_fail_if_run.py": b"raise SystemExit(3)\nimport no_such_module\n",
}


def make(repo: Repo, files: dict[str, bytes]) -> Tree:
    tree = Tree(repo.objects)
    for path, data in files.items():
        tree.set(path, Entry("100644", repo.objects.write_blob(data)))
    tree.write()
    return tree


@pytest.mark.parametrize("dry", [False, True])
def test_each_broken_file_is_found_and_no_other(tmp_path: Path, dry: bool) -> None:
    git(tmp_path, "init", "-q", "--bare", "x.git")
    tree = make(Repo.open(tmp_path / "x.git", dry=dry), BROKEN | FINE)
    result = run_gate(tree, python_files(tree), changed=BROKEN)
    assert {f.path for f in result.findings} == set(BROKEN)
    assert (result.files, result.parsed, result.cache_hits) == (len(BROKEN | FINE), len(BROKEN | FINE), 0)
    assert next(f.line for f in result.findings if f.path == "await.py") == 2
    again = run_gate(tree, python_files(tree), changed=BROKEN)
    assert again.findings == result.findings
    assert again.cache_hits == len(FINE)


@settings(max_examples=15, deadline=None)
@given(sources=st.lists(st.text(st.sampled_from("ab=:()[] \n'#1"), max_size=30), min_size=1, max_size=12))
def test_verdicts_are_those_of_compile(tmp_path_factory: pytest.TempPathFactory, sources: list[str]) -> None:
    folder = tmp_path_factory.mktemp("gate")
    git(folder, "init", "-q", "--bare")
    tree = make(Repo.open(folder), {f"{n}.py": text.encode() for n, text in enumerate(sources)})
    found = {f.path for f in run_gate(tree, python_files(tree), use_cache=False).findings}
    for number, text in enumerate(sources):
        try:
            compile(text, "x", "exec", dont_inherit=True)
            bad = False
        except SyntaxError:
            bad = True
        assert (f"{number}.py" in found) is bad, text


def test_nothing_to_look_at_is_an_error(bare: Repo) -> None:
    with pytest.raises(UsageError, match="no Python file"):
        run_gate(make(bare, {"README": b"x"}), [])


def test_left_over_files_and_markers(bare: Repo) -> None:
    tree = make(bare, {"a.py.rej": b"", "b.orig": b"", "c.md": b"ok\n||||||| base\n", "d.rst": b"Title\n=======\n"})
    assert [(f.path, f.line) for f in left_overs(tree, ["a.py.rej", "b.orig", "c.md", "d.rst", "gone"])] == [
        ("a.py.rej", 0), ("b.orig", 0), ("c.md", 2),
    ]  # fmt: skip


def test_damaged_verdict_file_counts_as_empty(bare: Repo, tmp_path: Path) -> None:
    tree = make(bare, FINE)
    run_gate(tree, python_files(tree))
    file = next((tmp_path / "cache" / "vime-sync" / "parsed").iterdir())
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.write_bytes(data)
    assert run_gate(tree, python_files(tree)).cache_hits == 0
    assert run_gate(tree, python_files(tree)).cache_hits == len(FINE)


def test_interpreters() -> None:
    assert find_interpreter().key == find_interpreter(sys.executable).key
    with pytest.raises(UsageError, match="does not start"):
        find_interpreter("/no/such/python")


def test_verify_reports_the_gate(house: House) -> None:
    house.add("bad.patch", {"engine/core.py": b"return 1\n"})
    told = house.run("verify", code=1)
    gate = told["data"]["gate"]
    assert (gate["files"], gate["parsed"], gate["cache_hits"]) == (5, 5, 0)
    assert [(f["path"], f["line"]) for f in gate["findings"]] == [("engine/core.py", 1)]
    assert house.run("verify", "--changed", code=1)["data"]["gate"]["files"] == 1
    assert house.run("verify", code=1)["data"]["gate"]["cache_hits"] == 4
