"""The worked agent's run as a result: reward of every step, and where its time went.

examples/agents/run.sh --run-dir runs/agent
python benchmarks/runtime/agent.py runs/agent      writes benchmarks/results/agent.json and agent.png
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from vime import environment  # noqa: E402
from vime.observe.metrics import read_metrics  # noqa: E402
from vime.observe.plot import plot_run  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
SECONDS = {"step": "perf/step_time", "generate": "perf/rollout_time", "train": "perf/actor_train_wall_time"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    steps = read_metrics(run, "step")
    rewards = [one["rollout/raw_reward"] for one in steps]
    result = {
        "command": "examples/agents/run.sh",
        "cores": environment.cores(),
        # Of the whole machine, when this is written: seconds mean little on a busy one.
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "steps": len(steps),
        "trajectories_a_step": steps[0]["rollout/samples"],
        "reward_of_first_and_last_five": [round(statistics.fmean(part), 3) for part in (rewards[:5], rewards[-5:])],
        "reward": [round(value, 4) for value in rewards],
        "parity_max": max(one["train/train_rollout_logprob_abs_diff"] for one in steps),
        "seconds_all": round(steps[-1]["time"] - steps[0]["time"] + steps[0][SECONDS["step"]], 1),
        "seconds_median": {
            name: round(statistics.median(one[key] for one in steps), 2) for name, key in SECONDS.items()
        },
    }
    (RESULTS / "agent.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    plot_run(run, RESULTS / "agent.png")
    print(json.dumps({name: value for name, value in result.items() if name != "reward"}, indent=1))


if __name__ == "__main__":
    main()
