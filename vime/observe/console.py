"""What a person sees while a run goes: a live line on a terminal, a plain line a step elsewhere. Rich is the rim; texts are made below."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 32


class Console:
    """Prints to standard output. On a terminal the last line is live; what `say` prints stays above it."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._rewards: list[float] = []
        self._live: Any = None
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live("", refresh_per_second=4, transient=True)

    def __enter__(self) -> Console:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, flush=True)

    def step(self, rollout_id: int, metrics: Mapping[str, Any]) -> None:
        reward = metrics.get("rollout/raw_reward")
        if reward is not None:
            self._rewards.append(float(reward))
        line = step_line(rollout_id, self._total, metrics)
        if self._live is None:
            print(line, flush=True)
        else:
            self._live.update(f"{line}\n{sparkline(self._rewards[-_WIDTH:])}")


def step_line(rollout_id: int, total: int, metrics: Mapping[str, Any]) -> str:
    """One step in one line, with units; what was not measured is left out."""
    parts = [f"step {rollout_id + 1:>{len(str(total))}}/{total}"]
    metrics = dict(metrics) | {"parity": parity_of(metrics)}
    for name, label, form in (
        ("rollout/raw_reward", "reward", ".3f"),
        ("train/loss", "loss", "+.4f"),
        ("train/grad_norm", "grad norm", ".2f"),
        ("parity", "parity", ".1e"),
        ("rollout/truncated_ratio", "truncated", ".0%"),
        ("rollout/staleness/max", "staleness", ".0f"),
        ("perf/rollout_tokens_per_sec", "tokens/s", ".0f"),
    ):
        if metrics.get(name) is not None:
            parts.append(f"{label} {metrics[name]:{form}}")
    times = [
        f"{label} {metrics[name]:.2f}"
        for name, label in (
            ("perf/rollout_time", "generate"),
            ("perf/actor_train_wall_time", "train"),
            ("perf/update_weights_time", "weights"),
        )
        if metrics.get(name) is not None
    ]
    return "  ".join(parts) + (f"  [s: {', '.join(times)}]" if times else "")


def parity_of(record: Mapping[str, Any]) -> float | None:
    """Mean |log p trainer - log p engine| over answers of the present weights; None where a step had none. Older ones differ for a reason."""
    stale = bool(record.get("rollout/staleness/max"))
    return record.get("train/on_policy_logprob_abs_diff" if stale else "train/train_rollout_logprob_abs_diff")


def judged(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The records with "parity" as `parity_of` gives it, and "parity/max" where every answer was of the present weights."""
    return [
        dict(record)
        | {
            "parity": parity_of(record),
            "parity/max": None
            if record.get("rollout/staleness/max")
            else record.get("train/train_rollout_logprob_abs_diff_max"),
        }
        for record in records
    ]


def sparkline(values: Sequence[float]) -> str:
    """Values as bars between their least and greatest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    bars = "".join(_BARS[min(int((v - low) / span * len(_BARS)), len(_BARS) - 1)] for v in values)
    return f"reward {low:.2f} {bars} {high:.2f}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned, the first to the left, the others to the right; the first row is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])
