"""The data source: deals each prompt, takes unfinished ones back, and knows the fate of every one.

A group's life::

    dealt --> settled "trained" | settled "<reason of the drop>"
      |  ^
      `--+ buffered (aborted, timed out, too old), dealt again before new prompts

Only a *settled* group is behind the cursor. What was dealt and not settled when a checkpoint is written is dealt again after a resume, so an
interrupted run skips no prompt, however long its answers take; and a group settled in a step after the checkpoint is not yet trained there, so it
is dealt again too.
"""

from __future__ import annotations

import random
from argparse import Namespace
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vime.data.preflight import columns_of
from vime.data.prompts import Prompt, fingerprint, load_prompts
from vime.data.protocol import Dealt, Group, oldest_version
from vime.data.state import portable, save_state
from vime.data.tokenizer import load_tokenizer
from vime.errors import DataError
from vime.hooks import load_hook
from vime.sample import Sample

TRAINED = "trained"
_FORMAT = 1


@dataclass(frozen=True)
class Place:
    """Where a group comes from: position `offset` of the order of epoch `epoch`; its samples count from `first_sample`."""

    epoch: int
    offset: int
    first_sample: int = 0


@dataclass
class Ledger:
    """What happened to the prompts so far. issued = sum of fates + outstanding."""

    issued: int = 0
    outstanding: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    samples_trained: int = 0

    def line(self) -> str:
        dropped = {fate: count for fate, count in self.fates.items() if fate != TRAINED}
        text = f"{self.issued} prompts, {self.fates[TRAINED]} trained once each with {self.samples_trained} samples"
        if dropped:
            text += ", " + ", ".join(f"{count} dropped ({fate})" for fate, count in sorted(dropped.items()))
        return text + (f", {self.outstanding} in flight" if self.outstanding else "")


class RolloutDataSourceWithBuffer:
    """Prompts of ``--prompt-data`` in groups of ``--n-samples-per-prompt``, with a buffer of unfinished groups before them."""

    def __init__(self, args: Namespace, prompts: tuple[Prompt, ...] | None = None) -> None:
        """`prompts` replaces the file, for callers that have them. Raises DataError."""
        self.args = args
        self.prompts = prompts if prompts is not None else _prompts(args)
        self.fingerprint = fingerprint(self.prompts)
        self.buffer: list[Group] = []
        self.metadata: dict[str, Any] = {}
        self._next = Place(0, 0)
        self._group_index = 0
        self._sample_index = 0
        self._places: dict[int, Place] = {}
        #: Settled but not yet covered by a checkpoint: group -> (step, fate, samples).
        self._settled: dict[int, tuple[int, str, int]] = {}
        self._ledger = Ledger()
        #: Fates of steps up to this one are in the ledger, no longer in `_settled`.
        self._forgotten = -1
        self._orders: dict[int, list[int]] = {}
        self._buffer_filter = (
            load_hook("buffer_filter_path", args.buffer_filter_path) if args.buffer_filter_path else None
        )

    def __len__(self) -> int:
        return len(self.prompts)

    def get_samples(self, num_samples: int) -> list[Group]:
        """`num_samples` groups, buffered ones first. Raises DataError when --num-rollout needs more than --num-epoch passes hold."""
        groups = self._from_buffer(num_samples)
        while len(groups) < num_samples:
            groups.append(self._new_group())
        return groups

    def add_samples(self, groups: list[Group]) -> None:
        """Take groups back. Raises DataError when one has not --n-samples-per-prompt answers."""
        for group in groups:
            if len(group) != self.args.n_samples_per_prompt:
                raise DataError(
                    f"a group of {len(group)} samples was put back; --n-samples-per-prompt is {self.args.n_samples_per_prompt}"
                )
        self.buffer.extend(groups)

    def settle(self, rollout_id: int, groups: list[Group], fate: str) -> None:
        """Record the fate of groups that leave in step `rollout_id`. A group settles once; a second time is an error of the caller."""
        for group in groups:
            index = group[0].group_index
            if index is None or index not in self._places:
                continue  # a group that a user's function made up has no prompt of ours
            if index in self._settled:
                raise DataError(f"group {index} was settled as {self._settled[index][1]!r} and now as {fate!r}")
            self._settled[index] = (rollout_id, fate, len(group))

    def ledger(self) -> Ledger:
        """Fates of all prompts dealt so far."""
        fates = self._ledger.fates + Counter(fate for _, fate, _ in self._settled.values())
        trained = sum(size for _, fate, size in self._settled.values() if fate == TRAINED)
        return Ledger(
            issued=self._ledger.issued,
            outstanding=len(self._places) - len(self._settled),
            fates=fates,
            samples_trained=self._ledger.samples_trained + trained,
        )

    def save(self, rollout_id: int) -> None:
        """Write the state to <save>/rollout/, through a temporary file. Without --save nothing is written."""
        self._forget_trained(rollout_id)
        if self.args.save is None:
            return
        save_state(state_path(self.args.save, rollout_id), self.state_dict())

    def load(self, rollout_id: int | None = None) -> None:
        """Continue after step `rollout_id` of the checkpoint in --load. None, or -1, is the start.

        Raises DataError when the checkpoint has no data state or the prompts are not its own, unless --accept-new-data.
        """
        if self.args.load is None or rollout_id is None or rollout_id < 0:
            return
        path = state_path(self.args.load, rollout_id)
        if not path.is_file():
            if self.args.accept_new_data:
                return
            raise DataError(
                "the checkpoint has no data state, so prompts trained already would be trained again",
                where=str(path),
                hint="choose another step with --ckpt-step, or start the data anew with --accept-new-data",
            )
        import torch

        try:
            state = torch.load(path, weights_only=True)
        except Exception as error:  # torch raises whatever its unpickler met
            raise DataError(
                f"the data state cannot be read: {error}", where=str(path), hint="choose another step with --ckpt-step"
            ) from error
        self.load_state_dict(state, where=str(path))

    def cursor(self) -> dict[str, Any]:
        """The position in the prompts and the ledger, without the groups that are out. Names follow slime's global dataset state."""
        return {
            "format": _FORMAT,
            "fingerprint": self.fingerprint,
            "prompts": len(self.prompts),
            "sampler": self._sampler,
            "epoch_id": self._next.epoch,
            "sample_offset": self._next.offset,
            "sample_group_index": self._group_index,
            "sample_index": self._sample_index,
            "metadata": self.metadata,
            "issued": self._ledger.issued,
            "fates": dict(self._ledger.fates),
            "samples_trained": self._ledger.samples_trained,
            "forgotten": self._forgotten,
        }

    def state_dict(self) -> dict[str, Any]:
        """`cursor` with the groups that are out, in plain containers."""
        settled = self._settled.keys()
        return self.cursor() | {
            "outstanding": {index: self.origin(index) for index in self._places},
            "prefixes": [
                [portable(sample.to_dict()) for sample in group]
                for group in self.buffer
                if group[0].group_index not in settled and any(sample.response_length for sample in group)
            ],
        }

    def origin(self, group_index: int) -> tuple[int, int, int]:
        """Where an outstanding group comes from: epoch, position in it, index of its first sample."""
        place = self._places[group_index]
        return place.epoch, place.offset, place.first_sample

    def resume(self, cursor: dict[str, Any], dealt: list[Dealt], rollout_id: int, where: str) -> bool:
        """Continue from `cursor` with the groups that were dealt until then, of which those settled up to `rollout_id` are done for good.

        False when the data was begun anew instead (--accept-new-data): none of `dealt` is known then.
        Raises DataError, naming `where`, when the prompts, their order or the size of groups have changed.
        """
        if not self.load_state_dict(cursor | {"outstanding": {}, "prefixes": []}, where):
            return False
        size = self.args.n_samples_per_prompt
        wrong = next((one for one in dealt if one.group is not None and len(one.group) != size), None)
        if wrong is not None and wrong.group is not None:
            raise DataError(
                f"unfinished groups have {len(wrong.group)} answers, --n-samples-per-prompt is {size}",
                where=where,
                hint="finish the run with the old value, or start another with --rollout-queue-run-id and --rollout-data-dir",
            )
        for one in dealt:
            if one.fate is None or one.step > cursor["forgotten"]:
                self._places[one.group_index] = Place(*one.origin)
            if one.fate is not None and one.step > cursor["forgotten"]:
                self._settled[one.group_index] = (one.step, one.fate, one.samples)
        self.buffer = [one.group for one in dealt if one.group is not None]
        self._forget_trained(rollout_id)
        return True

    @property
    def _sampler(self) -> int | None:
        """What the order of the prompts depends on beside the prompts: the seed of the shuffle; None without one."""
        return int(self.args.rollout_seed) if self.args.rollout_shuffle else None

    def load_state_dict(self, state: dict[str, Any], where: str = "data state") -> bool:
        """Restore `state`; what was outstanding is in the buffer afterwards. False when the data was begun anew (--accept-new-data).

        Raises DataError for other prompts, or another order of them.
        """
        if state["fingerprint"] != self.fingerprint:
            what = f"the prompts have changed since the checkpoint ({state['prompts']} then, {len(self.prompts)} now)"
            changed, hint = what, "restore the file"
        elif (was := state.get("sampler", self._sampler)) != self._sampler:
            order = (
                "--rollout-shuffle was not given"
                if was is None
                else f"it was --rollout-shuffle with --rollout-seed {was}"
            )
            changed, hint = f"the order of the prompts has changed since the checkpoint: {order}", "give it again"
        else:
            changed = hint = ""
        if changed:
            if not self.args.accept_new_data:
                raise DataError(changed, where=where, hint=f"{hint}, or start the data anew with --accept-new-data")
            self._group_index, self._sample_index = state["sample_group_index"], state["sample_index"]
            return False
        self._next = Place(state["epoch_id"], state["sample_offset"])
        self._group_index, self._sample_index = state["sample_group_index"], state["sample_index"]
        self.metadata = state["metadata"]
        self._ledger = Ledger(
            issued=state["issued"], fates=Counter(state["fates"]), samples_trained=state["samples_trained"]
        )
        self._places = {int(index): Place(*place) for index, place in state["outstanding"].items()}
        self._settled = {}
        prefixes = {group[0]["group_index"]: [Sample.from_dict(one) for one in group] for group in state["prefixes"]}
        size = self.args.n_samples_per_prompt
        self.buffer = [
            prefixes[index] if len(prefixes.get(index, ())) == size else self._group(index)
            for index in sorted(self._places)
        ]
        self._forgotten = state.get("forgotten", -1)
        return True

    def _from_buffer(self, num_samples: int) -> list[Group]:
        if not self.buffer:
            return []
        if self._buffer_filter is not None:
            return self._buffer_filter(self.args, None, self.buffer, num_samples)
        if self.args.buffer_sort_by_staleness:
            self.buffer.sort(key=_oldest)
        taken, self.buffer = self.buffer[:num_samples], self.buffer[num_samples:]
        return taken

    def _new_group(self) -> Group:
        if self._next.offset >= len(self.prompts):
            self._next = Place(self._next.epoch + 1, 0)
        limit = self.args.num_epoch if "num_rollout" in self.args.given else None
        if limit is not None and self._next.epoch >= limit:
            raise DataError(
                f"the data is exhausted after {self._ledger.issued} prompts ({limit} x {len(self.prompts)}); "
                f"{self.args.num_rollout} steps need at least {self.args.num_rollout * self.args.rollout_batch_size}",
                where=self.args.prompt_data,
                hint="raise --num-epoch or lower --num-rollout",
            )
        index = self._group_index
        self._places[index] = Place(self._next.epoch, self._next.offset, self._sample_index)
        group = self._group(index)
        self._group_index += 1
        self._sample_index += self.args.n_samples_per_prompt
        self._next = Place(self._next.epoch, self._next.offset + 1)
        self._ledger.issued += 1
        return group

    def _group(self, group_index: int) -> Group:
        place = self._places[group_index]
        prompt = self.prompts[self._order(place.epoch)[place.offset]]
        return [prompt.sample(group_index, place.first_sample + i) for i in range(self.args.n_samples_per_prompt)]

    def _order(self, epoch: int) -> list[int]:
        """The order of the prompts in `epoch`: a pure function of seed and epoch, so nothing of it needs saving."""
        if epoch not in self._orders:
            order = list(range(len(self.prompts)))
            if self.args.rollout_shuffle:
                random.Random(self.args.rollout_seed + epoch).shuffle(order)
            self._orders = {known: value for known, value in self._orders.items() if known >= epoch - 1} | {
                epoch: order
            }
        return self._orders[epoch]

    def _forget_trained(self, rollout_id: int) -> None:
        self._forgotten = max(self._forgotten, rollout_id)
        for index, (step, fate, size) in list(self._settled.items()):
            if step <= rollout_id:
                del self._settled[index], self._places[index]
                self._ledger.fates[fate] += 1
                self._ledger.samples_trained += size if fate == TRAINED else 0


def state_path(folder: str, rollout_id: int) -> Path:
    return Path(folder) / "rollout" / f"global_dataset_state_dict_{rollout_id}.pt"


def _prompts(args: Namespace) -> tuple[Prompt, ...]:
    return load_prompts(
        args.prompt_data,
        columns_of(args),
        load_tokenizer(args.hf_checkpoint),
        template_kwargs=args.apply_chat_template_kwargs,
        max_tokens=args.rollout_max_prompt_len,
    )


def _oldest(group: Group) -> tuple[int, float]:
    """Continuations first, by the oldest weights among their tokens; fresh groups last."""
    oldest = oldest_version(group)
    return (1, 0) if oldest is None else (0, oldest)
