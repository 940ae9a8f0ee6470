"""The steps from changes to decisions, each a function over what the earlier ones found. ``build`` calls them in order."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from synctool.plan.history import History
from synctool.plan.hunks import Edits, FilePatch, Pair, is_inverse
from synctool.plan.lineage import stands_on
from synctool.plan.manifest import Manifest, Port
from synctool.plan.model import Change, Decision, Dependency, Evidence, Kind, PlannedChange, Strength, strongest_first
from synctool.plan.reverts import pair_reverts
from synctool.policy.model import OwnerKind

if TYPE_CHECKING:
    from synctool.policy.model import Policy

PROVEN = (Strength.RECORDED, Strength.STRONG)


def pair_of(change: Change) -> Pair:
    """(parent, commit), as ``Edits`` names it."""
    return change.parent, change.oid


def excluded(change: Change, policy: Policy, today: datetime.date) -> Decision | None:
    """The policy's exclusion of a change that holds today."""
    number = change.identity.number if change.identity else None
    rule = policy.exclusion_of(pr=number, commit=change.oid, today=today)
    if rule is None:
        return None
    until = f" (until {rule.expires:%Y-%m-%d})" if rule.expires else ""
    return Decision(Kind.EXCLUDE, f"{rule.reason}{until}", rule.owner, by="policy")


def expired(changes: Sequence[Change], policy: Policy, today: datetime.date) -> list[str]:
    """A warning for each expired exclusion that names a change of the range."""
    warnings = []
    for rule in policy.exclusions:
        if rule.active(today):
            continue
        for change in changes:
            if rule.names(pr=change.identity.number if change.identity else None, commit=change.oid):
                where = policy.where(rule)
                warnings.append(
                    f"{where}: the exclusion of {change.label} expired on {rule.expires}: renew or remove it (owner: {rule.owner})"
                )
    return warnings


def not_ours(paths: Iterable[str], policy: Policy) -> Decision | None:
    """An exclusion when no downstream path of a change is mirrored or ported; None when one is, or when there are no paths."""
    owners = [policy.owner_of(path) for path in sorted(set(paths))]
    if not owners or any(owner.kind in (OwnerKind.MIRROR, OwnerKind.PORT) for owner in owners):
        return None
    rules = sorted({f"{owner.kind.value} ({owner.rule})" for owner in owners})
    return Decision(Kind.EXCLUDE, f"no path of it is mirrored: {'; '.join(rules)}", by="policy")


def from_records(
    change: Change, history: History, ancestors: set[str], ports: Sequence[Port], manifests: Sequence[Manifest]
) -> list[Evidence]:
    """What downstream recorded about a change: ancestry, trailers, ports, earlier manifests, prose."""
    number = change.identity.number if change.identity else None
    found: list[Evidence] = []
    if change.oid in ancestors:
        found.append(Evidence("ancestor", Strength.RECORDED, "downstream's history contains this commit"))
    if (record := history.recorded(change.oid, number)) is not None:
        found.append(
            Evidence("trailer", Strength.RECORDED, f"{record.key} in {record.downstream[:9]}", record.downstream)
        )
    for port in ports:
        if port.names(change.oid, number):
            strength = Strength.PARTIAL if port.paths else Strength.RECORDED
            part = f", {len(port.paths)} path(s) only" if port.paths else ""
            found.append(
                Evidence("port", strength, f"recorded as ported in {port.downstream[:9]}{part}", port.downstream)
            )
    for manifest in manifests:
        entry = manifest.entry(change.oid)
        if entry is not None and entry.mirrored and entry.mirrored not in history.undone:
            found.append(
                Evidence(
                    "manifest",
                    Strength.RECORDED,
                    f"{manifest.file} says mirrored as {entry.mirrored[:9]}",
                    entry.mirrored,
                )
            )
    if not found and number is not None and number in history.claims:
        commits = history.claims[number]
        found.append(
            Evidence("claim", Strength.CLAIM, f"mentioned in {', '.join(c[:9] for c in commits)}", commits[-1])
        )
    return found


def presence(evidence: Sequence[Evidence]) -> Decision:
    """Present when something proves it, else taken; the evidence is kept either way."""
    ranked = tuple(strongest_first(evidence))
    if ranked and ranked[0].strength in PROVEN:
        return Decision(Kind.PRESENT, ranked[0].detail, evidence=ranked)
    return Decision(Kind.TAKE, evidence=ranked)


class Standing:
    """Which change stands on which, worked out for the files of the changes that matter."""

    def __init__(self, changes: Sequence[Change], edits: Edits) -> None:
        self.changes = changes
        self.edits = edits

    def over(self, places: Iterable[int], first: int = 0) -> list[dict[int, set[str]]]:
        """For each change the earlier ones, from the place ``first`` on, that it stands on, in the files that the changes at ``places`` touch."""
        touching = [pair_of(self.changes[place]) for place in places]
        self.edits.look(touching)
        paths = frozenset(path for pair in touching for path in self.edits.touched(pair))
        if not paths:
            return [{} for _ in self.changes]
        found = self._run(range(first, len(self.changes)), paths)
        moved = [{place + first: where for place, where in under.items()} for under in found]
        return [{} for _ in range(first)] + moved

    def between(self, first: int, last: int) -> list[int]:
        """The places after ``first`` and before ``last`` that stand on the change at ``first``, directly or through one another."""
        window = range(first, last)
        under = self._run(window, frozenset(self.edits.touched(pair_of(self.changes[first]))))
        reached = {0}
        for place in range(1, len(window)):
            if reached & under[place].keys():
                reached.add(place)
        return [first + place for place in sorted(reached - {0})]

    def _run(self, window: range, paths: frozenset[str]) -> list[dict[int, set[str]]]:
        """``stands_on`` for neighbouring changes; the hunks of those that touch none of the paths are not even read."""
        self.edits.look(pair_of(self.changes[place]) for place in window)
        followed = set(paths)
        near: list[Pair | None] = []
        for place in window:
            pair = pair_of(self.changes[place])
            if followed.isdisjoint(self.edits.touched(pair)):
                near.append(None)
                continue
            near.append(pair)
            followed |= {c.path for c in self.edits.changes(pair) if c.old_path in followed}
        self.edits.load(pair for pair in near if pair is not None)
        nothing: tuple[FilePatch, ...] = ()
        return stands_on([self.edits.patches(pair) if pair else nothing for pair in near], set(paths))


def collapse(items: list[PlannedChange], standing: Standing) -> list[PlannedChange]:
    """Mark the revert pairs of the range, where downstream does not have the first half and no person decided otherwise; remark on reverts that stay."""
    commits = [item.change.commit for item in items]
    edits = standing.edits

    def inverse(revert: int, target: int) -> bool:
        edits.load([pair_of(items[revert].change), pair_of(items[target].change)])
        return is_inverse(edits.patches(pair_of(items[revert].change)), edits.patches(pair_of(items[target].change)))

    def eligible(target: int, revert: int) -> bool:
        # What downstream has, or a person wants, must be taken back there too: then its revert is a change like any other.
        wanted = items[target].decision
        by_hand = wanted.by == "manifest" and wanted.kind is Kind.TAKE
        return wanted.kind is not Kind.PRESENT and not by_hand and items[revert].decision.by != "manifest"

    pairs, kept = pair_reverts(commits, inverse, standing.between, eligible)
    result = list(items)
    for pair in pairs:
        target, revert = items[pair.target], items[pair.revert]
        if target.decision.kind is Kind.TAKE:
            result[pair.target] = target.decided(
                Decision(Kind.COLLAPSED, f"reverted by {revert.change.label} in this range")
            )
        why = f"reverts {target.change.label} of this range"
        if target.decision.kind in (Kind.EXCLUDE, Kind.DEFER):
            why += ", which is left out"
        result[pair.revert] = revert.decided(Decision(Kind.COLLAPSED, why))
    for stay in kept:
        result[stay.revert] = result[stay.revert].noted(
            f"reverts {items[stay.target].change.label} of this range, but {stay.why}: both are kept"
        )
    return result


def guard_presence(items: list[PlannedChange], standing: Standing) -> list[PlannedChange]:
    """Take back "present by content" where the change stands on one that is taken: downstream only looks so because it lacks both."""
    doubtful = [
        n
        for n, item in enumerate(items)
        if item.decision.kind is Kind.PRESENT and item.decision.evidence[0].strength is Strength.STRONG
    ]
    if not doubtful:
        return items
    missing = (Kind.TAKE, Kind.DEFER)
    at = {change.oid: place for place, change in enumerate(standing.changes)}
    places = [at[item.change.oid] for item in items]  # single changes are not all that there are
    listed = {place: n for n, place in enumerate(places)}
    first = min((places[n] for n, item in enumerate(items) if item.decision.kind in missing), default=len(at))
    under = standing.over([places[n] for n in doubtful], first)
    result = list(items)
    for n in doubtful:
        below = (listed[place] for place in sorted(under[places[n]]) if place in listed)
        blocker = next((other for other in below if result[other].decision.kind in missing), None)
        if blocker is not None:
            item = result[n]
            label = result[blocker].change.label
            decision = Decision(Kind.TAKE, evidence=item.decision.evidence)
            result[n] = item.decided(decision).noted(f"looks present, but builds on {label}, which is not")
    return result


def depend(
    items: list[PlannedChange],
    standing: Standing,
    matters: Callable[[str], bool],
    missing: Sequence[int],
) -> list[PlannedChange]:
    """Give each taken change its dependencies on the changes at ``missing`` (places in ``standing``), in the upstream paths that matter."""
    if not missing:
        return items
    under = standing.over(missing, min(missing))
    at = {change.oid: place for place, change in enumerate(standing.changes)}
    absent = set(missing)
    result = list(items)
    for n, item in enumerate(items):
        if item.decision.kind is not Kind.TAKE or item.change.oid not in at:
            continue
        found = []
        for place, paths in sorted(under[at[item.change.oid]].items()):
            counted = tuple(sorted(filter(matters, paths)))
            if place in absent and counted:
                on = standing.changes[place]
                found.append(Dependency(on.oid, on.label, counted))
        if found:
            result[n] = PlannedChange(item.change, item.decision, tuple(found), item.notes)
    return result
