"""Runs every sync benchmark that needs no outside repository and keeps the figures.

    python benchmarks/sync/run.py            # writes benchmarks/results/sync.json
    python benchmarks/sync/run.py --repo HUB --policy FILE --tip SHA --onto SHA [--base CHECKOUT]   # and the plan of two real histories (plan_history.py)

Figures of real histories are kept from an earlier run where they are not measured again. ``syncbench.py`` is apart: it needs clones of the two real projects.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "sync.json"
PARTS: dict[str, list[str]] = {
    "startup": ["startup.py", "--json"],
    "translate": ["translate.py", "--json"],
    "plan_history": ["plan_history.py", "--json"],
    "scale": ["scale.py"],
}
REAL = "plan_real"


def figures(output: str) -> Any:
    """The JSON that a part printed: all of its output, or its last line; else its lines as they are."""
    for text in (output, output.strip().rpartition("\n")[2]):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            continue
    return output.strip().splitlines()


def main() -> None:
    """Run the parts one after another and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    real = ("repo", "policy", "tip", "onto", "base")
    for name in real:
        parser.add_argument(f"--{name}", help="of the real histories: see plan_history.py --help")
    args = parser.parse_args()
    given = [f"--{name}={value}" for name in real if (value := getattr(args, name))]
    kept = json.loads(RESULTS.read_text()).get(REAL) if RESULTS.exists() else None
    parts = {**PARTS, **({REAL: ["plan_history.py", "--json", *given]} if given else {})}
    results: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "git": subprocess.run(["git", "--version"], capture_output=True, text=True).stdout.split()[-1],
    }
    for name, command in parts.items():
        print(f"{name} ...", flush=True)
        done = subprocess.run([sys.executable, HERE / command[0], *command[1:]], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name} failed:\n{done.stdout}{done.stderr}")
        results[name] = figures(done.stdout)
        print(done.stdout, flush=True)
    if kept:
        results.setdefault(REAL, kept)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written: {RESULTS}")


if __name__ == "__main__":
    main()
