"""``vime-sync patch verify``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from synctool.cli.app import Context, verb
from synctool.cli.patch_common import Where, stack_options, step_data, step_line
from synctool.cli.report import Report
from synctool.errors import Exit


@click.command(name="verify")
@verb
@stack_options
@click.option("--python", "python", help="The interpreter whose grammar counts.  [default: this one]")
@click.option("--changed", is_flag=True, help="Parse only the files that the stack changes.")
@click.option("--all-files", is_flag=True, help="Parse the whole archive, not only the importable package.")
@click.option("--no-cache", is_flag=True, help="Parse again what parsed before.")
@click.option(
    "--no-drift",
    is_flag=True,
    help="Fail when a patch is not in canonical form: an offset, old context, another writer.",
)
@click.option("--referee", is_flag=True, help="Apply every patch with git too, and compare the trees.")
@click.option(
    "--resolved", type=click.Path(path_type=Path), help="Write the whole stack as one patch on the pin, for CI to keep."
)
def command(
    context: Context,
    where: Where,
    python: str | None,
    changed: bool,
    all_files: bool,
    no_cache: bool,
    no_drift: bool,
    referee: bool,
    resolved: Path | None,
) -> Report:
    """Prove that the stack applies in order to the exact pin, and that every Python file of the result parses.

    Writes nothing but the cache (and --resolved). Exit code 1: it does not apply, parse or agree.
    """
    from synctool.patches.gate import find_interpreter
    from synctool.patches.verify import verify_stack
    from synctool.whole_file import write_whole

    start = time.perf_counter()
    stack = where.load()
    source = where.open(stack.pin, dry=not (resolved or no_drift or referee))
    result = verify_stack(
        stack,
        source,
        interpreter=find_interpreter(python),
        scope="changed" if changed else "all" if all_files else "package",
        use_cache=not no_cache,
        drift=no_drift,
        referee=referee,
    )
    seconds = time.perf_counter() - start
    applied, gate = result.application, result.gate
    data = {
        "pin": {
            "package": stack.pin.package,
            "version": stack.pin.version,
            "archive_sha256": stack.pin.archive.sha256,
            "tree": source.tree_oid,
        },
        "source": source.origin,
        "digest": stack.digest,
        "tree": applied.tree,
        "steps": [step_data(step) for step in applied.steps],
        "patches": len(stack.patches),
        "error": None
        if applied.error is None
        else {"title": applied.error.title, "where": applied.error.where, "hint": applied.error.hint},
        "drift": result.drift,
        "disagreements": result.disagreements,
        "gate": None
        if gate is None
        else {
            "interpreter": gate.interpreter.program,
            "python": gate.interpreter.version,
            "files": gate.files,
            "parsed": gate.parsed,
            "cache_hits": gate.cache_hits,
            "seconds": round(gate.seconds, 3),
            "findings": [{"path": f.path, "line": f.line, "message": f.message} for f in gate.findings],
        },
        "seconds": round(seconds, 3),
    }
    summary = [f"{stack.pin.label}: tree {source.tree_oid[:12]} matches the pin (from {source.origin})"]
    summary += [step_line(step) for step in applied.steps]
    messages = []
    if applied.error is not None:
        messages.append(f"does not apply: {applied.error}")
        if applied.error.hint:
            messages.append(f"  hint: {applied.error.hint}")
    messages += [
        f"drift: {name} is not in canonical form; 'vime-sync patch refresh {name}' rewrites it" for name in result.drift
    ]
    messages += [f"git disagrees: {text}" for text in result.disagreements]
    if gate is not None:
        messages += [f"{f.path}:{f.line}: {f.message}" for f in gate.findings]
        summary.append(
            f"{gate.files:,} Python files compile under Python {gate.interpreter.version} ({gate.cache_hits:,} known from before), {gate.seconds:.2f} s"
            if gate.passed
            else f"{len(gate.findings)} findings in {gate.files:,} Python files under Python {gate.interpreter.version}"
        )
    if resolved is not None and applied.error is None:
        from synctool.patches.export import diff_trees

        write_whole(resolved, diff_trees(source.repo, applied.base, applied.tree))
        summary.append(f"resolved patch: {resolved}; apply with: git apply --index {resolved}")
    verdict = f"{len(applied.steps)} of {len(stack.patches)} patches applied: tree {applied.tree}, stack digest {stack.digest[:16]}, {seconds:.2f} s"
    summary.append(verdict)
    return Report(
        "patch verify", data, summary, messages=messages, exit_code=Exit.OK if result.passed else Exit.ATTENTION
    )
