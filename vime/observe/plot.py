"""The reward curve of a run as a PNG, from its metrics file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vime.errors import UsageError
from vime.files import asked_file
from vime.observe.console import judged
from vime.observe.metrics import read_metrics

#: Reward and its evaluation on top, trust in the run below.
_SIZE = (8.0, 6.4)


def plot_run(directory: Path, target: Path | None = None) -> Path:
    """Write `target` (default <directory>/curve.png). Raises UsageError when the run has no steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps, evals = read_metrics(directory, "step"), read_metrics(directory, "eval")
    if not steps:
        raise UsageError("no training step is recorded there", where=str(directory))
    gaps = judged(steps)
    figure, (top, bottom) = pyplot.subplots(2, 1, figsize=_SIZE, sharex=True, height_ratios=(3, 1))
    _line(top, steps, "rollout/raw_reward", "reward of the training samples")
    for name in dict.fromkeys(name for record in evals for name in record["datasets"]):
        _line(top, evals, f"eval/{name}", f"evaluation {name}", marker="o")
    top.set_ylabel("reward, share")
    top.set_ylim(0, 1)
    top.legend(loc="lower right", frameon=False)
    top.grid(alpha=0.3)
    _line(bottom, gaps, "parity", "mean")
    _line(bottom, gaps, "parity/max", "max")
    bottom.set_yscale("log")
    bottom.set_ylabel("|Δ log p|\ntrainer, engine")
    bottom.set_xlabel("training step")
    if bottom.lines:
        bottom.legend(loc="upper right", frameon=False, ncols=2)
    bottom.grid(alpha=0.3)
    figure.tight_layout()
    target = target or directory / "curve.png"
    with asked_file(target) as file:
        figure.savefig(file, dpi=120, format="png")
    pyplot.close(figure)
    return target


def _line(axes: Any, records: list[dict[str, Any]], name: str, label: str, **style: Any) -> None:
    points = [(record["rollout_id"], record[name]) for record in records if record.get(name) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), label=label, **style)
