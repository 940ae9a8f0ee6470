"""A generated upstream of many files and changes: seconds a change must not grow with the range, and memory must stay bounded.

    python benchmarks/sync/scale.py [--files 20000] [--changes 2000]

Runs half of the range and all of it, each in a process of its own, and prints both with their ratio and peak memory.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
POLICY = """schema = 1
[upstream]
name = "lantern"
[downstream]
name = "beacon"
[[family]]
from = "lantern"
to = "beacon"
[[family]]
from = "Kerosene"
to = "Photon"
"""
LINES = 40


def path_of(number: int, word: str) -> str:
    """Twenty files a folder, four hundred a package."""
    return f"{word}/p{number // 400}/d{number // 20 % 20}/f{number}.py"


def text_of(number: int, edits: dict[int, str], word: str) -> str:
    """A file's text, with some lines replaced."""
    return "".join(edits.get(n, f"line {n} of file {number} burns {word}") + "\n" for n in range(LINES))


def generate(folder: Path, files: int, changes: int) -> tuple[str, list[str], str]:
    """Write both histories with one fast-import; returns the base, upstream's commits and downstream's tip."""
    dice = random.Random(7)
    subprocess.run(["git", "init", "-q", "--bare", str(folder)], check=True)
    stream: list[str] = []

    def commit(ref: str, mark: int, parent: int | None, message: str) -> None:
        stream.append(f"commit {ref}\nmark :{mark}\ncommitter A <a@x> {1_700_000_000 + mark} +0000\n")
        stream.append(f"data {len(message.encode())}\n{message}\n" + (f"from :{parent}\n" if parent else ""))

    def file(path: str, text: str) -> None:
        stream.append(f"M 100644 inline {path}\ndata {len(text.encode())}\n{text}\n")

    commit("refs/heads/up", 1, None, "Begin")
    for number in range(files):
        file(path_of(number, "lantern"), text_of(number, {}, "Kerosene"))
    commit("refs/heads/down", 2, 1, "Fork")
    stream.append("deleteall\n")
    for number in range(files):
        overlay = {3: f"ours {number}"} if number % 50 == 0 else {}
        file(path_of(number, "beacon"), text_of(number, overlay, "Photon"))
    edits: dict[int, dict[int, str]] = {}
    previous = 1
    for change in range(changes):
        mark = 3 + change
        commit("refs/heads/up", mark, previous, f"Change {change} (#{change + 1})")
        # One edit in five falls on files with overlays, so that merging is part of what is measured.
        touched = {dice.randrange(files) for _ in range(3)} | {dice.randrange(files // 50) * 50}
        for number in sorted(touched):
            mine = edits.setdefault(number, {})
            mine[dice.randrange(10, LINES)] = f"change {change} with Kerosene"
            file(path_of(number, "lantern"), text_of(number, mine, "Kerosene"))
        previous = mark
    done = subprocess.run(
        ["git", "-C", str(folder), "fast-import", "--quiet"], input="".join(stream).encode(), check=False
    )
    if done.returncode:
        sys.exit("fast-import failed")

    def text(*words: str) -> str:
        return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True).stdout

    commits = text("rev-list", "--reverse", "up").split()
    return commits[0], commits[1:], text("rev-parse", "down").strip()


def measure(folder: Path, base: str, through: str, down: str) -> None:
    """Mirror one range and print seconds, peak memory in MiB and the tree."""
    from synctool.git.repo import Repo
    from synctool.mirror.engine import mirror
    from synctool.plan.identity import identify_all
    from synctool.plan.model import Decision, Kind, Plan, PlannedChange
    from synctool.plan.span import changes_between
    from synctool.policy.loading import parse_policy
    from synctool.translate.translator import Translator

    repo = Repo.open(folder)
    policy = parse_policy(POLICY)
    begin = time.perf_counter()
    changes = identify_all(changes_between(repo, base, through))
    items = tuple(PlannedChange(change, Decision(Kind.TAKE)) for change in changes)
    result = mirror(repo, policy, Translator.from_policy(policy), Plan(base, through, down, items), down)
    seconds = time.perf_counter() - begin
    own, helpers = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    figures = {"changes": len(items), "seconds": seconds, "mib": max(own, helpers) / 1024}
    print(json.dumps({**figures, "conflicts": len(result.conflicts), "tree": result.tree}))


def main() -> None:
    """Generate, measure half and whole, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--changes", type=int, default=2_000)
    parser.add_argument("--measure", nargs=4, metavar=("REPO", "BASE", "THROUGH", "DOWN"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        folder, base, through, down = arguments.measure
        measure(Path(folder), base, through, down)
        return
    with tempfile.TemporaryDirectory(prefix="scale-") as scratch:
        folder = Path(scratch) / "hub.git"
        base, commits, down = generate(folder, arguments.files, arguments.changes)
        rows = []
        for count in (arguments.changes // 2, arguments.changes):
            command = [sys.executable, str(Path(__file__).resolve()), "--measure", str(folder), base]
            done = subprocess.run(
                [*command, commits[count - 1], down], cwd=ROOT, capture_output=True, text=True, check=True
            )
            rows.append(json.loads(done.stdout))
            row = rows[-1]
            print(
                f"{arguments.files:,} files, {row['changes']:,} changes: {row['seconds']:.2f} s,"
                f" {1000 * row['seconds'] / row['changes']:.2f} ms a change, {row['mib']:.0f} MiB, {row['conflicts']} conflicts"
            )
        half, whole = rows
        ratio = whole["seconds"] / whole["changes"] / (half["seconds"] / half["changes"])
        print(f"time a change, whole range to half: {ratio:.2f} (1 is linear)")


if __name__ == "__main__":
    main()
