"""Megatron's optimizer, gradient buffers and learning-rate schedule, built from flags."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import (
    MegatronOptimizer,
    OptimizerConfig,
    get_megatron_optimizer,
    get_standard_config_overrides,
)
from megatron.core.optimizer import optimizer as megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from vime.arguments.megatron import given_fields
from vime.trainer import cpu
from vime.trainer.architecture import training_dtype
from vime.trainer.model import PolicyModel


def wrap_model(model: PolicyModel, args: Any) -> DistributedDataParallel:
    """Give `model` Megatron's gradient buffers. Gradients are summed over data-parallel ranks, in fp32."""
    config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=args.use_distributed_optimizer,
        # Ranks may have empty micro-batches, whose gradients never become ready: reduce once, after the last one.
        overlap_grad_reduce=False,
    )
    return DistributedDataParallel(model.config, config, model)


def build_optimizer(ddp: DistributedDataParallel, args: Any, device: torch.device) -> MegatronOptimizer:
    """Megatron's AdamW over the buffers of `ddp`, sharded over data-parallel ranks with --use-distributed-optimizer."""
    dtype = training_dtype(args)
    ours = {
        "optimizer": args.optimizer,
        "lr": args.lr,
        "min_lr": args.min_lr or 0.0,
        "weight_decay": args.weight_decay,
        "adam_beta1": args.adam_beta1,
        "adam_beta2": args.adam_beta2,
        "adam_eps": args.adam_eps,
        "clip_grad": args.clip_grad,
        "bf16": dtype == torch.bfloat16,
        "params_dtype": dtype,
        "use_distributed_optimizer": args.use_distributed_optimizer,
    }
    config = OptimizerConfig(**(given_fields(args, "OptimizerConfig") | ours))
    with cpu.cuda_type_names() if device.type == "cpu" else contextlib.nullcontext():
        optimizer = get_megatron_optimizer(
            config,
            [ddp],
            config_overrides=get_standard_config_overrides(config),  # norms and biases do not decay
            use_gloo_process_groups=device.type != "cpu",
        )
    for inner in inner_optimizers(optimizer):
        if isinstance(inner, torch.optim.AdamW):  # one pass over memory instead of a dozen
            for group in inner.param_groups:
                group["fused"], group["foreach"] = True, False
    return optimizer


def finalize_gradients(ddp: DistributedDataParallel) -> None:
    """Sum gradients over data-parallel ranks, and over tensor ranks for what each computed in part; a collective."""
    finalize_model_grads([ddp])


def sub_optimizers(optimizer: MegatronOptimizer) -> list[MegatronOptimizer]:
    """The optimizers that a chained one steps (dense, expert, ...), or the one given."""
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))


def inner_optimizers(optimizer: MegatronOptimizer) -> list[torch.optim.Optimizer]:
    """The torch optimizers underneath, over this rank's main parameters."""
    return [sub.optimizer for sub in sub_optimizers(optimizer) if sub.optimizer is not None]


@torch.no_grad()
def clip_and_step(optimizer: MegatronOptimizer, max_norm: float) -> float:
    """Clip by the global norm and step. Returns the norm before clipping; when it is not finite nothing is changed."""
    optimizer.prepare_grads()
    norm = float(optimizer.get_grad_norm())
    if not math.isfinite(norm):
        return norm
    if max_norm > 0:
        for sub in sub_optimizers(optimizer):
            megatron_optimizer.clip_grad_by_total_norm_fp32(sub.get_parameters(), max_norm, norm)
    optimizer.step_with_ready_grads()
    return norm


def build_scheduler(optimizer: MegatronOptimizer, args: Any, steps_per_rollout: int) -> OptimizerParamScheduler:
    """Warm-up and decay in rollouts (`--lr-warmup-iters` or `-fraction`, `--lr-decay-iters`, default `--num-rollout`),
    moved at each optimizer step.

    The caller advances it *before* a step: step k of n trains at k / n of the warm-up, and the last one is still above
    the final rate, so that no step is spent at a rate of zero.
    """
    rollouts = args.lr_decay_iters or args.num_rollout or 1
    fraction = args.lr_warmup_fraction
    warmup = round(fraction * rollouts) if fraction is not None else args.lr_warmup_iters or 0
    decay_steps = max(rollouts, warmup + 1) * steps_per_rollout + 1
    anneal = args.lr_wsd_decay_iters
    return OptimizerParamScheduler(
        optimizer,
        init_lr=args.lr_warmup_init,
        max_lr=args.lr,
        min_lr=args.min_lr or 0.0,
        lr_warmup_steps=warmup * steps_per_rollout,
        lr_decay_steps=decay_steps,
        lr_decay_style=args.lr_decay_style or "constant",
        start_wd=args.weight_decay,
        end_wd=args.weight_decay,
        wd_incr_steps=decay_steps,
        wd_incr_style="constant",
        wsd_decay_steps=anneal and anneal * steps_per_rollout,
        lr_wsd_decay_style=args.lr_wsd_decay_style,
    )
