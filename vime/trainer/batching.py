"""Samples -> columns -> the part of one data-parallel rank -> packed micro-batches.

Columns are a plain dict of lists, one entry a sample, because user hooks read and write it. Nothing here knows a
process group; `schedule` decides where samples go.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from vime.errors import VimeError
from vime.hooks import load_hook
from vime.sample import Sample, Status
from vime.trainer import deferred, prefix, recorded, routing, schedule
from vime.trainer.advantages import group_normalized_rewards
from vime.trainer.attention import PackedSequences, Rotary, pack
from vime.trainer.context import ContextCut, combine
from vime.trainer.deferred import Later
from vime.trainer.estimators import GROUP_MEAN, GROUP_RELATIVE
from vime.trainer.log_probs import Picks
from vime.trainer.recorded import Records
from vime.trainer.reduce import rollout_mask_sums, token_weights

log = logging.getLogger(__name__)

TrainData = dict[str, list[Any]]

# Per-token columns that travel only when every sample has them.
_OPTIONAL = ("rollout_log_probs", "teacher_log_probs")


@dataclass(frozen=True)
class Step:
    """One optimizer step on one rank: micro-batches of sample positions, and the two counts over all ranks."""

    micro_batches: list[list[int]]
    rollouts: int
    tokens: int


@dataclass(frozen=True)
class RankBatch:
    """What one data-parallel rank trains in a rollout: the columns of its samples only, and its steps."""

    data: TrainData
    steps: list[Step]
    dropped: list[int] = field(default_factory=list)


def samples_to_train_data(
    args: Any, samples: Sequence[Sample], scoring_only: bool = False, routers: routing.Routing | None = None
) -> TrainData:
    """Columns of `samples`, checked: every per-token field as long as the response, at least one prompt token.

    Rewards are normalised by group for the group-relative estimators unless the flags say not to; with `scoring_only`
    they are not looked at. `routers` are those that replay the engine's choices, when the flags ask for it.
    Raises VimeError naming the sample.
    """
    if not samples:
        raise VimeError("a rollout without samples cannot be trained")
    indices = [i if s.index is None else s.index for i, s in enumerate(samples)]
    data: TrainData = {
        "tokens": [list(s.tokens) for s in samples],
        "response_lengths": [s.response_length for s in samples],
        "total_lengths": [len(s.tokens) for s in samples],
        "sample_indices": indices,
        "group_index": [s.group_index for s in samples],
        "rollout_ids": [i if s.rollout_id is None else s.rollout_id for i, s in zip(indices, samples, strict=True)],
        "truncated": [int(s.status is Status.TRUNCATED) for s in samples],
        "source_names": [_source(s) for s in samples],
        "loss_masks": [s.trained_mask for s in samples],
        "weight_versions": [list(s.weight_versions) for s in samples],
    }
    for column in _OPTIONAL:
        values = [getattr(s, column, None) for s in samples]
        if all(v is not None for v in values):
            data[column] = values
    _check_lengths(data)
    data |= recorded.columns(args, samples, data["loss_masks"], indices, routers)
    data["rollout_mask_sums"] = rollout_mask_sums(data["loss_masks"], data["rollout_ids"])
    if scoring_only:
        return data
    if args.custom_convert_samples_to_train_data_path:
        return _converted(args, samples, data)
    if args.custom_reward_post_process_path:
        data["raw_reward"], data["rewards"] = _user_rewards(args, samples)
    elif args.loss_type != "sft_loss":
        data["raw_reward"] = [s.get_reward_value(args) for s in samples]
        data["rewards"] = _normalized(args, data)
    return data


def _user_rewards(args: Any, samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    """Raw and trained rewards as --custom-reward-post-process-path gives them. Raises VimeError unless there is one of each a sample."""
    path = args.custom_reward_post_process_path
    raw, rewards = load_hook("custom_reward_post_process_path", path)(args, samples)
    if not len(raw) == len(rewards) == len(samples):
        raise VimeError(
            f"it returned {len(raw)} raw rewards and {len(rewards)} rewards for {len(samples)} samples",
            where=f"--custom-reward-post-process-path {path}",
        )
    return [float(one) for one in raw], [float(one) for one in rewards]


def _converted(args: Any, samples: Sequence[Sample], ours: TrainData) -> TrainData:
    """The columns of --custom-convert-samples-to-train-data-path, completed. Raises VimeError when they do not fit together."""
    path = args.custom_convert_samples_to_train_data_path
    where = f"--custom-convert-samples-to-train-data-path {path}"
    given = load_hook("custom_convert_samples_to_train_data_path", path)(args, samples)
    if missing := {"tokens", "response_lengths", "loss_masks", "rewards"} - given.keys():
        raise VimeError(f"it returned no {', '.join(sorted(missing))}", where=where)
    count = len(given["tokens"])
    if count != len(samples):  # other rows than samples: what is known of the samples does not belong to them
        ours = {
            "sample_indices": list(range(count)),
            "rollout_ids": list(range(count)),
            "group_index": [None] * count,
            "truncated": [0] * count,
            "source_names": ["unknown"] * count,
            "weight_versions": [[] for _ in range(count)],
        }
    data = {"raw_reward": given["rewards"]} | ours | given
    data["total_lengths"] = [len(tokens) for tokens in data["tokens"]]
    if wrong := [name for name, column in data.items() if len(column) != count]:
        raise VimeError(f"{wrong[0]} has {len(data[wrong[0]])} entries, tokens has {count}", where=where)
    _check_lengths(data)
    data["rollout_mask_sums"] = rollout_mask_sums(data["loss_masks"], data["rollout_ids"])
    return data


def _source(sample: Sample) -> str:
    return getattr(sample, "source", None) or sample.metadata.get("source_name") or "unknown"


def _normalized(args: Any, data: TrainData) -> list[float]:
    if args.advantage_estimator not in (*GROUP_RELATIVE, GROUP_MEAN) or args.disable_rewards_normalization:
        return list(data["raw_reward"])
    try:
        return group_normalized_rewards(
            data["raw_reward"],
            data["group_index"],
            data["rollout_ids"],
            divide_by_std=not args.disable_grpo_std_normalization and args.advantage_estimator != GROUP_MEAN,
            group_size=args.n_samples_per_prompt,
        )
    except ValueError as error:
        raise VimeError(str(error), hint="set group_index on every sample that the rollout returns") from error


def _check_lengths(data: TrainData) -> None:
    for i, (total, response) in enumerate(zip(data["total_lengths"], data["response_lengths"], strict=True)):
        name = f"sample {data['sample_indices'][i]}"
        if not 0 <= response < total:
            raise VimeError(
                f"{name} has {response} response tokens of {total}",
                hint="a sample needs at least one prompt token before its response",
            )
        for column in ("loss_masks", *_OPTIONAL):
            if column in data and len(data[column][i]) != response:
                raise VimeError(f"{name}: {column} has {len(data[column][i])} entries for {response} response tokens")


def split_over_ranks(args: Any, data: TrainData, ranks: int, hidden: int) -> list[RankBatch]:
    """Schedule `data` and cut it into one RankBatch a data-parallel rank. `hidden` is the model's width, for FLOPs.

    Rollouts that do not fill a step are dropped and logged. Raises VimeError when there is not one whole step.
    """
    dynamic = args.use_dynamic_batch_size
    plan = schedule.make_plan(
        data["total_lengths"],
        data["rollout_ids"],
        rollouts_per_step=args.global_batch_size,
        ranks=ranks,
        micro_batch_size=args.micro_batch_size,
        max_tokens=args.max_tokens_per_gpu if dynamic else None,
        balance=args.balance_data,
        by_flops=args.balance_by_flops,
        cost=schedule.forward_cost(hidden),
    )
    rollouts = len(set(data["rollout_ids"]))
    if not plan.steps:
        raise VimeError(
            f"the rollout has {rollouts} trajectories, fewer than --global-batch-size {args.global_batch_size}",
            hint="lower --global-batch-size or raise --rollout-batch-size",
        )
    if plan.dropped:
        log.warning(
            "%d of %d samples do not fill a step of %d trajectories and are not trained: indices %s",
            len(plan.dropped),
            len(data["tokens"]),
            args.global_batch_size,
            [data["sample_indices"][i] for i in plan.dropped[:8]],
        )
    kept = [sum(mask) for mask in data["loss_masks"]]
    batches = []
    for rank in range(ranks):
        mine = sorted(i for step in plan.steps for micro in step[rank] for i in micro)
        local = {i: k for k, i in enumerate(mine)}
        steps = [
            Step(
                micro_batches=[[local[i] for i in micro] for micro in step[rank]],
                rollouts=args.global_batch_size,
                tokens=sum(kept[i] for of_rank in step for micro in of_rank for i in micro),
            )
            for step in plan.steps
        ]
        columns = {name: [column[i] for i in mine] for name, column in data.items()}
        batches.append(RankBatch(columns, steps, plan.dropped))
    return batches


@dataclass(frozen=True)
class Context:
    """The ranks that cut each micro-batch between them, and how: zigzag or in contiguous runs."""

    group: dist.ProcessGroup
    zigzag: bool


@dataclass(frozen=True)
class MicroBatch:
    """Samples packed into one row, in which what several of them begin with may lie once (see `prefix`).

    `rows`/`targets` [response tokens] find each response token's logits and its id;
    `masks` and `weights` fp32 [response tokens]; `samples` are positions in the rank's columns, `lengths` and `totals` their
    response and whole lengths. `denominator` is what the weights of one whole step were divided by.

    `picks` are the recorded supports, over response tokens, and `sampler` fp32 [picks] the sampler's log-probabilities.

    Under context parallelism `tokens`, `rows`, `targets`, `picks` and `sampler` are this rank's; `places` int64 says which
    response tokens its rows are for. Everything else is of all response tokens, on each rank.

    `experts` int64 [MoE layers, tokens, experts per token] and `known` bool [tokens] are choices to replay. While `later` is there, these
    and `picks` and `sampler` are still to be read: `complete` does.
    """

    samples: list[int]
    tokens: torch.Tensor
    packed: PackedSequences
    rows: torch.Tensor
    targets: torch.Tensor
    lengths: list[int]
    totals: list[int]
    masks: torch.Tensor
    weights: torch.Tensor
    columns: dict[str, torch.Tensor]
    denominator: int = 1
    picks: Picks | None = None
    sampler: torch.Tensor | None = None
    places: torch.Tensor | None = None
    experts: torch.Tensor | None = None
    known: torch.Tensor | None = None
    later: Later[Records] | None = None

    def complete(self) -> MicroBatch:
        """With what was recorded of its samples, on its device."""
        return self if self.later is None else self.with_records(self.later.take())

    def with_records(self, records: Records) -> MicroBatch:
        device = self.tokens.device
        return dataclasses.replace(self, later=None, **{name: value.to(device) for name, value in records.items()})

    def whole(self, values: torch.Tensor) -> torch.Tensor:
        """Values fp32 of the rows this rank holds -> of all response tokens, differentiable in its own."""
        if self.places is None or self.packed.cut is None:
            return values
        return combine(values, self.places, len(self.masks), self.packed.cut.group)

    def put(self, column: list[torch.Tensor], values: torch.Tensor) -> None:
        """Write flat response-token `values` into a per-sample column."""
        for sample, part in zip(self.samples, values.split(self.lengths), strict=True):
            column[sample] = part

    def sample_at(self, token: int) -> int:
        """Position, in the rank's columns, of the sample that holds flat response token `token`."""
        for sample, length in zip(self.samples, self.lengths, strict=True):
            if token < length:
                return sample
            token -= length
        raise IndexError(token)


def pack_micro_batch(
    data: TrainData,
    samples: list[int],
    *,
    rotary: Rotary,
    dtype: torch.dtype,
    device: torch.device,
    columns: Sequence[str] = (),
    step: Step | None = None,
    per_token: bool = False,
    context: Context | None = None,
    whole: bool = False,
    multiple: int = 1,
) -> MicroBatch:
    """Pack `samples` (not empty) of `data`. `columns` names per-token float columns to lay out flat, fp32.

    Without a `step` the weights are the bare masks. `whole`: each token of each sample has a place of its own in the row,
    as the cut of a `context` and recorded routes need it; else see `prefix`. The row is padded to a `multiple` of tokens.
    """
    totals = [data["total_lengths"][i] for i in samples]
    lengths = [data["response_lengths"][i] for i in samples]
    prompts = [total - length for total, length in zip(totals, lengths, strict=True)]
    whole = whole or context is not None or "routes" in data
    layout = prefix.lay_out([data["tokens"][i] for i in samples], prompts, whole)
    fed = torch.from_numpy(layout.lengths)
    responses = torch.tensor(lengths)
    # A response token is scored at the place of the one before it.
    starts = fed.cumsum(0) - fed + torch.tensor(prompts) - 1
    flat = torch.arange(int(responses.sum())) - (responses.cumsum(0) - responses).repeat_interleave(responses)
    rows = torch.from_numpy(layout.expand)[starts.repeat_interleave(responses) + flat]
    layout = prefix.padded(layout, multiple)
    tokens = torch.from_numpy(layout.tokens)
    ids = torch.tensor([t for i in samples for t in recorded.response(data, i)], dtype=torch.int64)
    masks = torch.tensor([m for i in samples for m in data["loss_masks"][i]], dtype=torch.float32)
    weights = masks
    if step is not None:
        sums = [data["rollout_mask_sums"][i] for i in samples]
        weights = token_weights(masks, lengths, sums, step.rollouts, step.tokens, per_token)
    cut, places = None, None
    if context is not None:
        cut = ContextCut.of(totals, context.group, context.zigzag, device)
        held = cut.held.cpu()
        local = torch.full((len(tokens),), -1).index_copy(0, held, torch.arange(len(held)))[rows]
        places = (local >= 0).nonzero()[:, 0]
        rows, ids, tokens = local[places], ids[places], tokens[held]
    batch = MicroBatch(
        samples=samples,
        tokens=tokens.to(device),
        packed=pack(layout.lengths.tolist(), rotary, dtype, device, cut, layout),
        rows=rows.to(device),
        targets=ids.to(device),
        lengths=lengths,
        totals=totals,
        masks=masks.to(device),
        weights=weights.to(device),
        columns={name: flatten(data[name], samples).to(device) for name in columns},
        denominator=1 if step is None else max(step.tokens if per_token else step.rollouts, 1),
        places=None if places is None else places.to(device),
    )
    read = partial(recorded.of_batch, batch, data)
    if recorded.waits(data, samples):
        return dataclasses.replace(batch, later=Later(read))
    return batch.with_records(read())


def with_routes(batch: MicroBatch, data: TrainData) -> MicroBatch:
    """`batch` with the choices of experts that are recorded in data["routes"] for all of its samples, else as it is."""
    return batch.with_records(recorded.routes_of(batch, data))


def link(batches: Sequence[MicroBatch], window: int) -> None:
    """`batches` are about to be scored in this order: records that are still to be read are read up to `window` ahead."""
    deferred.link([batch.later for batch in batches], window)


def flatten(column: Sequence[Any], samples: Sequence[int]) -> torch.Tensor:
    """Per-token values of `samples`, lists or tensors, as one fp32 tensor; on the CPU when they lie on several devices."""
    chosen = [column[i] for i in samples]
    if chosen and all(isinstance(c, torch.Tensor) for c in chosen):
        # Of a step with several updates some were scored before them and came to the host, others within the first.
        several = len({c.device for c in chosen}) > 1
        return torch.cat([c.cpu() for c in chosen] if several else chosen).float()
    return torch.tensor([float(x) for c in chosen for x in c], dtype=torch.float32)
