"""`vime migrate-flags SCRIPT`: a launch script of slime as one of ours. The script is read, never run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from vime.cli.app import emit_json
from vime.errors import UsageError
from vime.files import asked_file
from vime.migrate.check import Verdict, check_script
from vime.migrate.rewrite import Change, Migrated

#: The words of the translated fork, which this repository keeps for vime-sync too.
POLICY = Path(__file__).resolve().parents[2] / "sync_manifests" / "vime" / "vime-sync.toml"


@click.command("migrate-flags")
@click.argument("script", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the new script here, not to stdout.")
@click.option("--check", is_flag=True, help="Also hold the resulting command lines against the parser, as --dry-run.")
@click.option("--policy", type=click.Path(path_type=Path), default=POLICY, help="Vocabulary (a vime-sync policy).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; the new script is in it.")
def migrate_flags(script: Path, output: Path | None, check: bool, policy: Path, as_json: bool) -> None:
    """Rewrite a launch script of slime: flags, functions and words. What has no equivalent is listed, and left in the script as a comment."""
    from vime.arguments import catalogue
    from vime.migrate.rewrite import migrate

    source, words = read(script), vocabulary(policy)
    migrated = migrate(source, words, catalogue.by_flag())
    verdict = check_script(source, str(script), words) if check else None
    if output is not None:
        with asked_file(output, like=script) as file:
            file.write(migrated.text.encode())
    if as_json:
        data = asdict(migrated) | {"check": asdict(verdict) if verdict else None}
        emit_json("migrate-flags", data, 0 if verdict is None or verdict.accepted else 2)
    else:
        if output is None:
            click.echo(migrated.text, nl=False)
        click.echo(described(migrated, verdict), err=True)
    if verdict is not None and not verdict.accepted:
        raise SystemExit(2)


def vocabulary(policy: Path) -> Any:
    """The words of a policy, as a function of text. Raises UsageError when it cannot be used."""
    from synctool.errors import SyncError
    from synctool.policy.loading import load_policy
    from synctool.translate.translator import Translator

    try:
        return Translator.from_policy(load_policy(policy)).text
    except SyncError as error:
        raise UsageError(
            f"no vocabulary: {error}", where=str(policy), hint="--policy names sync_manifests/vime/vime-sync.toml"
        ) from error


def read(script: Path) -> str:
    try:
        return script.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the script cannot be read: {error}", where=str(script)) from error


def described(migrated: Migrated, verdict: Verdict | None) -> str:
    """The report: what changed, what has no equivalent, what nobody knows, and the parser's verdict."""
    parts = [f"{len(migrated.changes)} flags changed"]
    parts += [_line(one) for one in migrated.changes if one.note]
    if migrated.dropped:
        parts += [f"{len(migrated.dropped)} without an equivalent", *map(_line, migrated.dropped)]
    if migrated.unknown:
        parts += [f"{len(migrated.unknown)} unknown", *map(_line, migrated.unknown)]
    if verdict is not None:
        parts += [f"sourced file not found: {path}" for path in verdict.unread]
        parts.append("the parser accepts the command line" if verdict.accepted else "the parser does not accept it:")
        parts += [f"  {problem}" for problem in verdict.problems]
    return "\n".join(parts)


def _line(change: Change) -> str:
    after = f" -> {change.after}" if change.after else ""
    return f"  line {change.line}: {change.before or '(nothing)'}{after}" + (f": {change.note}" if change.note else "")
