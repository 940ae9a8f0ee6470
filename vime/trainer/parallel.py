"""Process groups of one trainer rank: who holds which shard, and the few collectives that the trainer itself needs."""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from vime.convert.cut import Cut, Share
from vime.convert.hf import Groups
from vime.errors import VimeError


@dataclass(frozen=True)
class Layout:
    """How many ranks and how they are cut, Megatron's order: pipeline x data x context x tensor, tensor innermost. Experts are
    dealt out over the ranks of a stage as data x `expert` x `expert_tensor`. `sequence`: tensor ranks share the tokens between
    layers. `first_layers` and `last_layers`: those of the outer stages, where they have not their even share.
    """

    world_size: int
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    expert: int = 1
    expert_tensor: int = 1
    sequence: bool = False
    first_layers: int | None = None
    last_layers: int | None = None

    @property
    def data(self) -> int:
        return self.world_size // (self.tensor * self.context * self.pipeline)

    def data_rank(self, rank: int) -> int:
        """Which part of the samples `rank` trains."""
        return rank // (self.tensor * self.context) % self.data

    def cut(self, rank: int) -> Cut:
        """Which part of the model `rank` holds."""
        stage_size = self.world_size // self.pipeline
        within = rank % stage_size
        return Cut(
            tensor=Share(rank % self.tensor, self.tensor),
            expert=Share(within // self.expert_tensor % self.expert, self.expert),
            expert_tensor=Share(within % self.expert_tensor, self.expert_tensor),
            stage=Share(rank // stage_size, self.pipeline),
            first_layers=self.first_layers,
            last_layers=self.last_layers,
        )

    @classmethod
    def from_args(cls, args: Any, world_size: int) -> Layout:
        """Raises VimeError for a cut that does not fit the world or is not supported."""
        tensor, context = args.tensor_model_parallel_size or 1, args.context_parallel_size or 1
        pipeline = args.pipeline_model_parallel_size or 1
        left = world_size
        for flag, size in (
            ("tensor-model-parallel-size", tensor),
            ("context-parallel-size", context),
            ("pipeline-model-parallel-size", pipeline),
        ):
            if left % size:
                raise VimeError(
                    f"--{flag} {size} does not divide the {left} trainer ranks that are left to it",
                    hint=f"use one of {[n for n in range(1, left + 1) if left % n == 0]}",
                )
            left //= size
        expert, expert_tensor = args.expert_model_parallel_size or 1, args.expert_tensor_parallel_size or tensor
        if world_size // pipeline % (expert * expert_tensor):
            raise VimeError(
                f"--expert-model-parallel-size {expert} x --expert-tensor-parallel-size {expert_tensor} does not divide the "
                f"{world_size // pipeline} trainer ranks" + (" of a stage" if pipeline > 1 else "")
            )
        # Without other ranks there is nothing to share.
        sequence = bool(args.sequence_parallel) and tensor > 1
        outer: tuple[int | None, int | None] = (None, None)
        if pipeline > 1:
            outer = args.decoder_first_pipeline_num_layers, args.decoder_last_pipeline_num_layers
        return cls(world_size, tensor, context, pipeline, expert, expert_tensor, sequence, *outer)


def init_process_groups(layout: Layout, rank: int, device: torch.device, timeout_minutes: float = 10) -> None:
    """Join the world at MASTER_ADDR:MASTER_PORT (gloo on a CPU, NCCL plus gloo on a GPU) and cut it into Megatron's groups."""
    from megatron.core import parallel_state

    if not dist.is_initialized():
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing and layout.world_size > 1:
            raise VimeError(f"{' and '.join(missing)} not set, so trainer ranks cannot find each other")
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        timeout = datetime.timedelta(minutes=timeout_minutes)
        if missing:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
        else:
            dist.init_process_group(backend, rank=rank, world_size=layout.world_size, timeout=timeout)
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout.tensor,
            pipeline_model_parallel_size=layout.pipeline,
            context_parallel_size=layout.context,
            expert_model_parallel_size=layout.expert,
            expert_tensor_parallel_size=layout.expert_tensor,
            create_gloo_process_groups=device.type != "cpu",
        )
        if layout.pipeline > 1:
            # NCCL wants the first call of a group to come from all of it, which those between two stages do not.
            dist.all_reduce(torch.zeros(1, device=device), group=pipeline_group())


def destroy_process_groups() -> None:
    """Leave every group. The process can join another world afterwards."""
    from megatron.core import parallel_state

    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


def tensor_group() -> dist.ProcessGroup:
    from megatron.core import parallel_state

    return parallel_state.get_tensor_model_parallel_group()


def weight_groups() -> Groups:
    """The ranks that hold the other shares of this rank's tensors."""
    from megatron.core import parallel_state

    return Groups(tensor_group(), parallel_state.get_expert_tensor_parallel_group())


def context_group() -> dist.ProcessGroup:
    from megatron.core import parallel_state

    return parallel_state.get_context_parallel_group()


def pipeline_group() -> dist.ProcessGroup:
    """The ranks that hold the other stages of this rank's model, and train the same samples."""
    from megatron.core import parallel_state

    return parallel_state.get_pipeline_model_parallel_group()


def data_group() -> dist.ProcessGroup:
    from megatron.core import parallel_state

    return parallel_state.get_data_parallel_group()


def data_and_context_group() -> dist.ProcessGroup:
    """The ranks that hold what this rank holds."""
    from megatron.core import parallel_state

    return parallel_state.get_data_parallel_group(with_context_parallel=True)


def everyone_agrees(good: bool, device: torch.device) -> bool:
    """True when `good` holds on every rank. A collective: each rank must call it."""
    if dist.get_world_size() == 1:
        return good
    flag = torch.tensor([1.0 if good else 0.0], device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return bool(flag.item())


def sum_over_data(values: torch.Tensor) -> torch.Tensor:
    """Sum `values` over data-parallel ranks, in place. A collective."""
    if data_group().size() > 1:
        dist.all_reduce(values, group=data_group())
    return values


def sum_metrics(own: dict[str, float]) -> dict[str, float]:
    """Sums by name over data-parallel ranks, equal on all of them. Ranks may have different names. A collective."""
    if data_group().size() == 1:
        return own
    found: list[dict[str, float]] = [{}] * data_group().size()
    dist.all_gather_object(found, own, group=data_group())
    names = dict.fromkeys(name for part in found for name in part)
    return {name: sum(part.get(name, 0.0) for part in found) for name in names}
