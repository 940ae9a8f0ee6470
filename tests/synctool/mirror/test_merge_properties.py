"""Laws of the text merge that hold for any input: disjoint edits, nothing lost, markers that read back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from synctool.git.repo import Repo
from synctool.mirror.anchors import aligned_changes
from synctool.mirror.filetext import merge_text
from synctool.mirror.pieces import (
    Hunk,
    Labels,
    choose,
    compact,
    hunks_of,
    lines_of,
    parse_conflicts,
    render,
    side,
)
from synctool.mirror.refine import refine
from synctool.mirror.resolve.proven import beside, present, removed, rewritten, vocabulary
from synctool.mirror.resolve.tokens import bytes_of, text_of, tokens
from synctool.mirror.resolve.toolbox import Toolbox
from synctool.mirror.textmerge import TextMerger
from synctool.policy.loading import parse_policy
from synctool.translate.translator import Translator
from tests.synctool.mirror.world import POLICY, World

LINE = st.sampled_from([b"a\n", b"b\n", b"c\n", b"Photon d\n", b"photon e\n", b"\n", b"  a\n", b"x = f(a, b)\n"])
TEXT = st.lists(LINE, max_size=14).map(b"".join)
SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def merger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextMerger]:
    world = World(tmp_path_factory.mktemp("merge") / "hub.git")
    with TextMerger(Repo.open(world.repo.git_dir).git_dir) as made:
        yield made


@pytest.fixture(scope="module")
def toolbox() -> Toolbox:
    policy = parse_policy(POLICY)
    return Toolbox.from_policy(policy, Translator.from_policy(policy))


@SLOW
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.booleans(), st.lists(st.integers(0, 99), max_size=3)),
        max_size=6,
        unique_by=lambda e: e[0],
    )
)
def test_disjoint_edits_merge_clean_and_both_are_there(
    merger: TextMerger, toolbox: Toolbox, edits: list[tuple[int, bool, list[int]]]
) -> None:
    """Each edit replaces line 4n+1 of base; the lines between keep them apart. Applying both sides' edits one after the other is the truth."""
    base = [f"line {number}\n".encode() for number in range(45)]
    ours, theirs, both = list(base), list(base), list(base)
    for place, mine, new in edits:
        text = b"".join(f"edit {place} {value}\n".encode() for value in new)
        at = 4 * place + 1
        both[at] = text
        (ours if mine else theirs)[at] = text
    merged = merge_text(merger, b"".join(ours), b"".join(base), b"".join(theirs), toolbox.proven)
    assert merged.clean
    assert side(merged.pieces, "ours") == b"".join(both)


@SLOW
@given(TEXT, TEXT, TEXT)
def test_no_line_is_lost(merger: TextMerger, toolbox: Toolbox, ours: bytes, base: bytes, theirs: bytes) -> None:
    """What ours or theirs adds to base is in the result, in a conflict, or in an upstream edit that is handed on to be filed. Blank lines aside."""
    merged = merge_text(merger, ours, base, theirs, toolbox.proven)
    shown = {toolbox.canonical(line).strip() for piece in merged.pieces for line in _all(piece)}
    filed = {toolbox.canonical(line).strip() for hunk in merged.dropped for line in hunk.theirs}
    old = {toolbox.canonical(line).strip() for line in lines_of(base)}
    for line in lines_of(ours):
        word = toolbox.canonical(line).strip()
        assert not word or word in old or word in shown
    for line in lines_of(theirs):
        word = toolbox.canonical(line).strip()
        assert not word or word in old or word in shown or word in filed


def _all(piece: tuple[bytes, ...] | Hunk) -> tuple[bytes, ...]:
    return piece.ours + piece.base + piece.theirs if isinstance(piece, Hunk) else piece


@SLOW
@given(TEXT, TEXT)
def test_a_side_that_did_not_change_never_decides(
    merger: TextMerger, toolbox: Toolbox, one: bytes, other: bytes
) -> None:
    for ours, base, theirs, expected in ((one, one, other, other), (one, other, other, one), (one, other, one, one)):
        merged = merge_text(merger, ours, base, theirs, toolbox.proven)
        assert merged.clean
        assert side(merged.pieces, "ours") == expected


@given(st.lists(st.lists(LINE, max_size=4).map(tuple) | st.builds(Hunk, *[st.lists(LINE, max_size=3).map(tuple)] * 3)))
def test_markers_read_back(pieces: list[tuple[bytes, ...] | Hunk]) -> None:
    whole = compact(pieces)
    assert parse_conflicts(render(whole, Labels())) == whole
    count = len(hunks_of(whole))
    chosen = choose(whole, dict.fromkeys(range(1, count + 1), b"chosen\n"))
    assert hunks_of(chosen) == []
    assert side(chosen, "ours").count(b"chosen\n") == count


@given(st.builds(Hunk, *[st.lists(LINE, max_size=8).map(tuple)] * 3))
def test_refining_keeps_each_side_whole(hunk: Hunk) -> None:
    """Taking one side of every part gives at least that side's own edits: with the other side equal to base it is that side exactly."""
    assert side(refine(Hunk(hunk.ours, hunk.base, hunk.base)), "ours") == b"".join(hunk.ours)
    assert side(refine(Hunk(hunk.base, hunk.base, hunk.theirs)), "ours") == b"".join(hunk.theirs)
    for name in ("ours", "theirs"):
        got = side(refine(hunk), name).splitlines()
        assert all(line.rstrip(b"\n") in got or line in hunk.base for line in getattr(hunk, name))


@given(st.lists(LINE, max_size=20), st.lists(LINE, max_size=20))
def test_aligned_changes_make_one_text_from_the_other(old: list[bytes], new: list[bytes]) -> None:
    made: list[bytes] = []
    position = 0
    for _, i1, i2, j1, j2 in aligned_changes(old, new):
        assert old[i1:i2] != new[j1:j2]
        made += old[position:i1] + new[j1:j2]
        position = i2
    assert made + old[position:] == new


@given(st.text(max_size=60) | st.binary(max_size=60).map(text_of))
def test_tokens_join_to_the_text(text: str) -> None:
    assert "".join(tokens(text)) == text


@given(st.binary(max_size=40))
def test_text_and_bytes_are_inverse(data: bytes) -> None:
    assert bytes_of(text_of(data)) == data


def lines(*words: str) -> tuple[bytes, ...]:
    return tuple(f"{word}\n".encode() for word in words)


def test_what_each_resolver_settles_and_leaves(toolbox: Toolbox) -> None:
    canonical = toolbox.canonical
    translated = Hunk(lines("use photon"), lines("use Photon"), lines("use the burner"))
    assert vocabulary(translated, canonical) == (lines("use the burner"),)
    assert vocabulary(Hunk(lines("mine"), lines("base"), lines("yours")), canonical) is None

    ported = Hunk(lines("a", "new", "ours"), lines("a"), lines("a", "new"))
    assert present(ported, canonical) == (lines("a", "new", "ours"),)
    assert present(Hunk(lines("a", "gone"), lines("a", "gone"), lines("a", "new")), canonical) is None

    inserted = Hunk(lines("ours"), lines("base"), lines("base", "added"))
    assert beside(inserted, canonical) == (lines("ours", "added"),)
    assert beside(Hunk(lines("ours"), lines("base"), lines("theirs")), canonical) is None

    assert removed(Hunk((), lines("a", "b"), lines("a", "B")), canonical) == ((),)
    assert removed(Hunk((), lines("a"), lines("a", "b")), canonical) is None  # that is news
    assert removed(Hunk(lines("x"), lines("a"), lines("b")), canonical) is None

    block = [f"old {number}" for number in range(8)]
    assert rewritten(Hunk(lines("own"), lines(*block), lines(*block[:-1], "new")), canonical) == (lines("own"),)
    assert rewritten(Hunk(lines("own", "old 2"), lines(*block), lines(*block[:-1], "new")), canonical) is None
    assert rewritten(Hunk(lines("own"), lines(*block[:3]), lines(*block[:2], "new")), canonical) is None


def test_proposals_say_what_they_rest_on_and_are_not_offered_unless_measured_right(toolbox: Toolbox) -> None:
    hunk = Hunk(lines("call(a, 2, c, d, e)"), lines("call(a, b, c, d, e)"), lines("call(a, b, c, d, 5)"))
    found = {proposal.kind: proposal for proposal in toolbox.propose(hunk)}
    assert found["token"].text == b"call(a, 2, c, d, 5)\n"
    imports = Hunk(lines("import b"), lines("import a"), lines("import a", "from m import Z, x"))
    found |= {proposal.kind: proposal for proposal in toolbox.propose(imports)}
    assert found["imports"].text == b"import b\nfrom m import Z, x\n"
    assert all(proposal.rests_on and not proposal.offered for proposal in found.values())
