"""Reading ahead changes nothing about a plan, and what it could not read is told by the plan itself."""

import pytest

from synctool.errors import RepositoryError
from synctool.plan.ahead import START, read_ahead
from synctool.plan.build import build_plan


@pytest.fixture
def histories(story):
    """An upstream of four changes, and a fork with a history of its own that made two of them."""
    lines = [f"lantern {n} is lit" for n in range(20)]
    states = [lines, [*lines[:5], "lantern five was moved here", *lines[6:]]]
    states.append([*states[1][:15], "and a lantern more", *states[1][15:]])
    upstream = []
    for number, state in enumerate(states):
        upstream.append(
            story.commit(f"Change (#{number})", {"lantern/a": "\n".join(state) + "\n"}, *upstream[number - 1 : number])
        )
    upstream.append(story.commit("Front page (#9)", {"README.md": "new\n"}, upstream[-1]))
    down = story.commit("fork", {"beacon/a": "\n".join(states[0]).replace("lantern", "beacon") + "\n"})
    down = story.commit("port", {"beacon/a": "\n".join(states[1]).replace("lantern", "beacon") + "\n"}, down)
    return upstream, down


@pytest.mark.parametrize("first", [None, 0, 2])
def test_the_plan_is_the_same(story, policy, words, histories, first):
    upstream, down = histories
    base = START if first is None else upstream[first]
    alone = build_plan(story.repo, policy, words, base=base, through=upstream[-1], downstream=down)
    readings = read_ahead(story.repo, base=base, through=upstream[-1], downstream=down)
    ahead = build_plan(story.repo, policy, words, base=base, through=upstream[-1], downstream=down, readings=readings)
    assert ahead == alone
    assert ("present" in [str(item.decision.kind) for item in alone]) is (first == 0)


def test_what_was_read_is_not_read_again(story, policy, words, histories, monkeypatch):
    upstream, down = histories
    readings = read_ahead(story.repo, base=START, through=upstream[-1], downstream=down)
    pairs = list(zip([story.repo.objects.hash("tree", b""), *upstream], upstream, strict=False))
    readings.upstream.load(pairs)
    calls = []
    run = story.repo.run
    monkeypatch.setattr(story.repo, "run", lambda *words, **options: calls.append(words) or run(*words, **options))
    readings.upstream.load(reversed(pairs))
    assert [readings.upstream.touched(pair) for pair in pairs] == [{"lantern/a"}] * 3 + [{"README.md"}]
    assert not calls


def test_a_missing_revision_is_told_once_by_the_plan(story, policy, words, histories, capfd):
    upstream, down = histories
    readings = read_ahead(story.repo, base="gone", through=upstream[-1], downstream=down)
    with pytest.raises(RepositoryError, match="gone"):
        build_plan(story.repo, policy, words, base="gone", through=upstream[-1], downstream=down, readings=readings)
    assert capfd.readouterr().err == ""
