"""Checks from scratch: translate upstream's tip, lay it beside downstream, and explain every difference by a rule or list it as unexplained.

Four things can cause a difference: a rule (owner, exclusion, deletion here), downstream's own work that was there at an earlier, trusted state (an overlay),
vocabulary, or a fault: a change that was not carried, or an edit without a cause. Only the last is unexplained, and the fix-up tree cures just that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from synctool.errors import SyncError
from synctool.git.repo import Repo
from synctool.git.tree import SUBMODULE, Entry, Tree
from synctool.mirror.absence import Absence, DownstreamHistory
from synctool.mirror.anchors import aligned_changes
from synctool.mirror.filetext import is_binary
from synctool.mirror.guard import refusal
from synctool.mirror.memory import Resolution, load_memory
from synctool.mirror.pieces import Lines, lines_of
from synctool.mirror.resolve.words import Canonical
from synctool.mirror.sides import Sides, Version
from synctool.mirror.spans import lines_diff
from synctool.patches.quoting import quote
from synctool.policy.model import OwnerKind, Ownership, Policy
from synctool.progress import Progress, silent
from synctool.translate.translator import Translator

#: A text in canonical words.
Words = Callable[[bytes], str]


class Cause(StrEnum):
    """Why a downstream file differs from the translation of upstream's."""

    RULE = "rule"
    DELETED_HERE = "deleted here"
    NATIVE = "downstream's own file"
    WORDS = "vocabulary"
    OVERLAY = "overlay"
    RECORDED = "recorded"
    RESOLVED = "resolved conflict"
    #: Upstream's file is hostile (see ``guard``): it is never let in.
    REFUSED = "refused"
    #: Unexplained ones.
    MISSING = "missing"
    STALE = "deleted upstream, still here"
    DIFFERS = "differs"

    @property
    def explained(self) -> bool:
        """Whether a rule or record stands behind it."""
        return self not in (Cause.MISSING, Cause.STALE, Cause.DIFFERS)


@dataclass(frozen=True, slots=True)
class Difference:
    """One path that is not as the translation has it. ``blocks`` of ``total`` differing places in the text have no explanation."""

    path: str
    upstream_path: str
    cause: Cause
    detail: str
    where: str = ""
    blocks: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about one path. Contents are None where there is no such file.

    ``base`` and ``earlier`` are upstream (translated) and downstream at the earlier state; ``absence`` says why a missing
    file is missing; ``was_upstream`` whether upstream had the path at the earlier state; ``recorded`` names a change that
    was left out and touches it; ``refused`` says why upstream's file must not come in; ``resolved`` are the remembered resolutions of conflicts in this file.
    """

    path: str
    upstream_path: str
    owner: Ownership
    tip: bytes | None
    ours: bytes | None
    base: bytes | None = None
    earlier: bytes | None = None
    absence: Absence = Absence.NEVER
    was_upstream: bool = False
    recorded: str = ""
    refused: str = ""
    resolved: tuple[Resolution, ...] = ()

    def told(self, cause: Cause, detail: str, where: str = "", blocks: int = 0, total: int = 0) -> Difference:
        """A difference at this path."""
        return Difference(self.path, self.upstream_path, cause, detail, where, blocks, total)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A difference (None: there is none), and the content that would cure it (``cure`` None with ``delete`` unset: nothing to cure)."""

    difference: Difference | None
    cure: bytes | None = None
    delete: bool = False


def judge(facts: Facts, canonical: Words) -> Verdict:
    """Explain one path."""
    if facts.tip == facts.ours:
        return Verdict(None)

    if facts.owner.kind is not OwnerKind.MIRROR:
        return Verdict(facts.told(Cause.RULE, f"{facts.owner.kind}: {facts.owner.reason}", facts.owner.where))
    if facts.tip is None:
        if facts.was_upstream and facts.earlier == facts.ours != facts.base:
            return Verdict(
                facts.told(Cause.OVERLAY, "upstream deleted it; kept here, changed, since the earlier state")
            )
        if facts.was_upstream:
            return Verdict(facts.told(Cause.STALE, "upstream deleted it"), delete=True)
        return Verdict(facts.told(Cause.NATIVE, "upstream has no such file"))
    if facts.refused:
        return Verdict(facts.told(Cause.REFUSED, facts.refused))
    if facts.ours is None:
        if facts.absence is Absence.DELETED:
            return Verdict(facts.told(Cause.DELETED_HERE, "downstream deleted this file"))
        if facts.recorded:
            return Verdict(facts.told(Cause.RECORDED, facts.recorded))
        return Verdict(facts.told(Cause.MISSING, "upstream has it, downstream never had"), cure=facts.tip)
    if is_binary(facts.tip) or is_binary(facts.ours):
        if facts.earlier == facts.ours and facts.base == facts.tip:
            return Verdict(facts.told(Cause.OVERLAY, "another binary, since the earlier state"))
        return Verdict(facts.told(Cause.DIFFERS, "another binary", blocks=1, total=1), cure=facts.tip)
    return _judge_text(facts, canonical)


def _judge_text(facts: Facts, canonical: Words) -> Verdict:
    assert facts.tip is not None
    assert facts.ours is not None
    tip, ours = lines_of(facts.tip), lines_of(facts.ours)
    base, earlier = Counter(lines_of(facts.base or b"")), Counter(lines_of(facts.earlier or b""))
    total = open_blocks = 0
    overlay = resolved = False
    cured: list[bytes] = []
    position = 0
    for _, i1, i2, j1, j2 in aligned_changes(tip, ours):
        cured.extend(ours[position:j1])
        position = j2
        total += 1
        if _same_words(tip[i1:i2], ours[j1:j2], canonical):
            cured.extend(ours[j1:j2])
        elif _carried(tip[i1:i2], ours[j1:j2], base, earlier):
            overlay = True
            cured.extend(ours[j1:j2])
        elif any(_as_resolved(tip[i1:i2], ours[j1:j2], base, earlier, record) for record in facts.resolved):
            resolved = True
            cured.extend(ours[j1:j2])
        else:
            open_blocks += 1
            cured.extend(tip[i1:i2])
    cured.extend(ours[position:])
    if not open_blocks:
        if resolved:
            return Verdict(facts.told(Cause.RESOLVED, f"{total} place(s), as a conflict was resolved", "", 0, total))
        if overlay:
            return Verdict(facts.told(Cause.OVERLAY, f"{total} place(s) as at the earlier state", "", 0, total))
        return Verdict(facts.told(Cause.WORDS, f"{total} place(s) differ in vocabulary only", "", 0, total))
    if facts.recorded:
        return Verdict(facts.told(Cause.RECORDED, facts.recorded, "", 0, total))
    detail = f"{open_blocks} of {total} differing place(s) have no cause"
    return Verdict(facts.told(Cause.DIFFERS, detail, "", open_blocks, total), cure=b"".join(cured))


def _same_words(one: Lines, other: Lines, canonical: Words) -> bool:
    return [canonical(line).split() for line in one] == [canonical(line).split() for line in other]


def _carried(tip: Lines, ours: Lines, base: Counter[bytes], earlier: Counter[bytes]) -> bool:
    """Whether a differing place is older than the earlier state: downstream had these lines then, and upstream's that it lacks now are none of the new ones."""
    new_upstream = any(line.strip() and not base[line] for line in tip)
    new_here = any(line.strip() and not earlier[line] for line in ours)
    return bool(earlier) and not new_upstream and not new_here


def _as_resolved(tip: Lines, ours: Lines, base: Counter[bytes], earlier: Counter[bytes], record: Resolution) -> bool:
    """Whether a differing place is what a person made of a conflict.

    Downstream's new lines must stand in the resolution, upstream's new ones in the side that was theirs.
    """
    result, theirs = set(lines_of(record.text)), set(lines_of(record.sides[2]))
    return all(line in result or earlier[line] for line in ours) and all(line in theirs or base[line] for line in tip)


@dataclass(frozen=True, slots=True)
class Cure:
    """What an unexplained path should be: content before and after (None: no file) and its mode."""

    path: str
    mode: str
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True)
class Verification:
    """The whole check. ``fixup`` is the tree that downstream would have with every cure applied."""

    compared: int
    equal: int
    differences: tuple[Difference, ...]
    cures: tuple[Cure, ...]
    fixup: str
    self_test: int

    @property
    def unexplained(self) -> tuple[Difference, ...]:
        """Differences without a rule or record."""
        return tuple(difference for difference in self.differences if not difference.cause.explained)


def verify(
    repo: Repo,
    policy: Policy,
    translator: Translator,
    *,
    ours: str,
    through: str,
    since: str | None = None,
    base: str | None = None,
    recorded: Iterable[tuple[str, str]] = (),
    progress: Progress = silent,
) -> Verification:
    """Compare the downstream commit ``ours`` with the translation of upstream's ``through``.

    ``since`` is an earlier downstream commit that is trusted, and ``base`` the upstream commit that it stood at: what
    differed then is an overlay. ``recorded`` are (upstream commit, reason) of changes that were left out or are recorded as
    ports: paths that they touch are explained by them.
    """
    canonical = Canonical(policy, translator)
    checks = self_test(canonical)
    check = _Check(repo, policy, translator, ours, through, since, base)
    fixed = repo.tree(ours)
    reasons = check.reasons(recorded)
    differences: list[Difference] = []
    cures: list[Cure] = []
    compared = equal = 0
    paths = check.paths()
    for number, (path, upstream_path) in enumerate(paths):
        progress(number, len(paths), path)
        facts = check.facts(path, upstream_path, reasons.get(path, ""))
        verdict = judge(facts, canonical)
        compared += facts.tip is not None and facts.ours is not None
        equal += verdict.difference is None
        if verdict.difference is not None:
            differences.append(verdict.difference)
        if verdict.delete or verdict.cure is not None:
            cures.append(Cure(path, check.mode(path, upstream_path), facts.ours, verdict.cure))
    for cure in cures:
        place = Entry(cure.mode, repo.objects.write_blob(cure.after)) if cure.after is not None else None
        if place is None:
            fixed.delete(cure.path)
        else:
            fixed.set(cure.path, place)
    progress(len(paths), len(paths))
    return Verification(compared, equal, tuple(differences), tuple(cures), fixed.write(), checks)


def fixup_patch(found: Verification) -> bytes:
    """The cures as one git patch. Binary files can't be shown in one and are left out; the list of differences names them."""
    shown: list[bytes] = []
    for cure in found.cures:
        if any(data is not None and is_binary(data) for data in (cure.before, cure.after)):
            continue
        old, new = (quote(f"{side}/{cure.path}").encode("utf-8", "surrogateescape") for side in "ab")
        shown.append(b"diff --git %s %s\n" % (old, new))
        if cure.before is None:
            shown.append(b"new file mode %s\n" % cure.mode.encode())
        elif cure.after is None:
            shown.append(b"deleted file mode %s\n" % cure.mode.encode())
        names = (old if cure.before is not None else b"/dev/null", new if cure.after is not None else b"/dev/null")
        shown.append(lines_diff(lines_of(cure.before or b""), lines_of(cure.after or b""), *names))
    return b"".join(shown)


class _Check:
    """Reads what ``judge`` needs to know."""

    def __init__(
        self,
        repo: Repo,
        policy: Policy,
        translator: Translator,
        ours: str,
        through: str,
        since: str | None,
        base: str | None,
    ) -> None:
        self._repo, self._policy, self._translator = repo, policy, translator
        self._sides = Sides(repo.objects, translator)
        self._tip, self._ours = repo.tree(through), repo.tree(ours)
        self._base = repo.tree(base) if base else None
        self._earlier = repo.tree(since) if since else None
        self._history = DownstreamHistory(repo, ours, through, policy.upstream.baseline, translator)
        self._resolutions: dict[str, tuple[Resolution, ...]] = {}
        for record in load_memory(repo.objects, self._ours).known.values():
            self._resolutions[record.path] = (*self._resolutions.get(record.path, ()), record)
        self._upstream = {translator.path(path): path for path, _ in self._tip.items()}
        older = base or self._history.fork
        self._older = {translator.path(path): path for path, _ in repo.tree(older).items()} if older else {}

    def paths(self) -> list[tuple[str, str]]:
        """(downstream path, upstream path) of every file of either side."""
        names = dict(self._older)
        names.update(self._upstream)
        here = {path for path, _ in self._ours.items()}
        return [(path, names.get(path, path)) for path in sorted(here | set(self._upstream))]

    def facts(self, path: str, upstream_path: str, recorded: str) -> Facts:
        """All about one path."""
        tip = self._translated(self._tip, upstream_path, path) if path in self._upstream else None
        ours = self._content(self._ours, path)
        absent = ours is None and tip is not None
        return Facts(
            path=path,
            upstream_path=upstream_path,
            owner=self._policy.owner_of(path),
            tip=tip,
            ours=ours,
            base=self._translated(self._base, self._older.get(path, upstream_path), path) if self._base else None,
            earlier=self._content(self._earlier, path) if self._earlier else None,
            absence=self._history.why_absent(path, upstream_path) if absent else Absence.NEVER,
            was_upstream=path in self._older,
            recorded=recorded,
            refused=self._refused(path, upstream_path) if path in self._upstream and tip != ours else "",
            resolved=self._resolutions.get(path, ()),
        )

    def mode(self, path: str, upstream_path: str) -> str:
        """The mode that a cured file gets."""
        entry = self._ours.get(path) or self._tip.get(upstream_path)
        return entry.mode if entry else "100644"

    def reasons(self, recorded: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Downstream paths that recorded changes touch, with the reason."""
        from synctool.git.diff import tree_diff

        found: dict[str, str] = {}
        for commit, reason in recorded:
            for change in tree_diff(self._repo, f"{commit}^1", commit):
                found[self._translator.path(change.path)] = reason
        return found

    def _refused(self, path: str, upstream_path: str) -> str:
        entry = self._tip.get(upstream_path)
        return (entry and refusal(self._sides, Version(entry.mode, entry.oid, path), self._ours.get(path))) or ""

    def _translated(self, tree: Tree, upstream_path: str, path: str) -> bytes | None:
        entry = tree.get(upstream_path)
        return self._bytes(entry, self._sides.content(Version(entry.mode, entry.oid, path))) if entry else None

    def _content(self, tree: Tree, path: str) -> bytes | None:
        entry = tree.get(path)
        return self._bytes(entry, self._sides.raw(entry)) if entry else None

    @staticmethod
    def _bytes(entry: Entry, content: bytes | None) -> bytes:
        """Content for comparison; what can't be read stands as its id, behind a NUL so that it counts as binary."""
        if content is None or entry.mode == SUBMODULE:
            return b"\0" + entry.oid.encode()
        return content


def self_test(canonical: Words) -> int:
    """Plant paths whose verdict is known and check that they get it; returns how many.

    A filter that lets everything pass would call any tree verified, so each run proves first that it can still say no.

    Raises:
        SyncError: a planted path got another verdict.
    """
    checks = 0
    for facts, wanted in _planted():
        found = judge(facts, canonical).difference
        if (found.cause if found else None) is not wanted:
            got = found.cause if found else "no difference"
            raise SyncError(
                f"the verification itself is broken: planted path {facts.path} should be {wanted}, got {got}",
                hint="report this: 'vime-sync rage' bundles what is needed",
            )
        checks += 1
    return checks


def _planted() -> Iterator[tuple[Facts, Cause | None]]:
    mirror = Ownership(OwnerKind.MIRROR, "planted", "planted", "planted")
    native, exclude, port = (
        Ownership(kind, "planted", "planted", "planted")
        for kind in (OwnerKind.NATIVE, OwnerKind.EXCLUDE, OwnerKind.PORT)
    )
    old, new, mine = b"one\ntwo\nthree\n", b"one\n2\nthree\n", b"one\ntwo\nmine\nthree\n"
    name = "planted/path"
    # Must pass.
    yield Facts(name, name, mirror, old, old), None
    for owner in (native, exclude, port):
        yield Facts(name, name, owner, new, mine), Cause.RULE
        yield Facts(name, name, owner, new, None), Cause.RULE
    yield Facts(name, name, mirror, None, mine), Cause.NATIVE
    yield Facts(name, name, mirror, old, mine, base=old, earlier=mine), Cause.OVERLAY
    yield Facts(name, name, mirror, old, None, absence=Absence.DELETED), Cause.DELETED_HERE
    # Must not pass.
    yield Facts(name, name, mirror, old, None), Cause.MISSING
    yield Facts(name, name, mirror, old, None, absence=Absence.UNKNOWN), Cause.MISSING
    yield Facts(name, name, mirror, None, old, was_upstream=True), Cause.STALE
    yield Facts(name, name, mirror, new, old, base=old, earlier=old), Cause.DIFFERS
    yield Facts(name, name, mirror, old, mine, base=old, earlier=old), Cause.DIFFERS
    yield Facts(name, name, mirror, old, mine), Cause.DIFFERS
    yield Facts(name, name, mirror, b"\0a", b"\0b"), Cause.DIFFERS
