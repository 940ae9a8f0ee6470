"""Real syncs, mirrored through the command line and scored against what the maintainers did.

    python benchmarks/sync/syncbench.py UPSTREAM_REPO DOWNSTREAM_REPO --cases cases.json --score score.py [CASE ...]

``cases.json`` describes the cases (range or picks, downstream before and after), ``score.py`` prints one JSON object for a tree and a case. Both
repositories are only read: the work happens in a scratch repository that borrows their objects. Prints a table, or JSON with ``--json``.
``--cherry-pick`` runs git's own cherry-pick of the same range in the same run, as the yardstick of speed. ``--proposals`` compares every proposal with
the lines that the maintainers wrote in its place.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from truth import human_lines, same_text

from synctool.git.repo import Repo
from synctool.mirror import store
from synctool.mirror.model import Conflict
from synctool.mirror.session import Session

ROOT = Path(__file__).resolve().parents[2]
POLICY = ROOT / "sync_manifests" / "vime" / "vime-sync.toml"


def git(folder: Path, *words: str, check: bool = True) -> str:
    """Run git and return its output."""
    finished = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    if check and finished.returncode:
        sys.exit(f"git {' '.join(words)}: {finished.stderr.strip()}")
    return finished.stdout.strip()


def borrow(folder: Path, sources: list[Path], *, bare: bool = True) -> Path:
    """A repository that sees the objects of others."""
    subprocess.run(["git", "init", "-q", *(["--bare"] if bare else []), str(folder)], check=True)
    info = folder / ("objects/info" if bare else ".git/objects/info")
    objects = [Path(git(source, "rev-parse", "--absolute-git-dir")) / "objects" for source in sources]
    (info / "alternates").write_text("".join(f"{path}\n" for path in objects))
    git(folder, "config", "user.name", "Bench")
    git(folder, "config", "user.email", "bench@example.org")
    return folder


def span_options(case: dict[str, Any]) -> list[str]:
    """The options of ``vime-sync mirror`` that name the case's changes."""
    if case["kind"] == "range":
        return ["--from", case["from"], "--through", case["through"]]
    picks = [pick["sha"] for pick in case["picks"]]
    return ["--through", picks[-1], *(word for sha in picks for word in ("--pick", sha))]


def vime_sync(hub: Path, *words: str) -> tuple[dict[str, Any], float]:
    """One call of the tool: its JSON data and the wall seconds it took, process start included."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "synctool", *words, "-C", str(hub), "--json"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    if not finished.stdout.startswith("{"):
        sys.exit(f"vime-sync {words[0]}: {finished.stderr.strip()}")
    return json.loads(finished.stdout)["data"], seconds


def waiting(hub: Path) -> list[Conflict]:
    """The conflicts of the session that the tool left, in full."""
    state = store.load(Repo.open(hub))
    return list(Session.from_json(state.value).conflicts) if state is not None else []


def conflicting(conflicts: list[Conflict]) -> set[str]:
    """Upstream commits that some conflict comes from."""
    found: set[str] = set()
    for conflict in conflicts:
        named = {change for hunk in conflict.hunks for change in hunk.changes}
        found |= named or set(conflict.changes)
    return found


def run_case(name: str, case: dict[str, Any], arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Mirror and score one case."""
    hub = borrow(scratch / f"{name}.git", [arguments.upstream, arguments.downstream])
    options = ["--policy", str(arguments.policy), "--onto", case["before"], "--no-commit-records", *span_options(case)]
    dry, _ = vime_sync(hub, "mirror", *options, "--dry-run")
    result, seconds = vime_sync(hub, "mirror", *options)
    conflicts = waiting(hub)
    score = subprocess.run(
        [
            sys.executable,
            str(arguments.score),
            result["tree"],
            name,
            "--repo",
            str(hub),
            "--cases",
            str(arguments.cases),
        ],
        cwd=arguments.score.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    # In the range, not only the changes that were taken: what policy leaves out is free of conflict too.
    total = sum(result["counts"].values())
    return {
        "case": name,
        "tree": result["tree"],
        "deterministic": dry["tree"] == result["tree"],
        "changes": total,
        "conflict_free": total - len(conflicting(conflicts)),
        "seconds": round(seconds, 2),
        "seconds_a_change": round(seconds / max(total, 1), 3),
        "filed": len(result["work"]),
        "score": json.loads(score.stdout),
        "cherry_pick_seconds": cherry_pick(case, arguments, scratch / f"{name}-pick")
        if arguments.cherry_pick
        else None,
        "proposals": proposals(hub, conflicts, case["after"]) if arguments.proposals else None,
    }


def cherry_pick(case: dict[str, Any], arguments: argparse.Namespace, folder: Path) -> float:
    """Seconds that ``git cherry-pick`` needs for the same changes on the same downstream commit, in a work tree, conflicts committed as they stand.

    What it gives is of no use (upstream's words, upstream's paths): it only shows what git's own machinery costs for as many changes.
    """
    repo = borrow(folder, [arguments.upstream, arguments.downstream], bare=False)
    picks = [pick["sha"] for pick in case.get("picks", ())]
    if case["kind"] == "range":
        picks = git(repo, "rev-list", "--first-parent", "--reverse", f"{case['from']}..{case['through']}").split()
    git(repo, "checkout", "-q", "--detach", case["before"])
    options = ["--allow-empty", "--keep-redundant-commits", "-X", "theirs", "-m", "1"]
    mainline = {oid: options if is_merge(repo, oid) else options[:-2] for oid in picks}
    begin = time.perf_counter()
    for oid in picks:
        git(repo, "cherry-pick", *mainline[oid], oid, check=False)
        if (repo / ".git/CHERRY_PICK_HEAD").exists():
            git(repo, "add", "-A")
            git(repo, "-c", "core.editor=true", "cherry-pick", "--continue", check=False)
    seconds = time.perf_counter() - begin
    shutil.rmtree(folder)
    return round(seconds, 2)


def is_merge(repo: Path, oid: str) -> bool:
    """Whether a commit has several parents."""
    return len(git(repo, "rev-list", "--parents", "-n1", oid).split()) > 2


def proposals(hub: Path, conflicts: list[Conflict], truth: str) -> dict[str, dict[str, int]]:
    """For each kind of proposal how many there are and how many are what the maintainers' file has at that place, blanks and case aside."""
    repo = Repo.open(hub)
    after = repo.tree(truth)
    counted: dict[str, dict[str, int]] = {}
    for conflict in conflicts:
        entry = after.get(conflict.path)
        if not conflict.hunks or conflict.marked is None or entry is None:
            continue
        written = human_lines(repo.objects.read(conflict.marked.oid), repo.objects.read(entry.oid))
        for hunk, lines in zip(conflict.hunks, written, strict=True):
            for proposal in hunk.proposals:
                seen = counted.setdefault(proposal.kind, {"right": 0, "all": 0})
                seen["all"] += 1
                seen["right"] += same_text(proposal.text, b"".join(lines))
    return counted


def table(rows: list[dict[str, Any]]) -> None:
    """The figures for people."""
    print(
        "case   files/hunks  remaining ours/marked  exact/norm/clean %   free    s (a change)  same tree  wrong  filed"
    )
    for row in rows:
        score = row["score"]
        rest = score["remaining_edit_fraction"]
        outside = [path for path in score["syntax_errors"] if path not in score["conflict_paths"]]
        wrong = sum(len(score[key]) for key in ("spurious_files", "missing_files", "collateral_files")) + len(outside)
        print(
            f"{row['case']:7}{score['conflict_files']:4} / {score['conflict_hunks']:<4}   {rest['ours']:.3f} / {rest['marked']:.3f}"
            f"          {score['exact_pct']:5} / {score['exact_norm_pct']:5} / {score['clean_changed_exact_pct']:5}"
            f"  {row['conflict_free']:2}/{row['changes']:<3} {row['seconds']:6.2f} ({row['seconds_a_change']:.3f})"
            f"   {row['deterministic']!s:8} {wrong:4}  {row['filed']:4}"
        )
        if row["cherry_pick_seconds"]:
            print(f"        git cherry-pick of the same changes: {row['cherry_pick_seconds']:.2f} s")
        for kind, seen in (row["proposals"] or {}).items():
            print(f"        proposal {kind}: {seen['right']} of {seen['all']} as the maintainers wrote it")


def main() -> None:
    """Run the asked cases."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("upstream", type=Path)
    parser.add_argument("downstream", type=Path)
    parser.add_argument("names", nargs="*", metavar="CASE")
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--score", type=Path, required=True)
    parser.add_argument("--policy", type=Path, default=POLICY)
    parser.add_argument("--cherry-pick", action="store_true")
    parser.add_argument("--proposals", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for name in ("upstream", "downstream", "cases", "score", "policy"):
        setattr(arguments, name, getattr(arguments, name).resolve())
    known = json.loads(arguments.cases.read_text())["cases"]
    with tempfile.TemporaryDirectory(prefix="syncbench-") as scratch:
        rows = [run_case(name, known[name], arguments, Path(scratch)) for name in arguments.names or known]
    if arguments.json:
        print(json.dumps(rows, indent=1))
    else:
        table(rows)


if __name__ == "__main__":
    main()
