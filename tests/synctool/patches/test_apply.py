"""Our applier against git's, on generated files and patches."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from synctool.errors import SyncError
from synctool.git import Entry, Repo, Tree
from synctool.patches.apply import DoesNotApply, apply_patch
from synctool.patches.difftext import parse_patch
from synctool.patches.export import diff_trees
from synctool.patches.pathpolicy import Allowed
from synctool.patches.referee import git_applies

from .conftest import git

# Few distinct lines, so that hunks fit in several places and the search order matters.
LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"  d\n", b"e\r\n"]), max_size=24)
FILES = st.builds(lambda lines, cut: b"".join(lines)[: -1 if cut and lines else None], LINES, st.booleans())
NAMES = st.sampled_from(["f", "sub/g", "sub/h i", "é/k", "z"])
TREES = st.dictionaries(NAMES, FILES, min_size=1, max_size=4)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    folder = tmp_path_factory.mktemp("shared")
    git(folder, "init", "-q", "--bare")
    return Repo.open(folder)


def write(repo: Repo, files: dict[str, bytes], executable: frozenset[str] = frozenset()) -> Tree:
    tree = Tree(repo.objects)
    for path, data in files.items():
        tree.set(path, Entry("100755" if path in executable else "100644", repo.objects.write_blob(data)))
    tree.write()
    return tree


def ours(tree: Tree, data: bytes) -> str | None:
    allowed = Allowed(executables=frozenset(["f", "sub/g", "sub/h i", "é/k", "z"]))
    try:
        return apply_patch(tree, parse_patch(data, "x"), "x", allowed=allowed)[0].write()
    except SyncError:
        return None


CAREFUL = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@CAREFUL
@given(before=TREES, after=TREES, context=st.integers(0, 4), bits=st.frozensets(NAMES), moves=st.booleans())
def test_a_diff_of_git_gives_the_tree_that_git_gives(
    shared: Repo, before: dict[str, bytes], after: dict[str, bytes], context: int, bits: frozenset[str], moves: bool
) -> None:
    old, new = write(shared, before), write(shared, after, bits)
    options = ["-M40%", "-C40%", "--find-copies-harder"] if moves else ["--no-renames"]
    data = shared.run(
        "diff-tree", "-r", "-p", "--binary", "--full-index", f"-U{context}", *options, old.write(), new.write()
    ).stdout
    if not data:
        return
    judge = git_applies(shared, old.write(), data)
    made = ours(old, data)
    assert made == judge.tree, judge.message
    if context:
        assert made == new.write()


@CAREFUL
@given(before=FILES, after=FILES, other=FILES, context=st.integers(1, 3))
def test_on_another_base_both_agree_on_place_or_refusal(
    shared: Repo, before: bytes, after: bytes, other: bytes, context: int
) -> None:
    old, new = write(shared, {"f": before}), write(shared, {"f": after})
    data = shared.run("diff-tree", "-r", "-p", "--full-index", f"-U{context}", old.write(), new.write()).stdout
    for base in (other + before, before + other, other + before + other, before + before, other):
        tree = write(shared, {"f": base})
        if data:
            judge = git_applies(shared, tree.write(), data)
            made = ours(tree, data)
            # Git lets a line without final newline match the start of a longer text; we do not. Otherwise both say the same.
            assert made == judge.tree or (made is None and b"\\ No newline" in data), judge.message


@CAREFUL
@given(before=TREES, after=TREES, seed=st.integers(0, 1 << 30))
def test_a_damaged_patch_is_never_taken_differently(
    shared: Repo, before: dict[str, bytes], after: dict[str, bytes], seed: int
) -> None:
    dice = random.Random(seed)
    old, new = write(shared, before), write(shared, after)
    lines = shared.run(
        "diff-tree", "-r", "-p", "--full-index", "--no-renames", old.write(), new.write()
    ).stdout.splitlines(keepends=True)
    if not lines:
        return
    for _ in range(4):
        damaged = list(lines)
        at = dice.randrange(len(damaged))
        match dice.randrange(5):
            case 0:
                del damaged[at]
            case 1:
                damaged.insert(at, dice.choice(lines))
            case 2:
                damaged[at] = bytes([dice.choice(b"+- @\\x")]) + damaged[at][1:]
            case 3:
                damaged = damaged[:at]
            case _:
                damaged[at] = damaged[at].replace(b"1", b"2")
        data = b"".join(damaged)
        made = ours(old, data)
        if made is not None and parse_patch(data, "x").files:
            judge = git_applies(shared, old.write(), data)
            assert judge.tree == made, (data, judge.message)


def test_binary_patches_with_deltas(bare: Repo) -> None:
    dice = random.Random(1)
    old = bytes(dice.randrange(256) for _ in range(5000))
    new = old[:1000] + b"changed" + old[1200:] + bytes(40)
    before, after = write(bare, {"f": old, "gone": b"\0\1"}), write(bare, {"f": new, "born": bytes(300)})
    data = diff_trees(bare, before.write(), after.write())
    assert b"delta " in data
    assert ours(before, data) == after.write()
    assert git_applies(bare, before.write(), data).tree == after.write()
    reverse = write(bare, {"f": old + b"x", "gone": b"\0\1"})
    with pytest.raises(DoesNotApply, match="binary and differs"):
        apply_patch(reverse, parse_patch(data, "x"), "x")


def test_files_may_swap_names(bare: Repo) -> None:
    old = write(bare, {"one": b"1\n" * 20, "two": b"2\n" * 20})
    data = b"".join(
        f"diff --git a/{a} b/{b}\nsimilarity index 100%\nrename from {a}\nrename to {b}\n".encode()
        for a, b in (("one", "two"), ("two", "one"))
    )
    # Each change reads the tree before the patch. Both paths are written by both changes, so the policy refuses it as changed twice.
    with pytest.raises(SyncError, match="changed twice"):
        apply_patch(old, parse_patch(data, "x"), "x")


def test_offset_is_reported_with_other_places(bare: Repo) -> None:
    body = b"".join(b"line %d\n" % n for n in range(9))
    patch = b"--- a/f\n+++ b/f\n@@ -3,3 +3,3 @@\n line 2\n-line 3\n+LINE\n line 4\n"
    _, outcomes = apply_patch(write(bare, {"f": b"x\n" * 5 + body}), parse_patch(patch, "x"), "x")
    place = outcomes[0].placed[0]
    assert (place.line, place.offset, place.alternatives) == (8, 5, 0)
    _, outcomes = apply_patch(write(bare, {"f": b"x\n" * 5 + body + body}), parse_patch(patch, "x"), "x")
    assert outcomes[0].placed[0].alternatives == 1


def test_fuzz_is_refused_and_only_a_waiver_lets_it_pass(bare: Repo) -> None:
    patch = parse_patch(b"--- a/f\n+++ b/f\n@@ -1,5 +1,5 @@\n 1\n 2\n-3\n+three\n 4\n 5\n", "x")
    tree = write(bare, {"f": b"CHANGED\n2\n3\n4\n5\n"})
    with pytest.raises(DoesNotApply) as caught:
        apply_patch(tree, patch, "x")
    assert "wants '1'" in (caught.value.hint or "")
    done, outcomes = apply_patch(tree, patch, "x", keep_context=1)
    assert outcomes[0].placed[0].dropped > 0
    entry = done.get("f")
    assert entry is not None
    assert done.store.read(entry.oid) == b"CHANGED\n2\nthree\n4\n5\n"


def test_export_does_not_depend_on_configuration(bare: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (
        write(bare, {"f.py": b"a\n\n\nb\n" * 9}),
        write(bare, {"f.py": b"a\n\n\nb\n" * 5 + b"X\n" + b"a\n\n\nb\n" * 4, "é x": b"1\n"}),
    )
    plain = diff_trees(bare, before.write(), after.write())
    config = tmp_path / "config"
    config.write_text(
        "[diff]\n noprefix=true\n mnemonicPrefix=true\n algorithm=patience\n context=9\n indentHeuristic=true\n[core]\n quotePath=true\n abbrev=4\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_DIFF_OPTS", "-u9")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert diff_trees(bare, before.write(), after.write()) == plain
    assert ours(before, plain) == after.write()
