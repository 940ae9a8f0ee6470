"""How a run ends: what changed, three answers, how far trainer and engine were apart, and what was trained. Built from records only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vime.observe.console import parity_of, table
from vime.observe.ledger import Account

_AVERAGED = 10


def summary(
    steps: Sequence[Mapping[str, Any]],
    evals: Sequence[Mapping[str, Any]],
    answers: Sequence[Mapping[str, Any]],
    account: Account,
) -> str:
    """The closing text. `steps` and `evals` are metrics records, `answers` the last evaluation's first samples."""
    parts = [before_after(steps, evals), *([_answers(answers)] if answers else [])]
    means = [mean for record in steps if (mean := parity_of(record)) is not None]
    if means:
        text = f"parity   mean |log p trainer - log p engine| at most {max(means):.1e} in any of {len(means)} steps"
        fresh = [record for record in steps if not record.get("rollout/staleness/max")]
        largest = [record.get("train/train_rollout_logprob_abs_diff_max") for record in fresh]
        parts.append(text + f", largest single token {max(filter(None, largest), default=0.0):.1e}")
    parts.append(f"ledger   {account}")
    return "\n".join(parts)


def before_after(steps: Sequence[Mapping[str, Any]], evals: Sequence[Mapping[str, Any]]) -> str:
    """First and last evaluation of each data set, and the first and last training steps' reward."""
    rows = [["", "before", "after"]]
    for name in dict.fromkeys(name for record in evals for name in record["datasets"]):
        values = [record[f"eval/{name}"] for record in evals if record.get(f"eval/{name}") is not None]
        rows.append([name, f"{values[0]:.3f}", f"{values[-1]:.3f}"])
    rewards = [record["rollout/raw_reward"] for record in steps if record.get("rollout/raw_reward") is not None]
    if rewards:
        count = min(_AVERAGED, len(rewards))
        first, last = sum(rewards[:count]) / count, sum(rewards[-count:]) / count
        rows.append([f"training reward, mean of {count} steps", f"{first:.3f}", f"{last:.3f}"])
    return table(rows)


def _answers(answers: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for one in answers:
        verdict = f"reward {one['reward']:.2f}" if isinstance(one["reward"], int | float) else f"reward {one['reward']}"
        lines.append(f"  {one['prompt']}{one['response']}   wanted {one['label']}, {verdict}")
    return "\n".join(["answers", *lines])
