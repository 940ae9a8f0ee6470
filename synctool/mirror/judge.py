"""Judges one path, purely: why a downstream file differs from the translation of upstream's, and the content that would cure it.

Four things can cause a difference: a rule (owner, exclusion, deletion here), downstream's own work that was there at an earlier, trusted state (an overlay),
vocabulary, or a fault: a change that was not carried, or an edit without a cause. Only the last is unexplained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from synctool.errors import SyncError
from synctool.mirror.absence import Absence
from synctool.mirror.anchors import aligned_changes
from synctool.mirror.filetext import is_binary
from synctool.mirror.memory import Resolution
from synctool.mirror.pieces import Lines, lines_of
from synctool.policy.model import OwnerKind, Ownership

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
