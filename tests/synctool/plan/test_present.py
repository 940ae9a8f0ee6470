"""Presence by content: what proves it, and what must not."""

from __future__ import annotations

import pytest

from synctool.git import Entry
from synctool.git.commits import Person, write_commit
from synctool.plan.build import build_plan
from synctool.policy import parse_policy
from synctool.translate.translator import Translator
from tests.synctool.plan.conftest import POLICY

ADA = Person("Ada", "ada@example.org", 1_700_000_000)

OLD = """import lantern


def light(lantern, level):
    return lantern.burn(level)


def dim(lantern, level):
    return lantern.burn(level / 2)


def douse(lantern):
    lantern.burn(0)
"""
NEW = OLD.replace(
    "    return lantern.burn(level / 2)\n",
    "    if level < 0:\n        raise ValueError(level)\n    return lantern.burn(level / 4)\n",
)


def ours(text: str) -> str:
    return text.replace("lantern", "beacon")


@pytest.fixture
def fork(story):
    """Upstream's base, and the fork's translation of it on a history of its own."""
    base = story.commit("base", {"lantern/run.py": OLD, "docs.md": "one\ntwo\nthree\n"})
    down = story.commit("fork", {"beacon/run.py": ours(OLD), "docs.md": "one\ntwo\nthree\n"})
    return base, down


def decide(story, policy, words, base, through, downstream, **options):
    return build_plan(story.repo, policy, words, base=base, through=through, downstream=downstream, **options)


def only(made):
    (item,) = made.items
    return item.decision


def test_absent(story, policy, words, fork):
    base, down = fork
    change = story.commit("Dim (#1)", {"lantern/run.py": NEW}, base)
    assert (only(decide(story, policy, words, base, change, down)).kind) == "take"


def test_same_edit_translated(story, policy, words, fork):
    base, down = fork
    change = story.commit("Dim (#1)", {"lantern/run.py": NEW}, base)
    port = story.commit("our dim", {"beacon/run.py": ours(NEW)}, down)
    later = story.commit("rewritten", {"beacon/run.py": "print('all new')\n"}, port)
    decision = only(decide(story, policy, words, base, change, later))
    assert decision.kind == "present"
    assert (decision.evidence[0].kind, decision.evidence[0].downstream) == ("patch", port)
    back = story.commit('Revert "our dim"', {"beacon/run.py": ours(OLD)}, port, body=f"This reverts commit {port}.")
    assert only(decide(story, policy, words, base, change, back)).kind == "take"


def test_hunks_in_a_tree_that_differs_elsewhere(story, policy, words, fork):
    base, down = fork
    change = story.commit("Dim (#1)", {"lantern/run.py": NEW}, base)
    squashed = story.commit("squash", {"beacon/run.py": "# our header\n" + ours(NEW), "docs.md": "changed\n"}, down)
    decision = only(decide(story, policy, words, base, change, squashed))
    assert decision.kind == "present"
    assert {e.kind for e in decision.evidence} == {"hunks"}
    assert decision.evidence[0].found == decision.evidence[0].total > 0


def test_half_of_it_is_reported_and_taken(story, policy, words, fork):
    base, down = fork
    change = story.commit(
        "Dim and docs (#1)", {"lantern/run.py": NEW, "docs.md": "one\ntwo, described at length\nthree\n"}, base
    )
    half = story.commit("squash", {"beacon/run.py": "# header\n" + ours(NEW)}, down)
    decision = only(decide(story, policy, words, base, change, half))
    assert decision.kind == "take"
    assert decision.evidence[0].strength == "partial"
    assert 0 < decision.evidence[0].found < decision.evidence[0].total


def test_a_new_file_counts_by_its_lines_alone(story, policy, words, fork):
    """Downstream has a file of that name and mode with other content, which proves nothing."""
    base, down = fork
    text = "it says this\nand it says that\n"
    change = story.commit("Dim, and a text (#1)", {"lantern/run.py": NEW, "text": text}, base)
    other = story.commit("squash", {"beacon/run.py": "# own\n" + ours(NEW), "text": "another text\nof ours\n"}, down)
    decision = only(decide(story, policy, words, base, change, other))
    assert decision.kind == "take"
    assert [(e.strength, e.found < e.total) for e in decision.evidence] == [("partial", True)]
    same = story.commit("squash", {"beacon/run.py": "# own\n" + ours(NEW), "text": "ours\n" + text}, down)
    found = only(decide(story, policy, words, base, change, same)).evidence[0]
    assert found.found == found.total


def test_records_alone(story, policy, words, fork):
    base, down = fork
    change = story.commit("Dim (#1)", {"lantern/run.py": NEW}, base)
    port = story.commit("our dim", {"beacon/run.py": ours(NEW)}, down)
    assert only(decide(story, policy, words, base, change, port, check_content=False)).kind == "take"


def test_a_lookalike_elsewhere_does_not_count(story, policy, words):
    """The same block exists at another place; the place meant still has the old text."""
    block = "begin\nset level\nrun it\nend\n"
    text = block.replace("begin", "begin a") + "\n" + block.replace("begin", "begin b")
    base = story.commit("base", {"f": text})
    changed = text.replace("begin b\nset level\nrun it\n", "begin b\nset level\ncheck the oil\nrun it\n")
    change = story.commit("Check (#1)", {"f": changed}, base)
    down = story.commit(
        "fork", {"f": text.replace("begin a\nset level\nrun it\n", "begin a\nset level\ncheck the oil\nrun it\n")}
    )
    assert only(decide(story, policy, words, base, change, down)).kind == "take"


def test_removing_what_downstream_never_got_is_taken_with_its_addition(story, policy, words, fork):
    """Taken alone, the addition would stay for ever."""
    base, down = fork
    added = OLD.replace("def douse", "def flash(lantern):\n    lantern.burn(100)\n\n\ndef douse")
    first = story.commit("Flash (#1)", {"lantern/run.py": added}, base)
    second = story.commit("remove unused (#2)", {"lantern/run.py": OLD}, first)
    made = decide(story, policy, words, base, second, down)
    assert [str(i.decision.kind) for i in made] == ["take", "take"]
    assert made.items[1].notes == ("looks present, but builds on #1, which is not",)
    alone = decide(story, policy, words, first, second, down)
    assert only(alone).kind == "present"


@pytest.mark.parametrize(
    ("change_files", "down_files"),
    [
        ({"logo.png": b"\0new"}, {"logo.png": b"\0new"}),
        ({"docs.md": None}, {"docs.md": None}),
        ({"docs.md": ("100755", "one\ntwo\nthree\n")}, {"docs.md": ("100755", "one\ntwo\nthree\nours\n")}),
        (
            {"docs.md": None, "manual.md": "one\ntwo\nthree\n"},
            {"docs.md": None, "manual.md": "one\ntwo\nthree\nours\n"},
        ),
        ({"link": ("120000", "lantern/run.py")}, {"link": ("120000", "lantern/run.py")}),
    ],
)
def test_binary_deletion_mode_move_and_link(story, policy, words, fork, change_files, down_files):
    base, down = fork
    change = story.commit("Change (#1)", change_files, base)
    done = story.commit("many things", {**down_files, "unrelated": "x\n"}, down)
    assert only(decide(story, policy, words, base, change, done)).kind == "present"
    assert only(decide(story, policy, words, base, change, down)).kind == "take"


def test_the_oldest_of_the_smallest_commits_that_make_the_edit_is_named(story, policy, words, fork):
    base, down = fork
    change = story.commit("Dim (#1)", {"lantern/run.py": NEW}, base)
    large = story.commit("much", {"beacon/run.py": ours(NEW), "a": "1\n", "b": "1\n"}, down)
    back = story.commit("back", {"beacon/run.py": ours(OLD)}, large)
    first = story.commit("some", {"beacon/run.py": ours(NEW), "a": "2\n"}, back)
    back = story.commit("back", {"beacon/run.py": ours(OLD)}, first)
    second = story.commit("some more", {"beacon/run.py": ours(NEW), "b": "2\n"}, back)
    gone = story.commit("gone", {"beacon/run.py": "print()\n"}, second)
    evidence = only(decide(story, policy, words, base, change, gone)).evidence[0]
    assert (evidence.kind, evidence.downstream) == ("commit-hunks", first)


def test_files_that_only_translate_whole(story, fork):
    """A protected span over several lines: single lines of it would be translated otherwise."""
    policy = parse_policy(POLICY + "[[protect]]\nname = 'quotes'\nregex = '''<<[^>]*>>'''\n")
    words = Translator.from_policy(policy)
    base, down = fork
    text = OLD + "a lantern here\n<<\nsaid of the lantern\nby us all\n>>\nthe end of it\n"
    change = story.commit("Quote (#1)", {"lantern/run.py": text}, base)
    right = "# own\n" + ours(text).replace("said of the beacon", "said of the lantern")
    has = story.commit("all", {"beacon/run.py": right, "x": "1\n"}, down)
    lacks = story.commit("all", {"beacon/run.py": "# own\n" + ours(text), "x": "1\n"}, down)
    assert only(decide(story, policy, words, base, change, has)).kind == "present"
    assert only(decide(story, policy, words, base, change, lacks)).kind == "take"


def test_submodules_are_compared_by_the_commit_they_name(story, policy, words, fork):
    base, down = fork
    one, two = "1" * 40, "2" * 40

    def with_module(subject, module, parent):
        tree = story.repo.tree(parent)
        tree.set("engine", Entry("160000", module))
        return write_commit(
            story.repo.objects, tree=tree.write(), parents=[parent], author=ADA, committer=ADA, message=subject
        )

    before = with_module("engine", one, base)
    change = with_module("newer engine (#1)", two, before)
    has = with_module("engine", two, down)
    lacks = with_module("engine", one, down)
    assert only(decide(story, policy, words, before, change, has)).kind == "present"
    assert only(decide(story, policy, words, before, change, lacks)).kind == "take"


def test_paths_that_are_not_ours(story, policy, words, fork):
    base, down = fork
    change = story.commit("Front page (#1)", {"README.md": "new\n"}, base)
    decision = only(decide(story, policy, words, base, change, down))
    assert (decision.kind, decision.by) == ("exclude", "policy")
    assert "native (/README.md)" in decision.reason


def test_a_ported_path_needs_a_record(story, policy, words, fork):
    base, down = fork
    change = story.commit("Port me (#1)", {"ported/x": "a telling line\nanother telling line\nand a third one\n"}, base)
    same = story.commit("chance", {"ported/x": "a telling line\nanother telling line\nand a third one\n"}, down)
    assert only(decide(story, policy, words, base, change, same)).kind == "take"
    manifest = f'schema = 1\nthrough = "{base}"\n[[port]]\npr = 1\ndownstream = "{same}"\n'
    recorded = story.commit("record", {f"sync_manifests/start..{base[:9]}.toml": manifest}, same)
    decision = only(decide(story, policy, words, base, change, recorded))
    assert (decision.kind, decision.evidence[0].kind) == ("present", "port")


def test_ancestors_are_present(story, policy, words):
    root = story.commit("root", {"a": "1\n"})
    one = story.commit("One (#1)", {"a": "2\n"}, root)
    two = story.commit("Two (#2)", {"b": "1\n"}, one)
    down = story.commit("own", {"a": "gone another way\n"}, one)
    made = decide(story, policy, words, root, two, down)
    assert [str(i.decision.kind) for i in made] == ["present", "take"]
    assert made.items[0].decision.evidence[0].kind == "ancestor"
