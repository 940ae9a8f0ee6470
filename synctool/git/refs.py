"""Reads refs and updates several of them as one transaction."""

from __future__ import annotations

from typing import NamedTuple

from synctool.errors import RepositoryError
from synctool.git.repo import Repo


class RefUpdate(NamedTuple):
    """Move ``ref`` from ``old`` to ``new``. ``old`` None: it must not exist; ``new`` None: delete it."""

    ref: str
    new: str | None
    old: str | None


def read_ref(repo: Repo, ref: str) -> str | None:
    """The id that a full ref name points to, or None."""
    finished = repo.run("rev-parse", "--verify", "--quiet", "--end-of-options", ref, check=False)
    return finished.stdout.decode().strip() or None if finished.returncode == 0 else None


def is_broken(repo: Repo, ref: str) -> bool:
    """Whether a ref's own file is there but holds no id (a full disk, a crash, an editor): git then reads no such ref, and refuses to write it."""
    return (repo.common_dir / ref).is_file() and read_ref(repo, ref) is None


def remove_broken(repo: Repo, ref: str) -> None:
    """Remove the file of a broken ref, which git itself refuses to do."""
    if is_broken(repo, ref):
        (repo.common_dir / ref).unlink()


def list_refs(repo: Repo, prefix: str) -> dict[str, str]:
    """All refs below a prefix such as ``refs/vime-sync/``."""
    rows = repo.text("for-each-ref", "--format=%(objectname) %(refname)", prefix).splitlines()
    return {name: oid for oid, name in (row.split(" ", 1) for row in rows)}


def update_refs(repo: Repo, updates: list[RefUpdate], reason: str) -> None:
    """Apply all updates or none.

    Raises:
        RepositoryError: a ref was moved by someone else meanwhile, or is locked.
    """
    if repo.dry:
        raise AssertionError("a dry run must not reach update_refs")
    if not updates:
        return
    zero = "0" * (40 if repo.algorithm == "sha1" else 64)
    commands = [b"start"]
    for ref, new, old in updates:
        if new is None:
            commands.append(f"delete {ref}\0{old or ''}".encode())
        else:
            commands.append(f"update {ref}\0{new}\0{old or zero}".encode())
    commands += [b"prepare", b"commit"]
    finished = repo.run(
        "update-ref",
        "--stdin",
        "-z",
        "-m",
        f"vime-sync: {reason}",
        "--create-reflog",
        stdin=b"\0".join(commands) + b"\0",
        check=False,
        environment={"GIT_COMMITTER_NAME": "vime-sync", "GIT_COMMITTER_EMAIL": "vime-sync@localhost"},
    )
    if finished.returncode:
        said = finished.stderr.decode(errors="replace").strip()
        raise RepositoryError(
            f"refs were not updated: {said}",
            where=str(repo.git_dir),
            hint="nothing was changed; look at the ref and run again",
        )
