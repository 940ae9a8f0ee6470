"""The parse gate: every Python file of a tree compiles under the target interpreter, and nothing a failed merge leaves is in it.

``compile()`` is the authority (a parser alone misses ``return`` outside a function), in two processes of the target interpreter fed straight
from git. Verdicts are kept by (interpreter, blob), so that a second run looks only at what is new.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from synctool.errors import EnvironmentFailure, UsageError
from synctool.git.runner import git_command, scrubbed_environment
from synctool.git.tree import SYMLINK, Entry, Tree
from synctool.patches.store import cache_folder
from synctool.whole_file import write_whole

_LEFT_OVER = (".rej", ".orig")
_MARKERS = (b"<<<<<<< ", b">>>>>>> ", b"||||||| ")
PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python: its program, version text, and a key that changes with anything that may change a verdict."""

    program: str
    version: str
    key: str


@dataclass(frozen=True, slots=True)
class GateFinding:
    """One thing wrong: path, 1-based line (0 when unknown), message."""

    path: str
    line: int
    message: str


@dataclass(frozen=True, slots=True)
class GateResult:
    """What the gate looked at and found."""

    interpreter: Interpreter
    files: int
    parsed: int
    cache_hits: int
    seconds: float
    findings: tuple[GateFinding, ...]

    @property
    def passed(self) -> bool:
        """Nothing was found."""
        return not self.findings


def find_interpreter(program: str | None = None) -> Interpreter:
    """The target interpreter; the running one by default.

    Raises:
        UsageError: it does not start.
    """
    if program is None or Path(program) == Path(sys.executable):
        program = sys.executable
        facts = [sys.implementation.cache_tag or "", sys.version, sys.executable]
    else:
        code = "import sys; print(sys.implementation.cache_tag); print(sys.version.replace(chr(10), ' ')); print(sys.executable)"
        try:
            done = subprocess.run([program, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"the interpreter does not start: {error}", where=program) from error
        if done.returncode:
            raise UsageError(f"the interpreter does not start: {done.stderr.strip()[-200:]}", where=program)
        facts = done.stdout.splitlines()
    version = facts[1].split()[0]
    key = f"{facts[0]}-{hashlib.sha256(' '.join(facts[1].split()).encode()).hexdigest()[:12]}"
    return Interpreter(program, version, key)


def python_files(tree: Tree, prefix: str = "") -> list[tuple[str, Entry]]:
    """The Python files of a tree, below a folder."""
    return [(path, entry) for path, entry in tree.items(prefix) if path.endswith(".py") and entry.mode != SYMLINK]


def run_gate(
    tree: Tree,
    files: Sequence[tuple[str, Entry]],
    *,
    changed: Iterable[str] = (),
    interpreter: Interpreter | None = None,
    use_cache: bool = True,
) -> GateResult:
    """Compile ``files`` and search the ``changed`` paths for left-overs.

    Raises:
        UsageError: there is nothing to look at: a gate that checks nothing must not pass.
        EnvironmentFailure: a worker died.
    """
    start = time.perf_counter()
    target = interpreter or find_interpreter()
    if not files:
        raise UsageError("the parse gate has no Python file to look at", hint="is this the right tree and folder?")
    by_oid: dict[str, list[str]] = {}
    for path, entry in files:
        by_oid.setdefault(entry.oid, []).append(path)
    known = _read_verdicts(target, tree.store.algorithm) if use_cache else set()
    due = [oid for oid in by_oid if oid not in known]
    bad = _compile_all(tree, due, target)
    if use_cache and len(due) > len(bad):
        _write_verdicts(target, tree.store.algorithm, known | (set(due) - bad.keys()))
    findings = [GateFinding(path, line, message) for oid, (line, message) in bad.items() for path in by_oid[oid]]
    findings += left_overs(tree, changed)
    hits = sum(len(paths) for oid, paths in by_oid.items() if oid in known)
    seconds = time.perf_counter() - start
    return GateResult(
        target, len(files), len(files) - hits, hits, seconds, tuple(sorted(findings, key=lambda f: (f.path, f.line)))
    )


def left_overs(tree: Tree, changed: Iterable[str]) -> list[GateFinding]:
    """Conflict markers, ``.rej`` and ``.orig`` files among the changed paths."""
    found = []
    for path in changed:
        entry = tree.get(path)
        if entry is None or entry.mode == SYMLINK:
            continue
        if path.endswith(_LEFT_OVER):
            found.append(GateFinding(path, 0, "left over by a failed merge or patch"))
        for number, line in enumerate(tree.store.read(entry.oid, "blob").split(b"\n"), 1):
            if line.startswith(_MARKERS):
                found.append(GateFinding(path, number, f"conflict marker {line[:7].decode()!r}"))
    return found


def _verdict_file(target: Interpreter, algorithm: str) -> Path:
    return cache_folder() / "parsed" / f"{target.key}-{algorithm}"


def _read_verdicts(target: Interpreter, algorithm: str) -> set[str]:
    """Blob ids that compile under the interpreter. The file is their bytes, sorted, after their SHA-256: a damaged one counts as empty."""
    width = 20 if algorithm == "sha1" else 32
    try:
        data = _verdict_file(target, algorithm).read_bytes()
    except OSError:
        return set()
    body = data[32:]
    if len(body) % width or hashlib.sha256(body).digest() != data[:32]:
        return set()
    text = body.hex()
    return {text[at : at + 2 * width] for at in range(0, len(text), 2 * width)}


def _write_verdicts(target: Interpreter, algorithm: str, good: set[str]) -> None:
    body = bytes.fromhex("".join(sorted(good)))
    write_whole(_verdict_file(target, algorithm), hashlib.sha256(body).digest() + body)


def _compile_all(tree: Tree, oids: list[str], target: Interpreter) -> dict[str, tuple[int, str]]:
    """``{blob id: (line, message)}`` of those that do not compile."""
    if not oids:
        return {}
    store = tree.store
    in_memory = {oid: store.read(oid, "blob") for oid in oids if oid in store.pending}
    stored = [oid for oid in oids if oid not in in_memory]
    with importlib.resources.as_file(importlib.resources.files("synctool.patches") / "gate_worker.py") as worker:
        command = [target.program, "-I", "-S", "-B", str(worker)]
        jobs: list[_Job] = [_GitFed(command, store.git_dir, part) for part in _shares(store.git_dir, stored) if part]
        if in_memory:
            jobs.append(_MemoryFed(command, in_memory))
        bad: dict[str, tuple[int, str]] = {}
        counted = 0
        for job in jobs:
            count, found = job.result()
            counted += count
            bad.update(found)
    if counted + sum(message == "object is missing" for _, message in bad.values()) != len(oids):
        raise EnvironmentFailure(f"the parse gate looked at {counted:,} of {len(oids):,} files", where=target.program)
    return bad


def _shares(git_dir: Path, oids: list[str]) -> list[list[str]]:
    """Blobs dealt out to the processes, largest first, so that both end together."""
    if not oids:
        return []
    done = subprocess.run(
        git_command(git_dir, ["cat-file", "--batch-check=%(objectsize) %(objectname)"]),
        input="".join(f"{oid}\n" for oid in oids).encode(), capture_output=True, env=scrubbed_environment(),
    )  # fmt: skip
    sized = sorted(
        ((int(w[0]), w[1].decode()) for w in map(bytes.split, done.stdout.splitlines()) if w[0].isdigit()), reverse=True
    )
    found = {oid for _, oid in sized}
    shares: list[list[str]] = [[] for _ in range(PROCESSES)]
    loads = [0] * PROCESSES
    for size, oid in [*sized, *((0, oid) for oid in oids if oid not in found)]:
        least = loads.index(min(loads))
        shares[least].append(oid)
        loads[least] += size + 2000  # each file costs something whatever its size
    return shares


class _Job:
    """One worker process. Its errors go to a file, since nobody reads a pipe meanwhile."""

    def __init__(self, command: list[str], stdin: int) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self.worker = subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.PIPE, stderr=self.errors, env=environment
        )

    def result(self) -> tuple[int, dict[str, tuple[int, str]]]:
        """``(files compiled, {blob id: (line, message)})``."""
        assert self.worker.stdout is not None
        output = self.worker.stdout.read()
        self.worker.stdout.close()
        if self.worker.wait():
            self.errors.seek(0)
            said = self.errors.read().decode(errors="replace").strip()[-300:]
            raise EnvironmentFailure(
                f"a parse worker died: {said or self.worker.returncode}", where=str(self.worker.args)
            )
        self.errors.close()
        *rows, last = [json.loads(line) for line in output.splitlines()]
        return last["count"], {row["oid"]: (row["line"], row["error"]) for row in rows}


class _GitFed(_Job):
    """A worker that reads what ``git cat-file`` writes: the content never passes through this process."""

    def __init__(self, command: list[str], git_dir: Path, oids: list[str]) -> None:
        with tempfile.TemporaryFile() as wanted:
            wanted.write("".join(f"{oid}\n" for oid in oids).encode())
            wanted.seek(0)
            self.git = subprocess.Popen(
                git_command(git_dir, ["cat-file", "--batch"]), stdin=wanted, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=scrubbed_environment(),
            )  # fmt: skip
        assert self.git.stdout is not None
        super().__init__(command, self.git.stdout.fileno())
        self.git.stdout.close()

    def result(self) -> tuple[int, dict[str, tuple[int, str]]]:
        found = super().result()
        self.git.wait()
        return found


class _MemoryFed(_Job):
    """A worker for blobs that a dry run holds in memory."""

    def __init__(self, command: list[str], blobs: Mapping[str, bytes]) -> None:
        super().__init__(command, subprocess.PIPE)
        pipe = self.worker.stdin
        assert pipe is not None

        def feed() -> None:
            with pipe:
                for oid, data in blobs.items():
                    pipe.write(f"{oid} blob {len(data)}\n".encode() + data + b"\n")

        self.feeder = threading.Thread(target=feed)
        self.feeder.start()

    def result(self) -> tuple[int, dict[str, tuple[int, str]]]:
        found = super().result()
        self.feeder.join()
        return found
