"""The engine on generated histories: what lands, what waits, what is left alone, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from synctool.git.repo import Repo
from synctool.git.tree import Entry
from synctool.mirror.memory import Memory, remember
from synctool.mirror.model import Action, Conflict, ConflictKind, MirrorResult
from synctool.mirror.pieces import hunks_of, parse_conflicts
from tests.synctool.mirror.world import POLICY, World, numbered


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "hub.git")


def actions(result: MirrorResult, path: str) -> list[Action]:
    return [outcome.action for step in result.steps for outcome in step.paths if outcome.path == path]


def marked(world: World, conflict: Conflict) -> str:
    assert conflict.marked is not None
    return world.repo.objects.read(conflict.marked.oid).decode()


def test_each_change_gives_one_tree_in_downstreams_words(world: World) -> None:
    world.start({"lantern/run.py": numbered(9), "keep.txt": "x\n"})
    world.downstream({"lantern/own.py": "ours\n"})
    world.upstream({"lantern/run.py": numbered(9, l2="burn Kerosene")}, "Burn (#1)")
    world.upstream({"lantern/new.py": "import lantern\n"}, "New (#2)")
    result = world.mirror()
    assert [world.read(step.tree, "beacon/run.py") for step in result.steps] == [numbered(9, l2="burn Photon")] * 2
    assert [world.read(step.tree, "beacon/new.py") for step in result.steps] == [None, "import beacon\n"]
    assert world.read(result.tree, "lantern/own.py") == "ours\n"
    assert result.conflicts == ()
    assert result.tree == result.steps[-1].tree


def test_an_overlay_survives_an_edit_elsewhere_in_the_file(world: World) -> None:
    world.start({"a.txt": numbered(12)})
    world.downstream({"a.txt": numbered(12, l2="our line")})
    world.upstream({"a.txt": numbered(12, l10="their Kerosene")})
    result = world.mirror()
    assert world.read(result.tree, "a.txt") == numbered(12, l2="our line", l10="their Photon")
    assert actions(result, "a.txt") == [Action.MERGED]


def test_a_conflict_waits_gathers_later_changes_and_is_shown_once(world: World) -> None:
    world.start({"a.txt": numbered(20), "b.txt": "b\n"})
    world.downstream({"a.txt": numbered(20, l5="ours five")})
    first = world.upstream({"a.txt": numbered(20, l5="theirs five"), "b.txt": "b2\n"}, "One (#11)")
    second = world.upstream({"a.txt": numbered(20, l5="theirs five again", l15="fifteen")}, "Two (#12)")
    third = world.upstream({"a.txt": numbered(20, l5="theirs five again", l15="fifteen", l18="18")}, "Three (#13)")
    result = world.mirror()
    (conflict,) = result.conflicts
    assert (conflict.path, conflict.kind) == ("a.txt", ConflictKind.CONTENT)
    assert conflict.changes == (first, second, third)
    # Until it is resolved the file stands as downstream had it; the other file of the change landed.
    assert all(world.read(step.tree, "a.txt") == numbered(20, l5="ours five") for step in result.steps)
    assert world.read(result.steps[0].tree, "b.txt") == "b2\n"
    text = marked(world, conflict)
    assert (
        f"<<<<<<< ours (downstream)\nours five\n||||||| base (lantern {world.base[:9]}, translated)\nline 5\n" in text
    )
    assert "=======\ntheirs five again\n>>>>>>> theirs (lantern #11 to #13, translated)\n" in text
    assert "fifteen" in text
    assert "\n18\n" in text
    # The third change stands in no hunk, so it is free of conflict.
    assert conflict.hunks[0].changes == (first, second)
    assert result.conflicting_changes() == {first, second}
    assert world.read(result.tree, "a.txt") == text


def test_a_later_change_that_takes_the_conflict_back_settles_it(world: World) -> None:
    world.start({"a.txt": numbered(9)})
    world.downstream({"a.txt": numbered(9, l5="ours")})
    world.upstream({"a.txt": numbered(9, l5="theirs")})
    world.upstream({"a.txt": numbered(9, l9="nine")})
    result = world.mirror()
    assert result.conflicts == ()
    assert actions(result, "a.txt") == [Action.PARKED, Action.MERGED]
    assert world.read(result.tree, "a.txt") == numbered(9, l5="ours", l9="nine")


def test_an_excluded_change_does_not_leak_into_what_waits(world: World) -> None:
    world.start({"a.txt": numbered(30)})
    world.downstream({"a.txt": numbered(30, l5="ours")})
    world.upstream({"a.txt": numbered(30, l5="theirs")})
    left = world.upstream({"a.txt": numbered(30, l5="theirs", l15="secret")})
    world.upstream({"a.txt": numbered(30, l5="theirs", l15="secret", l25="wanted")})
    result = world.mirror(excluded=(left,))
    text = marked(world, result.conflicts[0])
    assert "secret" not in text
    assert "wanted" in text
    assert result.work == ()


def test_an_edit_that_stands_on_an_excluded_change_is_filed_not_lost(world: World) -> None:
    world.start({"a.txt": numbered(30)})
    world.downstream({"a.txt": numbered(30, l5="ours")})
    world.upstream({"a.txt": numbered(30, l5="theirs")})
    left = world.upstream({"a.txt": numbered(30, l5="theirs", l15="secret")})
    world.upstream({"a.txt": numbered(30, l5="theirs", l15="secret and more")})
    result = world.mirror(excluded=(left,))
    assert "secret" not in marked(world, result.conflicts[0])
    (item,) = result.work
    assert b"+secret and more\n" in item.diff
    assert "left out" in result.conflicts[0].note


def test_what_a_missing_file_means(world: World) -> None:
    world.start({"had.txt": numbered(9), "sub/dir/one.txt": "1\n", "other.txt": "o\n"})
    world.downstream({"had.txt": None, "sub/dir/one.txt": None})
    world.upstream({"had.txt": numbered(9, l1="new"), "sub/dir/two.txt": "2\n"})
    result = world.mirror()
    assert world.read(result.tree, "had.txt") is None
    assert world.read(result.tree, "sub/dir/two.txt") is None
    assert actions(result, "had.txt") == [Action.KEPT]
    assert actions(result, "sub/dir/two.txt") == [Action.KEPT]


def test_a_file_never_ported_is_backfilled_whole(world: World) -> None:
    world.start({"a.txt": "a\n"})
    world.upstream({"never.txt": "one Kerosene\n"})
    world.base = world.up  # the last sync ended here, and did not take it
    world.upstream({"never.txt": "one Kerosene\ntwo\n"})
    result = world.mirror()
    assert world.read(result.tree, "never.txt") == "one Photon\ntwo\n"
    assert actions(result, "never.txt") == [Action.BACKFILLED]


def test_a_file_that_upstream_deletes_goes_when_unchanged_and_is_a_conflict_when_changed(world: World) -> None:
    world.start({"same.txt": "Kerosene\n", "changed.txt": numbered(5), "stay.txt": "s\n"})
    world.downstream({"changed.txt": numbered(5, l2="ours")})
    world.upstream({"same.txt": None, "changed.txt": None})
    result = world.mirror()
    assert world.read(result.tree, "same.txt") is None
    (conflict,) = result.conflicts
    assert conflict.kind is ConflictKind.DELETED_THERE
    assert conflict.ours is not None
    assert world.read(result.steps[-1].tree, "changed.txt") == numbered(5, l2="ours")
    assert world.read(result.tree, "changed.txt") is None


def test_the_policy_can_keep_what_upstream_deletes(tmp_path: Path) -> None:
    world = World(tmp_path / "hub.git", POLICY + '[deleted]\nupstream_deleted = "keep"\n')
    world.start({"same.txt": "x\n", "stay.txt": "s\n"})
    world.upstream({"same.txt": None})
    assert world.read(world.mirror().tree, "same.txt") == "x\n"


def test_renames_are_followed_on_both_sides(world: World) -> None:
    world.start({"lantern/old.py": numbered(20), "lantern/moved_here.py": numbered(20, l1="other")})
    world.downstream({"beacon/old.py": numbered(20, l3="ours")})
    world.downstream({"beacon/moved_here.py": None, "beacon/ours.py": numbered(20, l1="other")})
    world.upstream({"lantern/old.py": None, "lantern/new.py": numbered(20, l15="theirs")})
    world.upstream({"lantern/moved_here.py": numbered(20, l1="other", l15="Kerosene")})
    result = world.mirror()
    assert world.read(result.tree, "beacon/old.py") is None
    assert world.read(result.tree, "beacon/new.py") == numbered(20, l3="ours", l15="theirs")
    assert world.read(result.tree, "beacon/moved_here.py") is None
    assert world.read(result.tree, "beacon/ours.py") == numbered(20, l1="other", l15="Photon")


def test_a_moved_file_in_conflict_lands_at_its_new_place(world: World) -> None:
    world.start({"old.txt": numbered(20)})
    world.downstream({"old.txt": numbered(20, l3="ours")})
    world.upstream({"old.txt": None, "new.txt": numbered(20, l3="theirs")})
    result = world.mirror()
    (conflict,) = result.conflicts
    assert (conflict.path, conflict.replaces) == ("new.txt", ("old.txt",))
    assert world.read(result.steps[-1].tree, "old.txt") == numbered(20, l3="ours")
    assert world.read(result.tree, "old.txt") is None


def test_both_added(world: World) -> None:
    world.start({"a.txt": "a\n"})
    world.downstream({"same.txt": "Photon\n", "other.txt": "ours\n"})
    world.upstream({"same.txt": "Kerosene\n", "other.txt": "theirs\n"})
    result = world.mirror()
    assert actions(result, "same.txt") == [Action.PRESENT]
    assert [(c.path, c.kind) for c in result.conflicts] == [("other.txt", ConflictKind.BOTH_ADDED)]


def test_owners(world: World) -> None:
    world.start({"native/a.txt": "a\n", "left/a.txt": "a\n", "ported/a.txt": "a\n"})
    world.downstream({"left/a.txt": None, "ported/a.txt": "rewritten\n"})
    change = world.upstream({"native/a.txt": "b\n", "left/a.txt": "b\n", "ported/a.txt": "a Kerosene\n"}, "Three (#3)")
    result = world.mirror()
    assert result.tree == world.repo.resolve(world.down, "tree")
    (item,) = result.work
    assert (item.path, item.change, item.label) == ("ported/a.txt", change, "#3")
    assert b"-a\n+a Photon\n" in item.diff
    assert actions(result, "native/a.txt") == actions(result, "left/a.txt") == [Action.KEPT]
    assert actions(result, "ported/a.txt") == [Action.FILED]


def test_modes_links_and_binaries(world: World) -> None:
    world.start(
        {
            "run.sh": "x\n",
            "bin": b"\0one",
            "clash.bin": b"\0one",
            "link": ("120000", b"lantern/a"),
            "lantern/a": "a\n",
        }
    )
    world.downstream({"run.sh": "ours\n", "clash.bin": b"\0ours"})
    world.upstream(
        {
            "run.sh": ("100755", b"x\n"),
            "bin": b"\0two",
            "clash.bin": b"\0theirs",
            "new": ("120000", b"lantern/a"),
        }
    )
    result = world.mirror()
    tree = world.repo.tree(result.tree)
    entry = tree.get("run.sh")
    assert entry is not None
    assert entry.mode == "100755"
    assert world.read(result.tree, "run.sh") == "ours\n"
    assert world.read(result.tree, "bin") == "\0two"
    assert world.read(result.tree, "new") == "beacon/a"
    assert [(c.path, c.kind) for c in result.conflicts] == [("clash.bin", ConflictKind.BINARY)]
    assert world.read(result.tree, "clash.bin") == "\0ours"


def test_a_file_that_becomes_a_link_is_a_mode_conflict_when_changed_here(world: World) -> None:
    world.start({"a": "text\n", "b": "b\n"})
    world.downstream({"a": "ours\n"})
    world.upstream({"a": ("120000", b"b")})
    assert [c.kind for c in world.mirror().conflicts] == [ConflictKind.MODE]


def test_line_ends_are_an_attribute_not_an_edit_of_every_line(world: World) -> None:
    dos = numbered(12, l3="ours").replace("\n", "\r\n")
    world.start({"a.txt": numbered(12)})
    world.downstream({"a.txt": dos})
    world.upstream({"a.txt": numbered(12, l9="theirs")})
    result = world.mirror()
    assert world.read(result.tree, "a.txt") == numbered(12, l3="ours", l9="theirs").replace("\n", "\r\n")


def test_a_missing_final_newline_is_kept(world: World) -> None:
    world.start({"a.txt": numbered(12)})
    world.downstream({"a.txt": numbered(12, l2="ours").rstrip("\n")})
    world.upstream({"a.txt": numbered(12, l8="theirs")})
    assert world.read(world.mirror().tree, "a.txt") == numbered(12, l2="ours", l8="theirs").rstrip("\n")


def test_collisions_write_nothing(world: World) -> None:
    world.start({"a.txt": "a\n"})
    world.downstream({"folder/x": "x\n", "file": "f\n", "Docs/x": "x\n"})
    world.upstream({"folder": "now a file\n"})
    world.upstream({"file/below": "b\n"})
    world.upstream({"docs/x": "case\n"})
    result = world.mirror()
    assert {(c.path, c.kind) for c in result.conflicts} == {
        ("folder", ConflictKind.COLLISION), ("file/below", ConflictKind.COLLISION), ("docs/x", ConflictKind.COLLISION),
    }  # fmt: skip
    assert result.tree == world.repo.resolve(world.down, "tree")
    assert all(c.theirs is not None for c in result.conflicts)


def test_a_file_that_gives_way_to_a_folder_in_one_change(world: World) -> None:
    world.start({"a": "a\n", "b": "b\n"})
    world.upstream({"a": None, "a/below": "new\n"})
    result = world.mirror()
    assert world.read(result.tree, "a/below") == "new\n"
    assert result.conflicts == ()


def raw_tree(world: World, rows: list[tuple[str, str, str]]) -> str:
    data = b"".join(f"{mode} {name}".encode() + b"\0" + bytes.fromhex(oid) for mode, name, oid in rows)
    return world.repo.objects.write("tree", data)


def test_programs_that_attributes_ask_for_are_told(world: World) -> None:
    before = "*.md diff=markdown text\n*.bin filter=lfs\n# *.c filter=no\n"
    world.start({".gitattributes": before})
    world.upstream({".gitattributes": before + "*.py filter=shine merge=ours\n*.rs diff=rust merge=union\n"})
    (told,) = world.mirror().warnings
    assert "'.gitattributes' asks for filter=shine, merge=ours: git runs" in told
    world.upstream({".gitattributes": before})
    assert world.mirror().warnings == (told,)


def test_hostile_trees_are_refused_path_by_path(world: World) -> None:
    world.start({"a.txt": "a\n"})
    store = world.repo.objects
    blob, good = store.write_blob(b"evil\n"), store.write_blob(b"a2\n")
    inner = raw_tree(world, [("100644", "config", blob)])
    outside, git = store.write_blob(b"../../etc/passwd"), store.write_blob(b".git/config")
    rows = [
        ("40000", "..", inner), ("40000", ".GIT", inner), ("100644", "a.txt", good), ("120000", "esc", outside),
        ("120000", "into", git), ("160000", "sub", "1" * 40),
    ]  # fmt: skip
    world.upstream_tree(raw_tree(world, rows))
    result = world.mirror()
    refused = {o.path for step in result.steps for o in step.paths if o.action is Action.REFUSED}
    assert refused == {"../config", ".GIT/config", "esc", "into", "sub"}
    assert [path for path, _ in world.repo.tree(result.tree).items()] == ["a.txt"]
    assert world.read(result.tree, "a.txt") == "a2\n"


def test_a_submodule_that_downstream_has_may_move(world: World) -> None:
    world.start({"a.txt": "a\n"})
    world.up = world.base = world.upstream({"sub": Entry("160000", "1" * 40)})
    world.downstream({"sub": Entry("160000", "1" * 40)})
    world.upstream({"sub": Entry("160000", "2" * 40)})
    assert world.repo.tree(world.mirror().tree).get("sub") == Entry("160000", "2" * 40)


def test_content_that_is_no_text_is_carried_byte_by_byte(world: World) -> None:
    base = b"caf\xe9 Kerosene\n" + numbered(9).encode()
    world.start({"latin.txt": base})
    world.downstream({"latin.txt": base.replace(b"line 2", b"ours \xff")})
    world.upstream({"latin.txt": base.replace(b"line 8", b"theirs \xfe")})
    result = world.mirror()
    entry = world.repo.tree(result.tree).get("latin.txt")
    assert entry is not None
    expected = base.replace(b"line 2", b"ours \xff").replace(b"line 8", b"theirs \xfe")
    assert world.repo.objects.read(entry.oid) == expected


def test_a_huge_blob_is_never_loaded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synctool.git.objects.MAX_OBJECT_BYTES", 1000)
    monkeypatch.setattr("synctool.mirror.sides.MAX_OBJECT_BYTES", 1000)
    world.start({"a.txt": "a\n"})
    world.upstream({"huge.txt": "Kerosene\n" * 500})
    result = world.mirror()
    assert world.repo.tree(result.tree).get("huge.txt") == world.repo.tree(world.up).get("huge.txt")
    world.downstream({"huge.txt": "ours\n"})
    result = world.mirror()
    assert [c.kind for c in result.conflicts] == [ConflictKind.BINARY]


def test_markers_in_the_text_itself_do_not_confuse(world: World) -> None:
    quoted = "<<<<<<< HEAD\nmine\n=======\nyours\n>>>>>>> branch\n"
    world.start({"a.txt": quoted + numbered(9)})
    world.downstream({"a.txt": quoted + numbered(9, l2="ours")})
    world.upstream({"a.txt": quoted + numbered(9, l7="theirs")})
    result = world.mirror()
    assert world.read(result.tree, "a.txt") == quoted + numbered(9, l2="ours", l7="theirs")


def test_a_file_of_one_line_repeated_takes_no_square_time(world: World) -> None:
    """Forty thousand equal lines: comparing each with each would take many minutes."""
    many = "same\n" * 40_000
    world.start({"a.txt": many})
    world.downstream({"a.txt": "ours\n" + many + "same\n" * 5000 + "ours\n"})
    world.upstream({"a.txt": many.replace("same\n" * 40_000, "same\n" * 20_000 + "theirs\n" + "same\n" * 15_000)})
    result = world.mirror()
    text = world.read(result.tree, "a.txt")
    assert text is not None
    assert text.startswith("ours\n")
    assert "theirs\n" in text


def test_two_runs_and_a_dry_run_give_the_same_tree(world: World) -> None:
    world.start({"lantern/a.txt": numbered(30), "b.txt": numbered(9)})
    world.downstream({"beacon/a.txt": numbered(30, l5="ours"), "b.txt": numbered(9, l4="ours")})
    for number in (5, 12, 22):
        world.upstream({"lantern/a.txt": numbered(30, **{f"l{number}": f"Kerosene {number}"})})
    world.upstream({"b.txt": numbered(9, l4="theirs")})
    first, second = world.mirror(), world.mirror()
    assert first == second
    dry = world.mirror(repo=Repo.open(world.repo.git_dir, dry=True))
    assert dry == first


def test_a_remembered_resolution_is_proposed_with_who_made_it(world: World) -> None:
    world.start({"a.txt": numbered(9)})
    world.downstream({"a.txt": numbered(9, l5="ours")})
    world.upstream({"a.txt": numbered(9, l5="theirs")})
    (conflict,) = world.mirror().conflicts
    (hunk,) = hunks_of(parse_conflicts(marked(world, conflict).encode()))
    known = remember(hunk, b"both\n", conflict.hunks[0].key, who="Ann", where="sync 7", path="a.txt")
    (again,) = world.mirror(memory=Memory.of([known])).conflicts
    proposal = again.hunks[0].proposals[0]
    assert (proposal.kind, proposal.text, proposal.offered) == ("memory", b"both\n", True)
    assert "Ann" in proposal.rests_on
    assert Conflict.from_json(again.to_json()) == again


def test_lines_of_an_older_vocabulary_come_up_to_date_in_touched_files_only(world: World) -> None:
    files = {"a.sh": numbered(9, l2="run --kerosene-tank 3"), "b.sh": "run --kerosene-tank 3\n"}
    world.start(files)
    world.downstream({"a.sh": numbered(9, l2="run --photon-tank 3"), "b.sh": "run --photon-tank 3\n"})
    world.upstream({"a.sh": numbered(9, l2="run --kerosene-tank 3", l8="theirs")})
    result = world.mirror()
    assert world.read(result.tree, "a.sh") == numbered(9, l2="run --photon-buffer 3", l8="theirs")
    assert world.read(result.tree, "b.sh") == "run --photon-tank 3\n"


def test_a_name_that_downstream_replaced_throughout_a_file_is_carried_into_new_lines(world: World) -> None:
    old = numbered(12, l2="wick = make(wick_size)", l4="use(wick)")
    new = numbered(12, l2="glow = make(wick_size)", l4="use(glow)")
    world.start({"a.py": old})
    world.downstream({"a.py": new})
    world.upstream({"a.py": old.replace("line 10", "trim(wick)")})
    assert world.read(world.mirror().tree, "a.py") == new.replace("line 10", "trim(glow)")


def test_an_upstream_edit_of_lines_that_downstream_removed_is_filed(world: World) -> None:
    world.start({"a.txt": numbered(12)})
    world.downstream({"a.txt": numbered(12, l5="", l6="")})
    change = world.upstream({"a.txt": numbered(12, l5="five", l6="six")})
    result = world.mirror()
    assert result.conflicts == ()
    assert world.read(result.tree, "a.txt") == numbered(12, l5="", l6="")
    (item,) = result.work
    assert item.change == change
    assert b"+five\n+six\n" in item.diff
