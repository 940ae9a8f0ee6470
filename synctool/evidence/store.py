"""Where evidence is kept: one ref, ``refs/vime-sync/evidence``, whose commits hold ``<first 12 digits of the tree>/<id>.json``.

Why a ref and not files beside the manifests: evidence that is committed to the branch moves the very tree that it is about, so each record would make
itself stale. A ref leaves head and tree alone, is pushed and fetched like a branch, keeps who recorded what and when in its own history, and merges without
conflict, because a file's name is the digest of its content: the union of two sets is the merge.

Each fact has a commit of its own, so that the history says which of two came first. Where their times are equal, that is their order: two looks at a CI
build that still runs have the time at which it began.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from synctool.errors import Refused, RepositoryError, UsageError
from synctool.evidence.record import Fact, Record, Statement, decode
from synctool.git.commits import Person, write_commit
from synctool.git.refs import RefUpdate, read_ref, update_refs
from synctool.git.repo import Repo
from synctool.git.tree import Entry, Tree

REF = "refs/vime-sync/evidence"
#: Someone else may record at the same time: read again, add again.
ATTEMPTS = 5
#: A record is text that people read; more than this is something else.
MAX_BYTES = 256 << 10


@dataclass(frozen=True)
class Evidence:
    """All facts of one repository, oldest first; of equal times in the order in which the ref's history added them."""

    facts: tuple[Fact, ...] = ()

    @property
    def records(self) -> tuple[Record, ...]:
        """What ran."""
        return tuple(fact for fact in self.facts if isinstance(fact, Record))

    @property
    def statements(self) -> tuple[Statement, ...]:
        """What people said."""
        return tuple(fact for fact in self.facts if isinstance(fact, Statement))

    def find(self, name: str) -> Fact:
        """A fact by the start of its id, or the newest record of that name or CI run (``#12``).

        Raises:
            UsageError: there is none, or the start of the id is ambiguous.
        """
        named = [r for r in self.records if name in (r.name, r.run)]
        if named:
            return named[-1]
        found = [fact for fact in self.facts if len(name) >= 4 and fact.id.startswith(name)]
        if len(found) != 1:
            raise UsageError(
                f"{'more than one record' if found else 'no record'} is named {name!r}",
                hint="'vime-sync evidence list --all' shows the ids",
            )
        return found[0]


def place(fact: Fact) -> str:
    """The path of a fact in the ref's tree."""
    return f"{fact.tree[:12] if fact.tree else 'elsewhere'}/{fact.id}.json"


def load(repo: Repo, ref: str = REF) -> Evidence:
    """All facts that a ref (or commit) keeps; none when it does not exist.

    Raises:
        ConfigError: a file of it is no record, or was changed.
    """
    tip = read_ref(repo, ref)
    return Evidence() if tip is None else _read(repo, tip)


def _read(repo: Repo, commit: str) -> Evidence:
    facts: dict[str, Fact] = {}
    for path, entry in repo.tree(commit).items():
        if not path.endswith(".json"):
            continue
        data = repo.objects.read(entry.oid, "blob")
        if len(data) > MAX_BYTES:
            raise RepositoryError(f"a record has {len(data):,} bytes, over {MAX_BYTES:,}", where=f"{commit[:9]}:{path}")
        fact = decode(data, f"{commit[:9]}:{path}")
        if path != place(fact):
            raise RepositoryError(
                f"a record is not where it belongs: {place(fact)}",
                where=f"{commit[:9]}:{path}",
                hint="it was moved or edited by hand; take the ref from where it was recorded",
            )
        facts[fact.id] = fact
    tied = len({fact.when for fact in facts.values()}) < len(facts)
    added = _added(repo, commit) if tied else {}
    return Evidence(tuple(sorted(facts.values(), key=lambda fact: (fact.when, added.get(place(fact), 0)))))


def _added(repo: Repo, commit: str) -> dict[str, int]:
    """Path -> its place in the order in which the history that ends at a commit added all of them."""
    log = ("log", "--topo-order", "--reverse", "--format=", "--name-only", "--no-renames", "--diff-filter=A")
    paths = repo.text(*log, commit, "--").splitlines()
    return {path: n for n, path in enumerate(dict.fromkeys(paths))}


def add(repo: Repo, facts: Iterable[Fact], who: tuple[str, str], reason: str) -> list[Fact]:
    """Add facts to the ref and return those that were not there yet. Safe against a second writer: the ref moves only from where it was read.

    Raises:
        Refused: one is too large.
        RepositoryError: the ref kept moving under us.
    """
    wanted = list({fact.id: fact for fact in facts}.values())
    for fact in wanted:
        if (size := len(fact.encode())) > MAX_BYTES:
            raise Refused(f"a record of {size:,} bytes, over {MAX_BYTES:,}", where=fact.id, hint="say less in it")
    for attempt in range(ATTEMPTS):
        tip = read_ref(repo, REF)
        tree = repo.tree(tip) if tip else Tree(repo.objects)
        fresh = [fact for fact in wanted if place(fact) not in tree]
        if not fresh:
            return []
        head = tip
        for fact in fresh:
            tree.set(place(fact), Entry("100644", repo.objects.write_blob(fact.encode())))
            head = signed_commit(repo, tree.write(), [head] if head else [], who, reason)
        if repo.dry:
            return fresh
        try:
            update_refs(repo, [RefUpdate(REF, head, tip)], reason)
            return fresh
        except RepositoryError:
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def signed_commit(repo: Repo, tree: str, parents: Sequence[str], who: tuple[str, str], reason: str) -> str:
    """Write a commit of the ref, signed off by ``who`` (name and address), and return its id. No ref moves."""
    person = Person.now(*who)
    message = f"{reason}\n\nSigned-off-by: {who[0]} <{who[1]}>"
    return write_commit(repo.objects, tree=tree, parents=parents, author=person, committer=person, message=message)
