"""The byte code of a candidate: the same bytes each time, and never older than its source."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "docker" / "bytecode.py"
SOURCES = {
    "one.py": 'WORDS = frozenset(("a", "b", "c"))\n\ndef f(x):\n    return x in {"d", "e", "f"} or x in WORDS\n',
    "inner/two.py": "from one import f\nNAME = 'd' + 'e'\n",
    "later.py": "type X[T] = list[T]\nprint(f'{'nested' + 'quotes'}') if then\n",
    "empty.py": "",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in SOURCES.items():
        (tmp_path / "t" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "t" / name).write_text(text)
    return tmp_path / "t"


def compiled(tree: Path, seed: str) -> dict[str, bytes]:
    for cache in list(tree.rglob("__pycache__")):
        shutil.rmtree(cache)
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), str(tree)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": seed},
    )
    assert "later.py" in ended.stdout
    assert "all but 1 files" in ended.stdout
    return {path.relative_to(tree).as_posix(): path.read_bytes() for path in tree.rglob("*.pyc")}


def test_the_same_bytes_each_time_and_only_what_this_python_reads(tree: Path) -> None:
    first = compiled(tree, "1")
    for path in tree.rglob("*.py"):
        path.touch()
    assert compiled(tree, "2") == first
    assert {name.partition(".")[0] for name in first} == {
        "__pycache__/one",
        "__pycache__/empty",
        "inner/__pycache__/two",
    }


def test_a_source_that_is_changed_is_read_again(tree: Path) -> None:
    compiled(tree, "0")

    def answer() -> str:
        words = [sys.executable, "-c", "import one; print(one.f('z'), one.__cached__)"]
        return subprocess.run(words, cwd=tree, capture_output=True, text=True, check=True).stdout

    assert answer().startswith("False")
    (tree / "one.py").write_text("def f(x):\n    return 'new'\n")
    assert answer().startswith("new")
