"""Verification from scratch: every difference gets its cause, the patch cures exactly the unexplained ones, and the check can say no."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from synctool.errors import SyncError
from synctool.mirror import judge as judging
from synctool.mirror.judge import Cause, Facts, Verdict, judge, self_test
from synctool.mirror.resolve.toolbox import Toolbox
from synctool.mirror.verify import Verification, fixup_patch, verify
from tests.synctool.mirror.world import POLICY, World, numbered


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A downstream with one of everything: rule, deletion, own file, vocabulary, overlay, and three faults."""
    world = World(tmp_path / "hub.git")
    world.start({
        "native/a": "a\n", "left/a": "a\n", "had.txt": "h\n", "words.txt": "Kerosene\n", "overlay.txt": numbered(9),
        "stale.txt": "old\n", "behind.txt": numbered(9), "same.txt": "Kerosene\n",
    })  # fmt: skip
    world.downstream({
        "native/a": "ours\n", "left/a": None, "had.txt": None, "words.txt": "PHOTON\n", "own.txt": "own\n",
        "overlay.txt": numbered(9, l3="ours"),
    })  # fmt: skip
    return world


def check(
    world: World, since: str | None, base: str | None, recorded: tuple[tuple[str, str], ...] = ()
) -> Verification:
    return verify(
        world.repo, world.policy, world.translator, ours=world.down, through=world.up, since=since, base=base, recorded=recorded
    )  # fmt: skip


def test_every_difference_has_its_cause(world: World) -> None:
    since = world.down
    world.upstream({"stale.txt": None, "behind.txt": numbered(9, l4="Kerosene four"), "new.txt": "new\n"})
    found = check(world, since, world.base)
    assert {d.path: d.cause for d in found.differences} == {
        "native/a": Cause.RULE, "left/a": Cause.RULE, "had.txt": Cause.DELETED_HERE, "words.txt": Cause.WORDS,
        "own.txt": Cause.NATIVE, "overlay.txt": Cause.OVERLAY, "stale.txt": Cause.STALE, "behind.txt": Cause.DIFFERS,
        "new.txt": Cause.MISSING,
    }  # fmt: skip
    assert {d.path for d in found.unexplained} == {"stale.txt", "behind.txt", "new.txt"}
    assert found.equal == 1


def test_the_patch_cures_exactly_the_unexplained(world: World, tmp_path: Path) -> None:
    since = world.down
    world.upstream({"stale.txt": None, "behind.txt": numbered(9, l4="Kerosene four"), "sp ace é.txt": "new\n"})
    found = check(world, since, world.base)
    work = tmp_path / "work"
    subprocess.run(
        ["git", "-C", str(world.repo.git_dir), "worktree", "add", "-q", "--detach", str(work), world.down], check=True
    )
    subprocess.run(["git", "apply", "--index", "-"], input=fixup_patch(found), cwd=work, check=True)
    tree = subprocess.run(["git", "write-tree"], cwd=work, check=True, capture_output=True, text=True).stdout.strip()
    assert tree == found.fixup
    world.down = world._write(found.fixup, world.down, "cured")
    assert check(world, since, world.base).unexplained == ()


def test_a_change_that_was_left_out_on_record_explains_its_files(world: World) -> None:
    since = world.down
    left = world.upstream({"behind.txt": numbered(9, l4="four"), "new.txt": "new\n"})
    found = check(world, since, world.base, ((left, "exclude #7: not for us"),))
    told = {d.path: d for d in found.differences}
    assert told["behind.txt"].cause is told["new.txt"].cause is Cause.RECORDED
    assert "#7" in told["new.txt"].detail
    assert found.unexplained == ()


def test_an_edit_without_a_cause_is_found_even_in_a_file_with_an_overlay(world: World) -> None:
    since = world.down
    world.downstream({"overlay.txt": numbered(9, l3="ours", l8="slipped in")})
    (difference,) = check(world, since, world.base).unexplained
    assert (difference.path, difference.blocks, difference.total) == ("overlay.txt", 1, 2)


def test_a_mirrored_range_verifies(world: World) -> None:
    since, base = world.down, world.up
    world.upstream({"overlay.txt": numbered(9, l7="Kerosene seven"), "brand/new.txt": "lantern\n"})
    result = world.mirror()
    assert result.conflicts == ()
    world.down = world._write(result.tree, world.down, "Mirror")
    assert check(world, since, base).unexplained == ()


def test_a_filter_that_lets_all_pass_is_caught_by_the_planted_paths(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    canonical = Toolbox.from_policy(world.policy, world.translator).canonical
    assert self_test(canonical) > 10
    real: Callable[..., Verdict] = judge

    def lenient(facts: Facts, words: Callable[[bytes], str]) -> Verdict:
        verdict = real(facts, words)  # type: ignore[arg-type]
        return Verdict(None) if verdict.difference and not verdict.difference.cause.explained else verdict

    monkeypatch.setattr(judging, "judge", lenient)
    with pytest.raises(SyncError, match="planted"):
        self_test(canonical)


def test_the_verb_tells_causes_and_writes_the_patch(world: World, tmp_path: Path) -> None:
    since = world.down
    world.upstream({"behind.txt": numbered(9, l4="Kerosene four")})
    policy, patch = tmp_path / "policy.toml", tmp_path / "fix.patch"
    policy.write_text(POLICY)
    command = [
        sys.executable,
        "-m",
        "synctool",
        "verify",
        "-C",
        str(world.repo.git_dir),
        "--policy",
        str(policy),
        "--json",
    ]
    command += [
        "--through",
        world.up,
        "--ours",
        world.down,
        "--since",
        since,
        "--base",
        world.base,
        "--fixup",
        str(patch),
    ]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 1, finished.stderr
    data = json.loads(finished.stdout)["data"]
    assert data["unexplained"] == 1
    assert data["causes"]["overlay"] == 1
    assert "+Photon four" in patch.read_text()
    command[command.index(world.up)] = world.base
    assert subprocess.run(command, capture_output=True).returncode == 0
