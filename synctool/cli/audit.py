"""``vime-sync audit``: find statically what a sync broke, say where, why and how to mend it, and mend what is mechanical."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from synctool.cli.app import Context, verb
from synctool.cli.inputs import Inputs, load, policy_option
from synctool.cli.report import Report
from synctool.errors import Exit, RepositoryError, UsageError
from synctool.jsontext import dumps
from synctool.whole_file import write_whole

if TYPE_CHECKING:
    from rich.console import Console

    from synctool.audit.context import Audit
    from synctool.audit.engine.index import EngineIndex
    from synctool.audit.run import Result
    from synctool.git.repo import Repo


@click.command(name="audit")
@policy_option
@click.option(
    "--tree", "tree", metavar="REV", default="HEAD", show_default=True, help="Downstream commit or tree to check."
)
@click.option(
    "--since", metavar="REV", help="Downstream before the sync: tells what the sync changed, and signs its commits."
)
@click.option(
    "--from", "base", metavar="SHA", help="Upstream commit before the range.  [default: from the records of --since]"
)
@click.option(
    "--through", metavar="SHA", help="Upstream commit at the end of the range.  [default: what was fetched last]"
)
@click.option(
    "--pin", type=click.Path(path_type=Path), help="Unpacked source of the engine.  [default: the pinned, patched one]"
)
@click.option(
    "--stack", type=click.Path(path_type=Path), help="The patch stack's folder.  [default: the only one under patches/]"
)
@click.option("--engine", "package", metavar="NAME", help="Import name of the engine.  [default: the pin's]")
@click.option("--image", type=click.Path(path_type=Path, dir_okay=False), help="'pip inspect' of the base image.")
@click.option(
    "--baseline", type=click.Path(path_type=Path, dir_okay=False), help="Accepted findings, each with a reason."
)
@click.option(
    "--sarif", "sarif_file", type=click.Path(path_type=Path, dir_okay=False), help="Write SARIF 2.1.0 to this file."
)
@click.option("--only", multiple=True, metavar="CHECK", help="Run this check only (may be repeated).")
@click.option("--skip", multiple=True, metavar="CHECK", help="Leave this check out (may be repeated).")
@click.option("--fix", is_flag=True, help="Mend what is mechanical, in the work tree.")
@click.option("--accept", metavar="REASON", help="Add what was found to the baseline file, for this reason.")
@click.option("--owner", default="maintainers", show_default=True, help="Who answers for what --accept adds.")
@click.option("--dry-run", is_flag=True, help="With --fix or --accept: say what would be written, write nothing.")
@click.option("--no-cache", is_flag=True, help="Check everything afresh.")
@verb
def command(
    context: Context,
    policy_file: Path | None,
    tree: str,
    since: str | None,
    base: str | None,
    through: str | None,
    pin: Path | None,
    stack: Path | None,
    package: str | None,
    image: Path | None,
    baseline: Path | None,
    sarif_file: Path | None,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    fix: bool,
    accept: str | None,
    owner: str,
    dry_run: bool,
    no_cache: bool,
) -> Report:
    """Check a mirrored tree against upstream's range and the pinned, patched engine.

    Exits with 1 when something is found that the baseline does not accept. Without --fix and --accept nothing is changed.
    """
    from synctool.audit.baseline import Baseline, load_baseline
    from synctool.audit.build import build_audit
    from synctool.audit.engine.cache import keep_index
    from synctool.audit.remember import remembered_run
    from synctool.cli.terminal import progress

    _check_usage(accept, baseline, fix, dry_run)
    repo = context.repo(dry=True)
    inputs = load(repo, policy_file)
    messages: list[str] = []
    base, through = _range(repo, inputs, since, base, through, messages)
    engine = _engine(context, pin, stack, package, messages)
    accepted = load_baseline(baseline) if baseline is not None and (accept is None or baseline.exists()) else Baseline()
    with progress("auditing", quiet=context.quiet) as told:
        audit = build_audit(
            repo, inputs.policy, inputs.translator, tree=tree, since=since, base=base, through=through, engine=engine, image=image
        )  # fmt: skip
        audit.served = accepted.served
        result = remembered_run(
            audit, baseline=accepted, only=only, skip=skip, progress=told,
            key=None if no_cache else _key(repo, inputs, tree, since, base, through, engine, image),
        )  # fmt: skip
    if engine is not None:
        keep_index(engine)
    if sarif_file is not None:
        from synctool.audit.sarif import sarif

        write_whole(sarif_file, dumps(sarif(result), indent=1).encode())
    report = _report(result, engine, messages)
    if fix:
        _fix(repo, audit, result, dry_run, report)
    if accept is not None and baseline is not None:
        _accept(baseline, result, accept, owner, dry_run, report)
    return report


def _check_usage(accept: str | None, baseline: Path | None, fix: bool, dry_run: bool) -> None:
    if accept is not None and baseline is None:
        raise UsageError("--accept needs --baseline", hint="name the file that keeps accepted findings")
    if accept is not None and len(accept.strip()) < 3:
        raise UsageError("--accept needs a reason", hint="say why these findings may stay")
    if dry_run and not fix and accept is None:
        raise UsageError("--dry-run needs --fix or --accept", hint="an audit alone writes nothing")


def _range(
    repo: Repo, inputs: Inputs, since: str | None, base: str | None, through: str | None, messages: list[str]
) -> tuple[str | None, str | None]:
    """Both ends of upstream's range, or neither."""
    if base is None and since is not None:
        from synctool.plan.history import read_history
        from synctool.plan.manifest import recorded_manifests
        from synctool.plan.resume import find_start

        tip = repo.resolve(through) if through else inputs.upstream_tip()
        history = read_history(repo, repo.resolve(since), tip, upstream_name=inputs.policy.upstream.name)
        manifests = list(recorded_manifests(repo, repo.tree(since)))
        baseline = inputs.policy.upstream.baseline
        base = find_start(repo, history, manifests, downstream=repo.resolve(since), through=tip, baseline=baseline).base
        return base, tip
    if base is None:
        if through is not None:
            raise UsageError("--through needs --from or --since", hint="name upstream's commit before the range")
        messages.append("no range of upstream: give --from (or --since) to check names, paths and comments against it")
        return None, None
    return repo.resolve(base), repo.resolve(through) if through else inputs.upstream_tip()


def _engine(
    context: Context, pin: Path | None, stack: Path | None, package: str | None, messages: list[str]
) -> EngineIndex | None:
    from synctool.audit.engine.cache import open_index
    from synctool.audit.engine.source import FolderSource, TreeSource
    from synctool.git.tree import Tree
    from synctool.patches.stack import apply_stack, find_stack, load_stack
    from synctool.patches.store import open_pin

    if pin is not None:
        return open_index(FolderSource(pin), package or _only_package(pin))
    try:
        folder = find_stack(context.directory, stack)
    except UsageError as error:
        if stack is not None:
            raise
        messages.append(f"no engine to check against ({error.title}): give --pin FOLDER or --stack FOLDER")
        return None
    loaded = load_stack(folder)
    from synctool.cli.terminal import progress

    with progress(f"getting {loaded.pin.label}", quiet=context.quiet) as told:
        source = open_pin(loaded.pin, dry=True, progress=told)
    patched = source.tree
    for step in apply_stack(patched, loaded.patches, loaded.pin.allowed):
        # By id, not by git: in a dry repository the patched tree is in memory only.
        patched = Tree(source.repo.objects, step.after)
    label = f"{loaded.pin.label} with {len(loaded.patches)} patches" if loaded.patches else loaded.pin.label
    index = open_index(TreeSource(patched), package or loaded.pin.import_name, label=label)
    index.patched_with = frozenset(patch.sha256 for patch in loaded.patches)
    return index


def _only_package(folder: Path) -> str:
    """The importable folder of a source: the one that is called like the folder or its metadata, else the only one."""
    if not folder.is_dir():
        raise UsageError("no such folder", where=str(folder), hint="--pin takes an unpacked source of the engine")
    found = sorted(
        path.parent.name for path in folder.glob("*/__init__.py") if path.parent.name not in ("tests", "docs")
    )
    named = [name for name in found if folder.name.replace("_", "-").startswith(name.replace("_", "-"))]
    if len(found) == 1 or named:
        return named[0] if named else found[0]
    raise UsageError("which package is the engine?", where=str(folder), hint="name it with --engine")


def _key(
    repo: Repo, inputs: Inputs, tree: str, since: str | None, base: str | None, through: str | None,
    engine: EngineIndex | None, image: Path | None,
) -> list[str]:  # fmt: skip
    """Everything that a result depends on, but the baseline, which is applied afterwards."""
    named = [repo.resolve(name, "object") if name else "" for name in (tree, since, base, through)]
    state = inputs.policy.model_dump_json(by_alias=True)
    return [
        *named,
        state,
        engine.source.key if engine is not None else "",
        image.read_text() if image is not None else "",
    ]


def _fix(repo: Repo, audit: Audit, result: Result, dry: bool, report: Report) -> None:
    from synctool.audit.fix import edits, fix_work_tree

    if repo.work_tree is None:
        raise RepositoryError("--fix needs a work tree", where=str(repo.git_dir), hint="run it in a checkout")
    done, differ = fix_work_tree(repo.work_tree, edits(result.findings), audit.tree.data, dry=dry)
    report.data["fixed"] = done
    report.data["not_fixed"] = differ
    word = "would mend" if dry else "mended"
    report.summary.append(f"{word} {sum(done.values())} places in {len(done)} files")
    report.messages += [f"{path} differs from the audited tree: left alone" for path in differ]


def _accept(file: Path, result: Result, reason: str, owner: str, dry: bool, report: Report) -> None:
    from synctool.audit.baseline import with_accepted

    text = file.read_text(encoding="utf-8") if file.exists() else ""
    new = with_accepted(text, result.findings, reason=reason.strip(), owner=owner)
    report.data["baseline"] = None if dry else str(file)
    report.summary.append(f"{'would add' if dry else 'added'} {len(result.findings)} entries to {file}")
    if not dry:
        write_whole(file, new.encode())
        report.exit_code = Exit.OK


def _report(result: Result, engine: EngineIndex | None, messages: list[str]) -> Report:
    found, accepted = result.findings, result.accepted
    data: dict[str, Any] = {
        "engine": engine.label if engine is not None else None,
        "findings": [finding.to_json() for finding in found],
        "accepted": [finding.to_json() for finding in accepted],
        "unused_baseline": list(result.unused),
    }
    against = f" against {engine.label}" if engine is not None else ""
    fixable = sum(any(hit.edit for hit in finding.hits) for finding in found)
    summary = [f"{len(found)} findings{against}, {len(accepted)} accepted by the baseline"]
    if fixable:
        summary[0] += f"; {fixable} can be mended with --fix"
    messages += [f"baseline entry accepts nothing any more: {entry}" for entry in result.unused]
    code = Exit.ATTENTION if found else Exit.OK
    return Report("audit", data, summary, lambda console: _render(console, result), messages, code)


def _render(console: Console, result: Result) -> None:
    for finding in result.findings:
        first = finding.hits[0]
        where = f"{first.path}:{first.line}" if first.line else first.path or finding.subject[:12]
        console.print(f"{where}: {finding.rule.id}: {finding.message}", markup=False, highlight=False, soft_wrap=True)
        for hit in finding.hits[1:6]:
            console.print(f"  also {hit.path}:{hit.line}", markup=False, highlight=False)
        if len(finding.hits) > 6:
            console.print(f"  and {len(finding.hits) - 6} more places", markup=False, highlight=False)
        console.print(f"  why: {finding.rule.why}", markup=False, highlight=False, soft_wrap=True)
        console.print(f"  mend: {finding.mend}", markup=False, highlight=False, soft_wrap=True)
