"""What downstream's history records, and where the next sync begins."""

from __future__ import annotations

import pytest

from synctool.errors import RepositoryError, UsageError
from synctool.plan.build import build_plan
from synctool.plan.history import read_history
from synctool.plan.manifest_write import new_manifest


@pytest.fixture
def upstream(story):
    """Five changes on a root that both sides have."""
    oids = [story.commit("root", {"a": "0\n"})]
    for n in range(1, 6):
        oids.append(story.commit(f"Change {n} (#{n})", {f"file{n}": f"the content of file {n}\n"}, oids[-1]))
    return oids


def history(story, upstream, downstream):
    return read_history(story.repo, downstream, upstream[-1], upstream_name="lantern")


def resume(story, policy, words, upstream, downstream):
    return build_plan(story.repo, policy, words, base=None, through=upstream[-1], downstream=downstream)


def trailers(*oids):
    return "Sync\n\n" + "\n".join(f"Upstream-Commit: {oid}" for oid in oids)


def test_trailers_anywhere_in_a_squash(story, upstream):
    body = f"* first\n\nUpstream-Commit: {upstream[1]}\nUpstream-PR: #1\n\n* second\n\nUpstream-Commit: {upstream[2][:10]}\n\nUpstream-PR: #99\n"
    sync = story.commit("sync (#40)", {"x": "1\n"}, upstream[0], body=body)
    found = history(story, upstream, sync)
    assert found.recorded(upstream[1], None).downstream == sync
    assert found.recorded(upstream[2], None).key == "Upstream-Commit"
    assert found.recorded(upstream[3], 99) is None, "numbers beside ids add nothing"
    only_numbers = story.commit("sync", {"y": "1\n"}, sync, body="Upstream-PR: lamps/lantern#3")
    assert history(story, upstream, only_numbers).recorded("e" * 40, 3).downstream == only_numbers


@pytest.mark.parametrize("how", ["sha", "subject", "number", "tree"])
def test_a_reverted_sync_does_not_count_until_its_revert_is_reverted(story, upstream, how):
    before = story.commit("own work", {"own": "1\n"}, upstream[0])
    sync = story.commit("sync: weekly (#40)", {"x": "1\n"}, before, body=trailers(upstream[1]))
    subject, body = {
        "sha": ("take it back", ""),
        "subject": ('Revert "sync: weekly"', ""),
        "number": ("revert: that sync (#40)", ""),
        "tree": ("oops", ""),
    }[how]
    if how == "sha":
        subject, body = 'Revert "something renamed since"', f"This reverts commit {sync}."
    files = {"x": None} if how == "tree" else {"x": "2\n"}
    back = story.commit(subject, files, sync, body=body)
    found = history(story, upstream, back)
    assert found.undone == {sync: back}
    assert found.recorded(upstream[1], None) is None
    assert found.taken_back(upstream[1], None)[1] == back
    again = story.commit("redo", {"x": "3\n"}, back, body=f"This reverts commit {back}.")
    assert history(story, upstream, again).undone == {sync: back}, "prose in a commit of another subject is no revert"
    again = story.commit('Revert "the revert"', {"x": "3\n"}, back, body=f"This reverts commit {back}.")
    found = history(story, upstream, again)
    assert found.undone == {back: again}
    assert found.recorded(upstream[1], None).downstream == sync


def test_reverting_a_merge_takes_back_all_that_it_brought(story, upstream):
    before = story.commit("own work", {"own": "1\n"}, upstream[0])
    side1 = story.commit("mirror 1", {"x": "1\n"}, before, body=trailers(upstream[1]))
    side2 = story.commit("mirror 2", {"y": "1\n"}, side1, body=trailers(upstream[2]))
    main = story.commit("own work 2", {"own": "2\n"}, before)
    merged = story.commit("Merge pull request #7 from us/sync", {"x": "1\n", "y": "1\n"}, main, side2)
    back = story.commit(
        'Revert "sync"',
        {"own": "3\n"},
        merged,
        body=f"This reverts commit {merged}, reversing\nchanges made to {main}.",
    )
    found = history(story, upstream, back)
    assert set(found.undone) == {merged, side1, side2}
    assert found.recorded(upstream[1], None) is None


def test_prose_is_a_claim_only(story, policy, words, upstream):
    sync = story.commit("port lantern #1/#2 and lantern #3", {"x": "1\n"}, upstream[0])
    assert set(history(story, upstream, sync).claims) == {1, 2, 3}
    made = resume(story, policy, words, upstream, sync)
    assert made.items[0].decision.kind == "take"
    assert made.items[0].decision.evidence[0].kind == "claim"
    assert any("mentions #3" in warning and f"--from {upstream[3][:9]}" in warning for warning in made.warnings)


def test_resume_at_the_fork_point(story, policy, words, upstream):
    downstream = story.commit("own", {"own": "1\n"}, upstream[2])
    made = resume(story, policy, words, upstream, downstream)
    assert (made.base, len(made)) == (upstream[2], 3)
    assert "fork point" in made.base_from


def test_resume_after_trailers_stops_at_a_gap(story, policy, words, upstream):
    one = story.commit("m1", {"file1": "the content of file 1\n"}, upstream[0], body=trailers(upstream[1]))
    two = story.commit("m2", {"file2": "x\n"}, one, body=trailers(upstream[2]))
    four = story.commit("m4", {"file4": "x\n"}, two, body=trailers(upstream[4]))
    made = resume(story, policy, words, upstream, four)
    assert made.base == upstream[2]
    assert made.base_from == f"the Upstream-Commit trailer of {two[:9]}"
    assert [str(i.decision.kind) for i in made] == ["take", "present", "take"]
    assert any("1 change(s) after the resume point" in warning for warning in made.warnings)


def with_manifest(story, policy, words, base, through, downstream, *edits):
    made = build_plan(story.repo, policy, words, base=base, through=through, downstream=downstream)
    text = new_manifest(made, "lantern")
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    name = f"sync_manifests/{base[:9]}..{through[:9]}.toml"
    return story.commit("sync", {name: text}, downstream)


def test_resume_after_a_manifest(story, policy, words, upstream):
    own = story.commit("own", {"own": "1\n"}, upstream[0])
    defer = (
        'subject = "Change 2 (#2)"\ndecision = "take"',
        'subject = "Change 2 (#2)"\ndecision = "defer"\nreason = "after the release"',
    )
    synced = with_manifest(story, policy, words, upstream[0], upstream[3], own, defer)
    made = resume(story, policy, words, upstream, synced)
    assert (made.base, len(made)) == (upstream[3], 2)
    assert made.base_from.startswith("the manifest sync_manifests/")
    assert any("deferred" in warning and "#2" in warning for warning in made.warnings)


def test_nothing_recorded_and_nothing_shared(story, policy, words, upstream):
    alone = story.commit("alone", {"own": "1\n"})
    with pytest.raises(UsageError, match="no earlier sync is recorded") as caught:
        resume(story, policy, words, upstream, alone)
    assert "--from" in caught.value.hint


def test_rewritten_upstream(story, policy, words, upstream):
    own = story.commit("own", {"own": "1\n"}, upstream[0])
    rewritten = story.commit("Change 3, better (#3)", {"file3": "better\n"}, upstream[2])
    with pytest.raises(RepositoryError, match="rewritten") as caught:
        build_plan(story.repo, policy, words, base=upstream[4], through=rewritten, downstream=own)
    assert upstream[2][:9] in caught.value.hint
    assert "2 change(s)" in caught.value.hint
    assert "Change 3 (#3)" in caught.value.hint
    synced = with_manifest(story, policy, words, upstream[0], upstream[4], own)
    with pytest.raises(RepositoryError, match="rewritten"):
        build_plan(story.repo, policy, words, base=None, through=rewritten, downstream=synced)


def test_the_last_sync_is_told_by_descent_not_by_dates(story, policy, words, upstream):
    """Upstream rewrote what the first sync ended at, which was dealt with in the second; the machine of the second has a slow clock."""
    own = story.commit("own", {"own": "1\n"}, upstream[0])
    first = with_manifest(story, policy, words, upstream[0], upstream[4], own)
    rewritten = story.commit("Change 3, better (#3)", {"file3": "better\n"}, upstream[2])
    more = story.commit("Change 6 (#6)", {"file6": "x\n"}, rewritten)
    branch = story.commit("own work", {"own": "2\n"}, own)
    story.clock -= 3600
    dealt = story.commit("make good", {"file3": "better\n"}, first)
    second = with_manifest(story, policy, words, upstream[0], rewritten, dealt)
    story.clock += 3600
    merged = story.commit("merge", {}, second, branch)
    made = build_plan(story.repo, policy, words, base=None, through=more, downstream=merged)
    assert made.base == rewritten


def test_ends_the_wrong_way_round(story, policy, words, upstream):
    with pytest.raises(UsageError, match="older"):
        build_plan(story.repo, policy, words, base=upstream[4], through=upstream[2], downstream=upstream[0])
