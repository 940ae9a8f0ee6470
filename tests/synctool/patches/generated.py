"""A generated source tree and a stack of many small patches on it, for proofs in number and for benchmarks."""

from __future__ import annotations

import random
from collections.abc import Sequence

from synctool.git import Entry, Repo, Tree
from synctool.patches.export import diff_trees
from synctool.patches.stack import StackPatch

HEADER = (
    "Description: change {number}\nForwarded: https://example.org/{number}\nUpstream-Status: Submitted [https://example.org/{number}]\n"
    "Removal-Condition: the pin contains it\nRegression-Test: tests/test_x.py::test_{number}\n---\n"
)


def source_file(dice: random.Random, functions: int) -> bytes:
    """A Python file of many functions, a few of them alike, as in real code."""
    parts = []
    for n in range(functions):
        kind = dice.randrange(3)
        body = (
            f"    total = {dice.randrange(10**6)}\n    return total + x",
            "    if x is None:\n        return []\n    return [x]",
            "    return None",
        )[kind]
        parts.append(f"def function_{n}(x):\n{body}\n\n\n")
    return "".join(parts).encode()


def base_tree(repo: Repo, dice: random.Random, files: int = 60) -> Tree:
    """``pkg/a/mod_N.py`` and so on."""
    tree = Tree(repo.objects)
    for n in range(files):
        tree.set(f"pkg/{'abcdef'[n % 6]}/mod_{n}.py", Entry("100644", repo.objects.write_blob(source_file(dice, 30))))
    tree.write()
    return tree


def edit(repo: Repo, tree: Tree, dice: random.Random, number: int, paths: Sequence[str], hunks: int = 3) -> Tree:
    """A tree with ``hunks`` separate edits in files picked at random, each marked with the patch's number."""
    changed = tree.copy()
    for path in dice.sample(paths, hunks):
        entry = changed.get(path)
        assert entry is not None
        lines = repo.objects.read(entry.oid).splitlines(keepends=True)
        at = dice.choice([i for i, line in enumerate(lines) if line.startswith(b"def ")])
        match dice.randrange(3):
            case 0:
                lines.insert(at + 1, b"    mark = %d\n" % number)
            case 1:
                lines[at + 1] = b"    replaced = %d\n" % number
            case _:
                lines[at:at] = [b"def added_%d():\n" % number, b"    return %d\n" % number, b"\n", b"\n"]
        changed.set(path, Entry(entry.mode, repo.objects.write_blob(b"".join(lines))))
    changed.write()
    return changed


def editable(repo: Repo, tree: Tree, prefix: str) -> list[str]:
    """Python files below a folder that have a function at the left margin."""
    found = [(path, entry.oid) for path, entry in tree.items(prefix) if path.endswith(".py")]
    data = repo.objects.read_many(oid for _, oid in found)
    return [path for path, oid in found if b"\ndef " in b"\n" + data[oid] and data[oid].endswith(b"\n")]


def make_stack(
    repo: Repo, tree: Tree, dice: random.Random, count: int, prefix: str = "pkg"
) -> tuple[list[StackPatch], list[str]]:
    """``count`` patches and the trees before, between and after them."""
    patches, trees = [], [tree.write()]
    paths = editable(repo, tree, prefix)
    for number in range(count):
        tree = edit(repo, tree, dice, number, paths)
        trees.append(tree.write())
        data = HEADER.format(number=number).encode() + diff_trees(repo, trees[-2], trees[-1])
        patches.append(StackPatch(f"change-{number:03}.patch", data, f"change-{number:03}.patch"))
    return patches, trees


def hunks_of(patches: Sequence[StackPatch]) -> int:
    """All hunks of the patches."""
    return sum(len(change.hunks) for patch in patches for change in patch.text.files)
