"""Micro-batches through a model whose layers lie on several ranks, by Megatron's schedule: one forward, one backward (1F1B,
arXiv 2104.04473, 2.2.1). The stages of a pipeline pack the same micro-batches; only hidden states and their gradients travel,
of another length each time. What the last stage made of them is then told to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from vime.trainer import parallel

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

#: Hidden states [own tokens, 1, hidden] for the next stage; from the last one a tensor (when training the loss) and what else it made.
Passed = torch.Tensor | tuple[torch.Tensor, R]


def run(
    model: Any, batches: Sequence[I], evaluate: Callable[[I], torch.Tensor | tuple[torch.Tensor, R]], *, train: bool
) -> list[R]:
    """`evaluate` each of `batches` with `model`, and with `train` go back from its loss; collective over the stages, which all
    have as many. Returns what the last stage made of each batch, there; nothing elsewhere."""
    if parallel.pipeline_group().size() == 1:
        return [_alone(evaluate(batch), train) for batch in batches]
    if not batches:
        return []
    from megatron.core.pipeline_parallel import get_forward_backward_func

    waiting = iter(batches)

    def step(_: object, __: object) -> tuple[torch.Tensor, Callable[[torch.Tensor], Any] | None]:
        found = evaluate(next(waiting))
        if isinstance(found, torch.Tensor):
            return found, None
        loss, result = found
        # The count of tokens is Megatron's to divide by; ours is in the loss already.
        return loss, lambda loss: (loss, torch.zeros((), dtype=torch.int, device=loss.device), result)

    made: list[R] = get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=None,
        model=model,
        num_microbatches=len(batches),
        # Shapes are exchanged before each tensor; these only have to be something.
        seq_length=1,
        micro_batch_size=1,
        forward_only=not train,
    )
    return made


def _alone(found: Any, train: bool) -> Any:
    loss, result = found
    if train:
        loss.backward()
    return result


def from_last(values: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """The last stage's fp32 `values`, on the host of each stage; their sizes are the same everywhere. A collective."""
    group = parallel.pipeline_group()
    if group.size() == 1 or not values:
        return list(values)
    flat = torch.cat([value.flatten() for value in values]).to(device)
    dist.broadcast(flat, dist.get_global_rank(group, group.size() - 1), group=group)
    parts = flat.cpu().split([value.numel() for value in values])
    return [part.view(value.shape) for part, value in zip(parts, values, strict=True)]


def told_by_last(value: R) -> R:
    """The last stage's `value` (plain) on each stage. A collective."""
    group = parallel.pipeline_group()
    if group.size() == 1:
        return value
    held = [value]
    dist.broadcast_object_list(held, dist.get_global_rank(group, group.size() - 1), group=group)
    return held[0]


def told_by_all(value: R) -> list[R]:
    """The `value` (plain) of each stage, from the first to the last. A collective."""
    group = parallel.pipeline_group()
    found: list[Any] = [value] * group.size()
    if group.size() > 1:
        dist.all_gather_object(found, value, group=group)
    return found
