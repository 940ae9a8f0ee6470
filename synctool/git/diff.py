"""Differences between trees as values, read from git's raw output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from synctool.git.quoting import unquote
from synctool.git.repo import Repo


class PathChange(NamedTuple):
    """One path that differs between two trees.

    ``status`` is git's letter: A added, D deleted, M modified, T type changed, R renamed, C copied. ``old_path`` and ``path`` differ for R and C
    only. A missing side has mode ``000000``.
    """

    status: str
    old_path: str
    path: str
    old_mode: str
    mode: str
    old_oid: str
    oid: str
    similarity: int = 100


def _parse_raw(fields: list[bytes]) -> Iterator[PathChange]:
    position = 0
    while position < len(fields):
        head = fields[position]
        if not head.startswith(b":"):
            position += 1
            continue
        old_mode, mode, old_oid, oid, status = head[1:].decode().split()
        first = fields[position + 1].decode("utf-8", "surrogateescape")
        second = first
        position += 2
        if status[0] in "RC":
            second = fields[position].decode("utf-8", "surrogateescape")
            position += 1
        yield PathChange(status[0], first, second, old_mode, mode, old_oid, oid, int(status[1:] or 100))


def parse_raw_lines(lines: Iterable[bytes]) -> list[PathChange]:
    """Changes from git's raw output without ``-z``, where odd names are quoted. Empty lines are passed over."""
    fields: list[bytes] = []
    for line in filter(None, lines):
        head, *names = line.split(b"\t")
        fields.append(head)
        for name in names:
            quoted = unquote(name) if name.startswith(b'"') else None
            fields.append(quoted[0].encode("utf-8", "surrogateescape") if quoted else name)
    return list(_parse_raw(fields))


def tree_diff(repo: Repo, old: str, new: str, *, renames: int | None = None) -> list[PathChange]:
    """Paths that differ between two tree-ish objects. ``renames`` is the similarity in percent from which a move counts, None for no detection."""
    detect = [f"-M{renames}%"] if renames else ["--no-renames"]
    finished = repo.run("diff-tree", "-r", "-z", "--raw", "--full-index", "--no-abbrev", *detect, old, new)
    return list(_parse_raw(finished.stdout.split(b"\0")[:-1]))


def pairs_input(repo: Repo, pairs: Iterable[tuple[str, str]]) -> bytes:
    """Standard input that makes ``diff-tree --stdin --root`` show exactly these (parent, commit) pairs. A first commit's parent is the empty tree."""
    nothing = repo.objects.hash("tree", b"")
    return "".join(f"{commit}\n" if parent == nothing else f"{commit} {parent}\n" for parent, commit in pairs).encode()


def commit_diffs(
    repo: Repo, pairs: Iterable[tuple[str, str]], *, renames: int | None = None
) -> dict[tuple[str, str], list[PathChange]]:
    """``tree_diff`` of many (parent, commit) pairs in one git process."""
    wanted = list(pairs)
    if not wanted:
        return {}
    detect = [f"-M{renames}%"] if renames else ["--no-renames"]
    # The commit id precedes each answer. -m with an explicit parent shows merges against it; --always keeps empty ones in step.
    finished = repo.run(
        "diff-tree",
        "--stdin",
        "--root",
        "-r",
        "-m",
        "-z",
        "--raw",
        "--full-index",
        "--no-abbrev",
        "--always",
        *detect,
        stdin=pairs_input(repo, wanted),
    )
    result: dict[tuple[str, str], list[PathChange]] = {pair: [] for pair in wanted}
    order = iter(wanted)
    current: list[bytes] = []
    pair: tuple[str, str] | None = None
    width = 40 if repo.algorithm == "sha1" else 64
    paths_due = 0
    for field in finished.stdout.split(b"\0")[:-1]:
        if paths_due:
            paths_due -= 1
            current.append(field)
        elif field.startswith(b":"):
            current.append(field)
            paths_due = 2 if field.split()[4][:1] in (b"R", b"C") else 1
        elif len(field) >= width:
            if pair is not None:
                result[pair] = list(_parse_raw(current))
            pair, current = next(order), []
    if pair is not None:
        result[pair] = list(_parse_raw(current))
    return result
