"""``vime-sync translate``: a file, a text or a path in downstream's words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from synctool.cli.app import Context, verb
from synctool.cli.inputs import load, policy_option
from synctool.cli.report import Report
from synctool.errors import UsageError

if TYPE_CHECKING:
    from synctool.policy.model import Policy
    from synctool.translate.matcher import Replacement
    from synctool.translate.residue import Residue


@click.command(name="translate")
@policy_option
@click.argument("file", required=False)
@click.option("--text", help="Translate this text instead of a file.")
@click.option(
    "--path", "path", help="Translate this path; with FILE or --text: the upstream path that the content belongs to."
)
@click.option("--at", "revision", help="Read FILE from this commit instead of the disk.")
@click.option("--trace", is_flag=True, help="List what is replaced, by which rule, instead of the result.")
@verb
def command(
    context: Context,
    policy_file: Path | None,
    file: str | None,
    text: str | None,
    path: str | None,
    revision: str | None,
    trace: bool,
) -> Report:
    """Show FILE ("-" for standard input), a text or a path in downstream's words.

    FILE is upstream's path, which decides about rules that hold for some paths only. Words of upstream that are left are told on stderr.
    """
    from synctool.translate.translator import decode

    if file is not None and text is not None:
        raise UsageError("give FILE or --text, not both")
    if file is None and text is None and path is None:
        raise UsageError("nothing to translate", hint="name a FILE, or use --text or --path")
    repo = context.repo()
    inputs = load(repo, policy_file)
    translator, policy = inputs.translator, inputs.policy
    source = path or (file if file not in (None, "-") else "") or ""
    target = translator.path(source)
    if file is None and text is None:
        rule = translator.path_rule(source)
        by = f"{policy.where(rule)} ({rule.describe()})" if rule else "the families"
        return Report("translate", {"path": source, "result": target, "rule": by}, summary=[target])
    if text is None:
        assert file is not None
        data = _read(context, file, revision)
        decoded = None if translator.skips(target) is not None else decode(data)
        if decoded is None:
            reason = f"skipped by '{translator.skips(target)}'" if translator.skips(target) else "binary or not UTF-8"
            value = {"path": source, "downstream_path": target, "unchanged": reason}
            return Report("translate", value, messages=[f"{file}: taken over unchanged ({reason})"])
        text = decoded
    result = translator.text(text, target)
    left = translator.residue(result.encode(), target)
    replaced = translator.trace(text, target)
    data_out = {
        "path": source,
        "downstream_path": target,
        "result": result,
        "replacements": [_replacement(policy, text, found) for found in replaced],
        "residue": [{"line": r.line, "column": r.column, "word": r.word, "rule": policy.where(r.rule)} for r in left],
    }
    messages = [_residue_line(policy, target, r) for r in left]
    if trace:
        lines = [_trace_line(policy, text, found) for found in replaced]
        return Report("translate", data_out, summary=lines, messages=messages)
    body = result if file is not None else result + "\n"
    return Report("translate", data_out, messages=messages, body=body)


def _read(context: Context, file: str, revision: str | None) -> bytes:
    if revision is not None:
        repo = context.repo()
        entry = repo.tree(revision).get(file)
        if entry is None:
            raise UsageError(f"{revision} has no file {file!r}", hint="write the path from the root of the tree")
        return repo.objects.read(entry.oid, "blob")
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return (context.directory / file).read_bytes()
    except OSError as error:
        raise UsageError(
            f"can't read the file: {error.strerror}", where=file, hint="for an upstream file use --at REVISION"
        ) from None


def _replacement(policy: Policy, text: str, found: Replacement) -> dict[str, object]:
    line = text.count("\n", 0, found.start) + 1
    return {
        "line": line,
        "before": text[found.start : found.end],
        "after": found.after,
        "rule": policy.where(found.rule),
    }


def _trace_line(policy: Policy, text: str, found: Replacement) -> str:
    value = _replacement(policy, text, found)
    return f"{value['line']}: {value['before']} -> {value['after']}    {value['rule']} ({found.rule.describe()})"


def _residue_line(policy: Policy, path: str, left: Residue) -> str:
    return f"{path or 'text'}:{left.line}:{left.column}: '{left.word}' is left ({policy.where(left.rule)}: {left.rule.describe()})"
