"""Numbers of one rollout step or evaluation, from its samples. Pure."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from vime.rollout.types import flatten
from vime.sample import Sample, Status

logger = logging.getLogger(__name__)


def rollout_metrics(
    args: Namespace,
    groups: Sequence[Sequence[Sample]],
    counts: Mapping[str, int],
    *,
    seconds: float,
    serving: int | None = None,
) -> dict[str, float]:
    """Everything under rollout/ and perf/ that the rollout side knows. `serving` is the version of the weights in the engines."""
    samples = flatten(groups)
    scored = [sample for sample in samples if sample.status is not Status.FAILED]
    rewards = [sample.get_reward_value(args) for sample in scored]
    metrics: dict[str, float] = {
        "rollout/raw_reward": fmean(rewards) if rewards else 0.0,
        "rollout/truncated_ratio": fmean(sample.status is Status.TRUNCATED for sample in samples),
        "rollout/response_lengths": fmean(sample.response_length for sample in samples),
        "rollout/total_lengths": fmean(len(sample.tokens) for sample in samples),
        "rollout/repetition_frac": fmean(repeats(sample.response) for sample in samples),
        "rollout/samples": len(samples),
        "rollout/truncated": float(sum(sample.status is Status.TRUNCATED for sample in samples)),
    }
    metrics |= {
        f"rollout/response_len/{name}": value
        for name, value in spread([sample.response_length for sample in samples]).items()
    }
    metrics |= _zero_std(args, groups)
    metrics |= _filter_ratio(counts)
    metrics |= {
        name: float(count) for name, count in counts.items() if not name.startswith("rollout/dynamic_filter/kept")
    }
    metrics |= _staleness(samples, serving)
    metrics |= _engine(samples)
    metrics |= _requests(samples)
    if args.log_reward_category:
        metrics |= _categories(scored, args.log_reward_category)
    if args.log_correct_samples:
        lengths = [sample.response_length for sample, reward in zip(scored, rewards, strict=True) if reward > 0]
        metrics |= (
            {f"rollout/correct_length/{name}": value for name, value in spread(lengths).items()} if lengths else {}
        )
    if args.log_multi_turn:
        metrics |= _turns(samples)
    if args.log_passrate:
        metrics |= {f"passrate/{name}": value for name, value in pass_at(_reward_rows(args, groups)).items()}
    generated = sum(sample.response_length for sample in samples)
    devices = max(1, args.rollout_num_gpus or 1)
    metrics["perf/rollout_time"] = seconds
    metrics["perf/tokens_per_gpu_per_sec"] = generated / seconds / devices if seconds > 0 else 0.0
    metrics["perf/longest_sample_tokens_per_sec"] = (
        max(sample.response_length for sample in samples) / seconds if seconds > 0 else 0.0
    )
    if generated and seconds > 0:
        # Without what was thrown away: tokens that count for the loss.
        kept = sum(sum(sample.trained_mask) for sample in samples)
        metrics["perf/effective_tokens_per_gpu_per_sec"] = kept / seconds / devices
    if any(sample.non_generation_time for sample in samples):
        times = spread([sample.non_generation_time for sample in samples])
        metrics |= {f"perf/non_generation_time/{name}": value for name, value in times.items()}
    return metrics


def eval_metrics(name: str, rewards: Sequence[Sequence[float]], samples: Sequence[Sample]) -> dict[str, float]:
    """Metrics of one dataset. `rewards`: a row for each prompt, an entry for each answer."""
    flat = [reward for row in rewards for reward in row]
    metrics = {
        f"eval/{name}": fmean(flat),
        f"eval/{name}-truncated_ratio": fmean(sample.status is Status.TRUNCATED for sample in samples),
        f"eval/{name}-failed_ratio": fmean(sample.status is Status.FAILED for sample in samples),
    }
    metrics |= {
        f"eval/{name}/response_len/{stat}": value
        for stat, value in spread([one.response_length for one in samples]).items()
    }
    return metrics | {f"eval/{name}-{key}": value for key, value in pass_at(rewards).items()}


def warn_of_useless_rewards(args: Namespace, groups: Sequence[Sequence[Sample]]) -> None:
    """Public report slime#1527: reward, loss and evaluation were 0 and nothing said why."""
    samples = [sample for sample in flatten(groups) if sample.status is not Status.FAILED]
    if len(samples) > 1 and len({sample.get_reward_value(args) for sample in samples}) == 1:
        one = samples[0]
        logger.warning(
            "all %d rewards of this step are %s, so nothing can be learned from it. Is the reward right? rm %s, prompt %r, response %r, label %r",
            len(samples), one.reward, args.custom_rm_path or args.rm_type, one.prompt, one.response, one.label,
        )  # fmt: skip


def spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "mean": fmean(values),
        "median": float(median(values)),
        "min": float(min(values)),
        "max": float(max(values)),
    }


def pass_at(rows: Sequence[Sequence[float]]) -> dict[str, float]:
    """pass@k for powers of two up to the row length: the unbiased estimate 1 - C(n-c, k)/C(n, k) (arXiv 2107.03374, equation 1).

    A reward over 0 counts as passed.
    """
    from math import comb

    size = min((len(row) for row in rows), default=0)
    result, k = {}, 1
    while k <= size:
        passed = [1 - comb(len(row) - sum(r > 0 for r in row), k) / comb(len(row), k) for row in rows]
        result[f"pass@{k}"] = fmean(passed)
        k *= 2
    return result


def repeats(text: str, window: int = 50, times: int = 10) -> bool:
    """Whether the end of `text` is one piece of at most `window` characters over and over, at least `times` times."""
    if len(text) < times:
        return False
    return any(text.endswith(text[-size:] * times) for size in range(1, min(window, len(text) // times) + 1))


def _reward_rows(args: Namespace, groups: Sequence[Sequence[Sample]]) -> list[list[float]]:
    return [
        [sample.get_reward_value(args) for sample in group if sample.status is not Status.FAILED] for group in groups
    ]


def _zero_std(args: Namespace, groups: Sequence[Sequence[Sample]]) -> dict[str, float]:
    """How many groups were all alike, by their reward."""
    alike = Counter(
        f"rollout/zero_std/count_{row[0]:.1f}"
        for row in _reward_rows(args, groups)
        if len(row) > 1 and max(row) - min(row) < 1e-9
    )
    return {name: float(count) for name, count in alike.items()}


def _filter_ratio(counts: Mapping[str, int]) -> dict[str, float]:
    kept = counts.get("rollout/dynamic_filter/kept", 0)
    dropped = sum(count for name, count in counts.items() if name.startswith("rollout/dynamic_filter/drop_"))
    return {"rollout/dynamic_filter/dropped_ratio": dropped / (kept + dropped)} if dropped else {}


def _staleness(samples: Sequence[Sample], serving: int | None) -> dict[str, float]:
    """Versions between the engines' weights now and the oldest that a token of the sample was drawn under."""
    oldest = [sample.oldest_version() for sample in samples]
    known = [serving - version for version in oldest if version is not None] if serving is not None else []
    if not known:
        return {}
    return {
        "rollout/staleness/mean": fmean(known),
        "rollout/staleness/max": float(max(known)),
        "rollout/staleness/unknown_count": float(len(samples) - len(known)),
    }


def _engine(samples: Sequence[Sample]) -> dict[str, float]:
    metrics = {}
    prompt = sum(sample.prefix_cache_info.get("prompt_tokens", 0) for sample in samples)
    if prompt:
        cached = sum(sample.prefix_cache_info.get("cached_tokens", 0) for sample in samples)
        metrics["rollout/prefix_cache_hit_rate"] = cached / prompt
        metrics["rollout/avg_cached_tokens_per_sample"] = cached / len(samples)
    drafted = sum(sample.spec_info.get("drafted", 0) for sample in samples)
    if drafted:
        metrics["rollout/spec_accept_rate"] = sum(sample.spec_info.get("accepted", 0) for sample in samples) / drafted
    if kept := [
        len(sample.rollout_top_p_token_ids or ()) for sample in samples if sample.rollout_top_p_offsets is not None
    ]:
        metrics["rollout/top_p_kept_vocab_per_token"] = sum(kept) / max(
            1, sum(sample.response_length for sample in samples)
        )
    return metrics


def _turns(samples: Sequence[Sample]) -> dict[str, float]:
    """Turns of agents, and how often a client changed what was recorded. A sample without turns of its own counts as one."""
    turns = spread([sample.metadata.get("agent_turns", 1) for sample in samples])
    drifts = fmean(sample.metadata.get("agent_drifts", 0) for sample in samples)
    return {f"multi_turn/turns/{name}": value for name, value in turns.items()} | {"multi_turn/drifts": drifts}


def _requests(samples: Sequence[Sample]) -> dict[str, float]:
    """Seconds from sending a request to its answer, over all requests of the samples, and the speed of single answers."""
    latencies, speeds = [], []
    for sample in samples:
        spent = [one["end"] - one["start"] for one in sample.trace if one.get("name") == "generate"]
        latencies += spent
        if sum(spent) > 0:
            speeds.append(sample.response_length / sum(spent))
    if not latencies:
        return {}
    return {f"perf/request/e2e_latency/{name}": value for name, value in spread(latencies).items()} | (
        {"perf/request/decode_tokens_per_sec": fmean(speeds)} if speeds else {}
    )


def _categories(samples: Sequence[Sample], key: str) -> dict[str, float]:
    """Share of each value of one entry of dict rewards."""
    values: list[Any] = [
        sample.reward[key] for sample in samples if isinstance(sample.reward, Mapping) and key in sample.reward
    ]
    return {f"rollout/error_cat/{value}": count / len(values) for value, count in Counter(map(str, values)).items()}
