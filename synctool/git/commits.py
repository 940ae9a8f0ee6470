"""Commits as values: reading many at once, writing one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from synctool.errors import RepositoryError
from synctool.git.objects import ObjectStore
from synctool.git.repo import Repo


@dataclass(frozen=True, slots=True)
class Person:
    """Name, mail address, and time as git keeps it (seconds since 1970 and an offset such as ``+0200``)."""

    name: str
    email: str
    seconds: int
    offset: str = "+0000"

    def encode(self) -> bytes:
        """The form in a commit object. Characters that would break the header are dropped, as git itself does."""
        name = "".join(c for c in self.name if c not in "<>\n\0").strip() or "unknown"
        email = "".join(c for c in self.email if c not in "<>\n\0").strip()
        return f"{name} <{email}> {self.seconds} {self.offset}".encode("utf-8", "surrogateescape")

    @classmethod
    def parse(cls, raw: bytes) -> Person:
        """From the value of an ``author`` or ``committer`` header, however malformed."""
        text = raw.decode("utf-8", "surrogateescape")
        name, _, rest = text.partition("<")
        email, _, when = rest.rpartition(">")
        words = when.split()
        seconds = int(words[0]) if words and words[0].lstrip("-").isdigit() else 0
        offset = words[1] if len(words) > 1 and len(words[1]) == 5 and words[1][1:].isdigit() else "+0000"
        return cls(name.strip(), email.strip(), seconds, offset)

    @classmethod
    def now(cls, name: str, email: str) -> Person:
        """The person, at this moment, in the local time zone."""
        moment = time.time()
        return cls(name, email, int(moment), time.strftime("%z", time.localtime(moment)))


@dataclass(frozen=True, slots=True)
class Commit:
    """A parsed commit. ``message`` is decoded as UTF-8 with surrogate escapes."""

    oid: str
    tree: str
    parents: tuple[str, ...]
    author: Person
    committer: Person
    message: str

    @property
    def subject(self) -> str:
        """The first line of the message."""
        return self.message.lstrip("\n").partition("\n")[0].strip()

    @property
    def trailers(self) -> list[tuple[str, str]]:
        """``Key: value`` lines of the last paragraph, if all its lines are trailers (or git's ``(cherry picked …)`` line)."""
        return parse_trailers(self.message)


def parse_trailers(message: str) -> list[tuple[str, str]]:
    """Trailers of a commit message, in order, as ``git interpret-trailers --parse`` sees well-formed ones."""
    paragraphs = [p for p in message.strip().split("\n\n") if p.strip()]
    if len(paragraphs) < 2:
        return []
    found: list[tuple[str, str]] = []
    for line in paragraphs[-1].splitlines():
        key, colon, value = line.partition(":")
        if colon and key and key[0].isalpha() and all(c.isalnum() or c == "-" for c in key):
            found.append((key, value.strip()))
        elif line.startswith((" ", "\t")) and found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
        elif not line.startswith("(cherry picked from commit"):
            return []
    return found


def parse_commit(oid: str, data: bytes) -> Commit:
    """A commit from its raw content.

    Raises:
        RepositoryError: it has no tree header.
    """
    head, _, message = data.partition(b"\n\n")
    tree, parents = "", []
    author = committer = Person("unknown", "", 0)
    for line in head.split(b"\n"):
        key, _, value = line.partition(b" ")
        if key == b"tree":
            tree = value.decode()
        elif key == b"parent":
            parents.append(value.decode())
        elif key == b"author":
            author = Person.parse(value)
        elif key == b"committer":
            committer = Person.parse(value)
    if not tree:
        raise RepositoryError(f"commit {oid[:12]} is damaged: it names no tree")
    return Commit(oid, tree, tuple(parents), author, committer, message.decode("utf-8", "surrogateescape"))


def read_commits(store: ObjectStore, oids: Iterable[str]) -> list[Commit]:
    """Many commits, in the given order."""
    names = list(oids)
    data = store.read_many(names)
    return [parse_commit(oid, data[oid]) for oid in names]


def first_parent_range(repo: Repo, base: str | None, tip: str) -> list[Commit]:
    """The first-parent commits of ``base..tip``, oldest first; all of them when ``base`` is None."""
    span = [tip] if base is None else [f"{base}..{tip}"]
    oids = repo.text("rev-list", "--first-parent", "--reverse", *span, "--").split()
    return read_commits(repo.objects, oids)


def write_commit(
    store: ObjectStore, *, tree: str, parents: Sequence[str], author: Person, committer: Person, message: str
) -> str:
    """Write a commit and return its id. The same arguments give the same id."""
    lines = [b"tree " + tree.encode(), *(b"parent " + parent.encode() for parent in parents)]
    lines += [b"author " + author.encode(), b"committer " + committer.encode()]
    body = message.replace("\0", "").encode("utf-8", "surrogateescape")
    try:
        body.decode()
    except UnicodeDecodeError:
        lines.append(b"encoding ISO-8859-1")
    return store.write("commit", b"\n".join(lines) + b"\n\n" + body.rstrip(b"\n") + b"\n")
