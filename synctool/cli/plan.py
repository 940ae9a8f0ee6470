"""``vime-sync plan``: what would happen to each upstream change of a range, as a table, as JSON and as a manifest."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from synctool.cli.app import Context, verb
from synctool.cli.inputs import Inputs, load, policy_option
from synctool.cli.report import Report
from synctool.cli.terminal import progress
from synctool.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from synctool.forge.base import Forge
    from synctool.plan.ahead import Readings
    from synctool.plan.manifest import Manifest
    from synctool.plan.model import Plan, PlannedChange

#: A run of at least this many neighbours that downstream's history contains as they are is one row of the table.
FOLD = 4
_STYLES = {"take": "bold", "exclude": "yellow", "present": "green", "defer": "yellow", "collapsed": "dim"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The upstream changes that a command line names, its manifest, and the forge that is asked where a commit alone leaves doubt."""

    base: str | None = None
    through: str | None = None
    numbers: tuple[int, ...] = ()
    picks: tuple[str, ...] = ()
    manifest_file: Path | None = None
    forge_name: str | None = None
    record: Path | None = None


def range_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name upstream changes, for ``plan`` and ``mirror``; the verb receives them as ``wanted``."""

    @functools.wraps(function)
    def wrapper(*given: Any, **options: Any) -> Any:
        values = {field.name: options.pop(field.name) for field in fields(Wanted)}
        return function(*given, wanted=Wanted(**values), **options)

    for option in (
        click.option(
            "--record",
            type=click.Path(path_type=Path, file_okay=False),
            help="Keep the forge's answers in this folder, and use those kept there.",
        ),
        click.option(
            "--forge", "forge_name", help="'github' (token from GITHUB_TOKEN), or a folder of recorded answers."
        ),
        click.option("--pick", "picks", multiple=True, metavar="SHA", help="Only this upstream commit. Repeatable."),
        click.option(
            "--pr",
            "numbers",
            multiple=True,
            type=click.IntRange(min=1),
            help="Only this upstream pull request. Repeatable.",
        ),
        click.option("--through", help="The last upstream commit of the range.  [default: the fetched branch]"),
        click.option(
            "--from", "base", help="The commit before the range, or 'start'.  [default: where the last sync ended]"
        ),
        click.option(
            "--manifest",
            "manifest_file",
            type=click.Path(path_type=Path, dir_okay=False),
            help="The manifest.  [default: sync_manifests/RANGE.toml]",
        ),
    ):
        wrapper = option(wrapper)
    return wrapper


def open_forge(inputs: Inputs, wanted: Wanted) -> Forge | None:
    """The forge that is named, or None.

    Raises:
        UsageError: ``record`` without a live forge, or an upstream address that names no project.
    """
    name, record = wanted.forge_name, wanted.record
    if name is None:
        if record is not None:
            raise UsageError("--record needs --forge github", hint="add it, or read the folder with --forge FOLDER")
        return None
    from synctool.forge.recorded import RecordedForge, Recorder

    if name != "github":
        return RecordedForge(Path(name))
    from synctool.forge.github import GitHubForge
    from synctool.plan.build import slug_of

    slug = slug_of(inputs.policy.upstream.url)
    if slug is None:
        raise UsageError("upstream.url names no GitHub project", hint="set it to https://github.com/OWNER/NAME")
    live = GitHubForge.from_environment(slug)
    return Recorder(live, record) if record is not None else live


def make_plan(
    context: Context,
    inputs: Inputs,
    wanted: Wanted,
    *,
    onto: str = "HEAD",
    forge: Forge | None = None,
    check_content: bool = True,
    readings: Readings | None = None,
) -> tuple[Plan, Path | None]:
    """The plan for a command line, and where its manifest is or would be (None in a bare repository without ``--manifest``).

    Raises:
        as ``build_plan``.
    """
    from synctool.plan.build import build_plan
    from synctool.plan.manifest import FOLDER, manifest_name, read_manifest

    picks = (*(f"#{number}" for number in wanted.numbers), *wanted.picks)
    place = wanted.manifest_file

    def find(begin: str | None, end: str) -> Manifest | None:
        nonlocal place
        if place is None and inputs.repo.work_tree is not None:
            place = inputs.repo.work_tree / FOLDER / manifest_name(begin, end, picks=bool(picks))
        if place is None or not os.path.lexists(place):
            return None
        return read_manifest(
            place, str(place.relative_to(Path.cwd())) if place.is_relative_to(Path.cwd()) else str(place)
        )

    with progress("planning", quiet=context.quiet) as tell:
        plan = build_plan(
            inputs.repo,
            inputs.policy,
            inputs.translator,
            base=wanted.base,
            through=wanted.through or inputs.upstream_tip(),
            downstream=onto,
            manifest=find,
            forge=forge,
            picks=picks,
            check_content=check_content,
            progress=tell,
            readings=readings,
        )
    return plan, place


@click.command(name="plan")
@policy_option
@range_options
@click.option("--onto", default="HEAD", show_default=True, help="The downstream commit that the sync would start from.")
@click.option(
    "--records-only",
    is_flag=True,
    help="Trust records alone: do not look for changes in downstream's files and commits.",
)
@click.option("--write", is_flag=True, help="Write the manifest, or bring an existing one up to date.")
@click.option("--dry-run", is_flag=True, help="With --write: say what would be written, and write nothing.")
@verb
def command(
    context: Context,
    policy_file: Path | None,
    wanted: Wanted,
    onto: str,
    records_only: bool,
    write: bool,
    dry_run: bool,
) -> Report:
    """Decide what happens to each upstream change of a range.

    Each first-parent change is taken, excluded (by policy, with the reason), present already (with the evidence), deferred, or collapsed with
    its revert. Edit the decisions in the manifest that --write makes: later plans and 'mirror' keep them.
    """
    from synctool.plan.ahead import read_ahead

    repo = context.repo()
    readings = None
    if wanted.base and wanted.through and not (records_only or wanted.numbers or wanted.picks):
        readings = read_ahead(repo, base=wanted.base, through=wanted.through, downstream=onto)
    inputs = load(repo, policy_file)
    forge = open_forge(inputs, wanted)
    plan, place = make_plan(
        context,
        inputs,
        wanted,
        onto=onto,
        forge=forge,
        check_content=not records_only,
        readings=readings,
    )
    from synctool.plan.model import to_json

    data = to_json(plan)
    messages = [f"warning: {warning}" for warning in plan.warnings]
    if forge is not None and (budget := forge.budget()) is not None:
        messages.append(f"{forge.name}: {budget}")
    if write:
        data["written"], remark = _write(plan, place, inputs, dry_run=dry_run)
        messages.append(remark)
    return Report("plan", data, _summary(plan), render=lambda console: _render(console, plan), messages=messages)


def _write(plan: Plan, place: Path | None, inputs: Inputs, *, dry_run: bool) -> tuple[str | None, str]:
    """Write the manifest; return its path (None when nothing changed or in a dry run) and a remark."""
    from synctool.plan.manifest_write import new_manifest, updated_manifest
    from synctool.textfile import read_text
    from synctool.whole_file import write_whole

    if place is None:
        raise UsageError("a bare repository has no place for the manifest", hint="name one with --manifest FILE")
    old = read_text(place, "manifest") if os.path.lexists(place) else None
    text = new_manifest(plan, inputs.policy.upstream.name) if old is None else updated_manifest(old, plan, str(place))
    if text == old:
        return None, f"unchanged: {place}"
    if dry_run:
        return None, f"dry run: would {'write' if old is None else 'update'} {place}"
    write_whole(place, text)
    return str(place), f"{'written' if old is None else 'updated'}: {place}"


def _summary(plan: Plan) -> list[str]:
    counts = ", ".join(f"{count} {kind}" for kind, count in plan.counts().items() if count)
    routes = ", ".join(f"{count} {route}" for route, count in plan.identities().items())
    return [f"{len(plan)} change(s): {counts}", f"pull request from: {routes}"]


def why(item: PlannedChange) -> str:
    """The reason of a decision, its remarks and what it depends on, in one line."""
    decision = item.decision
    parts = [decision.reason] if decision.reason else []
    if decision.owner:
        parts.append(f"owner {decision.owner}")
    if decision.by == "manifest":
        parts.append("set in the manifest")
    parts += item.notes
    if item.depends_on:
        parts.append(f"depends on {', '.join(d.label for d in item.depends_on)}")
    if not parts and decision.evidence:
        parts = [decision.evidence[0].detail]
    return "; ".join(parts)


def _render(console: Console, plan: Plan) -> None:
    from rich.table import Table
    from rich.text import Text

    what = "single changes" if plan.picks else f"{plan.base[:9] if plan.base else 'start'}..{plan.through[:9]}"
    origin = f" (base from {plan.base_from})" if plan.base_from and not plan.picks else ""
    against = f", against {plan.downstream[:9]}" if plan.downstream else ""
    console.print(f"{what}{origin}{against}", markup=False, highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("PR", no_wrap=True)
    table.add_column("sure", no_wrap=True)
    table.add_column("subject", ratio=5)
    table.add_column("decision", no_wrap=True)
    table.add_column("why", ratio=4)
    for number, items in _folded(plan.items):
        item = items[0]
        decision = Text(item.decision.kind, style=_STYLES[item.decision.kind])
        if len(items) > 1:
            last = number + len(items) - 1
            table.add_row(
                f"{number}-{last}",
                "",
                "",
                f"{len(items):,} changes, {item.change.label} to {items[-1].change.label}",
                decision,
                why(item),
            )
            continue
        identity = item.change.identity
        name = item.change.label if identity else item.change.oid[:9]
        subject = item.change.commit.subject.encode("utf-8", "replace").decode()
        subject = subject.removesuffix(f" ({name})")
        table.add_row(
            str(number), name, str(identity.confidence) if identity else "-", Text(subject), decision, Text(why(item))
        )
    console.print(table)


def _folded(items: tuple[PlannedChange, ...]) -> list[tuple[int, list[PlannedChange]]]:
    """Items with their number; long runs that downstream's history contains are one group."""
    groups: list[tuple[int, list[PlannedChange]]] = []
    run: list[PlannedChange] = []

    def close(end: int) -> None:
        start = end - len(run)
        if len(run) >= FOLD:
            groups.append((start + 1, list(run)))
        else:
            groups.extend((start + n + 1, [item]) for n, item in enumerate(run))
        run.clear()

    for place, item in enumerate(items):
        if item.decision.evidence and item.decision.evidence[0].kind == "ancestor":
            run.append(item)
            continue
        close(place)
        groups.append((place + 1, [item]))
    close(len(items))
    return groups
