"""Sharing records through a real remote: the union, whoever came first, and nothing lost when the remote moves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from synctool.errors import EnvironmentFailure
from synctool.evidence import share as sharing
from synctool.evidence.share import share
from synctool.evidence.store import REF, load
from synctool.git.refs import read_ref
from synctool.git.repo import Repo

WHO = ("Bea Lichtmann", "bea@example.org")


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def clones(tmp_path: Path) -> tuple[Path, Path]:
    """Two clones of one remote."""
    git(tmp_path, "init", "-q", "--bare", "-b", "main", "hub.git")
    for name in ("one", "two"):
        git(tmp_path, "clone", "-q", "hub.git", name)
        git(tmp_path / name, "config", "user.name", WHO[0])
        git(tmp_path / name, "config", "user.email", WHO[1])
    git(tmp_path / "one", "commit", "-q", "--allow-empty", "-m", "Begin")
    git(tmp_path / "one", "push", "-q", "origin", "HEAD:main")
    git(tmp_path / "two", "pull", "-q", "origin", "main")
    return tmp_path / "one", tmp_path / "two"


def say(folder: Path, text: str) -> None:
    words = [sys.executable, "-m", "synctool", "evidence", "state", "note", "--text", text, "-C", str(folder)]
    subprocess.run(words, check=True, capture_output=True, env=os.environ | {"GIT_CONFIG_GLOBAL": os.devnull})


def texts(folder: Path) -> set[str]:
    return {one.text for one in load(Repo.open(folder)).statements}


def test_both_sides_end_with_the_union(clones: tuple[Path, Path]) -> None:
    one, two = clones
    nothing = share(Repo.open(one), "origin", WHO)
    assert (nothing.received, nothing.sent, nothing.tip) == (0, 0, None)
    say(one, "first")
    say(two, "second")
    assert share(Repo.open(one), "origin", WHO).sent == 1
    done = share(Repo.open(two), "origin", WHO)
    assert (done.received, done.sent) == (1, 1)
    assert share(Repo.open(one), "origin", WHO).received == 1
    assert texts(one) == texts(two) == {"first", "second"}
    hub = one.parent / "hub.git"
    assert read_ref(Repo.open(hub), REF) == read_ref(Repo.open(one), REF) == read_ref(Repo.open(two), REF)
    git(hub, "fsck", "--strict")
    parents, message = git(hub, "log", "-1", "--format=%P%n%B", REF).split("\n", 1)
    assert len(parents.split()) == 2
    assert message == f"Join the records of origin\n\nSigned-off-by: {WHO[0]} <{WHO[1]}>"
    again = share(Repo.open(two), "origin", WHO)
    assert (again.received, again.sent) == (0, 0)


def test_a_remote_that_moves_meanwhile_loses_nothing(
    clones: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = clones
    say(one, "first")
    say(two, "second")
    real = sharing.push_ref
    moved: list[bool] = []

    def late(repo: Repo, remote: str, oid: str, ref: str) -> bool:
        if not moved:  # someone else is faster, between our look and our push
            moved.append(True)
            share(Repo.open(two), "origin", WHO)
        return real(repo, remote, oid, ref)

    monkeypatch.setattr(sharing, "push_ref", late)
    share(Repo.open(one), "origin", WHO)
    assert texts(one) == {"first", "second"}
    assert share(Repo.open(two), "origin", WHO).received == 1


def test_an_unreachable_remote_is_one_line(clones: tuple[Path, Path]) -> None:
    say(clones[0], "first")
    git(clones[0], "config", "remote.gone.url", str(clones[0].parent / "gone.git"))
    with pytest.raises(EnvironmentFailure, match="git ls-remote failed"):
        share(Repo.open(clones[0]), "gone", WHO)
