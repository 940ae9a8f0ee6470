"""A run as one HTML page, from its records alone: what it learned, what it sampled, how stale, where the time went, and on which engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vime.errors import UsageError
from vime.observe import charts, trace
from vime.observe.console import judged, parity_of
from vime.observe.metrics import read_lines, read_metrics

_SAMPLES = 12
_LONGEST = 400

#: Title -> (metric, label) of its curves, whether the axis is logarithmic, and what the chart tells.
_CHARTS: tuple[tuple[str, tuple[tuple[str, str], ...], bool, str], ...] = (
    (
        "Trainer and engine agree",
        (
            ("parity", "mean"),
            ("parity/max", "largest"),
        ),
        True,
        "|log p trainer - log p engine| of tokens sampled from the present weights; flat is right",
    ),
    ("Loss", (("train/loss", "loss"), ("train/pg_loss", "policy gradient"), ("train/kl_loss", "KL")), False, ""),
    ("Gradient norm", (("train/grad_norm", "gradient norm"),), False, ""),
    (
        "Entropy and ratios",
        (("train/entropy_loss", "entropy"), ("train/ppo_kl", "KL old to new"), ("train/pg_clipfrac", "clipped")),
        False,
        "",
    ),
    (
        "Staleness",
        (("rollout/staleness/mean", "mean"), ("rollout/staleness/max", "largest")),
        False,
        "versions of the weights between sampling and the engines' present ones",
    ),
    (
        "Answers",
        (("rollout/response_len/mean", "tokens, mean"), ("rollout/response_len/max", "tokens, longest")),
        False,
        "",
    ),
    (
        "Cut off, repeating",
        (("rollout/truncated_ratio", "truncated"), ("rollout/repetition_frac", "repeating")),
        False,
        "shares of the samples",
    ),
    ("Speed", (("perf/tokens_per_gpu_per_sec", "generated tokens a second"), ("perf/actor_train_tok_per_s", "trained tokens a second")), False, ""),
)  # fmt: skip


def render(directory: Path) -> str:
    """The page. Raises UsageError when the run has no steps."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    steps = read_metrics(directory, "step")
    if not steps:
        raise UsageError("no training step is recorded there", where=str(directory))
    evals = read_metrics(directory, "eval")
    engine = next(iter(read_metrics(directory, "engine")[-1:]), {})
    environment = Environment(
        loader=PackageLoader("vime.observe"), autoescape=select_autoescape(["j2"]), undefined=StrictUndefined
    )
    return environment.get_template("report.html.j2").render(
        name=directory.resolve().name,
        figures=figures(steps, evals),
        charts=[one for one in _charts(judged(steps), evals) if one["svg"]],
        time_split=charts.stacked(time_split(steps)),
        slowest=slowest(steps),
        samples=_samples(directory),
        stack=stack_of(engine),
        ledger=_ledger(directory),
    )


def figures(steps: Sequence[Mapping[str, Any]], evals: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The run in a few numbers: (what, how much)."""
    rewards = _known(steps, "rollout/raw_reward")
    gaps = [gap for step in steps if (gap := parity_of(step)) is not None]
    stale = _known(steps, "rollout/staleness/max")
    seconds = _known(steps, "perf/step_time")
    found = [("steps", f"{len(steps)}")]
    if rewards:
        count = min(10, len(rewards))
        first, last = sum(rewards[:count]) / count, sum(rewards[-count:]) / count
        found.append((f"reward, mean of {count} steps", f"{first:.3f} → {last:.3f}"))
    for name in dict.fromkeys(name for record in evals for name in record.get("datasets", ())):
        values = _known(evals, f"eval/{name}")
        found.append((f"evaluation {name}", f"{values[0]:.3f} → {values[-1]:.3f}"))
    if gaps:
        found.append(("trainer against engine, worst step's mean", f"{max(gaps):.1e}"))
    if stale:
        found.append(("staleness, most", f"{max(stale):g}"))
    if seconds:
        found.append(("seconds a step, median", f"{sorted(seconds)[len(seconds) // 2]:.2f}"))
    return found


def time_split(steps: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Seconds of the run's steps by what they went into. Generation beside training is not waited for, so only the rest counts as it."""
    total = sum(_known(steps, "perf/step_time"))
    train = sum(_known(steps, "perf/actor_train_wall_time"))
    weights = sum(_known(steps, "perf/update_weights_time"))
    rollout = min(sum(_known(steps, "perf/rollout_time")), max(total - train - weights, 0.0))
    other = max(total - train - weights - rollout, 0.0)
    return [("generate", rollout), ("train", train), ("update weights", weights), ("other", other)]


def slowest(steps: Sequence[Mapping[str, Any]]) -> str:
    """The longest step, and how much longer than usual it was."""
    timed = [(step["perf/step_time"], step["rollout_id"]) for step in steps if step.get("perf/step_time") is not None]
    if not timed:
        return ""
    middle, (longest, number) = sorted(timed)[len(timed) // 2][0], max(timed)
    return f"longest step: {number + 1}, {longest:.2f} s, {longest / middle:.1f} times the median" if middle else ""


def stack_of(engine: Mapping[str, Any]) -> str:
    """Which engine answered: the digest of its patch stack, and the patches."""
    digest = engine.get("engine/patch_stack")
    if not digest:
        return "stock vLLM: no patch stack is recorded"
    return f"patch stack {digest}: {', '.join(engine.get('engine/patches') or ()) or 'no patches'}"


def _charts(steps: Sequence[Mapping[str, Any]], evals: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    names = list(dict.fromkeys(name for record in evals for name in record.get("datasets", ())))
    reward = [("training samples", _points(steps, "rollout/raw_reward"))]
    reward += [(f"evaluation {name}", _points(evals, f"eval/{name}")) for name in names]
    found = [{"title": "Reward", "svg": charts.lines(reward), "note": ""}]
    for title, curves, log, note in _CHARTS:
        series = [(label, _points(steps, metric)) for metric, label in curves]
        found.append({"title": title, "svg": charts.lines(series, log=log), "note": note})
    return found


def _points(records: Sequence[Mapping[str, Any]], metric: str) -> list[tuple[float, float]]:
    return [(record["rollout_id"], record[metric]) for record in records if record.get(metric) is not None]


def _known(records: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
    return [value for _, value in _points(records, metric)]


def _samples(directory: Path) -> list[dict[str, Any]]:
    """Samples spread evenly over the run, the last one among them."""
    lives = list({life["rollout_id"]: life for life in read_lines(directory / trace.FILE)}.values())
    stride = max(1, -(-len(lives) // _SAMPLES))
    chosen = lives[::-1][::stride][::-1]
    return [
        {
            "step": life["rollout_id"] + 1,
            "prompt": _short(life["prompt"]),
            "response": _short(life["response"]),
            "reward": _short(life["reward"]),
            "tokens": life["tokens"],
            "status": life["status"],
            "versions": ", ".join(dict.fromkeys(str(version) for version, *_ in life["versions"])),
        }
        for life in chosen
    ]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else f"{value:.4g}" if isinstance(value, float) else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … ({len(text)} characters)"


def _ledger(directory: Path) -> str:
    from vime.observe.ledger import FILE, count, read_ledger

    trained = [record["samples"] for record in read_ledger(directory / FILE)]
    return str(count(trained)) if trained else ""
