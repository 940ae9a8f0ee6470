"""One rank of the trainer: joins the pure parts of this package to Megatron's model, buffers and optimizer.

A Ray actor wraps it in a run; nothing here knows Ray, so tests drive it directly. Methods marked "collective" must be
called on every rank with the same arguments.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from vime.accelerator.driver import reset_cuda_stack_size
from vime.convert import fp8, hf
from vime.convert.config import check_args, model_shape, read_hf_config
from vime.errors import VimeError
from vime.hooks import call_hook
from vime.rollout.sampling import cuts_distribution
from vime.sample import Sample
from vime.trainer import (
    agreement,
    batching,
    checkpoint,
    cpu,
    dump,
    estimators,
    objective,
    offload,
    parallel,
    parity,
    pipeline,
    refusals,
)
from vime.trainer.batching import MicroBatch, RankBatch, Step, TrainData
from vime.trainer.clock import Clock
from vime.trainer.columns import column_means
from vime.trainer.critic import Critic, role_args
from vime.trainer.flops import training_flops
from vime.trainer.learner import Learner
from vime.trainer.loading import REFERENCE, Loading
from vime.trainer.model import PolicyModel, build_model
from vime.trainer.parity import LAYER_TOLERANCE, LayerReport, ParityReport
from vime.trainer.preparation import Preparation
from vime.trainer.routing import Routing
from vime.trainer.saving import Checkpoints
from vime.trainer.scorer import Scorer
from vime.trainer.weights import NamedWeights

log = logging.getLogger(__name__)

CRITIC = "critic"


class Trainer:
    """Trains the policy of one rank. `init` first; then `train`, `iter_hf_weights` and `save` once a rollout."""

    def __init__(self, args: Any, *, rank: int = 0, world_size: int = 1, device: torch.device | str = "cpu") -> None:
        self.args = role_args(args, "actor")
        self._critic_args = role_args(args, "critic")
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", 0)
        self._offload = offload.Offload(self.device)
        #: What the engines call the present weights, once they have them.
        self.served_version: str | None = None
        self.layout = parallel.Layout.from_args(args, world_size)
        self.cut = self.layout.cut(rank)
        self.rank = rank
        self.checkpoints = Checkpoints(rank, self.layout, args.use_distributed_optimizer)
        self.data_rank = self.layout.data_rank(rank)
        self.restored: Any = None
        self.steps_done = 0

    @property
    def first_of_part(self) -> bool:
        """Whether this is the first of the ranks that train the same samples."""
        return self.cut.stage.rank == 0 and self.rank % (self.layout.tensor * self.layout.context) == 0

    # -- start ---------------------------------------------------------------------------------------------------

    def init(self) -> int:
        """Build everything and load weights; collective. Returns the rollout id to start at.

        Weights come from the newest complete checkpoint of `--load` if there is one, else from `--hf-checkpoint`. One that Megatron
        wrote starts a new run from its weights.
        `restored` then holds the blob given to `save` (the data cursor), or None for a fresh start.
        """
        refusals.check_flags(self.args)
        if self.device.type == "cpu":
            cpu.apply()
        else:
            torch.cuda.set_device(self.device)
        parallel.init_process_groups(self.layout, self.rank, self.device, self.args.distributed_timeout_minutes)
        self._seed()
        call_hook(self.args, "custom_megatron_init_path", self.args)
        self.hf_config = read_hf_config(self.args.hf_checkpoint)
        self.blocks = fp8.Blocks.of(self.hf_config, str(self.args.hf_checkpoint))
        if self.blocks is not None:
            del self.hf_config.quantization_config  # the trainer computes with what is stored, not as it is stored
        self.shape = model_shape(self.hf_config, where=str(self.args.hf_checkpoint))
        check_args(self.args, self.shape, where=str(self.args.hf_checkpoint))
        self.model = self._build_model(self.args)
        self.dtype = self.model.config.params_dtype
        self.weights = NamedWeights(self.model)
        replays = self.args.use_routing_replay or self.args.use_rollout_routing_replay
        self.routing = Routing(self.model) if replays else None
        if self.routing is not None and not self.routing.layers:
            raise VimeError(
                f"routing replay needs a model with experts, not {self.shape.model_type}",
                where=str(self.args.hf_checkpoint),
            )
        self.scorer = Scorer(
            self.model,
            self.args,
            self.device,
            complete=cuts_distribution(self.args),
            weight=objective.weight_rule(self.args),
            context=batching.Context(parallel.context_group(), not self.args.allgather_cp)
            if self.layout.context > 1
            else None,
            routing=self.routing,
        )
        loading = Loading(self.args, self.checkpoints, self.model, self.weights, self.shape, self.blocks)
        resume = loading.find()
        if estimators.needs_reference(self.args):
            loading.reference(resume)
        if self.args.use_opd and self.args.opd_type == "megatron":
            loading.teacher()
        if resume is None:
            loading.start()
        else:
            saved = self.checkpoints.open(self.args.load, resume)
            self.checkpoints.fill(self.model, self.shape, saved)
        # The optimizer copies the weights it starts from, so it is built after they are loaded.
        self.critic = self._build_critic(resume) if self.args.advantage_estimator == "ppo" else None
        self.actor = Learner(self.model, self.args, self.device, self.steps_per_rollout)
        parts = (self.args, self.model, self.weights, self.scorer, self.critic, self.device)
        self.preparation = Preparation(*parts)
        if resume is not None:
            self._restore(saved)
        asked = self.args.start_rollout_id
        if asked is not None:
            return asked
        return 0 if resume is None else resume + 1

    def _build_model(self, args: Any) -> PolicyModel:
        return build_model(self.shape, self.hf_config, args, self.device, self.layout, self.cut)

    def _build_critic(self, resume: int | None) -> Critic:
        """A critic that starts as the policy does, or as it was saved beside it."""
        trunk = self._build_model(self._critic_args)
        critic = Critic(self._critic_args, trunk, self.model, self.device, self.steps_per_rollout)
        saved = None
        if resume is not None:
            saved = self.checkpoints.open_beside(Path(self.args.load) / CRITIC, resume)
            self.checkpoints.fill(critic.model, self.shape, saved)
        critic.ready()
        if saved is not None:
            self.checkpoints.restore(critic.learner, self.shape, saved)
        return critic

    @property
    def steps_per_rollout(self) -> int:
        """Optimizer steps that a full rollout makes."""
        rollouts = self.args.rollout_batch_size * self.args.n_samples_per_prompt
        return max(rollouts // self.args.global_batch_size, 1)

    def _seed(self) -> None:
        if self.device.type == "cpu":
            cpu.seed_rng(self.args.seed, self.cut.tensor.rank, self.cut.expert.rank)
        else:
            from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

            torch.manual_seed(self.args.seed)
            model_parallel_cuda_manual_seed(self.args.seed)

    def close(self) -> None:
        """Complete what is being saved and leave the process groups, so that this process can join others; collective."""
        self.checkpoints.finish()
        self._offload.close()
        parallel.destroy_process_groups()

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def _restore(self, saved: checkpoint.Saved) -> None:
        self.checkpoints.restore(self.actor, self.shape, saved)
        self.checkpoints.restore_random_states(saved)
        self.steps_done = saved.run["steps_done"]
        self.restored = saved.run["blob"]

    def save(self, rollout_id: int, blob: Any = None) -> Path:
        """Write a checkpoint of everything after rollout `rollout_id` to `--save`; collective.

        `blob` (plain containers, numbers, strings, tensors) comes back as `restored` after a resume. With --async-save the files
        are written beside the training that follows; the next save, the last rollout and `close` wait for them.
        """
        if not self.args.save:
            raise VimeError("nowhere to save to", hint="give --save")
        self.checkpoints.finish()
        root, run = Path(self.args.save), {"steps_done": self.steps_done, "blob": None}
        later = self.args.async_save and rollout_id + 1 != self.args.num_rollout
        write = partial(self.checkpoints.save, optimizer=not self.args.no_save_optim, later=later)
        # What belongs to the policy first, so that a complete checkpoint of it has them.
        if self.critic is not None:
            write(root / CRITIC, rollout_id, self.critic.learner, self.shape, run)
        if self.args.ref_update_interval and REFERENCE in self.weights:
            with self.weights.as_model(REFERENCE):
                write(root / REFERENCE, rollout_id, self.actor, self.shape, run, optimizer=False)
        megatrons = self.args.ckpt_format == "torch_dist"
        return write(root, rollout_id, self.actor, self.shape, run | {"blob": blob}, megatrons=megatrons)

    def iter_hf_weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """(Hugging Face name, whole tensor) of every weight, gathered over ranks; collective, to be exhausted.

        In FP8 blocks, with their factors, where `--hf-checkpoint` is."""
        weights = hf.iter_hf_weights(self.model, self.shape, self.cut, parallel.weight_groups(), dtype)
        return fp8.quantised(weights, self.blocks)

    def save_hf(self, directory: str | Path) -> None:
        """Export to a Hugging Face directory, with the configuration and tokenizer of `--hf-checkpoint`; collective."""
        if self.rank == 0:
            hf.save_hf(self.iter_hf_weights(), directory, self.args.hf_checkpoint)
        elif self.rank < self.layout.tensor or self.cut.spread:
            for _ in self.iter_hf_weights():
                pass
        dist.barrier()

    # -- devices shared with engines -----------------------------------------------------------------------------

    def offload(self, keep_weights: bool = False) -> dict[str, float]:
        """Free this rank's device memory, that of the weights apart when they are still to be sent. Returns what it took, as metrics.

        Until `onload` only the exports may be called, and with `keep_weights` alone.
        """
        began = time.perf_counter()
        for learner in self._learners:
            name = "" if learner is self.actor else "critic "
            self._offload.hold(name + offload.WEIGHTS, offload.weights_of(learner))
            self._offload.hold(name + offload.OPTIMIZER, offload.optimizer_of(learner))
            self._offload.hold(name + offload.GRADIENTS, offload.gradients_of(learner))
        kept = {offload.WEIGHTS} if keep_weights else set()
        moved = self._offload.move_out(self._offload.names - kept)
        reset_cuda_stack_size()
        return offload.timed(began, self.device, moved, "offload")

    def onload(self) -> dict[str, float]:
        """Undo `offload`: every tensor on the device again, as it was."""
        began = time.perf_counter()
        return offload.timed(began, self.device, self._offload.move_in(self._offload.names), "onload")

    def from_first(self, value: Any) -> Any:
        """What rank 0 gave, on every rank; collective."""
        if self.layout.world_size == 1:
            return value
        found = [value]
        dist.broadcast_object_list(found, src=0)
        return found[0]

    # -- scoring -------------------------------------------------------------------------------------------------

    def train_data(self, samples: Sequence[Sample]) -> TrainData:
        """Columns of a rollout: see `batching.samples_to_train_data`."""
        return batching.samples_to_train_data(self.args, samples, routers=self.routing)

    def split(self, data: TrainData) -> list[RankBatch]:
        """One RankBatch a data-parallel rank; ranks of one tensor group train the same."""
        batches = batching.split_over_ranks(self.args, data, self.layout.data, self.shape.hidden)
        if self.layout.expert > 1 and not all(m for b in batches for step in b.steps for m in step.micro_batches):
            raise VimeError(
                "a rank would have no sample in a micro-batch, and ranks that share experts go through them together",
                hint="raise --global-batch-size, or lower --max-tokens-per-gpu or --micro-batch-size",
            )
        return batches

    def log_probs(self, samples: Sequence[Sample]) -> list[torch.Tensor]:
        """Log-probability of each response token under the present weights: per sample fp32 [response_length], on the CPU.

        Every data rank scores all of `samples`. Collective over tensor ranks.
        """
        data = batching.samples_to_train_data(self.args, samples, scoring_only=True, routers=self.routing)
        return [values.cpu() for values in self.scorer.score_all(data)]

    # -- parity --------------------------------------------------------------------------------------------------

    def parity(self, samples: Sequence[Sample]) -> ParityReport:
        """Compare the present weights with what the engine reported for `samples` when it sampled them."""
        return parity.compare(
            self.log_probs(samples),
            [s.rollout_log_probs for s in samples],
            [s.trained_mask for s in samples],
            [s.index if s.index is not None else i for i, s in enumerate(samples)],
        )

    def first_divergent_layer(
        self,
        samples: Sequence[Sample],
        weights: Sequence[tuple[str, torch.Tensor]] | None = None,
        tolerance: float = LAYER_TOLERANCE,
    ) -> LayerReport:
        """Hidden states of every layer, trainer against a Hugging Face model of `weights`; collective over tensor ranks.

        `weights` default to the exported ones, which tests model and conversion; pass what an engine holds to find the
        layer whose weights are stale.
        """
        report = self._compare_layers([sample.tokens for sample in samples], weights, tolerance)
        assert report is not None, "no samples"
        return report

    def _compare_layers(
        self,
        sequences: Sequence[Sequence[int]],
        weights: Sequence[tuple[str, torch.Tensor]] | None = None,
        tolerance: float = LAYER_TOLERANCE,
    ) -> LayerReport | None:
        """None without sequences, with which a rank takes part in gathering weights all the same."""
        if self.routing is not None:
            self.routing.use(None, None)  # Hugging Face chooses for itself
        own = list(hf.iter_hf_weights(self.model, self.shape, self.cut, parallel.weight_groups()))
        if not sequences:
            return None
        expected = parity.hf_hidden_states(self.hf_config, weights or own, sequences)
        return parity.compare_layers(self.model, expected, sequences, tolerance)

    # -- training ------------------------------------------------------------------------------------------------

    def train(self, rollout_id: int, batch: Sequence[Sample] | RankBatch) -> dict[str, float]:
        """Train on one rollout; collective. Returns metrics, equal on all ranks.

        `batch` is a list of all samples, the same on every rank, or this data rank's RankBatch. Raises VimeError, with
        the weights as they were before the step, when a loss or gradient is not finite (naming the samples), or before
        any step when the engine's log-probabilities are further away than `args.parity_threshold`.
        """
        clock = Clock()
        if not isinstance(batch, RankBatch):
            batch = self.split(self.train_data(batch))[self.data_rank]
        data, steps = batch.data, batch.steps
        if self.args.reset_optimizer_states or self.args.use_stateless_adam:
            self._forget_moments()
        packs = [[self.scorer.pack(data, micro, step) for micro in step.micro_batches if micro] for step in steps]
        batching.link([batch for own in packs for batch in own], self.args.routing_replay_prefetch_microbatches)
        clock.lap("data_preprocess")

        metrics: dict[str, float] = {}
        if self.args.loss_type != "sft_loss":
            metrics |= self.preparation.fill(rollout_id, data, steps, packs, clock)
        sums: dict[str, float] = {}
        if self.critic is not None:
            metrics |= self.critic.train(rollout_id, data, steps, packs)
            clock.lap("critic_train")
            if rollout_id < self.args.num_critic_only_steps:
                self._dump(rollout_id, data)
                return metrics | clock.metrics()
        for number, (step, micro_batches) in enumerate(zip(steps, packs, strict=True)):
            where = f"rollout {rollout_id}, step {number}"
            gate = partial(self._check_parity, data, where, metrics) if number == 0 else None
            state = (self.model, self.actor.optimizer, self.actor.scheduler)
            call_hook(self.args, "custom_megatron_before_train_step_hook_path", self.args, rollout_id, number, *state)
            for name, value in self._step(data, step, micro_batches, where, gate).items():
                sums[name] = sums.get(name, 0.0) + value
        interval = self.args.ref_update_interval
        if interval and REFERENCE in self.weights and (rollout_id + 1) % interval == 0:
            self.weights.keep(REFERENCE)
        metrics |= {f"train/{name}": value / len(steps) for name, value in sums.items()}
        metrics["train/lr-pg_0"] = self.actor.lr
        metrics["train/step"] = float(self.steps_done)
        metrics["train/global_batch_size"] = float(self.args.global_batch_size)
        if self.args.use_stateless_adam:
            self._forget_moments()  # and their memory
        clock.lap("actor_train")
        self._dump(rollout_id, data)
        own = {
            "tokens": float(sum(data["total_lengths"])),
            "flops": training_flops(self.shape, data["total_lengths"]),
        }
        total = parallel.sum_metrics(own)
        metrics["perf/actor_train_tok_per_s"] = total["tokens"] / clock.laps["actor_train"]
        metrics["perf/actor_train_tflops"] = total["flops"] / self.layout.world_size / clock.laps["actor_train"] / 1e12
        metrics |= column_means(data, parallel.sum_metrics)
        return metrics | clock.metrics()

    def _dump(self, rollout_id: int, data: TrainData) -> None:
        if self.args.save_debug_train_data:
            dump.save(self.args.save_debug_train_data, rollout_id, data)

    @property
    def _learners(self) -> tuple[Learner, ...]:
        return (self.actor,) if self.critic is None else (self.actor, self.critic.learner)

    def _forget_moments(self) -> None:
        for learner in self._learners:
            learner.forget()

    def _check_parity(self, data: TrainData, where: str, metrics: dict[str, float]) -> None:
        metrics |= agreement.check(self.args, data, self.served_version, self._compare_layers, where)

    def _step(
        self, data: TrainData, step: Step, batches: list[MicroBatch], where: str, gate: Callable[[], None] | None
    ) -> dict[str, float]:
        """One update of the policy. The first step's log-probabilities become the old ones of its samples."""
        if step.tokens == 0:
            log.warning("%s: every token is masked, so there is nothing to learn: step skipped", where)
            if gate is not None:
                gate()
            return {"skipped_steps": 1.0}
        needed = tuple(name for name in objective.columns_needed(self.args) if name in data)
        records = "old_log_probs" in data and gate is not None and not self.args.use_rollout_logprobs
        if "old_log_probs" in data and not records:
            needed = (*needed, "old_log_probs")

        def evaluate(bare: MicroBatch) -> objective.Objective | torch.Tensor:
            columns = {name: batching.flatten(data[name], bare.samples).to(self.device) for name in needed}
            batch = dataclasses.replace(bare, columns=columns)
            if self.args.use_routing_replay:
                batch = batching.with_routes(batch, data)
            if self.args.loss_type == "custom_loss":
                logits = self.scorer.logits(batch, self.actor.ddp)
                return objective.custom_objective(self.args, batch, logits) if self.cut.stage.last else logits
            scores = self.scorer.forward(batch, self.actor.ddp)
            if isinstance(scores, torch.Tensor):
                return scores
            if records:
                batch.put(data["old_log_probs"], scores.log_probs.detach())
            return objective.evaluate(self.args, batch, scores)

        judge = partial(self._judge, data, gate) if records and gate is not None else gate
        sums = self.actor.step(batches, evaluate, data["sample_indices"], where, judge)
        self.steps_done += 1
        return sums | {"skipped_steps": 0.0}

    def _judge(self, data: TrainData, gate: Callable[[], None]) -> None:
        """`gate`, once every stage has what the last one recorded."""
        data["old_log_probs"] = pipeline.from_last(data["old_log_probs"], self.device)
        gate()
