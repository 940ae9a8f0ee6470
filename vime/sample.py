"""The record that flows through everything: one prompt, one answer, and all that the trainer must know of how it was sampled.

Lifecycle::

    PENDING --generate--> COMPLETED | TRUNCATED            the only two states that are trained
       |  ^                                                a sample with remove_sample set is scored but its loss mask is zero
       |  `--- requeue (reset_response, or keep the prefix with --partial-rollout)
       +--abort--> ABORTED                                 goes back to the data source
       `--reward or generation failed--> FAILED            remove_sample is set and the fate is counted

Tokens, loss mask, log-probabilities and the other per-token records change together in ``Sample.append_response_tokens`` and nowhere else, so they
cannot come apart.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import pairwise
from typing import Any

from vime.errors import VimeError


class Status(StrEnum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass(frozen=True)
class VersionSpan:
    """Response tokens [start, end) were sampled under weights `version`."""

    version: str
    start: int
    end: int


@dataclass(frozen=True)
class Nucleus:
    """The tokens that the sampler allowed at each position, ragged: position i owns ids[offsets[i]:offsets[i + 1]].

    offsets has one more entry than there are tokens. `log_probs`, aligned with ids, are normalised over the allowed tokens.
    """

    ids: Sequence[int]
    offsets: Sequence[int]
    log_probs: Sequence[float] | None = None


@dataclass(frozen=True)
class TopK:
    """The k most likely tokens at each position: two rows of k for each token, log-probabilities over the full vocabulary."""

    ids: Sequence[Sequence[int]]
    log_probs: Sequence[Sequence[float]]


@dataclass(frozen=True)
class ResponseMeta:
    """What an engine reports beside tokens and log-probabilities. Spans and rows count from the first token of *this* response.

    routed_experts: int [rows, layers, experts per token], for the positions `routed_experts_start` .. of the whole sequence.
    """

    versions: Sequence[VersionSpan] = ()
    nucleus: Nucleus | None = None
    topk: TopK | None = None
    routed_experts: Any = None
    routed_experts_start: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    spec_accepted: int = 0
    spec_drafted: int = 0


class Stored:
    """A field's value that lies elsewhere, on disk; a `Sample` that travels may have some. See `vime.durable.reference`."""

    def load(self) -> Any:
        """The value as it was: an array or a list."""
        raise NotImplementedError


@dataclass
class Sample:
    """One prompt and one answer. Per-token fields cover the response only, unless they say otherwise."""

    group_index: int | None = None
    index: int | None = None
    #: Siblings of one trajectory share it, so that they count once in statistics. `index` when unset.
    rollout_id: int | None = None
    prompt: str | list[dict[str, Any]] = ""
    #: Prompt and response.
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: Any = None
    reward: float | dict[str, Any] | None = None
    #: 1 where the token is trained.
    loss_mask: list[int] | None = None
    #: Distinct versions in the order they were met.
    weight_versions: list[str] = field(default_factory=list)
    version_spans: list[VersionSpan] = field(default_factory=list)
    #: Of the sampler's own, processed distribution; 0.0 where the token was not sampled.
    rollout_log_probs: list[float] | None = None
    rollout_top_p_token_ids: list[int] | None = None
    rollout_top_p_offsets: list[int] | None = None
    rollout_top_p_log_probs: list[float] | None = None
    rollout_topk_token_ids: list[list[int]] | None = None
    rollout_topk_log_probs: list[list[float]] | None = None
    #: [len(tokens) - 1, layers, experts per token], or a reference that a queue resolves later.
    rollout_routed_experts: Any = None
    #: Keep the sample for statistics, train none of it.
    remove_sample: bool = False
    teacher_log_probs: list[float] | None = None
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    train_metadata: dict[str, Any] | None = None
    generate_function_path: str | None = None
    custom_rm_path: str | None = None
    #: Ties the turns of a sample to one engine, so that its prefix cache is warm.
    session_id: str | None = None
    multimodal_inputs: dict[str, Any] | None = None
    multimodal_train_inputs: dict[str, Any] | None = None
    #: Seconds spent outside the engine (tools, sandboxes).
    non_generation_time: float = 0.0
    spec_info: dict[str, int] = field(default_factory=dict)
    prefix_cache_info: dict[str, int] = field(default_factory=dict)
    #: Rollout in which generation began, when it was resumed later.
    start_rollout_id: int | None = None
    trace: list[dict[str, Any]] = field(default_factory=list)

    @property
    def prompt_length(self) -> int:
        return len(self.tokens) - self.response_length

    @property
    def name(self) -> str:
        """How messages call this sample."""
        return f"sample {self.index} of group {self.group_index}"

    @property
    def finished(self) -> bool:
        return self.status in (Status.COMPLETED, Status.TRUNCATED)

    @property
    def trained_mask(self) -> list[int]:
        """The loss mask in force: ones when unset, zeros when the sample is removed. int, length response_length."""
        if self.remove_sample:
            return [0] * self.response_length
        return list(self.loss_mask) if self.loss_mask is not None else [1] * self.response_length

    def append_response_tokens(
        self,
        args: Any,
        tokens: Sequence[int],
        log_probs: Sequence[float] | None = None,
        trainable: bool = True,
        meta_info: ResponseMeta | None = None,
        text: str = "",
    ) -> None:
        """Append `tokens` to the response with everything that is recorded for each of them.

        Trainable tokens were sampled by the policy and need log-probabilities. Others (tool output, an environment's turn) get mask 0,
        log-probability 0.0, an empty nucleus and a zero top-k row. `args` says which records training needs (``use_rollout_routing_replay``);
        it may be None outside a run. Raises VimeError, and leaves the sample as it was, when lengths do not agree.
        """
        meta = meta_info or ResponseMeta()
        count = len(tokens)
        if trainable:
            if log_probs is None:
                raise VimeError("trainable tokens came without log-probabilities", where=self.name)
            if len(log_probs) != count:
                raise VimeError(f"{count} tokens came with {len(log_probs)} log-probabilities", where=self.name)
        elif log_probs is not None:
            raise VimeError("tokens that were not sampled cannot have log-probabilities", where=self.name)
        if self.teacher_log_probs is not None:
            raise VimeError("the teacher has scored this sample already; it cannot grow", where=self.name)
        start = self.response_length
        updates: dict[str, Any] = {
            "tokens": [*self.tokens, *tokens],
            "response": self.response + text,
            "response_length": start + count,
            "loss_mask": [*self._mask_or_ones(), *([int(trainable)] * count)],
            "rollout_log_probs": [*self._log_probs_so_far(), *(log_probs if log_probs is not None else [0.0] * count)],
        }
        updates |= self._nucleus_update(meta.nucleus, count, trainable)
        updates |= self._topk_update(meta.topk, count, trainable)
        updates |= self._routes_update(args, meta, len(updates["tokens"]), trainable)
        if trainable:
            updates |= self._versions_update(meta.versions, start, count)
        for name, value in updates.items():
            setattr(self, name, value)
        self._count(meta)
        self.validate()

    def validate(self) -> None:
        """Raise VimeError naming the first record whose length differs from the tokens it describes."""
        length = self.response_length
        if not 0 <= length <= len(self.tokens):
            raise VimeError(f"response_length is {length} but there are {len(self.tokens)} tokens", where=self.name)
        offsets = self.rollout_top_p_offsets
        expected: dict[str, tuple[Sequence[Any] | None, int]] = {
            "loss_mask": (self.loss_mask, length),
            "rollout_log_probs": (self.rollout_log_probs, length),
            "teacher_log_probs": (self.teacher_log_probs, length),
            "rollout_topk_token_ids": (self.rollout_topk_token_ids, length),
            "rollout_topk_log_probs": (self.rollout_topk_log_probs, length),
            "rollout_top_p_offsets": (offsets, length + 1),
            "rollout_top_p_token_ids": (self.rollout_top_p_token_ids, offsets[-1] if offsets else 0),
            "rollout_top_p_log_probs": (self.rollout_top_p_log_probs, offsets[-1] if offsets else 0),
        }
        for name, (value, wanted) in expected.items():
            if value is not None and len(value) != wanted:
                raise VimeError(f"{name} has {len(value)} entries instead of {wanted}", where=self.name)

    def reset_response(self) -> None:
        """Back to a prompt that was never answered; identity, label and metadata stay."""
        kept = {
            "group_index",
            "index",
            "rollout_id",
            "prompt",
            "label",
            "metadata",
            "generate_function_path",
            "custom_rm_path",
        }
        kept |= {"multimodal_inputs", "multimodal_train_inputs", "trace"}
        self.tokens = self.tokens[: self.prompt_length]
        self.metadata.pop("failure", None)
        blank = Sample()
        for one in fields(Sample):
            if one.name not in kept | {"tokens"}:
                setattr(self, one.name, getattr(blank, one.name))

    def mask_response(self, end: int) -> None:
        """Exclude the first `end` response tokens from training: they were sampled under older weights."""
        mask = self._mask_or_ones()
        self.loss_mask = [0] * min(end, len(mask)) + mask[end:]

    def fail(self, reason: str) -> None:
        """Mark the sample as one that must not be trained. `reason` is a short word; metrics count by it."""
        self.status = Status.FAILED
        self.remove_sample = True
        self.metadata["failure"] = reason

    def get_reward_value(self, args: Any, evaluation: bool = False) -> float:
        """The reward as a number, through ``--reward-key`` (``--eval-reward-key``) where it is a dict. Raises VimeError when there is none."""
        key = (args.eval_reward_key or args.reward_key) if evaluation else args.reward_key
        return reward_number(self.reward, key, self.name)

    def oldest_version(self) -> int | None:
        """The oldest numeric weight version that any token was sampled under; None when unknown."""
        numbers = [int(span.version) for span in self.version_spans if span.version.lstrip("-").isdigit()]
        return min(numbers) if numbers and len(numbers) == len(self.version_spans) else None

    def to_dict(self) -> dict[str, Any]:
        """Plain containers, unknown attributes included. Large arrays are passed on, not copied."""
        state = dict(self.__dict__)
        state["status"] = self.status.value
        state["version_spans"] = [(span.version, span.start, span.end) for span in self.version_spans]
        return state

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Sample:
        """The inverse of to_dict. Keys that are no field become attributes, so that a newer or a user's record survives."""
        state = dict(state)
        if "status" in state:
            state["status"] = Status(state["status"])
        state["version_spans"] = [VersionSpan(str(v), int(a), int(b)) for v, a, b in state.get("version_spans", ())]
        known = {one.name for one in fields(cls)}
        sample = cls(**{name: value for name, value in state.items() if name in known})
        for name in state.keys() - known:
            setattr(sample, name, state[name])
        sample.validate()
        return sample

    def sibling(self, index: int) -> Sample:
        """A deep copy with another sample index: the next answer to the same prompt."""
        twin = copy.deepcopy(self)
        twin.index = index
        twin.rollout_id = index
        return twin

    def _mask_or_ones(self) -> list[int]:
        return self.loss_mask if self.loss_mask is not None else [1] * self.response_length

    def _log_probs_so_far(self) -> list[float]:
        if self.rollout_log_probs is None and self.response_length:
            raise VimeError("earlier response tokens have no log-probabilities", where=self.name)
        return self.rollout_log_probs or []

    def _nucleus_update(self, nucleus: Nucleus | None, count: int, trainable: bool) -> dict[str, Any]:
        if nucleus is None and self.rollout_top_p_offsets is None:
            return {}
        if nucleus is None and trainable and count:
            raise VimeError("the sampled tokens came without the nucleus that earlier ones have", where=self.name)
        ids, offsets = (
            list(self.rollout_top_p_token_ids or []),
            list(self.rollout_top_p_offsets or [0] * (self.response_length + 1)),
        )
        base = offsets[-1]
        if nucleus is None:
            return {"rollout_top_p_offsets": offsets + [base] * count}
        if len(nucleus.offsets) != count + 1 or nucleus.offsets[0] != 0 or nucleus.offsets[-1] != len(nucleus.ids):
            raise VimeError(
                f"nucleus of {len(nucleus.offsets) - 1} positions does not fit {count} tokens", where=self.name
            )
        if any(a > b for a, b in pairwise(nucleus.offsets)):
            raise VimeError("nucleus offsets decrease", where=self.name)
        update: dict[str, Any] = {
            "rollout_top_p_token_ids": ids + list(nucleus.ids),
            "rollout_top_p_offsets": offsets + [base + offset for offset in nucleus.offsets[1:]],
        }
        if nucleus.log_probs is not None:
            update["rollout_top_p_log_probs"] = list(self.rollout_top_p_log_probs or []) + list(nucleus.log_probs)
        return update

    def _topk_update(self, topk: TopK | None, count: int, trainable: bool) -> dict[str, Any]:
        if topk is None and self.rollout_topk_token_ids is None:
            return {}
        if topk is None and trainable and count:
            raise VimeError("the sampled tokens came without the top-k rows that earlier ones have", where=self.name)
        if topk is not None and not len(topk.ids) == len(topk.log_probs) == count:
            raise VimeError(f"{len(topk.ids)} top-k rows do not fit {count} tokens", where=self.name)
        known = self.rollout_topk_token_ids
        width = len(topk.ids[0]) if topk is not None and len(topk.ids) else len(known[0]) if known else 0
        ids = known if known is not None else [[0] * width for _ in range(self.response_length)]
        log_probs = self.rollout_topk_log_probs or [[0.0] * width for _ in range(self.response_length)]
        new_ids = topk.ids if topk is not None else [[0] * width for _ in range(count)]
        new_log_probs = topk.log_probs if topk is not None else [[0.0] * width for _ in range(count)]
        return {
            "rollout_topk_token_ids": [*ids, *map(list, new_ids)],
            "rollout_topk_log_probs": [*log_probs, *map(list, new_log_probs)],
        }

    def _routes_update(self, args: Any, meta: ResponseMeta, total: int, trainable: bool) -> dict[str, Any]:
        if meta.routed_experts is None:
            if trainable and args is not None and args.use_rollout_routing_replay:
                raise VimeError(
                    "the engine returned no routed experts",
                    where=self.name,
                    hint="routing replay needs an engine started with --enable-return-routed-experts",
                )
            return {}
        import numpy as np

        rows, start = np.asarray(meta.routed_experts), meta.routed_experts_start
        held = 0 if self.rollout_routed_experts is None else len(self.rollout_routed_experts)
        if rows.ndim != 3 or not 0 <= start <= held or start + len(rows) != total - 1:
            raise VimeError(
                f"routed experts of shape {rows.shape} from position {start} do not continue {held} rows to {total - 1}",
                where=self.name,
            )
        return {
            "rollout_routed_experts": rows
            if start == 0
            else np.concatenate([self.rollout_routed_experts[:start], rows])
        }

    def _versions_update(self, versions: Sequence[VersionSpan], start: int, count: int) -> dict[str, Any]:
        spans, seen = list(self.version_spans), list(self.weight_versions)
        for span in versions:
            if not 0 <= span.start <= span.end <= count:
                raise VimeError(
                    f"weight version span {span.start}..{span.end} is outside {count} tokens", where=self.name
                )
            spans.append(VersionSpan(span.version, start + span.start, start + span.end))
            if span.version not in seen:
                seen.append(span.version)
        return {"version_spans": spans, "weight_versions": seen}

    def _count(self, meta: ResponseMeta) -> None:
        if meta.prompt_tokens:
            info = self.prefix_cache_info
            info["cached_tokens"] = info.get("cached_tokens", 0) + meta.cached_tokens
            info["prompt_tokens"] = info.get("prompt_tokens", 0) + meta.prompt_tokens
        if meta.spec_drafted:
            self.spec_info["accepted"] = self.spec_info.get("accepted", 0) + meta.spec_accepted
            self.spec_info["drafted"] = self.spec_info.get("drafted", 0) + meta.spec_drafted


#: slime's spelling, for hooks that were written for it.
Sample.Status = Status  # type: ignore[attr-defined]


def reward_number(reward: float | Mapping[str, Any] | None, key: str | None, where: str) -> float:
    """`reward` as a float. A mapping needs `key`; a number must come without one. Raises VimeError otherwise."""
    if reward is None:
        raise VimeError("has no reward", where=where, hint="the reward function returned None or was never called")
    if isinstance(reward, Mapping):
        if key is None:
            raise VimeError(
                f"the reward is a dict with {', '.join(map(str, reward)) or 'no keys'}",
                where=where,
                hint="choose one of them with --reward-key",
            )
        if key not in reward:
            raise VimeError(
                f"the reward has no key {key!r}; it has {', '.join(map(str, reward)) or 'none'}", where=where
            )
        reward = reward[key]
    if isinstance(reward, bool | int | float):
        return float(reward)
    try:
        return float(reward)  # type: ignore[arg-type]  # numpy and torch scalars
    except (TypeError, ValueError) as error:
        raise VimeError(f"the reward {reward!r} is not a number", where=where) from error
