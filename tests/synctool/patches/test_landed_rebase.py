"""Landed proof and rebase: all that landed is found, nothing that did not is claimed, failures do not stop the rest."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from synctool.git import Entry, Repo, Tree
from synctool.patches.apply import apply_patch
from synctool.patches.difftext import parse_patch
from synctool.patches.filepatch import PatchText
from synctool.patches.landed import Landing, prove_landed
from synctool.patches.pathpolicy import Allowed
from synctool.patches.stack import StackPatch, Step, apply_stack

from .conftest import FILES, House, make_archive, write_pin
from .generated import base_tree, hunks_of, make_stack


def prove(repo: Repo, old: str, patches: list[StackPatch], release: Tree) -> list[Landing]:
    steps = list(apply_stack(Tree(repo.objects, old), tuple(patches), Allowed()))
    return prove_landed(steps, {step.before: Tree(repo.objects, step.before) for step in steps}, release, {})


def test_all_of_two_hundred_landed_are_found(bare: Repo) -> None:
    dice = random.Random(7)
    patches, trees = make_stack(bare, base_tree(bare, dice), dice, 200)
    found = prove(bare, trees[0], patches, Tree(bare.objects, trees[-1]))
    assert [(landing.patch.name, landing.proofs) for landing in found if landing.state != "landed"] == []
    assert sum(len(landing.proofs) for landing in found) == hunks_of(patches)
    assert all(landing.residual is None for landing in found)


def test_none_of_two_hundred_is_claimed_when_none_landed(bare: Repo) -> None:
    dice = random.Random(8)
    patches, trees = make_stack(bare, base_tree(bare, dice), dice, 200)
    found = prove(bare, trees[0], patches, Tree(bare.objects, trees[0]))
    assert {landing.state for landing in found} == {"absent"}


def test_exactly_the_landed_hunks_are_found_and_the_rest_still_applies(bare: Repo) -> None:
    """A release takes a random part of each patch's files, and drifts elsewhere: the truth is known for every hunk."""
    dice = random.Random(9)
    patches, trees = make_stack(bare, base_tree(bare, dice), dice, 200)
    release = Tree(bare.objects, trees[0])
    truth: dict[tuple[str, int], bool] = {}
    blocked: set[str] = set()
    for patch in patches:
        taken = []
        for change in patch.text.files:
            # A later hunk may need the lines of an earlier one that was not taken: then it cannot have landed either.
            try:
                if change.path in blocked or dice.random() < 0.5:
                    raise LookupError
                release, _ = apply_patch(release, PatchText(b"", (change,)), patch.name)
            except LookupError:
                blocked.add(change.path)
                truth.update({(patch.name, hunk.at): False for hunk in change.hunks})
            else:
                taken.append(change)
                truth.update({(patch.name, hunk.at): True for hunk in change.hunks})
    drifted = [path for path, _ in release.items("pkg")][::3]
    for path in drifted:
        entry = release.get(path)
        assert entry is not None
        data = b'"""Drift."""\n\n' + bare.objects.read(entry.oid)
        release.set(path, Entry(entry.mode, bare.objects.write_blob(data)))
    release.write()
    found = prove(bare, trees[0], patches, release)
    said = {(landing.patch.name, proof.at): proof.landed for landing in found for proof in landing.proofs}
    assert said == truth
    states = [landing.state for landing in found]
    assert states.count("half-landed") > 20
    assert "landed" in states
    # What is left of every patch applies, in order, to the release that has the rest. (A hunk at a file's start does not where lines came before it.)
    for landing in found:
        left = [change for change in landing.residual.files if change.path not in drifted] if landing.residual else []
        release, outcomes = apply_patch(release, PatchText(b"", tuple(left)), landing.patch.name)
        assert len(outcomes) == len(left)


@pytest.mark.parametrize(
    ("before", "after", "release", "landed"),
    [
        # Its new lines stand in the release, but did before too: a twin elsewhere proves nothing.
        (b"p\nq\nr\nA\np\nq\nNEW\nr\n", b"p\nq\nNEW\nr\nA\np\nq\nNEW\nr\n", b"p\nq\nr\nA\np\nq\nNEW\nr\n", False),
        # One twin more than before, and the old lines are gone: proven.
        (b"p\nq\nr\nA\np\nq\nNEW\nr\n", b"p\nq\nNEW\nr\nA\np\nq\nNEW\nr\n", b"top\np\nq\nNEW\nr\nA\np\nq\nNEW\nr\n", True),
        # The new lines came somewhere else while the old ones stay as they were.
        (b"1\n2\n3\n4\n5\n6\n7\n8\n9\n", b"1\n2\n3\n4\nX\n6\n7\n8\n9\n", b"1\n2\n3\n4\n5\n6\n7\n8\n9\n0\n2\n3\n4\nX\n6\n7\n8\n", False),
        # A removal: its context stands together now.
        (b"1\n2\n3\n4\n5\n6\n7\n", b"1\n2\n3\n5\n6\n7\n", b"0\n1\n2\n3\n5\n6\n7\n", True),
        # The place was rewritten otherwise.
        (b"1\n2\n3\n4\n5\n6\n7\n", b"1\n2\n3\nX\n5\n6\n7\n", b"1\n2\n3\nY\n5\n6\n7\n", False),
    ],
)  # fmt: skip
def test_nothing_is_claimed_without_proof(
    bare: Repo, before: bytes, after: bytes, release: bytes, landed: bool
) -> None:
    from synctool.patches.export import diff_trees

    trees = []
    for data in (before, after, release):
        tree = Tree(bare.objects)
        tree.set("f", Entry("100644", bare.objects.write_blob(data)))
        trees.append(tree.write())
    patch = StackPatch("x.patch", diff_trees(bare, trees[0], trees[1]), "x.patch")
    found = prove(bare, trees[0], [patch], Tree(bare.objects, trees[2]))[0]
    assert (found.state == "landed") is landed, found.proofs


def test_files_that_come_go_or_change_mode(bare: Repo) -> None:
    def tree_of(files: dict[str, tuple[str, bytes]]) -> str:
        tree = Tree(bare.objects)
        for path, (mode, data) in files.items():
            tree.set(path, Entry(mode, bare.objects.write_blob(data)))
        return tree.write()

    def step(old: str, new: str) -> Step:
        from synctool.patches.export import diff_trees

        return Step(StackPatch("x.patch", diff_trees(bare, old, new), "x.patch"), old, new, ())

    old = tree_of({"gone": ("100644", b"1\n"), "tool": ("100644", b"t\n"), "bin": ("100644", b"\0\1")})
    new = tree_of({"born": ("100644", b"2\n"), "tool": ("100755", b"t\n"), "bin": ("100644", b"\0\2")})
    steps = [step(old, new)]
    trees = {old: Tree(bare.objects, old)}
    full = prove_landed(steps, trees, Tree(bare.objects, new), {})[0]
    assert (full.state, len(full.proofs)) == ("landed", 4)
    none = prove_landed(steps, trees, Tree(bare.objects, old), {})[0]
    assert none.state == "absent"
    other = tree_of(
        {
            "born": ("100644", b"other\n"),
            "moved": ("100644", b"1\n"),
            "tool": ("100644", b"t\n"),
            "bin": ("100644", b"\0\2"),
        }
    )
    part = prove_landed(steps, trees, Tree(bare.objects, other), {"gone": "moved"})[0]
    assert {p.path: p.landed for p in part.proofs} == {"born": False, "gone": False, "tool": False, "bin": True}


def swapped(data: bytes, *pairs: tuple[bytes, bytes]) -> bytes:
    for old, new in pairs:
        assert old in data
        data = data.replace(old, new)
    return data


@pytest.fixture
def rebasing(house: House) -> House:
    """Seven patches and a release 1.1 that gives each of them another fate."""
    core = FILES["engine/core.py"]
    house.add("a-applies.patch", {"engine/sub/util.py": b"A = 1\nB = 2\nC = 3\nD = 4\n"})
    house.add("b-offset.patch", {"engine/core.py": (c1 := swapped(core, (b"x + 11", b"x + 110")))})
    house.add("c-landed.patch", {"engine/core.py": (c2 := swapped(c1, (b"x + 3\n", b"x + 30\n")))})
    house.add(
        "d-half.patch",
        {"engine/core.py": (c3 := swapped(c2, (b"x + 7\n", b"x + 70\n"))), "engine/extra.py": b"E = 1\n"},
    )
    house.add("e-drift.patch", {"engine/core.py": (c4 := swapped(c3, (b"x + 9\n", b"x + 90\n")))})
    house.add("f-conflict.patch", {"engine/last.py": b"X = 2\nY = 2"})
    house.add("g-moved.patch", {"README.md": b"# engine\nmore\n" * 1})
    new = FILES | {
        "engine/core.py": b"import os\n"
        + swapped(
            core, (b"x + 3\n", b"x + 30\n"), (b"x + 7\n", b"x + 70\n"), (b"def step_10(x)", b"def step_10(x: int)")
        ),
        "engine/last.py": b"X = 3\nY = 2",
        "engine/_version.py": b"v = 1\n",
    }
    del new["README.md"]
    new["docs/README.md"] = FILES["README.md"]
    archive = make_archive(house.archive.with_name("engine-1.1.tar.gz"), new, "engine-1.1")
    write_pin(house.stack.parent / "1.1", archive, "1.1")
    assert c4
    return house


def test_rebase_gives_every_patch_its_class_and_goes_on(rebasing: House) -> None:
    house = rebasing
    before = {p.name: p.read_bytes() for p in house.stack.iterdir()}
    options = ("--stack", str(house.stack), "--to", "1.1")
    shown = house.run("rebase", *options, "--dry-run", code=1)
    new = house.stack.parent / "1.1"
    assert {p.name for p in new.iterdir()} == {"pin.toml", "series"}
    told = house.run("rebase", *options, code=1)
    assert told["data"]["tree"] == shown["data"]["tree"]
    fates = {row["patch"]: row["fate"] for row in told["data"]["patches"]}
    assert fates == {
        "a-applies.patch": "applies",
        "b-offset.patch": "offset",
        "c-landed.patch": "landed",
        "d-half.patch": "half-landed",
        "e-drift.patch": "drift",
        "f-conflict.patch": "conflict",
        "g-moved.patch": "offset",
    }
    assert told["data"]["renames"] == {"README.md": "docs/README.md"}
    assert {p.name: p.read_bytes() for p in house.stack.iterdir()} == before
    # The half-landed patch keeps only the file that has not landed; headers stay to the byte.
    half = parse_patch((new / "d-half.patch").read_bytes(), "d")
    assert [change.path for change in half.files] == ["engine/extra.py"]
    assert half.header == parse_patch(before["d-half.patch"], "d").header
    assert "c-landed.patch" not in [
        line for line in (new / "series").read_text().splitlines() if not line.startswith("#")
    ]


def test_conflict_is_named_until_it_is_resolved_in_its_folder(rebasing: House, tmp_path: Path) -> None:
    house = rebasing
    house.run("rebase", "--stack", str(house.stack), "--to", "1.1", code=1)
    new = house.stack.parent / "1.1"
    at = ("--stack", str(new))
    failing = house.run("verify", *at, code=1)
    assert "f-conflict.patch" in failing["data"]["error"]["where"]
    work = tmp_path / "work"
    laid = house.run("edit", "f-conflict.patch", str(work), *at)
    assert laid["data"]["conflicts"] == ["engine/last.py"]
    text = (work / "engine/last.py").read_bytes()
    assert b"<<<<<<< new release" in text
    assert b"||||||| old release" in text
    house.run("refresh", "f-conflict.patch", "--from", str(work), "--accept", *at, code=3)  # markers are still there
    (work / "engine/last.py").write_bytes(b"X = 23\nY = 2")
    house.run("refresh", "f-conflict.patch", "--from", str(work), "--accept", *at)
    told = house.run("verify", "--no-drift", "--referee", *at)
    assert told["data"]["error"] is None
    assert not (new / "conflicts").exists()
    house.run("rebase", "--stack", str(house.stack), "--to", "1.1", code=5)  # never overwrites work


def test_landed_verb_and_dropped_patch(rebasing: House) -> None:
    house = rebasing
    at = ("--stack", str(house.stack))
    told = house.run("landed", *at, "--in", "1.1")
    states = {row["patch"]: row["state"] for row in told["data"]["patches"]}
    assert states["c-landed.patch"] == "landed"
    assert states["d-half.patch"] == "half-landed"
    assert set(states.values()) == {"landed", "half-landed", "absent"}
    house.run("drop", "a-applies", *at, "--at-next-pin", "--reason", "upstream took another way")
    assert house.run("list", *at)["data"]["patches"][0]["drop_at_next_pin"] is True
    told = house.run("rebase", *at, "--to", "1.1", "--dry-run", code=1)
    assert told["data"]["patches"][0]["fate"] == "dropped"


def test_release_learned_from_an_archive_without_a_pin(house: House) -> None:
    house.add("a.patch", {"engine/sub/util.py": b"A = 10\nB = 2\nC = 3\n"})
    archive = make_archive(house.root / "engine-2.0.tar.gz", FILES, "engine-2.0")
    house.run("rebase", "--to", "2.0", "--offline", code=30)
    house.run("verify")
    house.run("rebase", "--to", "2.0", "--offline", code=2)
    told = house.run("rebase", "--to", "2.0", "--new-source", str(archive))
    assert told["data"]["counts"] == {"applies": 1}
    assert (
        house.run("verify", "--stack", str(house.stack.parent / "2.0"), "--no-drift")["data"]["pin"]["version"] == "2.0"
    )
