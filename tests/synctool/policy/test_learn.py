"""What init learns, from made-up trees whose truth is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synctool.policy import parse_policy
from synctool.policy.globs import matches
from synctool.policy.learn.evidence import Support
from synctool.policy.learn.ownership import fold, learn_ownership
from synctool.policy.learn.pairs import pair_paths
from synctool.policy.learn.starter import Names, render_starter
from synctool.policy.learn.words import learn_vocabulary
from synctool.translate import Translator

NAMES = Names("up", "down", None, "https://x/y", "main", "main", "a" * 40)

UP = """
from otter.backends import BlueJay
class BlueJayEngine(BlueJay):
    engine = "blueJay"
    def __init__(self, args):
        self.bluejay_size = args.bluejay_size
        BLUEJAY_HOME = "otter"
def run():
    cmd = "serve --bluejay-pool-share 0.7 --bluejay-deep-mode auto"
    image = "ottermakers/otter:latest"
    return FakeBlueJay(cmd)
otter.start()
"""
DOWN = """
from badger.backends import redKite
class RedKiteEngine(redKite):
    engine = "blueJay"
    def __init__(self, args):
        self.redkite_size = args.redkite_size
        REDKITE_HOME = "badger"
def run():
    cmd = "serve --redkite-memory-part 0.7"
    image = "redkite/badger:latest"
    return FakeRedKite(cmd)
badger.start()
"""


@pytest.fixture(scope="module")
def vocabulary():
    texts = [(UP + f"# file {n}\n", DOWN + f"# file {n}\n# and a line of our own\n") for n in range(6)]
    return learn_vocabulary(texts, {("otter", "badger"): Support(9, 9), ("bluejay", "redkite"): Support(4, 4)})


def test_families_are_learned_with_their_spellings(vocabulary) -> None:
    learned = {one.family.from_: one for one in vocabulary.families}
    assert {name: one.family.to for name, one in learned.items()} == {"otter": "badger", "BlueJay": "redKite"}
    assert learned["BlueJay"].family.identifier is None  # RedKite follows from redKite
    assert set(learned["BlueJay"].spellings) == {"BlueJay", "bluejay", "BLUEJAY"}
    assert str(learned["otter"].support).endswith("sure")


def test_flags_and_texts_beyond_the_families_are_learned(vocabulary) -> None:
    assert [(flag.source, flag.target) for flag in vocabulary.flags] == [
        ("--bluejay-pool-share", "--redkite-memory-part"),
        ("--bluejay-deep-mode", None),
    ]
    assert [(term.source, term.target) for term in vocabulary.terms] == [("ottermakers/otter", "redkite/badger")]


def test_the_starter_loads_and_does_what_was_learned(vocabulary) -> None:
    pairing = pair_paths(
        ["otter/a.py", "gone/x", "LICENSE"],
        ["badger/a.py", "LICENSE", "ours/y", "ours/z"],
        [("otter/a.py", "badger/a.py", 90)],
    )
    ownership = learn_ownership(
        pairing, upstream=["otter/a.py", "gone/x", "LICENSE"], downstream=["badger/a.py", "LICENSE", "ours/y", "ours/z"],
        once_upstream=[], once_downstream=["gone/x"], path=lambda path: pairing.pairs.get(path, path),
    )  # fmt: skip
    policy = parse_policy(render_starter(NAMES, pairing, vocabulary, ownership))
    translator = Translator.from_policy(policy)
    assert (
        translator.text("BlueJayEngine --bluejay-pool-share ottermakers/otter")
        == "RedKiteEngine --redkite-memory-part redkite/badger"
    )
    assert policy.owner_of("ours/y").kind == "native"
    assert policy.owner_of("gone/x").kind == "exclude"
    assert policy.owner_of("badger/a.py").kind == "mirror"


def test_paths_are_paired_by_words_that_win_and_by_content() -> None:
    upstream = ["otter/a.py", "otter/b.py", "otter/otter_utils/c.py", "docs/x.md", "old/name.py", "tests/t.py"]
    downstream = ["badger/a.py", "badger/b.py", "badger/badger_utils/c.py", "docs/x.md", "new/place.py", "other.py"]
    renames = [
        ("otter/a.py", "badger/a.py", 95),
        ("otter/b.py", "badger/b.py", 90),
        ("old/name.py", "new/place.py", 88),
        ("tests/t.py", "other.py", 52),
    ]
    found = pair_paths(upstream, downstream, renames)
    assert found.pairs["otter/otter_utils/c.py"] == "badger/badger_utils/c.py"
    assert dict(found.moves) == {"old/name.py": ("new/place.py", 88)}
    assert "tests/t.py" not in found.pairs
    assert set(found.words) == {("otter", "badger")}


def test_deleted_is_told_from_never_ported() -> None:
    pairing = pair_paths(["a", "b", "c"], ["a", "d"], [])
    found = learn_ownership(
        pairing, upstream=["a", "b", "c"], downstream=["a", "d"], once_upstream=["e"], once_downstream=["b"], path=str
    )
    assert (found.deleted, found.never_ported, found.native) == ((("/b", 1),), (("/c", 1),), (("/d", 1),))


TREE = st.sets(st.lists(st.sampled_from(["a", "b", "[x]", "c*"]), min_size=1, max_size=3).map("/".join), max_size=10)


@given(TREE, st.data())
def test_folded_globs_cover_exactly_what_was_chosen(tree: set[str], data) -> None:
    files = {path for path in tree if not any(other.startswith(path + "/") for other in tree)}
    chosen = data.draw(st.sets(st.sampled_from(sorted(files)))) if files else set()
    globs = fold(chosen, files)
    assert {path for path in files if any(matches(glob, path) for glob, _ in globs)} == chosen
    assert sum(count for _, count in globs) == len(chosen)


def test_nothing_in_common_still_gives_a_policy_that_loads() -> None:
    pairing = pair_paths(["a"], ["b"], [])
    ownership = learn_ownership(
        pairing, upstream=["a"], downstream=["b"], once_upstream=[], once_downstream=[], path=str
    )
    policy = parse_policy(render_starter(NAMES, pairing, learn_vocabulary([], {}), ownership))
    assert policy.families == ()
