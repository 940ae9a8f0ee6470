"""Conflict memory: keys that survive indentation and vocabulary, records that read back, clear errors for broken files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synctool.errors import ConfigError
from synctool.git.tree import Entry, Tree
from synctool.mirror.memory import FOLDER, Memory, dump, key_of, load_memory, remember
from synctool.mirror.pieces import Hunk
from synctool.mirror.resolve.toolbox import Toolbox
from synctool.policy.loading import parse_policy
from synctool.translate.translator import Translator
from tests.synctool.mirror.world import POLICY, World

POLICY_VALUE = parse_policy(POLICY)
CANONICAL = Toolbox.from_policy(POLICY_VALUE, Translator.from_policy(POLICY_VALUE)).canonical


def hunk(ours: bytes, base: bytes, theirs: bytes) -> Hunk:
    return Hunk((ours,), (base,), (theirs,))


def test_the_same_conflict_in_other_words_or_indentation_has_the_same_key() -> None:
    one = key_of(hunk(b"use Photon\n", b"b\n", b"t\n"), CANONICAL)
    assert one == key_of(hunk(b"    use photon\n", b"  b\n", b"t \n"), CANONICAL)
    assert one != key_of(hunk(b"use Photons\n", b"b\n", b"t\n"), CANONICAL)


def test_a_side_can_be_taken_again_in_another_shape_a_text_only_for_the_very_conflict() -> None:
    first = hunk(b"o\n", b"b\n", b"t\n")
    key = key_of(first, CANONICAL)
    moved = hunk(b"  o\n", b"  b\n", b"  t\n")
    assert remember(first, b"o\n", key, who="A", where="w", path="p").restore(moved) == b"  o\n"
    text = remember(first, b"both\n", key, who="A", where="w", path="p")
    assert text.restore(first) == b"both\n"
    assert text.restore(moved) is None


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("memory") / "hub.git")


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_records_read_back(world: World, ours: bytes, text: bytes) -> None:
    record = remember(hunk(ours, b"b\n", b"t\n"), text, "k" * 24, who="Ann <a@x>", where="sync", path="é.py")
    assert _through(world, dump(record)).find("k" * 24) == record


def _through(world: World, file: tuple[str, bytes]) -> Memory:
    tree = Tree(world.repo.objects)
    tree.set(file[0], Entry("100644", world.repo.objects.write_blob(file[1])))
    return load_memory(world.repo.objects, tree)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"schema": 9}', b"\xff"])
def test_a_broken_record_names_its_file(world: World, data: bytes) -> None:
    with pytest.raises(ConfigError) as error:
        _through(world, (f"{FOLDER}/x.json", data))
    assert error.value.where == f"{FOLDER}/x.json"
    assert error.value.hint
