"""Runs a command on a clean work tree and makes the record: what ran, where, how it ended, what it counted.

The command runs as the user's own (their shell would do the same); nothing of a record is ever executed.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from synctool.errors import EnvironmentFailure, RepositoryError, SyncError
from synctool.evidence.envelope import read_envelope
from synctool.evidence.junit import read_junit
from synctool.evidence.record import Artifact, Outcome, Record, Retry, Source, now
from synctool.evidence.surroundings import redact_command, surroundings
from synctool.git.repo import Repo
from synctool.policy.model import EvidenceKind
from synctool.redact import redact

#: How a command ends when its machine or agent went away, not when it found something. (Buildkite reports a lost agent as -1.)
LOST = (-signal.SIGHUP, -signal.SIGTERM, -signal.SIGKILL)
#: Of the output this much is looked at for figures, and these many lines are kept of a run that did not pass.
KEPT_CHARACTERS, TAIL_LINES, TAIL_CHARACTERS = 4 << 20, 20, 4000


@dataclass(frozen=True, slots=True)
class Place:
    """What is checked out: head, its tree, and files that git neither tracks nor ignores."""

    head: str
    tree: str
    untracked: tuple[str, ...]


def place_of(repo: Repo) -> Place:
    """The checked-out head.

    Raises:
        RepositoryError: there is no work tree, or tracked files differ from the head: what runs would not be what the record names.
    """
    if repo.work_tree is None:
        raise RepositoryError("a bare repository has nothing to run", where=str(repo.git_dir))
    changed, untracked = _status(repo)
    if changed:
        names = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
        raise RepositoryError(
            f"{len(changed)} tracked file(s) differ from the head: {names}",
            where=str(repo.work_tree),
            hint="commit or put them away first: evidence names a tree, and this one is in no commit",
        )
    head = repo.resolve("HEAD")
    return Place(head, repo.resolve(head, "tree"), tuple(untracked))


def _status(repo: Repo) -> tuple[list[str], list[str]]:
    finished = repo.run("--work-tree", str(repo.work_tree), "status", "--porcelain=v1", "-z", "--no-renames")
    rows = finished.stdout.decode("utf-8", "surrogateescape").split("\0")
    changed = [row[3:] for row in rows if row and not row.startswith("??")]
    return changed, [row[3:] for row in rows if row.startswith("??")]


@dataclass(frozen=True, slots=True)
class Ended:
    """One attempt: its exit status (negative: the signal), why it ended early (empty: it did not), and what it printed."""

    status: int
    early: str
    output: str


def run_once(command: Sequence[str], folder: Path, timeout: float | None, echo: Callable[[str], object]) -> Ended:
    """Run a command in a process group of its own and pass on what it prints.

    Raises:
        EnvironmentFailure: it can't be started.
    """
    try:
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise EnvironmentFailure(f"can't start {command[0]!r}: {error.strerror}", hint="check the command") from None
    kept: deque[str] = deque()
    size = 0
    early = ""

    def stop() -> None:
        nonlocal early
        early = f"ended after its {timeout:g} s"
        _end(process)

    timer = threading.Timer(timeout, stop) if timeout else None
    try:
        if timer:
            timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            echo(line)
            kept.append(line)
            size += len(line)
            while size > KEPT_CHARACTERS and len(kept) > 1:
                size -= len(kept.popleft())
        process.wait()
    except KeyboardInterrupt:
        early = "interrupted"
        _end(process)
    finally:
        if timer:
            timer.cancel()
        if process.stdout is not None:
            process.stdout.close()
    return Ended(process.returncode, early, "".join(kept))


def _end(process: subprocess.Popen[str]) -> None:
    """End the whole group: first asked, then made."""
    import os

    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(5)
            return
        except subprocess.TimeoutExpired:
            continue


def run(
    repo: Repo,
    command: Sequence[str],
    *,
    name: str,
    kind: EvidenceKind,
    who: str,
    sync: str = "",
    junit: Path | None = None,
    artifacts: tuple[Artifact, ...] = (),
    platform: str = "",
    stack: str = "",
    pin: str = "",
    variables: Sequence[str] = (),
    retries: int = 0,
    lost: Sequence[int] = LOST,
    timeout: float | None = None,
    note: str = "",
    echo: Callable[[str], object] = sys.stderr.write,
) -> Record:
    """Run a command at the checked-out head and return its record (not stored yet).

    Only an attempt that was *lost* (a signal that takes machines away, or an exit status of ``lost``) is made again, at most ``retries`` times, and each is
    disclosed. One that found a failure never is: a result file with failures is a failure, whatever the exit status says.

    Raises:
        RepositoryError: the work tree is not clean.
        EnvironmentFailure: the command can't be started.
    """
    before = place_of(repo)
    assert repo.work_tree is not None
    told: list[Retry] = []
    while True:
        if junit is not None:
            junit.unlink(missing_ok=True)  # an old file must not speak for this run
        begin = time.monotonic()
        ended = run_once(command, repo.work_tree, timeout, echo)
        seconds = time.monotonic() - begin
        figures, details, files, problem, refusal = _read(ended.output, junit)
        failed = bool(figures.get("failures") or figures.get("errors"))
        gone = ended.status in lost and not ended.early and not failed
        if not gone or len(told) >= retries:
            break
        told.append(Retry(what=name, exit_status=ended.status, reason="the agent or machine was lost; no test failed"))
        echo(f"vime-sync: lost with exit status {ended.status}; again ({len(told)} of {retries})\n")
    outcome = _outcome(ended, gone, failed)
    if outcome is Outcome.FAILED and refusal:
        outcome = Outcome.REFUSED
    remarks = [note, refusal, ended.early, problem]
    after_head = repo.resolve("HEAD")
    changed, _ = _status(repo)
    if outcome is Outcome.PASSED and problem:
        outcome = Outcome.FAILED
    if outcome is Outcome.PASSED and (changed or after_head != before.head):
        outcome = Outcome.FAILED
        remarks.append(
            f"the command changed {len(changed)} tracked file(s)" if changed else "the head moved while it ran"
        )
    if before.untracked:
        details["untracked files"] = f"{len(before.untracked)}: {', '.join(before.untracked[:10])}"
    tail = "\n".join(redact(ended.output).splitlines()[-TAIL_LINES:])[-TAIL_CHARACTERS:]
    return Record(
        head=before.head,
        tree=before.tree,
        sync=sync,
        when=now(),
        by=who,
        name=name,
        kind=kind,
        outcome=outcome,
        source=Source.RUN,
        command=redact_command(command),
        exit_status=ended.status,
        seconds=round(seconds, 1),
        environment=surroundings(variables),
        figures=figures,
        details={key: redact(value) for key, value in details.items()},
        artifacts=(*artifacts, *files),
        retries=tuple(told),
        platform=platform,
        stack=stack,
        pin=pin,
        note=redact("; ".join(filter(None, remarks))),
        tail="" if outcome is Outcome.PASSED else tail,
    )


def _outcome(ended: Ended, gone: bool, failed: bool) -> Outcome:
    if ended.early == "interrupted":
        return Outcome.CANCELLED
    if gone:
        return Outcome.LOST
    return Outcome.PASSED if ended.status == 0 and not failed and not ended.early else Outcome.FAILED


def _read(output: str, junit: Path | None) -> tuple[dict[str, int], dict[str, str], tuple[Artifact, ...], str, str]:
    """Figures, details, files, what was wrong with the result file, and why a verb of ours refused."""
    if junit is None:
        figures, details, refusal = read_envelope(output)
        return figures, details, (), "", refusal
    try:
        figures, artifact = read_junit(junit)
    except SyncError as error:
        return {}, {}, (), str(error), ""
    return figures, {}, (artifact,), "", ""
