"""Hunks rebuild files exactly; lineage agrees with git blame."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from synctool.plan.hunks import Edits, FilePatch, is_inverse
from synctool.plan.lineage import stands_on

EXAMPLES = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LINE = st.sampled_from(
    [
        b"a\n",
        b"b\n",
        b"\n",
        b"--- x\n",
        b"+++ y\n",
        b"diff --git a/x b/x\n",
        b"\xff\xfe\n",
        b"cr\r\n",
        b"@@ -1 +1 @@\n",
        b"0" * 40 + b"\n",
    ]
)
CONTENT = st.builds(
    lambda lines, cut: b"".join(lines)[: -1 if cut and lines else None], st.lists(LINE, max_size=12), st.booleans()
)
NAMES = ("x", "sp ace", 'quo"te', "tab\tname", "naïve/ä", "new\nline")


def apply(old: bytes, patch: FilePatch) -> bytes:
    lines = old.splitlines(keepends=True) if b"\r" not in old else [part + b"\n" for part in old.split(b"\n")]
    if b"\r" in old:
        lines = lines[:-1] if old.endswith(b"\n") else [*lines[:-1], lines[-1][:-1]]
    for hunk in reversed(patch.hunks):
        assert tuple(lines[hunk.old_at : hunk.old_at + len(hunk.removed)]) == hunk.removed
        lines[hunk.old_at : hunk.old_at + len(hunk.removed)] = hunk.added
    return b"".join(lines)


@EXAMPLES
@given(st.lists(st.dictionaries(st.sampled_from(NAMES), CONTENT, max_size=4), min_size=2, max_size=4))
def test_hunks_rebuild_every_file(story, states):
    parent = story.commit("start")
    pairs = []
    have: dict[str, bytes] = {}
    snapshots = []
    for state in states:
        files = {**{path: None for path in have if path not in state}, **state}
        oid = story.commit("next", files, parent)
        pairs.append((parent, oid))
        snapshots.append((have, state))
        have, parent = dict(state), oid
    edits, looked = Edits(story.repo), Edits(story.repo)
    edits.load(pairs)
    looked.look(pairs)
    for pair, (before, after) in zip(pairs, snapshots, strict=True):
        assert edits.changes(pair) == looked.changes(pair)
        rebuilt = dict(before)
        for patch in edits.patches(pair):
            old = before.get(patch.change.old_path, b"")
            if patch.change.old_path != patch.change.path or patch.change.status == "D":
                rebuilt.pop(patch.change.old_path, None)
            if patch.change.status != "D":
                rebuilt[patch.change.path] = apply(old, patch)
        assert rebuilt == after


def test_binary_mode_type_and_rename(story):
    first = story.commit(
        "first", {"b": b"\0one", "run": "x\n", "link": "target\n", "old": "\n".join("abcdefgh") + "\n"}
    )
    second = story.commit(
        "second",
        {
            "b": b"\0two",
            "run": ("100755", "x\n"),
            "link": ("120000", "target"),
            "old": None,
            "new": "\n".join("abcdefgX") + "\n",
        },
        first,
    )
    edits = Edits(story.repo)
    by_path = {patch.change.path: patch for patch in edits.patches((first, second))}
    assert by_path["b"].binary
    assert not by_path["b"].hunks
    assert by_path["run"].change.mode == "100755"
    assert by_path["link"].change.status == "T"
    assert len(by_path["link"].hunks) == 2
    assert (by_path["new"].change.status, by_path["new"].change.old_path) == ("R", "old")
    assert by_path["new"].hunks[0].added == (b"X\n",)


def test_inverse_also_with_other_edits_of_the_file_in_between(story):
    base = story.commit("base", {"f": "".join(f"{n}\n" for n in range(30))})
    lines = [f"{n}\n" for n in range(30)]
    done = story.commit("done", {"f": "".join(["new\n", *lines[1:]])}, base)
    other = story.commit("other", {"f": "".join(["new\n", *lines[1:20], "else\n", *lines[21:]])}, done)
    undo = story.commit("undo", {"f": "".join([*lines[:20], "else\n", *lines[21:]])}, other)
    half = story.commit("half", {"f": "".join(["0!\n", *lines[1:20], "else\n", *lines[21:]])}, other)
    edits = Edits(story.repo)
    assert is_inverse(edits.patches((other, undo)), edits.patches((base, done)))
    assert not is_inverse(edits.patches((other, half)), edits.patches((base, done)))


@EXAMPLES
@given(st.data())
def test_lineage_names_everyone_that_blame_names(story, data):
    """Each line that a change removes was written by a change that the change stands on."""
    lines = [f"base {n}" for n in range(12)]
    base = parent = story.commit("base", {"f": "\n".join(lines) + "\n"})
    commits = []
    for number in range(data.draw(st.integers(2, 6))):
        for _ in range(data.draw(st.integers(1, 2))):
            at = data.draw(st.integers(0, len(lines)))
            width = data.draw(st.integers(0, min(3, len(lines) - at)))
            lines[at : at + width] = [
                f"{number}.{k} {data.draw(st.integers(0, 10**6))}" for k in range(data.draw(st.integers(0, 3)))
            ]
        parent = story.commit(str(number), {"f": "\n".join(lines) + "\n"}, parent)
        commits.append(parent)
    pairs = list(zip([base, *commits], commits, strict=False))
    edits = Edits(story.repo)
    under = stands_on([edits.patches(pair) for pair in pairs])
    for place, pair in enumerate(pairs):
        blamed = story.git("blame", "-s", "-l", pair[0], "--", "f").splitlines()
        for patch in edits.patches(pair):
            for hunk in patch.hunks:
                for line in range(hunk.old_at, hunk.old_at + len(hunk.removed)):
                    author = blamed[line].split()[0].removeprefix("^")
                    # blame may credit an identical earlier line; ours are unique, so it can't here
                    if author in commits:
                        assert commits.index(author) in under[place]


def test_neighbours_moves_and_deleted_files_count(story):
    base = story.commit("base", {"f": "a\nb\nc\nd\ne\nf\n", "g": "one\ntwo\nthree\nfour\n"})
    insert = story.commit("insert", {"f": "a\nb\nNEW\nc\nd\ne\nf\n"}, base)
    beside = story.commit("beside", {"f": "a\nb\nNEW\nBESIDE\nc\nd\ne\nf\n"}, insert)
    far = story.commit("far", {"f": "a\nb\nNEW\nBESIDE\nc\nd\ne\nF\n"}, beside)
    move = story.commit("move", {"g": None, "h": "one\ntwo\nthree\nfour\n"}, far)
    edit = story.commit("edit", {"h": "one\ntwo\nthree\nFOUR\n"}, move)
    pairs = [(base, insert), (insert, beside), (beside, far), (far, move), (move, edit)]
    edits = Edits(story.repo)
    under = stands_on([edits.patches(pair) for pair in pairs])
    assert under == [{}, {0: {"f"}}, {}, {}, {3: {"h"}}]
