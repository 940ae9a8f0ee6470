"""Tells the main job on the generated fork: learn a policy, plan, mirror, resolve one conflict, verify, render the pull request. Run by ``make demo-sync``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.demo_fork import generate

FOLDER = Path(os.environ.get("DEMO_FOLDER", "build/demo-fork"))
BY_HAND = """
[[owner]]
paths = ["/README.md"]
owner = "native"
reason = "our own page"

[[exclude]]
pr = 112
reason = "a Photon source has no tank that could leak"
owner = "Bea Lichtmann"

[[exclude]]
pr = 118
reason = "changes only what #112 brought"
owner = "Bea Lichtmann"
"""
_BOLD, _DIM, _END = (
    ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() and "NO_COLOR" not in os.environ else ("", "", "")
)


def say(title: str, text: str = "") -> None:
    """A heading and what it means."""
    print(f"\n{_BOLD}{title}{_END}")
    for line in textwrap.wrap(text, 110):
        print(line)


def _placed(words: tuple[str, ...], downstream: Path) -> list[str]:
    """With the repository named, before the words of a command that a verb is to run."""
    end = words.index("--") if "--" in words else len(words)
    return [*words[:end], "-C", str(downstream), *words[end:]]


def run(downstream: Path, *words: str, expect: tuple[int, ...] = (0,), shown: bool = True) -> str:
    """Run vime-sync as a person would, show the command and what it prints, and stop the demo when it does not end as expected."""
    if shown:
        print(f"{_DIM}$ vime-sync {' '.join(words)}{_END}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "synctool", *_placed(words, downstream)], capture_output=True, text=True
    )
    if shown:
        print(textwrap.indent(done.stdout.rstrip() + "\n" + done.stderr.rstrip(), "  ").rstrip(), flush=True)
    if done.returncode not in expect:
        sys.exit(
            f"the demo failed: 'vime-sync {' '.join(words)}' ended with {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def ask(downstream: Path, *words: str, expect: tuple[int, ...] = (0, 1)) -> dict[str, Any]:
    """The data of a verb."""
    return json.loads(run(downstream, *words, "--json", expect=expect, shown=False))["data"]


def git(folder: Path, *words: str) -> str:
    """Plain git, for what a person does between verbs."""
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """The story, from two repositories to a verified branch."""
    began = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    upstream, beacon, baseline = generate.build(FOLDER.absolute())
    git(beacon, "config", "user.name", "Bea Lichtmann")
    git(beacon, "config", "user.email", "bea@example.org")

    say(
        "1. Two projects",
        "lantern burns Kerosene. beacon is its fork that runs on Photon: the same code in other words, with a lock, a health check and a README of its "
        f"own. lantern has moved on by 21 changes. Both lie in {FOLDER}.",
    )
    say(
        "2. A policy, learned from the two histories",
        "Words, flags and owned files are found by comparing the baseline with the fork; each says how sure it is.",
    )
    policy = beacon / "vime-sync.toml"
    run(beacon, "fetch", "--from", str(upstream))
    run(beacon, "init", "--baseline", baseline[:12], "--upstream-url", str(upstream))
    with policy.open("a", encoding="utf-8") as file:
        file.write(BY_HAND)
    print("  (by hand: the README is our own; two exclusions, each with reason and owner)")
    git(beacon, "add", "-A")
    git(beacon, "commit", "-q", "-s", "-m", "Policy of the fork")
    before = git(beacon, "rev-parse", "HEAD")

    say("3. The plan: what happens to each upstream change, and why")
    run(beacon, "plan")

    say(
        "4. The mirror",
        "Each change is merged in beacon's words, as a commit of its own, on a branch; nothing is checked out. First a dry run predicts the tree.",
    )
    predicted = ask(beacon, "mirror", "--dry-run")["tree"]
    run(beacon, "mirror", expect=(0, 1))
    state = ask(beacon, "status")["session"]
    branch = state["branch"].removeprefix("refs/heads/")
    actual = git(beacon, "rev-parse", f"{branch}^{{tree}}")
    print(
        f"  dry run predicted {predicted[:12]}, the branch has {actual[:12]}: {'equal' if predicted == actual else 'DIFFERENT'}"
    )

    say(
        "5. One conflict, resolved from proposals",
        "Both sides edited the same line of submit(), and both added an import. Every conflict shows its sides and what could resolve it.",
    )
    for row in state["conflicts"]:
        run(beacon, "show", row["path"], "--all-proposals")
        shown = ask(beacon, "show", row["path"], "--all-proposals")
        for hunk in shown["hunk_texts"]:
            kind = next((p["kind"] for p in hunk["proposals"]), None)
            words = ("proposal", row["path"], "--kind", kind) if kind else ("theirs", row["path"])
            run(beacon, "take", *words, "--hunk", str(hunk["number"]), expect=(0, 1))
    run(beacon, "continue")

    say(
        "6. The result, from scratch", "verify translates lantern's tip anew and explains every difference from beacon."
    )
    git(beacon, "merge", "-q", "--ff-only", branch)
    run(beacon, "verify", "--since", before)

    say(
        "7. Again",
        "A finished range is nothing to do (exit code 4), and what was resolved is remembered in the repository.",
    )
    run(beacon, "mirror", expect=(4,))
    for path in ("beacon/job_queue.py", "tools/legacy_report.py"):
        run(beacon, "explain", path, expect=(0, 1))

    say(
        "8. The pull request's body, from records alone",
        "A record names head and tree, so a commit that changes only documents leaves it standing. What is not recorded can't be claimed.",
    )
    compiled = (sys.executable, "-m", "compileall", "-q", "beacon")
    run(beacon, "evidence", "run", "--name", "compiles", "--sync", branch, "--", *compiled)
    run(beacon, "report", "--since", before, "--sync", branch)

    runner = git(beacon, "show", f"{branch}:beacon/runner.py")
    mirrored = git(beacon, "rev-list", "--count", f"{before}..{branch}")
    say("What happened")
    counts = state["counts"]
    kinds = {
        "take": "taken",
        "exclude": "left out with a reason",
        "present": "ported before",
        "collapsed": "cancelled out",
    }
    print("  21 upstream changes: " + ", ".join(f"{counts[kind]} {words}" for kind, words in kinds.items()))
    print(f"  {mirrored} commits on {branch}, authors kept, each with Upstream-Commit and Upstream-PR")
    line = next(text.strip() for text in runner.splitlines() if "def submit" in text)
    print(f"  both sides' edits stand: {line}")
    print(f"  {time.monotonic() - began:.0f} s. Look around: git -C {beacon} log --stat {branch}")


if __name__ == "__main__":
    main()
