"""From facts to claims, section by section. Pure; each sentence names where it comes from, and says no more than stands there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from synctool.evidence.record import Topic
from synctool.plan.build import slug_of
from synctool.plan.manifest import Entry
from synctool.plan.model import Kind
from synctool.report.claims import GIT, MANIFEST, PATCHES, POLICY, Claim, Section
from synctool.report.evidence_sections import evidence_sections, record_source
from synctool.report.facts import Facts
from synctool.report.markdown import code, count, link, plain

#: Longer lists are folded.
FOLD = 12
_LETTERS = {"A": "added", "M": "modified", "D": "deleted", "T": "of another type"}
_KINDS = {
    Kind.TAKE: "taken",
    Kind.EXCLUDE: "excluded",
    Kind.PRESENT: "present already",
    Kind.DEFER: "deferred",
    Kind.COLLAPSED: "cancelled out by their reverts",
}


def sources(facts: Facts) -> dict[str, Any]:
    """What each source says, as JSON values: the ground that claims are proved on."""
    known: dict[str, Any] = {row.record.id: record_source(row) for row in facts.ledger.rows}
    known |= {statement.id: statement.to_json() for statement in facts.ledger.statements}
    known[GIT] = {
        "head": facts.target.head,
        "tree": facts.target.tree,
        "base": facts.target.base,
        "changed": facts.changed,
        "total": sum(facts.changed.values()),
        "folders": facts.folders,
        "landed": facts.landed,
    }
    known[POLICY] = {
        "file": facts.policy.file,
        "upstream": {"name": facts.policy.upstream.name, "url": facts.policy.upstream.url},
        "left_out": [one.path for one in facts.left_out],
        "reasons": [one.reason for one in facts.left_out],
        "require": [{"name": rule.name, "reason": rule.reason} for rule in facts.policy.required],
    }
    if facts.manifest is not None:
        known[MANIFEST] = {
            "file": facts.manifest.file,
            "base": facts.manifest.base,
            "through": facts.manifest.through,
            "changes": len(facts.manifest.entries),
            "counts": dict(Counter(str(entry.decision) for entry in facts.manifest.entries)),
            "entries": [
                [e.commit, e.pr, e.subject, str(e.decision), e.reason, e.owner, e.mirrored]
                for e in facts.manifest.entries
            ],
        }
    if facts.stack is not None:
        known[PATCHES] = {
            "pin": facts.stack.pin.label,
            "digest": facts.stack.digest,
            "archive": facts.stack.pin.archive.sha256,
            "patches": len(facts.stack.patches),
            "headers": [[p.name, *([f.name, f.value] for f in p.header.fields)] for p in facts.stack.patches],
        }
    return known


def sections(facts: Facts) -> tuple[Section, ...]:
    """All sections that have something to say, in the order of the body."""
    makers: tuple[Callable[[Facts], list[Section]], ...] = (_summary, _relations, _taken, _left_out, _patches, _said)
    found = [section for make in makers for section in make(facts)]
    found += evidence_sections(facts.ledger, facts.policy)
    return tuple(section for section in found if section.claims)


def _label(facts: Facts, entry: Entry) -> str:
    """An upstream change as its own project names it: a bare number would link to a pull request of ours."""
    upstream = facts.policy.upstream
    if entry.pr is None:
        return code(entry.commit[:9])
    hosted = (
        re.match(r"(?:https?|ssh|git)://|[\w.-]+@", upstream.url or "") is not None
    )  # a folder has no pull requests to link
    return f"{(slug_of(upstream.url) if hosted else None) or plain(upstream.name)}#{entry.pr}"


def _subject(entry: Entry) -> str:
    """Without the number that a squash merge put at its end: the label says it."""
    return plain(entry.subject.removesuffix(f"(#{entry.pr})"))


def _summary(facts: Facts) -> list[Section]:
    target, manifest = facts.target, facts.manifest
    claims = []
    if manifest is not None:
        name = plain(facts.policy.upstream.name)
        span = (
            f"{code(manifest.base[:12])} to {code(manifest.through[:12])}"
            if manifest.base
            else f"all through {code(manifest.through[:12])}"
        )
        what = (
            f"Single changes of {name}, the newest {code(manifest.through[:12])}"
            if manifest.picks
            else f"Mirrors {name} {span}"
        )
        claims.append(Claim(f"{what}; decisions are in {code(manifest.file)}.", (MANIFEST, POLICY)))
        counts = Counter(entry.decision for entry in manifest.entries)
        told = ", ".join(f"{counts[kind]:,} {words}" for kind, words in _KINDS.items() if counts[kind])
        if told:
            claims.append(Claim(f"{count(len(manifest.entries), 'upstream change')}: {told}.", (MANIFEST,)))
    claims.append(Claim(f"Head {code(target.head)}, tree {code(target.tree)}.", (GIT,)))
    if facts.changed:
        kinds = ", ".join(f"{n:,} {_LETTERS.get(letter, letter)}" for letter, n in sorted(facts.changed.items()))
        top = sorted(facts.folders.items(), key=lambda pair: (-pair[1], pair[0]))[:8]
        where = ", ".join(f"{code(name)} {count:,}" for name, count in top)
        since = f" since {code((target.base or '')[:12])}"
        claims.append(
            Claim(f"{count(sum(facts.changed.values()), 'path')} changed{since}: {kinds}; by folder: {where}.", (GIT,))
        )
    return [Section("Range", tuple(claims))]


def _relations(facts: Facts) -> list[Section]:
    words = {
        Topic.DEPENDS_ON: "Depends on {}: do not merge before it.",
        Topic.REVIEW_AGAINST: "Review only what is new, against {}.",
        Topic.REPLACES_PR: "Replaces {}.",
        Topic.REPLACED_BY_PR: "Replaced by {}: this one is closed, its evidence counts there by head and tree.",
    }
    claims = [
        Claim(f"{words[s.topic].format(_target(s.target))} {plain(s.text)}", (s.id,)) for s in facts.ledger.said(*words)
    ]
    return [Section("Before you merge", tuple(claims))]


def _target(target: str) -> str:
    """A pull request of our own project links; an address too."""
    return target if re.fullmatch(r"(?:[\w.-]+/[\w.-]+)?#\d+", target) else link(target, target)


def _taken(facts: Facts) -> list[Section]:
    if facts.manifest is None:
        return []
    rows = [entry for entry in facts.manifest.entries if entry.decision is Kind.TAKE]
    claims = tuple(
        Claim(f"{_label(facts, e)} | {_subject(e)} | {code(here[:12]) if here else ''}", source)
        for e in rows
        for here, source in [_commit_here(facts, e)]
    )
    return [Section("Taken", claims, ("upstream", "subject", "commit here"), folded=len(claims) > FOLD)]


def _commit_here(facts: Facts, entry: Entry) -> tuple[str, tuple[str, ...]]:
    """The commit that holds a change, and who says so: the manifest, or the trailers of the commits themselves."""
    if entry.mirrored:
        return entry.mirrored, (MANIFEST,)
    landed = facts.landed.get(entry.commit, "")
    return landed, (MANIFEST, GIT) if landed else (MANIFEST,)


def _left_out(facts: Facts) -> list[Section]:
    claims = []
    if facts.manifest is not None:
        for entry in facts.manifest.entries:
            if entry.decision in (Kind.EXCLUDE, Kind.DEFER, Kind.PRESENT):
                owner = f" Owner: {plain(entry.owner)}." if entry.owner else ""
                why = plain(entry.reason) or "no reason is recorded"
                text = f"{_label(facts, entry)} {_subject(entry)}: {_KINDS[entry.decision]}, {why}.{owner}"
                claims.append(Claim(text, (MANIFEST,)))
    claims += [Claim(f"{code(one.path)}: not mirrored, {plain(one.reason)}.", (POLICY,)) for one in facts.left_out]
    claims += [
        Claim(f"{code(s.target)}: not mirrored, {plain(s.text)}", (s.id,))
        for s in facts.ledger.said(Topic.NOT_MIRRORED)
    ]
    return [Section("Left out, and why", tuple(claims))]


def _patches(facts: Facts) -> list[Section]:
    stack = facts.stack
    if stack is None or not stack.patches:
        return []
    head = Claim(
        f"{count(len(stack.patches), 'patch', 'patches')}, applied in this order to {plain(stack.pin.label)} "
        f"(archive sha256 {code(stack.pin.archive.sha256)}); stack digest {code(stack.digest)}.",
        (PATCHES,),
    )
    rows = []
    for patch in stack.patches:
        header = patch.header
        cells = (
            code(patch.name),
            plain(header.subject),
            plain((header.get("Upstream-Status") or "not stated").partition("\n")[0]),
            plain((header.get("Forwarded") or header.get("Origin") or "not stated").replace("\n", " ")),
        )
        rows.append(Claim(" | ".join(cells), (PATCHES,)))
    return [
        Section("Engine patches", (head,)),
        Section("", tuple(rows), ("patch", "purpose", "upstream status", "forwarded or origin")),
    ]


def _said(facts: Facts) -> list[Section]:
    claims = [
        Claim(f"{plain(s.text)} Signed off by {plain(s.signed_off_by)}.", (s.id,))
        for s in facts.ledger.said(Topic.REVIEW, Topic.NOTE)
    ]
    return [Section("Stated by people", tuple(claims))]
