"""``build_plan``: the one entry point, from a repository and a policy to a plan.

Reads git, writes nothing. The order of the steps matters and is told in ``_decide``.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from synctool.errors import NothingToDo, RepositoryError, UsageError
from synctool.git.commits import Commit
from synctool.git.repo import Repo
from synctool.plan.ahead import START, Readings
from synctool.plan.decide import (
    Standing,
    collapse,
    depend,
    excluded,
    expired,
    from_records,
    guard_presence,
    not_ours,
    pair_of,
    presence,
)
from synctool.plan.history import History, read_history
from synctool.plan.hunks import Edits
from synctool.plan.identity import confirm, identify_all
from synctool.plan.lint import check_manifest
from synctool.plan.manifest import Manifest, recorded_manifests
from synctool.plan.model import Change, Decision, Evidence, Kind, Plan, PlannedChange, Strength
from synctool.plan.present import Presence, Words, by_content
from synctool.plan.resume import Start, claimed_start, find_start
from synctool.plan.span import changes_between, on_first_parent_chain, picked_changes
from synctool.policy.model import OwnerKind
from synctool.progress import Progress, silent

if TYPE_CHECKING:
    from synctool.forge.base import Forge
    from synctool.policy.model import Policy

#: Finds the manifest of a range, given the ids of its base (None: upstream's first commit) and its end.
ManifestFor = Callable[[str | None, str], Manifest | None]
_SLUG = re.compile(r"(?:[/:])([\w.-]+/[\w.-]+?)(?:\.git)?/?$")


def slug_of(url: str | None) -> str | None:
    """``owner/name`` of a repository's address, or None."""
    match = _SLUG.search(url or "")
    return match[1] if match else None


@dataclass
class _Context:
    """What the steps share. ``changes`` are those of the plan; ``around`` those that dependencies are looked for among."""

    repo: Repo
    policy: Policy
    words: Words
    downstream: str
    today: datetime.date
    history: History
    manifests: tuple[Manifest, ...]
    manifest: Manifest | None
    progress: Progress
    check_content: bool
    readings: Readings

    def owner(self, upstream_path: str) -> OwnerKind:
        """Who decides about what an upstream path becomes here."""
        return self.policy.owner_of(self.words.path(upstream_path)).kind

    def is_ours(self, upstream_path: str) -> bool:
        """Whether edits of an upstream path come here, merged or filed as work."""
        return self.owner(upstream_path) in (OwnerKind.MIRROR, OwnerKind.PORT)


def build_plan(
    repo: Repo,
    policy: Policy,
    translator: Words,
    *,
    base: str | None,
    through: str,
    downstream: str = "HEAD",
    manifest: Manifest | ManifestFor | None = None,
    forge: Forge | None = None,
    picks: Sequence[str] = (),
    today: datetime.date | None = None,
    check_content: bool = True,
    progress: Progress = silent,
    readings: Readings | None = None,
) -> Plan:
    """Decide what happens to each upstream change.

    ``base`` (exclusive) None means: where the last sync ended; ``START``: from upstream's first commit. ``picks`` are revisions or pull requests (``#12``):
    then only those are planned, and the rest of the range serves to find what they stand on. ``check_content`` False skips the comparison of edits
    with downstream's commits and tree; records still count. ``readings`` holds what of the histories was read already.

    Raises:
        RepositoryError: a revision is missing, or upstream's history was rewritten.
        UsageError: the range is the wrong way round, no base is known, or a pull request is not in the range.
        ConfigError: a manifest is wrong or names changes outside the range.
        NothingToDo: the range is empty.
    """
    tip, ours = repo.resolve(through), repo.resolve(downstream)
    history = read_history(repo, ours, tip, upstream_name=policy.upstream.name)
    manifests = tuple(recorded_manifests(repo, repo.tree(ours)))
    context = _Context(
        repo,
        policy,
        translator,
        ours,
        today or datetime.date.today(),
        history,
        manifests,
        None,
        progress,
        check_content,
        readings or Readings(Edits(repo), Edits(repo)),
    )
    slug = slug_of(policy.upstream.url)
    start = _start(context, base, tip, optional=bool(picks))
    around: list[Change] = []
    if start is None or start.base != tip:
        around = changes_between(repo, start.base or None if start else None, tip)
    around = identify_all(around, slug)
    if forge is not None and not picks:
        around = confirm(around, forge, progress)
    changes = _picked(repo, around, picks, tip, slug, forge) if picks else around
    if not changes:
        assert start is not None
        raise NothingToDo(
            f"no upstream change between {start.base[:9] or 'the start'} and {tip[:9]}",
            hint=f"the base is from {start.source}",
        )
    warnings = list(start.warnings) if start else []
    if start and not picks and not on_first_parent_chain(changes, start.base or None):
        warnings.append(
            f"{start.base[:9]} is not on upstream's main line: {changes[0].label} contains it and is planned whole"
        )
    if start and base is None and not picks:
        remark = claimed_start(history, [c.commit for c in changes], _number_of(changes))
        warnings += [remark] if remark else []
    begin = (start.base or None) if start else None
    if callable(manifest):
        manifest = manifest(begin, changes[-1].oid if picks else tip)
    if manifest is not None:
        check_manifest(manifest, changes, begin, tip, picks=bool(picks))
        context.manifest = manifest
    items, more = _decide(context, changes, around)
    return Plan(
        begin,
        tip,
        ours,
        tuple(items),
        start.source if start else "",
        bool(picks),
        (*warnings, *more),
        manifest.file if manifest else None,
    )


def _number_of(changes: Sequence[Change]) -> Callable[[Commit], int | None]:
    numbers = {c.oid: c.identity.number for c in changes if c.identity}
    return lambda commit: numbers.get(commit.oid)


def _start(context: _Context, base: str | None, tip: str, *, optional: bool) -> Start | None:
    """The base of the range; an empty id means from the first commit. None when it is unknown and that is allowed."""
    if base == START:
        return Start("", "--from start")
    if base is not None:
        return Start(context.repo.resolve(base), "--from")
    policy = context.policy

    def left_out(oid: str) -> bool:
        return any(rule.commit and oid.startswith(rule.commit) for rule in policy.exclusions)

    try:
        return find_start(
            context.repo,
            context.history,
            context.manifests,
            downstream=context.downstream,
            through=tip,
            baseline=policy.upstream.baseline,
            left_out=left_out,
        )
    except (UsageError, RepositoryError):
        if optional:
            return None
        raise


def _picked(
    repo: Repo, around: Sequence[Change], picks: Sequence[str], tip: str, slug: str | None, forge: Forge | None
) -> list[Change]:
    """The changes that were asked for one by one, in upstream's order.

    Raises:
        UsageError: a pull request is not in upstream's history.
        RepositoryError: a commit is missing, or upstream does not contain it.
    """
    wanted: dict[str, None] = {}
    everything: list[Change] | None = None
    for pick in picks:
        number = pick.removeprefix("#")
        if not (pick.startswith("#") and number.isdigit()):
            oid = repo.resolve(pick)
            if not repo.is_ancestor(oid, tip):
                raise RepositoryError(
                    f"{pick} is not in upstream's history up to {tip[:9]}",
                    hint="fetch upstream, or give a later --through",
                )
            wanted[oid] = None
            continue
        if everything is None:
            everything = identify_all(changes_between(repo, None, tip), slug)
        found = [c for c in everything if c.identity and c.identity.number == int(number)]
        if not found and forge is not None and (pull := forge.pull(int(number))) is not None and pull.merge_commit:
            found = [c for c in everything if c.oid == pull.merge_commit]
        if not found:
            raise UsageError(
                f"no upstream change up to {tip[:9]} is known to come from #{number}",
                hint="fetch upstream; if its commit names no number, use --pick SHA",
            )
        order = list(type(found[0].identity.confidence)) if found[0].identity else []
        best = min(found, key=lambda c: order.index(c.identity.confidence) if c.identity else 0)
        wanted[best.oid] = None
    known = {c.oid: c for c in (*around, *(everything or ()))}
    alone = {c.oid: c for c in identify_all(picked_changes(repo, [oid for oid in wanted if oid not in known]), slug)}
    both = {**known, **alone}
    return [both[c.oid] for c in picked_changes(repo, list(wanted))]


def _decide(
    context: _Context, changes: Sequence[Change], around: Sequence[Change]
) -> tuple[list[PlannedChange], list[str]]:
    """Decisions for all changes, and warnings.

    Policy exclusions come first; then what downstream records or shows; then a person's manifest; then revert pairs; then doubt about content that
    stands on what is missing; last, what the taken changes depend on.
    """
    policy = context.policy
    listed = list(changes)
    inside = {c.oid for c in around}
    background = [c for c in around if c.oid not in {x.oid for x in changes}] if len(around) != len(changes) else []
    union = list(around) + [c for c in changes if c.oid not in inside]
    edits = context.readings.upstream
    standing = Standing(union, edits)
    items = [PlannedChange(c, d) for c, d in zip(listed, _first_look(context, listed, edits), strict=True)]
    warnings = expired(listed, policy, context.today)
    items = [_by_hand(context, item) for item in items]
    whole = {c.oid: n for n, c in enumerate(union)}
    if not background:
        items = collapse(items, standing)
    items = guard_presence(items, standing)
    if not background:
        # A change without a mirrored path was never to come here, so nothing here can depend on it.
        left_out = [i.change for i in items if i.decision.kind in (Kind.EXCLUDE, Kind.DEFER)]
        edits.look(map(pair_of, left_out))
        missing = [whole[c.oid] for c in left_out if any(map(context.is_ours, edits.touched(pair_of(c))))]
    else:
        missing = _missing_background(context, items, background, standing, whole)
    items = depend(items, standing, context.is_ours, missing)
    for item in items:
        if item.depends_on:
            names = ", ".join(d.label for d in item.depends_on)
            warnings.append(f"{item.change.label} depends on {names}, which this plan leaves out")
    return items, warnings


def _first_look(context: _Context, changes: Sequence[Change], edits: Edits) -> list[Decision]:
    """Exclusions, then presence by records, then presence by content for those still open."""
    policy, history = context.policy, context.history
    decisions: list[Decision] = []
    ancestors = _ancestors(context, changes)
    ports = [port for m in (*context.manifests, *filter(None, [context.manifest])) for port in m.ports]
    evidence: list[list[Evidence]] = []
    edits.look(pair_of(change) for change in changes if change.oid not in ancestors)
    for change in changes:
        found = from_records(change, history, ancestors, ports, context.manifests)
        evidence.append(found)
        decision = excluded(change, policy, context.today)
        if decision is None:
            decision = presence(found)
        if decision.kind is Kind.TAKE:
            touched = [context.words.path(path) for path in edits.touched(pair_of(change))]
            decision = not_ours(touched, policy) or decision
            if not touched:
                nothing = Evidence("empty", Strength.RECORDED, "it changes no file")
                decision = presence([*found, nothing])
        decisions.append(decision)
    open_places = [n for n, d in enumerate(decisions) if d.kind is Kind.TAKE] if context.check_content else []
    # A ported path was rewritten here, so its content proves nothing: only a recorded port does.
    told = [
        n
        for n in open_places
        if all(context.owner(c.path) is not OwnerKind.PORT for c in edits.changes(pair_of(changes[n])))
    ]
    context.readings.wait()  # a second process may take a part only while no thread is at work
    looker = Presence(context.repo.objects, context.words, context.repo.tree(context.downstream), context.is_ours)
    alive = [(c.parents[0], c.oid) for c in history.alive if c.parents]
    contents = by_content(looker, edits, [pair_of(changes[n]) for n in told], context.readings.own, alive)
    for done, (n, more) in enumerate(zip(told, contents, strict=True), 1):
        context.progress(done, len(told), changes[n].label)
        decisions[n] = presence([*evidence[n], *more])
    return decisions


def _ancestors(context: _Context, changes: Sequence[Change]) -> set[str]:
    """Changes that downstream's history contains as they are."""
    tips = [changes[-1].oid, f"^{context.downstream}"]
    outside = set(context.repo.text("rev-list", *tips, "--").split())
    return {c.oid for c in changes if c.oid not in outside and c.oid not in context.history.undone}


def _by_hand(context: _Context, item: PlannedChange) -> PlannedChange:
    """The person's decision, and a remark on an earlier sync of the change that was taken back."""
    number = item.change.identity.number if item.change.identity else None
    undone = context.history.taken_back(item.change.oid, number)
    if undone is not None and item.decision.kind is Kind.TAKE:
        record, by = undone
        item = item.noted(f"was mirrored in {record.downstream[:9]}, reverted by {by[:9]}")
    entry = context.manifest.entry(item.change.oid) if context.manifest else None
    if entry is None or not entry.by_hand:
        return item
    decision = replace(entry.as_decision(), evidence=item.decision.evidence)
    return item.decided(decision)


def _missing_background(
    context: _Context,
    items: Sequence[PlannedChange],
    background: Sequence[Change],
    standing: Standing,
    whole: dict[str, int],
) -> list[int]:
    """Of the changes around single picks: those that a pick stands on and that downstream does not have."""
    picked = [whole[item.change.oid] for item in items if item.decision.kind is Kind.TAKE]
    under = standing.over(picked)
    unpicked = {whole[c.oid] for c in background}
    below = sorted({n for place in picked for n in under[place]} & unpicked)
    decisions = _first_look(context, [standing.changes[n] for n in below], standing.edits) if below else []
    return [n for n, decision in zip(below, decisions, strict=True) if decision.kind is not Kind.PRESENT]
