"""Does our parser accept what a script runs? The migrated script is followed and each training command parsed as a dry run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vime.errors import Problems, VimeError
from vime.migrate.commands import Script, read_script


@dataclass(frozen=True)
class Verdict:
    """`commands`: what would be run. `problems`: why the parser refuses. `unread`: sourced files that are not there."""

    commands: tuple[tuple[str, ...], ...]
    problems: tuple[str, ...]
    unread: tuple[str, ...]

    @property
    def accepted(self) -> bool:
        return not self.problems


def check_script(source: str, path: str, vocabulary: Callable[[str], str]) -> Verdict:
    """The verdict on the script at `path`. Files that it sources are found next to it and migrated as well."""
    script = follow(source, path, vocabulary)
    if not script.commands:
        return Verdict((), ("it runs no train.py",), tuple(script.unread))
    problems = [one for command in script.commands for one in problems_of(command)]
    return Verdict(tuple(map(tuple, script.commands)), tuple(dict.fromkeys(problems)), tuple(script.unread))


def follow(source: str, path: str, vocabulary: Callable[[str], str]) -> Script:
    """The migrated script's training commands and arrays."""
    from vime.arguments import catalogue
    from vime.migrate.rewrite import migrate

    def ours(text: str) -> str:
        return migrate(text, vocabulary, catalogue.by_flag()).text

    def read(other: str) -> str | None:
        try:
            return ours(Path(other).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            return None

    return read_script(ours(source), path, read)


def problems_of(command: list[str]) -> list[str]:
    """What the parser and the check of hooks say of a training command on GPUs whose files are elsewhere."""
    from vime.arguments import parse_args
    from vime.arguments.plan import resolve_plan
    from vime.hooks import check_hooks
    from vime.trainer.refusals import check_flags

    try:
        device = [] if "--device" in command else ["--device", "cuda"]
        args = parse_args([*command, *device, "--dry-run", "--assume-files"])
        check_hooks(args)
        check_flags(args)
        resolve_plan(args)
    except Problems as error:
        return [problem.title + (f" ({problem.hint})" if problem.hint else "") for problem in error.problems]
    except VimeError as error:
        return [str(error) + (f" ({error.hint})" if error.hint else "")]
    return []
