"""``vime-sync explain``: which rule decides about a path, a change or a word, and where that rule stands."""

from __future__ import annotations

import contextlib
import datetime
import re
from pathlib import Path
from typing import Any

import click

from synctool.cli.app import Context, verb
from synctool.cli.inputs import Inputs, load, policy_option
from synctool.cli.report import Report
from synctool.errors import RepositoryError

KINDS = ("path", "change", "word")


@click.command(name="explain")
@policy_option
@click.argument("subject")
@click.option("--as", "kind", type=click.Choice(KINDS), help="What SUBJECT is.  [default: by its look]")
@click.option("--in", "inside", default="", help="For a word: the downstream path it stands in.")
@verb
def command(context: Context, policy_file: Path | None, subject: str, kind: str | None, inside: str) -> Report:
    """Say which rule decides about SUBJECT.

    #123 or a commit id is a change; what has a slash or a known file name is a path (upstream's or downstream's); all else is a word.
    """
    inputs = load(context.repo(), policy_file)
    kind = kind or _guess(inputs, subject)
    data: dict[str, Any] = {"subject": subject, "kind": kind}
    if kind == "change":
        told = _change(inputs, subject)
    elif kind == "path":
        told = _path(inputs, subject)
    else:
        told = _word(inputs, subject, inside)
    data["steps"] = [{"what": what, "rule": rule, "where": where} for what, rule, where in told]
    lines = [f"{what}\n    {where}: {rule}" if where else what for what, rule, where in told]
    return Report("explain", data, summary=lines)


def _guess(inputs: Inputs, subject: str) -> str:
    if re.fullmatch(r"#?\d+", subject):
        return "change"
    if re.fullmatch(r"[0-9a-f]{7,64}", subject):
        return "change"
    if ("/" in subject and " " not in subject and "://" not in subject) or _exists(inputs, subject):
        return "path"
    return "word"


def _exists(inputs: Inputs, path: str) -> bool:
    """Whether either side has a file of that name at its root."""
    revisions = ["HEAD"]
    with contextlib.suppress(RepositoryError):
        revisions.append(inputs.upstream_tip())
    for revision in revisions:
        try:
            if path and path in inputs.repo.tree(revision):
                return True
        except RepositoryError:  # an unborn branch
            continue
    return False


Step = tuple[str, str, str]


def _path(inputs: Inputs, path: str) -> list[Step]:
    policy, translator = inputs.policy, inputs.translator
    target = translator.path(path)
    steps: list[Step] = []
    rule = translator.path_rule(path)
    if rule is not None:
        steps.append((f"{path} lands at {target}", rule.describe(), policy.where(rule)))
    elif target != path:
        for found in translator.paths.trace(path):
            what = f"{path} lands at {target}" if not steps else "  and"
            step = (what, found.rule.describe(), policy.where(found.rule))
            if step[1:] not in [earlier[1:] for earlier in steps]:
                steps.append(step)
    else:
        steps.append((f"{path} is the same on both sides", "", ""))
    owner = policy.owner_of(target)
    verbs = {
        "mirror": "upstream's changes are merged",
        "native": "downstream's own: upstream's changes are reported, not applied",
        "exclude": "not taken over",
        "port": "rewritten here: upstream's changes are filed as work",
    }
    steps.append(
        (f"{target} is {owner.kind.value}: {verbs[owner.kind.value]}", f"{owner.rule}: {owner.reason}", owner.where)
    )
    for line, other in _other_owners(inputs, target):
        steps.append(("  (an earlier rule that it overrides)", other, f"{policy.file}:{line}"))
    if owner.kind.value == "mirror":
        steps += _absence(inputs, path, target)
    skip = translator.skips(target)
    if skip is not None:
        steps.append(("its content is not translated", f"translate.skip '{skip}'", policy.where(policy.translate)))
    scoped = [one for one in (*policy.families, *policy.terms, *policy.flags, *policy.protected) if one.is_scoped]
    for one in scoped:
        if one.only and one.holds_for(target):
            steps.append(("a rule for some paths holds here", one.describe(), policy.where(one)))
        elif one.except_ and not one.only and not one.holds_for(target):
            steps.append(("a rule does not hold here", one.describe(), policy.where(one)))
    return steps


def _absence(inputs: Inputs, path: str, target: str) -> list[Step]:
    """Why downstream lacks a mirrored file, if it does, and what its next upstream change would do."""
    repo, policy = inputs.repo, inputs.policy
    try:
        if target in repo.tree("HEAD"):
            return []
        # Before the fork renamed things the file had upstream's name.
        names = dict.fromkeys((target, path))
        gone = repo.text("log", "-1", "--diff-filter=D", "--no-renames", "--format=%h %s", "HEAD", "--", *names)
    except RepositoryError:  # an unborn branch
        return []
    where = policy.where(policy.deleted) if policy.deleted.line else policy.file
    if gone:
        rule = policy.deleted.once_deleted
        return [(f"{target} was deleted here, by {gone}", f"deleted.once_deleted = {rule}", where)]
    return [(f"{target} was never here", f"deleted.never_ported = {policy.deleted.never_ported}", where)]


def _other_owners(inputs: Inputs, path: str) -> list[tuple[int, str]]:
    from synctool.policy.globs import first_match

    found = [rule for rule in inputs.policy.owners if first_match(rule.paths, path) is not None]
    return [(rule.line, rule.describe()) for rule in found[:-1]]


def _change(inputs: Inputs, subject: str) -> list[Step]:
    policy = inputs.policy
    number = int(subject.lstrip("#")) if re.fullmatch(r"#?\d{1,9}", subject) else None
    commit = None
    if re.fullmatch(r"[0-9a-f]{7,64}", subject):
        try:
            commit = inputs.repo.resolve(subject)
            number = None
        except RepositoryError:
            commit = subject if number is None else None
    if commit is not None and number is None:
        number = _number_of(inputs, commit)
    name = commit[:12] if commit else f"#{number}"
    today = datetime.date.today()
    steps: list[Step] = []
    for rule in policy.exclusions:
        if not rule.names(pr=number, commit=commit):
            continue
        until = f", until {rule.expires}" if rule.expires else ""
        state = "is left out" if rule.active(today) else "is no longer left out: the exclusion ran out"
        steps.append((f"{name} {state}{until}", f"{rule.reason} ({rule.owner})", policy.where(rule)))
    if not steps:
        steps.append((f"no rule leaves {name} out; 'vime-sync plan' says what happens to it", "", ""))
    return steps


def _number_of(inputs: Inputs, commit: str) -> int | None:
    from synctool.git.commits import read_commits
    from synctool.plan.identity import identify

    found = identify(read_commits(inputs.repo.objects, [commit])[0]) if len(commit) >= 40 else None
    return found.number if found else None


def _word(inputs: Inputs, word: str, inside: str) -> list[Step]:
    policy, translator = inputs.policy, inputs.translator
    steps: list[Step] = []
    for span in translator.protected(word, inside):
        steps.append((f"'{word[span.start : span.end]}' is protected", span.rule.describe(), policy.where(span.rule)))
    for found in translator.trace(word, inside):
        before = word[found.start : found.end]
        what = f"'{before}' becomes '{found.after}'" if before != found.after else f"'{before}' stays"
        steps.append((what, found.rule.describe(), policy.where(found.rule)))
    for rule in (*policy.terms, *policy.flags, *policy.families):
        if rule.is_scoped and not rule.holds_for(inside) and _would(inputs, rule, word):
            steps.append(("  (a rule for other paths would hold)", rule.describe(), policy.where(rule)))
    if not steps:
        steps.append((f"no rule says anything about '{word}'", "", ""))
    elif len(steps) > 1:
        steps.insert(0, (f"'{word}' becomes '{translator.text(word, inside)}'", "", ""))
    return steps


def _would(inputs: Inputs, rule: Any, word: str) -> bool:
    from synctool.translate.vocabulary import compile_rules

    return compile_rules([rule]).replace(word) != word
