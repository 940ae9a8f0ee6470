"""How many of slime's launch scripts `vime migrate-flags` turns into command lines that our parser accepts as a dry run.

    python benchmarks/migrate/slime_scripts.py REPOSITORY [--commit HEAD] [--json FILE]

REPOSITORY is a clone of https://github.com/THUDM/slime (a bare one will do). ``scripts/run-*.sh`` are followed to their training command;
``scripts/models/*.sh`` only set model flags, which are joined with a small run. Nothing of the scripts is executed.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from vime.cli.migrate_flags import POLICY, vocabulary
from vime.migrate.check import check_script, follow, problems_of

#: What a model script is joined with.
BASE = [
    *("--hf-checkpoint", "/checkpoints/model", "--prompt-data", "/data/prompts.jsonl", "--input-key", "prompt", "--label-key", "label"),
    *("--rm-type", "deepscaler", "--num-rollout", "10", "--rollout-batch-size", "32", "--n-samples-per-prompt", "8"),
    *("--rollout-max-response-len", "1024", "--use-dynamic-batch-size", "--max-tokens-per-gpu", "8192", "--colocate", "--bf16"),
]  # fmt: skip


def unpack(repository: Path, commit: str, folder: Path) -> None:
    archive = subprocess.run(
        ["git", "-C", str(repository), "archive", commit, "scripts"], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


def verdicts(folder: Path) -> dict[str, list[str]]:
    """Script -> what stands against it; an empty list is acceptance."""
    words = vocabulary(POLICY)
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob("scripts/run-*.sh")):
        verdict = check_script(path.read_text(encoding="utf-8"), str(path), words)
        unread = [f"sources {Path(one).name}, which is not where it says" for one in verdict.unread]
        found[str(path.relative_to(folder))] = [*verdict.problems, *(unread if verdict.problems else [])]
    for path in sorted(folder.glob("scripts/models/*.sh")):
        script = follow(path.read_text(encoding="utf-8"), str(path), words)
        found[str(path.relative_to(folder))] = problems_of(
            [*BASE, *script.arrays.get("MODEL_ARGS", ["--no-model-args"])]
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        unpack(given.repository, given.commit, Path(folder))
        found = verdicts(Path(folder))
    refused = {name: problems for name, problems in found.items() if problems}
    for name, problems in refused.items():
        print(name, *(f"  - {problem}" for problem in problems), sep="\n")
    for kind in ("scripts/run-", "scripts/models/"):
        names = [name for name in found if name.startswith(kind)]
        print(f"{kind}*: {sum(name not in refused for name in names)} of {len(names)} accepted")
    accepted = len(found) - len(refused)
    print(f"all: {accepted} of {len(found)} accepted, {accepted / len(found):.1%}")
    if given.json:
        commit = subprocess.run(
            ["git", "-C", str(given.repository), "rev-parse", given.commit], check=True, capture_output=True, text=True
        ).stdout.strip()
        result = {"commit": commit, "scripts": len(found), "accepted": accepted, "refused": refused}
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
