"""Time of ``vime-sync plan``, process start included, against git doing its half of the work in the same run.

    python benchmarks/sync/plan_history.py [--json]                                  # generated histories, 500 to 2,000 changes
    python benchmarks/sync/plan_history.py --repo HUB --policy FILE --tip SHA --onto SHA   # a real pair of histories in one repository

The peer is ``git log --first-parent`` with messages plus ``git cherry``: it lists the changes and compares patches without translation, but knows no pull
requests, reverts, files or reasons. "records" is the plan by history alone (identity, reverts, trailers), "full" looks for the edits in downstream's
commits and tree too. "git_raw" is ``git log --raw -M`` of the same changes: what this machine is like, for figures of different ones. ``--base`` names another
checkout of this project, which takes turns with this one.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

POLICY = """schema = 1
[upstream]
name = "otter"
[downstream]
name = "badger"
[[family]]
from = "otter"
to = "badger"
"""
ROUNDS = 5
HERE = Path(__file__).resolve().parents[2]


def generate(folder: Path, changes: int, files: int = 400) -> tuple[str, str]:
    """A repository with an upstream of so many changes and a fork at its root that took every tenth; returns (upstream tip, downstream tip)."""
    choose = random.Random(11)
    subprocess.run(["git", "init", "-q", "--bare", str(folder)], check=True)
    texts = {f"otter/part{n % 20}/file{n}.py": [f"otter_{n}_{k} = {k}" for k in range(60)] for n in range(files)}
    stream: list[str] = []

    def commit(ref: str, mark: int, subject: str, parent: int | None, contents: dict[str, list[str]]) -> None:
        stream.append(
            f"commit {ref}\nmark :{mark}\ncommitter GitHub <noreply@github.com> {1_700_000_000 + mark} +0000\n"
        )
        stream.append(f"data {len(subject)}\n{subject}\n" + (f"from :{parent}\n" if parent else ""))
        for path, lines in contents.items():
            body = "\n".join(lines) + "\n"
            stream.append(f"M 100644 inline {path}\ndata {len(body)}\n{body}\n")

    commit("refs/heads/up", 1, "root", None, texts)
    ours = {
        path.replace("otter", "badger"): [line.replace("otter", "badger") for line in lines]
        for path, lines in texts.items()
    }
    # The fork begins with a history of its own, so that nothing is decided by ancestry.
    commit("refs/heads/down", 100_000, "fork", None, ours)
    down = 100_000
    previous: tuple[str, str, list[str]] | None = None
    for n in range(2, changes + 2):
        if n % 40 == 0 and previous is not None:
            subject, path, lines = previous
            texts[path] = lines
            commit("refs/heads/up", n, f'Revert "{subject}" (#{n})', n - 1, {path: lines})
            previous = None
            continue
        path = choose.choice(sorted(texts))
        before = texts[path]
        at = choose.randrange(len(before))
        texts[path] = [*before[:at], f"otter_changed_{n} = {n}  # the way otter does it", *before[at + 1 :]]
        number = f" (#{n})" if n % 7 else ""
        commit("refs/heads/up", n, f"Change {n}{number}", n - 1, {path: texts[path]})
        previous = (f"Change {n}", path, before)
        if n % 10 == 0:
            target = path.replace("otter", "badger")
            ours[target] = [line.replace("otter", "badger") for line in texts[path]]
            commit("refs/heads/down", 100_000 + n, f"port of change {n}", down, {target: ours[target]})
            down = 100_000 + n
    subprocess.run(["git", f"--git-dir={folder}", "fast-import", "--quiet"], input="".join(stream).encode(), check=True)
    return "up", "down"


def timed(*commands: list[str], cwd: Path | None = None) -> tuple[float, bytes]:
    """Seconds for running the commands one after another, and the last one's output."""
    start, output = time.perf_counter(), b""
    for command in commands:
        output = subprocess.run(command, check=True, capture_output=True, cwd=cwd).stdout
    return time.perf_counter() - start, output


def best(*commands: list[str]) -> tuple[float, bytes]:
    """The least time for running the commands one after another, and the last one's output."""
    rounds = [timed(*commands) for _ in range(ROUNDS)]
    return min(seconds for seconds, _ in rounds), rounds[-1][1]


def measure(repo: Path, policy: Path, tip: str, onto: str, base: Path | None = None) -> dict[str, Any]:
    """Seconds and ratios for one pair of histories. The full plan is the median of rounds, the others are the least."""
    repo, policy = repo.resolve(), policy.resolve()
    git = ["git", f"--git-dir={repo}"]
    peer, _ = best([*git, "log", "--first-parent", "--format=%H%n%B", tip], [*git, "cherry", onto, tip])
    plan = [sys.executable, "-m", "synctool", "plan", "-C", str(repo), "--policy", str(policy)]
    plan += ["--from", "start", "--through", tip, "--onto", onto, "--json"]
    records, _ = best([*plan, "--records-only"])
    raw, _ = best([*git, "log", "--raw", "-M", "--first-parent", tip])
    # The folder that a process starts in decides which checkout's code it runs.
    rounds = [[timed(plan, cwd=root) for root in filter(None, (HERE, base))] for _ in range(ROUNDS)]
    full, *others = (median(seconds for seconds, _ in turns) for turns in zip(*rounds, strict=True))
    if len({output for turns in rounds for _, output in turns}) > 1:
        sys.exit("the plans differ")
    data = json.loads(rounds[0][0][1])["data"]
    compared = {"base_s": round(others[0], 3), "of_base": round(full / others[0], 2)} if others else {}
    return {
        "changes": len(data["changes"]),
        "counts": data["counts"],
        "git_s": round(peer, 3),
        "git_raw_s": round(raw, 3),
        "records_s": round(records, 3),
        "full_s": round(full, 3),
        **compared,
        "records_ratio": round(records / peer, 2),
        "full_ratio": round(full / peer, 2),
        "full_ms_a_change": round(1000 * full / len(data["changes"]), 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repo", type=Path)
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--tip")
    parser.add_argument("--onto")
    parser.add_argument("--base", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    if options.repo:
        rows.append(measure(options.repo, options.policy, options.tip, options.onto, options.base))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            policy = Path(scratch) / "policy.toml"
            policy.write_text(POLICY)
            for changes in (500, 1000, 2000):
                repo = Path(scratch) / f"{changes}.git"
                rows.append(measure(repo, policy, *generate(repo, changes)))
    for row in rows:
        print(json.dumps(row) if options.json else ", ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
