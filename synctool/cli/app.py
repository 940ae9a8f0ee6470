"""The ``vime-sync`` command: verbs are imported when called, errors become one line, results become reports.

A verb is a function ``(context: Context, **options) -> Report`` decorated with ``@verb``. Options common to all verbs (``-C``, ``--json``,
``--quiet``) are added here, so that no verb can forget one.
"""

from __future__ import annotations

import errno
import functools
import gc
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from synctool import __version__
from synctool.errors import EnvironmentFailure, Exit, SyncError, UsageError

if TYPE_CHECKING:
    from synctool.cli.report import Report
    from synctool.git.repo import Repo

#: verb -> (module, one-line help). The help stands here so that ``--help`` imports no verb.
VERBS: dict[str, tuple[str, str]] = {
    "init": ("synctool.cli.init", "Write a starter vime-sync.toml, learned from the two histories."),
    "policy": ("synctool.cli.policy", "Check the policy, or explain its rules and schema."),
    "explain": ("synctool.cli.explain", "Say which rule decides about a path, a word or a change."),
    "translate": ("synctool.cli.translate", "Show a file, path or text in downstream's words."),
    "fetch": ("synctool.cli.fetch", "Bring upstream's history into this repository."),
    "plan": ("synctool.cli.plan", "Decide what happens to each upstream change of a range."),
    "mirror": ("synctool.cli.mirror", "Merge upstream changes in translated space, one commit each."),
    "status": ("synctool.cli.status", "Say what state the sync is in and what to do next."),
    "conflicts": ("synctool.cli.conflicts", "List the conflicts of the running sync."),
    "show": ("synctool.cli.show", "Show one conflict: base, ours, theirs and proposals."),
    "take": ("synctool.cli.take", "Resolve conflicts by ours, theirs, a proposal or a file."),
    "continue": ("synctool.cli.continue_", "Finish the sync once its conflicts are resolved."),
    "skip": ("synctool.cli.skip", "Leave an upstream change out, with a reason."),
    "abort": ("synctool.cli.abort", "End the sync and restore everything to the byte."),
    "undo": ("synctool.cli.undo", "Take back the last step of the sync."),
    "redo": ("synctool.cli.redo", "Do a step again that was undone."),
    "work": ("synctool.cli.work", "List upstream edits that were filed, not merged, as translated diffs."),
    "verify": ("synctool.cli.verify", "Rebuild downstream from scratch and explain every difference."),
    "audit": ("synctool.cli.audit", "Find what the sync broke: names, calls, flags, routes, CI, docs and more."),
    "docs": ("synctool.cli.docs", "Carry upstream's pages over by section; check links and languages."),
    "patch": ("synctool.cli.patch", "The patch stack: apply, verify, rebase, refresh and more."),
    "evidence": ("synctool.cli.evidence", "What was seen, bound to a head and its tree: run, import, attest, check."),
    "report": ("synctool.cli.report_body", "Render the body of the sync's pull request, from records alone."),
    "publish": ("synctool.cli.publish", "Open or update the sync's pull request, and read it back."),
    "image": ("synctool.cli.image", "Candidate images: build, inspect, check, promote."),
    "ci": ("synctool.cli.ci", "The Buildkite pipeline: generate, check, register tests."),
    "rage": ("synctool.cli.rage", "Bundle versions, state and logs for a bug report, without secrets."),
    "completion": ("synctool.cli.completion", "Print the shell completion script for bash, zsh or fish."),
}


@dataclass
class Context:
    """What every verb may use."""

    directory: Path
    as_json: bool
    quiet: bool

    def repo(self, *, dry: bool = False) -> Repo:
        """The downstream repository (``-C``, or the current folder)."""
        from synctool.git.repo import Repo

        return Repo.open(self.directory, dry=dry)


class LazyGroup(click.Group):
    """Imports a verb's module only when that verb is called."""

    def __init__(self, *args: Any, verbs: dict[str, tuple[str, str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.verbs = verbs or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.verbs:
            return None
        command = importlib.import_module(self.verbs[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in self.verbs.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.verbs and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], self.verbs, n=1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"no such verb {args[0]!r}.{meant}", ctx=ctx)
        return super().resolve_command(ctx, args)


EXIT_HELP = """Exit codes: 0 done; 1 needs attention (conflicts, findings, a failed check); 2 usage; 3 policy, manifest, pin or patch header wrong;
4 nothing to do; 5 repository state; 6 input refused; 30 network, tool or machine; 31 bug of vime-sync; 130 interrupted."""

#: What the machine answers for reasons of its own: full, read-only, forbidden, failing, out of handles. Any other ``OSError`` is a bug of ours.
MACHINE_ERRORS = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE)
)


#: Objects more that make Python look for cycles among them: ours form hardly any, and looking 70 times as often takes a twentieth of a plan's time.
GARBAGE = 50_000


@click.group(
    cls=LazyGroup,
    verbs=VERBS,
    epilog=EXIT_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="vime-sync")
def cli() -> None:
    """Keeps a translated fork in step with its upstream: plans, mirrors, audits, patches, builds and proves."""


def verb(function: Callable[..., Report]) -> Callable[..., None]:
    """Turn ``function(context, **options) -> Report`` into a click callback with the common options."""

    @click.option(
        "-C",
        "directory",
        type=click.Path(path_type=Path),
        default=".",
        help="The downstream repository.  [default: here]",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
    @click.option("-q", "--quiet", is_flag=True, help="No progress and no text, only remarks and errors.")
    @functools.wraps(function)
    def callback(directory: Path, as_json: bool, quiet: bool, **options: Any) -> None:
        from synctool.cli.report import show

        context = Context(directory, as_json, quiet or as_json)
        _refuse_empty_options(click.get_current_context())
        try:
            report = function(context, **options)
        except SyncError as error:
            raise _Told(error, as_json) from error
        try:
            show(report, as_json=as_json, quiet=quiet)
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise _ReaderGone from error
        if report.exit_code:
            raise click.exceptions.Exit(int(report.exit_code))

    return callback


def _refuse_empty_options(ctx: click.Context) -> None:
    """An empty value (an unset shell variable, most often) must not pass for an option that was left out.

    Raises:
        click.UsageError: an option was given an empty value.
    """
    for parameter in ctx.command.params:
        given = ctx.params.get(parameter.name or "")
        if not isinstance(parameter, click.Option) or "" in (parameter.default, parameter.flag_value):
            continue
        if given == "" or (isinstance(given, tuple) and "" in given):
            raise click.UsageError(f"{parameter.opts[0]} is empty: name a value, or leave the option out", ctx=ctx)


class _ReaderGone(Exception):
    """Standard output was closed by its reader (a pager, head). Click would end with 1 at a ``BrokenPipeError``, which means something else here."""


class _Told(Exception):
    """Carries a SyncError out of click together with how it should be printed."""

    def __init__(self, error: SyncError, as_json: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.as_json = as_json


def print_error(error: SyncError, *, as_json: bool = False) -> None:
    """One line and a hint on stderr, or the JSON envelope with ``error`` on stdout."""
    if as_json:
        from synctool.cli.report import SCHEMA
        from synctool.jsontext import dumps

        told = {"code": type(error).__name__, "title": error.title, "where": error.where, "hint": error.hint}
        print(dumps({"schema": SCHEMA, "exit_code": int(error.exit_code), "error": told}))
        return
    kind = "nothing to do" if error.exit_code is Exit.NO_OP else "error"
    from synctool.cli.terminal import printable

    print(printable(f"{kind}: {error}"), file=sys.stderr)
    if error.hint:
        print(printable(f"  hint: {error.hint}"), file=sys.stderr)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the console script. Always ends the process with a documented exit code."""
    gc.set_threshold(GARBAGE)
    words = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
    try:
        code = cli.main(args=arguments, prog_name="vime-sync", standalone_mode=False)
        status = int(code) if isinstance(code, int) else 0
    except _Told as told:
        print_error(told.error, as_json=told.as_json)
        status = int(told.error.exit_code)
    except click.exceptions.Exit as ended:
        status = ended.exit_code
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "vime-sync"
        print_error(UsageError(error.format_message(), hint=f"see '{where} --help'"), as_json=as_json)
        status = int(Exit.USAGE)
    except click.ClickException as error:
        print_error(UsageError(error.format_message()), as_json=as_json)
        status = int(Exit.USAGE)
    except (KeyboardInterrupt, click.Abort):
        print("interrupted; 'vime-sync status' says what state things are in", file=sys.stderr)
        status = int(Exit.INTERRUPTED)
    except _ReaderGone:
        # Not our fault, and nothing to say to nobody.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = int(Exit.OK)
    except SyncError as error:
        print_error(error, as_json=as_json)
        status = int(error.exit_code)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in MACHINE_ERRORS:
            failure = _machine_failure(error)
            print_error(failure, as_json=as_json)
            sys.exit(int(failure.exit_code))
        from synctool.cli.log import write_crash_log

        path = write_crash_log(error)
        print(
            f"bug: {type(error).__name__}: {error}\n  hint: this is a fault of vime-sync; the log is {path}; 'vime-sync rage' bundles it",
            file=sys.stderr,
        )
        status = int(Exit.BUG)
    sys.exit(status)


def _machine_failure(error: OSError) -> EnvironmentFailure:
    """What is written is a temporary file until it is whole, so nothing is half there."""
    return EnvironmentFailure(
        error.strerror or str(error),
        where=os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None,
        hint="free space or mend the rights, then run again",
    )
