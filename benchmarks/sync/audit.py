"""Record 3 again: which of the thirteen faults of a real sync the audit names, on the mechanically merged trees and on the one that people committed.

::

    python -m benchmarks.sync.audit --repo HUB --pin UNPACKED_ENGINE [--image PIP_REPORT]

``HUB`` is a repository that holds both projects' objects (slime and vime); the engine is the one that this sync's Dockerfile starts from, vLLM 0.23.0
(against a later one the audit rightly tells more). Whether a tree holds a fault is asked of git alone, by the words of that
fault, so that a check cannot vouch for itself. The audit is timed cold (no index of the engine, no remembered results) and warm; the yardstick is
parsing every Python file of the tree once, measured in the same run.
"""

from __future__ import annotations

import argparse
import ast
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from synctool.audit.baseline import load_baseline
from synctool.audit.build import build_audit
from synctool.audit.engine.cache import keep_index, open_index
from synctool.audit.engine.source import FolderSource
from synctool.audit.finding import Finding
from synctool.audit.remember import remembered_run
from synctool.audit.run import Result
from synctool.git.repo import Repo
from synctool.mirror.engine import mirror
from synctool.plan.build import build_plan
from synctool.policy.loading import load_policy
from synctool.translate.translator import Translator

FROM, THROUGH = "44d29ee59dfa1489c369937779cbbdb1798ce701", "a897e1f40357fdf3b148f1eb4ce26e1aeccfcd2c"
BEFORE, PEOPLE = "429b3d289c281393aed2580b6c59483034c3138d", "d16d1dc8a48cad95da8a2008ed9eb131b0dab88f"
MANIFESTS = Path(__file__).parents[2] / "sync_manifests" / "vime"

Present = Callable[[Repo, str], bool]


@dataclass(frozen=True)
class Fault:
    """One fault of the record: how git shows that a tree holds it (None: it takes more than words), and the finding that names it."""

    number: int
    what: str
    present: Present | None
    rule: str
    says: str


def _grep(pattern: str, *paths: str, without: str = "") -> Present:
    def ask(repo: Repo, tree: str) -> bool:
        found = repo.run("grep", "-n", "-E", "-e", pattern, tree, "--", *paths, check=False).stdout.decode(
            errors="replace"
        )
        return any(not without or without not in line for line in found.splitlines())

    return ask


def _lacks(word: str, path: str) -> Present:
    return lambda repo, tree: not _grep(word, path)(repo, tree)


def _named_but_gone(name: str) -> Present:
    def ask(repo: Repo, tree: str) -> bool:
        return _grep(name.replace(".", r"\."), ".buildkite")(repo, tree) and f"tests/{name}" not in repo.tree(tree)

    return ask


def _call_without_tokenizer(repo: Repo, tree: str) -> bool:
    for path in (
        "tests/test_agent/test_adapters.py",
        "vime/agent/adapters/common.py",
        "vime/agent/adapters/openai.py",
        "vime/agent/adapters/anthropic.py",
    ):
        entry = repo.tree(tree).get(path)
        source = ast.parse(repo.objects.read(entry.oid)) if entry is not None else ast.Module([], [])
        for call in (
            n for n in ast.walk(source) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "parse_model_output"
        ):
            if not any(word.arg in ("tokenizer", None) for word in call.keywords):
                return True
    return False


FAULTS = (
    Fault(1, "renamed method still called in the streaming rollout",
          _grep(r"\.update_from_meta_info\(", "vime/rollout/vllm_streaming_rollout.py"),
          "removed-name", "update_from_meta_info"),
    Fault(2, "call without the tokenizer that our function requires",
          _call_without_tokenizer,
          "call-signature", "needs tokenizer"),
    Fault(3, "deleted test still listed in the GPU suite",
          _named_but_gone("test_qwen2.5_0.5B_ppo_critic_only_short.py"),
          "ci-missing-file", "ppo_critic_only_short"),
    Fault(4, "import dropped in resolution, unused variable left", None, "lint", ""),
    Fault(5, "vllm.srt imports", _grep(r"^\s*(from|import) vllm\.srt"), "engine-import", "vllm.srt"),
    Fault(6, "flags that no argument accepts, in launch scripts",
          _grep(r"--vllm-(ep-size|enable-dp-lm-head|moe-a2a-backend|deepep-mode)", "scripts", "examples"),
          "engine-flag", "--vllm-"),
    Fault(7, "request to /generate",
          _grep(r"/generate\"", "vime/rollout", "docs", "examples", without="/v1/generate"),
          "engine-route", "/generate"),
    Fault(8, "router options registered twice",
          _grep(r"RouterArgs\.add_cli_args", "vime/backends/vllm_utils/arguments.py"),
          "duplicate-option", "--router-"),
    Fault(9, "pkill -9 vllm in some scripts", _grep(r"pkill -9 vllm"), "kill-pattern", "pkill -9 vllm"),
    Fault(10, "engine patch hunk dropped",
          _lacks("is_sleeping", "docker/patch/latest/vllm.patch"),
          "dropped-hunk", "core.py"),
    Fault(11, "documentation section lost in an earlier sync",
          _lacks("^## .*INT4|^### .*INT4", "docs/en/developer_guide/debug.md"),
          "docs-lost-section", "INT4"),
    Fault(12, "shell quoting of an installed requirement",
          _grep(r"pip install [^\"']*[a-z\]]>=[0-9]", "docker/Dockerfile", ".buildkite"),
          "shell-quoting", ">="),
    Fault(13, "numpy pin that the image contradicts",
          _grep(r'"numpy<2"', "docker/Dockerfile", without="scipy<"),
          "requirement-image", "numpy<2"),
)  # fmt: skip


def merged_trees(repo: Repo) -> dict[str, str]:
    """The mechanically merged tree with every conflict taken ours, and theirs."""
    policy = load_policy(MANIFESTS / "vime-sync.toml")
    translator = Translator.from_policy(policy)
    plan = build_plan(repo, policy, translator, base=FROM, through=THROUGH, downstream=BEFORE)
    result = mirror(repo, policy, translator, plan, BEFORE)
    found = {}
    for side in ("ours", "theirs"):
        tree = repo.tree(result.tree).copy()
        for conflict in result.conflicts:
            entry = conflict.ours if side == "ours" else conflict.theirs
            if entry is None:
                tree.delete(conflict.path)
            else:
                tree.set(conflict.path, entry)
        found[side] = tree.write()
    return found


def main() -> None:
    """Print the table of faults and the times."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--repo", type=Path, required=True)
    parser.add_argument("--pin", type=Path, required=True)
    parser.add_argument("--image", type=Path, default=Path(__file__).with_name("record3_image.json"))
    options = parser.parse_args()
    repo = Repo.open(options.repo)
    trees = {**merged_trees(repo), "people": PEOPLE}
    with tempfile.TemporaryDirectory() as name:
        results = {label: _timed(repo, tree, label, options, Path(name) / label) for label, tree in trees.items()}
    print(f"\n| # | fault | {' | '.join(trees)} |\n|---|---|{'---|' * len(trees)}")
    for fault in FAULTS:
        cells = [_cell(repo, fault, tree, results[label].findings) for label, tree in trees.items()]
        print(f"| {fault.number} | {fault.what} | {' | '.join(cells)} |")
    for label, result in results.items():
        print(f"{label}: {len(result.findings)} findings, {len(result.accepted)} accepted by the baseline")


def _timed(repo: Repo, tree: str, label: str, options: argparse.Namespace, cache: Path) -> Result:
    times = []
    result = None
    for _ in range(2):
        start = time.perf_counter(), time.process_time()
        policy = load_policy(MANIFESTS / "vime-sync.toml")
        engine = open_index(FolderSource(options.pin), "vllm", folder=cache)
        baseline = load_baseline(MANIFESTS / "audit-baseline.toml")
        audit = build_audit(
            repo, policy, Translator.from_policy(policy), tree=tree, since=BEFORE, base=FROM, through=THROUGH, engine=engine,
            image=options.image,
        )  # fmt: skip
        audit.served = baseline.served
        result = remembered_run(audit, baseline=baseline, key=[tree], folder=cache)
        keep_index(engine, cache)
        times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    parse = _parse_once(repo, tree)
    (cold, cold_cpu), (warm, warm_cpu) = times
    print(
        f"{label}: cold {cold:.1f} s ({cold_cpu:.1f} s CPU, {cold_cpu / parse:.1f} x parsing the tree once), "
        f"warm {warm:.1f} s ({warm_cpu:.1f} s CPU, {warm_cpu / parse:.2f} x)"
    )
    assert result is not None
    return result


def _parse_once(repo: Repo, tree: str) -> float:
    files = [entry.oid for path, entry in repo.tree(tree).items() if path.endswith(".py")]
    blobs = repo.objects.read_many(files)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for data in blobs.values():
            ast.parse(data)
    return time.process_time() - start


def _cell(repo: Repo, fault: Fault, tree: str, findings: tuple[Finding, ...]) -> str:
    hits = [
        hit
        for f in findings
        if f.rule.id == fault.rule
        for hit in f.hits
        if fault.says in hit.message or fault.says in f.subject
    ]
    if fault.present is None:
        return f"told at {len(hits)} places" if hits else "not in the tree"
    if fault.present(repo, tree):
        return f"found ({hits[0].path}:{hits[0].line}, {len(hits)} places)" if hits else "MISSED"
    return "not in the tree" + (f" (but {len(hits)} of its kind: {hits[0].path}:{hits[0].line})" if hits else "")


if __name__ == "__main__":
    main()
