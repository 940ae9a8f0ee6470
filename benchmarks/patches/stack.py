"""Speed of the patch stack, with its peers in the same run: git am, quilt push -a, compileall.

    python benchmarks/patches/stack.py [--patches 200] [--rounds 3] [--json FILE]

On the real pinned source (fetched once, then from the cache): the real stack, a generated stack of many patches with three changed files each, the
parse gate cold and warm, and the landed proof. Figures are the best of the rounds, in seconds; ratios are the peer's time over ours.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from synctool.git import Repo, Tree  # noqa: E402
from synctool.patches.apply import apply_patch  # noqa: E402
from synctool.patches.filepatch import PatchText  # noqa: E402
from synctool.patches.gate import find_interpreter, python_files, run_gate  # noqa: E402
from synctool.patches.header import parse_header  # noqa: E402
from synctool.patches.landed import prove_landed  # noqa: E402
from synctool.patches.mail import render_mail  # noqa: E402
from synctool.patches.output import write_tree  # noqa: E402
from synctool.patches.pathpolicy import Allowed  # noqa: E402
from synctool.patches.stack import StackPatch, apply_stack, load_stack, try_stack  # noqa: E402
from synctool.patches.store import PinnedSource, joined, open_pin  # noqa: E402
from synctool.patches.verify import verify_stack  # noqa: E402
from tests.synctool.patches.generated import hunks_of, make_stack  # noqa: E402

STACK = ROOT / "patches" / "vllm" / "0.32.0"


def best(rounds: int, work: Callable[[], Any], prepare: Callable[[], Any] = lambda: None) -> float:
    """The shortest of several runs, in seconds."""
    times = []
    for _ in range(rounds):
        prepare()
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return round(min(times), 3)


def command(words: list[str], folder: Path, **environment: str) -> None:
    """Run a peer; its failure ends the benchmark."""
    done = subprocess.run(words, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words[:4])} failed: {(done.stdout + done.stderr)[-400:]}")


def ours(source: PinnedSource, patches: tuple[StackPatch, ...], expected: str) -> None:
    """Parse and apply all patches with a tree each, from patch bytes, in memory: what ``verify`` does before the gate."""
    fresh = tuple(StackPatch(p.name, p.data, p.where) for p in patches)
    repo = Repo.open(source.repo.git_dir, dry=True)
    result = try_stack(Tree(repo.objects, source.tree_oid), fresh, Allowed())
    repo.close()
    assert result.error is None, result.error
    assert result.tree == expected


def against_peers(
    source: PinnedSource, patches: tuple[StackPatch, ...], expected: str, rounds: int, scratch: Path
) -> dict[str, Any]:
    """Ours, git am and quilt on the same patches."""
    git = {
        "GIT_AUTHOR_NAME": "x",
        "GIT_AUTHOR_EMAIL": "x@x",
        "GIT_COMMITTER_NAME": "x",
        "GIT_COMMITTER_EMAIL": "x@x",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }
    row: dict[str, Any] = {
        "patches": len(patches),
        "ours_apply_with_trees": best(rounds, lambda: ours(source, patches, expected)),
    }
    plain = scratch / "plain"
    write_tree(source.tree, plain)
    mails = scratch / "mails"
    mails.mkdir()
    for number, patch in enumerate(patches, 1):
        body = patch.data[len(patch.text.header) :]
        (mails / f"{number:04}.patch").write_bytes(
            render_mail(parse_header(patch.text.header), body, number, len(patches))
        )
    command(["git", "init", "-q"], plain, **git)
    command(["git", "add", "-A", "-f"], plain, **git)
    command(["git", "commit", "-q", "-m", "pin"], plain, **git)
    names = sorted(str(path) for path in mails.iterdir())
    peer_rounds = min(rounds, 2)
    row["git_am"] = best(
        peer_rounds, lambda: command(["git", "am", "-q", "--keep-cr", *names], plain, **git),
        lambda: command(["git", "reset", "-q", "--hard", _first(plain)], plain, **git),
    )  # fmt: skip
    made = subprocess.run(["git", "rev-parse", "HEAD^{tree}"], cwd=plain, capture_output=True, text=True).stdout.strip()
    assert made == expected, "git am made another tree"
    command(["git", "reset", "-q", "--hard", _first(plain)], plain, **git)
    if shutil.which("quilt") is None:
        row["quilt_push"] = None
        row["note"] = "quilt is not installed: its yardstick is left out"
    else:
        folder = plain / "patches"
        folder.mkdir()
        for patch in patches:
            (folder / patch.name).write_bytes(patch.data)
        (folder / "series").write_text("".join(f"{patch.name}\n" for patch in patches))
        quiet = {"QUILT_PATCHES": "patches", "HOME": str(scratch)}
        row["quilt_push"] = best(1, lambda: command(["quilt", "--quiltrc", "-", "push", "-a", "-q"], plain, **quiet))
    for peer in ("git_am", "quilt_push"):
        row[f"{peer}_ratio"] = round(row[peer] / row["ours_apply_with_trees"], 1) if row[peer] else None
    shutil.rmtree(plain)
    return row


def _first(repo: Path) -> str:
    return subprocess.run(
        ["git", "rev-list", "--max-parents=0", "HEAD"], cwd=repo, capture_output=True, text=True
    ).stdout.strip()


def gate(source: PinnedSource, tree: str, rounds: int, scratch: Path) -> dict[str, Any]:
    """The parse gate cold and warm, and compileall on the same files."""
    top = Tree(source.repo.objects, tree)
    files = python_files(top, source.pin.import_name)
    target = find_interpreter()
    cold = best(rounds, lambda: run_gate(top, files, interpreter=target, use_cache=False))
    run_gate(top, files, interpreter=target)
    warm = best(rounds, lambda: run_gate(top, files, interpreter=target))
    folder = scratch / "compileall"
    write_tree(top, folder, source.pin.import_name)
    words = [target.program, "-m", "compileall", "-q", "-f", "-j2", source.pin.import_name]
    peer = best(1, lambda: command(words, folder))
    return {
        "files": len(files), "python": target.version, "cold": cold, "warm": warm, "compileall_j2": peer,
        "compileall_over_cold": round(peer / cold, 1), "compileall_over_warm": round(peer / max(warm, 0.001)),
    }  # fmt: skip


def landed(repo: Repo, patches: tuple[StackPatch, ...], trees: list[str], dice: random.Random) -> dict[str, Any]:
    """All landed; then half of the files of every patch, where the rest does not build on them."""
    steps = list(apply_stack(Tree(repo.objects, trees[0]), patches, Allowed()))
    before = {step.before: Tree(repo.objects, step.before) for step in steps}
    start = time.perf_counter()
    full = prove_landed(steps, before, Tree(repo.objects, trees[-1]), {})
    seconds = time.perf_counter() - start
    release, blocked, truth = Tree(repo.objects, trees[0]), set(), 0
    for patch in patches:
        for change in patch.text.files:
            if change.path in blocked or dice.random() < 0.5:
                blocked.add(change.path)
                continue
            release, _ = apply_patch(release, PatchText(b"", (change,)), patch.name)
            truth += len(change.hunks)
    half = prove_landed(steps, before, release, {})
    states = [landing.state for landing in half]
    proven = sum(p.landed for x in half for p in x.proofs)
    return {
        "patches": len(patches),
        "hunks": hunks_of(patches),
        "found_landed": sum(x.state == "landed" for x in full),
        "seconds": round(seconds, 3),
        "half": {
            "hunks_that_landed": truth,
            "hunks_proven": proven,
            "states": {s: states.count(s) for s in sorted(set(states))},
        },
    }


def main() -> None:
    """Run and print (or write) the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patches", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    stack = load_stack(STACK)
    source = open_pin(stack.pin)
    dice = random.Random(5)
    result: dict[str, Any] = {"pin": stack.pin.label, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    with tempfile.TemporaryDirectory(prefix="vime-bench-") as name, joined(source) as repo:
        scratch = Path(name)
        here = PinnedSource(source.pin, repo, source.tree_oid, source.origin)
        applied = try_stack(here.tree, stack.patches, stack.pin.allowed)
        if stack.patches and applied.error is None:
            (scratch / "real").mkdir()
            result["real_stack"] = against_peers(here, stack.patches, applied.tree, options.rounds, scratch / "real")

            def verify() -> None:
                dry = PinnedSource(source.pin, Repo.open(source.repo.git_dir, dry=True), source.tree_oid, source.origin)
                assert verify_stack(load_stack(STACK), dry, interpreter=find_interpreter()).passed
                dry.repo.close()

            result["real_stack"]["verify_cold_or_warm"] = [best(1, verify), best(options.rounds, verify)]
        made, trees = make_stack(repo, here.tree, dice, options.patches, source.pin.import_name)
        patches = tuple(made)
        (scratch / "many").mkdir()
        result["generated_stack"] = against_peers(here, patches, trees[-1], options.rounds, scratch / "many")
        result["gate"] = gate(here, applied.tree, options.rounds, scratch)
        result["landed"] = landed(repo, patches, trees, dice)
    text = json.dumps(result, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
