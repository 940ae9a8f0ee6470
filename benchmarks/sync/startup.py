"""Start-up: ``vime-sync --help`` as a whole process, against a bare ``python -c pass`` in the same run.

python benchmarks/sync/startup.py [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time


def seconds(command: list[str]) -> float:
    """Wall time of one process."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Interleave the two commands and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ours, bare = [sys.executable, "-m", "synctool", "--help"], [sys.executable, "-c", "pass"]
    times = [(seconds(ours), seconds(bare)) for _ in range(11)][1:]
    result = {
        "help_ms": round(1000 * statistics.median(t[0] for t in times), 1),
        "bare_python_ms": round(1000 * statistics.median(t[1] for t in times), 1),
        "ratio": round(statistics.median(t[0] / t[1] for t in times), 2),
    }
    print(
        json.dumps(result)
        if options.json
        else f"--help {result['help_ms']} ms, bare Python {result['bare_python_ms']} ms"
    )


if __name__ == "__main__":
    main()
