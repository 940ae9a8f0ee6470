"""The plan as a whole: exclusions, dependencies, single changes, hand edits, merges, citations."""

from __future__ import annotations

import datetime

import pytest

from synctool.errors import ConfigError, NothingToDo, RepositoryError, UsageError
from synctool.git.commits import read_commits
from synctool.plan.build import START, build_plan, slug_of
from synctool.plan.lint import check_citations
from synctool.plan.manifest import parse_manifest
from synctool.plan.manifest_write import new_manifest
from synctool.plan.model import to_json
from synctool.policy import parse_policy


def numbered(count: int, word: str = "line") -> str:
    return "".join(f"{word} number {n}\n" for n in range(1, count + 1))


TODAY = datetime.date(2026, 5, 1)
BODY = numbered(20)


@pytest.fixture
def chain(story):
    """1 adds text, 2 edits it, 3 is apart, 4 edits 2's line again; downstream is at the root."""
    root = story.commit("root", {"f": BODY, "g": BODY})
    one = story.commit("One (#1)", {"f": BODY + numbered(3, "added")}, root)
    two = story.commit(
        "Two (#2)", {"f": BODY + numbered(3, "added").replace("added number 2", "added number two")}, one
    )
    three = story.commit("Three (#3)", {"g": "first\n" + BODY}, two)
    four = story.commit(
        "Four (#4)", {"f": BODY + numbered(3, "added").replace("added number 2", "added number zwei")}, three
    )
    down = story.commit("own", {"own": "1\n"}, root)
    return [root, one, two, three, four, down]


def build(story, policy, words, chain, **options):
    options = {"base": chain[0], "through": chain[4], "downstream": chain[5], "today": TODAY, **options}
    return build_plan(story.repo, policy, words, **options)


def with_exclusion(body: str):
    head = 'schema = 1\n[upstream]\nname = "lantern"\n[downstream]\nname = "beacon"\n'
    return parse_policy(f'{head}[[exclude]]\n{body}\nreason = "needs the other engine"\nowner = "ada"\n')


def test_exclusion_with_dependents(story, words, chain):
    made = build(story, with_exclusion("pr = 1"), words, chain)
    assert [str(i.decision.kind) for i in made] == ["exclude", "take", "take", "take"]
    assert (made.items[0].decision.reason, made.items[0].decision.owner) == ("needs the other engine", "ada")
    assert [(d.label, d.paths) for d in made.items[1].depends_on] == [("#1", ("f",))]
    assert not made.items[2].depends_on
    assert [d.label for d in made.items[3].depends_on] == ["#1"], "it stands between lines that #1 added"
    assert "#2 depends on #1, which this plan leaves out" in made.warnings
    by_commit = build(story, with_exclusion(f'commit = "{chain[1][:12]}"'), words, chain)
    assert by_commit.items[0].decision.kind == "exclude"


def test_expiry(story, words, chain):
    until = build(story, with_exclusion("pr = 1\nexpires = 2026-05-02"), words, chain)
    assert until.items[0].decision.reason.endswith("(until 2026-05-02)")
    past = build(story, with_exclusion("pr = 1\nexpires = 2026-05-01"), words, chain)
    assert past.items[0].decision.kind == "take"
    assert any("expired on 2026-05-01" in w and "vime-sync.toml:" in w for w in past.warnings)


def test_hand_edits(story, policy, words, chain):
    text = new_manifest(build(story, policy, words, chain))
    text = text.replace('decision = "take"', 'decision = "defer"\nreason = "after the release"', 1)
    made = build(story, policy, words, chain, manifest=parse_manifest(text, "m.toml"))
    assert (made.items[0].decision.kind, made.items[0].decision.by, made.manifest) == ("defer", "manifest", "m.toml")
    assert [d.label for d in made.items[1].depends_on] == ["#1"]


def test_a_persons_take_keeps_the_revert_too(story, policy, words):
    base = story.commit("base", {"f": BODY})
    one = story.commit("One (#1)", {"f": "new\n" + BODY}, base)
    back = story.commit('Revert "One (#1)" (#2)', {"f": BODY}, one)
    down = story.commit("own", {"f": BODY})

    def kinds(manifest=None):
        made = build_plan(story.repo, policy, words, base=base, through=back, downstream=down, manifest=manifest)
        return made, [str(i.decision.kind) for i in made]

    made, found = kinds()
    assert found == ["collapsed", "collapsed"]
    text = new_manifest(made)
    taken = text.replace('decision = "collapsed"', 'decision = "take"', 1)
    assert kinds(parse_manifest(taken, "m"))[1] == ["take", "take"]
    left_out = text.replace('decision = "collapsed"\n', 'decision = "exclude"\nowner = "ada"\n', 1)
    made, found = kinds(parse_manifest(left_out, "m"))
    assert found == ["exclude", "collapsed"]
    assert "left out" in made.items[1].decision.reason


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda text, chain: text.replace(chain[2], "e" * 40), "eeeeeeeee is not a first-parent change"),
        (lambda text, chain: text.replace("pr = 2", "pr = 7"), "came from #2, not #7"),
        (
            lambda text, chain: text.replace(f'through = "{chain[4]}"', f'through = "{chain[3]}"'),
            "for a range that ends at",
        ),
        (lambda text, chain: text.replace(f'base = "{chain[0]}"', f'base = "{chain[1]}"'), "the manifest begins at"),
        (lambda text, chain: text.replace("schema = 1", "schema = 1\npicks = true"), "for single changes"),
    ],
)
def test_a_manifest_of_another_range(story, policy, words, chain, edit, says):
    text = edit(new_manifest(build(story, policy, words, chain)), chain)
    with pytest.raises(ConfigError, match=says):
        build(story, policy, words, chain, manifest=parse_manifest(text, "m"))


def test_single_changes(story, policy, words, chain):
    made = build(story, policy, words, chain, picks=["#3", chain[2]])
    assert [i.change.oid for i in made] == [chain[2], chain[3]], "in upstream's order"
    assert made.picks
    assert [d.label for d in made.items[0].depends_on] == ["#1"]
    assert not made.items[1].depends_on
    both = build(story, policy, words, chain, picks=["#1", "#2"])
    assert not any(i.depends_on for i in both)
    has_one = story.commit("port", {"f": BODY + numbered(3, "added")}, chain[5])
    assert not build(story, policy, words, chain, picks=["#2"], downstream=has_one).items[0].depends_on


def test_single_changes_that_are_not_upstream(story, policy, words, chain):
    with pytest.raises(UsageError, match="#99"):
        build(story, policy, words, chain, picks=["#99"])
    with pytest.raises(RepositoryError, match="not in upstream's history"):
        build(story, policy, words, chain, picks=[chain[5]])
    with pytest.raises(RepositoryError, match="no commit is named"):
        build(story, policy, words, chain, picks=["f" * 40])


def test_from_the_first_commit(story, policy, words, chain):
    down = story.commit("unrelated", {"x": "1\n"})
    made = build(story, policy, words, chain, base=START, downstream=down)
    assert (made.base, len(made), made.items[0].change.oid) == (None, 5, chain[0])


def test_nothing_new(story, policy, words, chain):
    with pytest.raises(NothingToDo, match="no upstream change"):
        build(story, policy, words, chain, base=chain[4])


def test_a_merge_is_one_change(story, policy, words):
    root = story.commit("root", {"f": BODY})
    side = story.commit("side 1", {"g": "1\n"}, root)
    side = story.commit("side 2", {"g": "2\n"}, side)
    main = story.commit("Main (#1)", {"h": "1\n"}, root)
    merged = story.commit("Merge pull request #2 from ada/side", {"g": "2\n"}, main, side)
    down = story.commit("own", {"own": "1\n"})
    made = build_plan(story.repo, policy, words, base=root, through=merged, downstream=down)
    assert [i.change.label for i in made] == ["#1", "#2"]
    assert made.items[1].change.parent == main
    inside = build_plan(story.repo, policy, words, base=side, through=merged, downstream=down)
    assert any("not on upstream's main line" in w for w in inside.warnings)


def test_a_change_without_files(story, policy, words):
    root = story.commit("root", {"f": BODY})
    empty = story.commit("retrigger CI", {}, root)
    made = build_plan(
        story.repo, policy, words, base=root, through=empty, downstream=story.commit("own", {"own": "1\n"})
    )
    assert made.items[0].decision.kind == "present"


def test_citations(story, policy, words, chain):
    made = build(story, with_exclusion("pr = 1"), words, chain)
    good = story.commit("mirror", {"x": "1\n"}, chain[5], body=f"Upstream-Commit: {chain[2]}\nUpstream-PR: #2")
    bad = story.commit("mirror", {"x": "2\n"}, good, body=f"Upstream-Commit: {chain[0]}\nUpstream-PR: lamps/lantern#1")
    found = check_citations(made, read_commits(story.repo.objects, [good, bad]))
    assert [(c.downstream, c.cited, c.problem) for c in found] == [
        (bad, chain[0][:9], "is not a change of the range"),
        (bad, "#1", "is exclude in the plan"),
    ]


def test_odd_bytes_do_not_break_anything(story, policy, words):
    root = story.commit("root", {"naïve \udcff.txt": BODY})
    one = story.commit('M\udcffll "quoted" (#1)', {"naïve \udcff.txt": "x\n" + BODY, "tab\tname": "1\n"}, root)
    made = build_plan(story.repo, policy, words, base=root, through=one, downstream=story.commit("own", {"own": "1\n"}))
    assert len(to_json(made)["changes"]) == 1
    assert parse_manifest(new_manifest(made), "m").entries[0].commit == one


@pytest.mark.parametrize(
    ("url", "slug"),
    [
        ("https://github.com/lamps/lantern", "lamps/lantern"),
        ("https://github.com/lamps/lantern.git", "lamps/lantern"),
        ("git@github.com:lamps/lantern.git", "lamps/lantern"),
        (None, None),
    ],
)
def test_slug(url, slug):
    assert slug_of(url) == slug
