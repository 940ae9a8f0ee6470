"""The critic of PPO: a second model, with a scalar at each token in place of the vocabulary, that learns the returns."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from megatron.core.transformer import MegatronModule

from vime.arguments import catalogue
from vime.errors import VimeError
from vime.trainer import batching, objective, pipeline
from vime.trainer.attention import PackedSequences
from vime.trainer.batching import MicroBatch, Step, TrainData
from vime.trainer.learner import Learner, Sums
from vime.trainer.model import PolicyModel


class ValueModel(MegatronModule):
    """A policy's layers under a fresh head of one output. It starts at 0: the first returns are the first thing learnt.

    Of its stages, the last has the head."""

    #: Its embedding is no output.
    share_embeddings_and_output_weights = False

    def __init__(self, trunk: PolicyModel) -> None:
        super().__init__(config=trunk.config)
        self.trunk = trunk
        self.pre_process, self.post_process, self.model_type = trunk.pre_process, trunk.post_process, trunk.model_type
        if not self.post_process:
            return
        trunk.output_layer = None
        width, dtype = trunk.config.hidden_size, trunk.config.params_dtype
        self.head = torch.nn.Linear(width, 1, bias=False, dtype=dtype, device=next(trunk.parameters()).device)
        torch.nn.init.zeros_(self.head.weight)

    def set_input_tensor(self, hidden: Any) -> None:
        """What the stage before this one made of the tokens."""
        self.trunk.set_input_tensor(hidden)

    def forward(self, tokens: torch.Tensor, packed: PackedSequences, rows: torch.Tensor) -> torch.Tensor:
        """Values fp32 [n] at the packed positions `rows` int64 [n]: of each response token, seen before it is chosen. Before the
        last stage hidden states."""
        hidden = self.trunk.hidden_states(tokens, packed)
        return self.head(hidden.index_select(0, rows)).squeeze(-1).float() if self.post_process else hidden


class Critic:
    """Values and value steps. Give it an unfilled policy as `trunk` and the policy whose weights it starts from.

    `args` are the run's with the critic's overrides (see `role_args`).
    """

    def __init__(
        self, args: Any, trunk: PolicyModel, start: PolicyModel, device: torch.device, steps_per_rollout: int
    ) -> None:
        self._args, self._device = args, device
        self.model = ValueModel(trunk)
        with torch.no_grad():
            given = dict(start.named_parameters())
            for name, parameter in trunk.named_parameters():
                parameter.copy_(given[name])
        self._steps_per_rollout = steps_per_rollout

    def ready(self) -> None:
        """Build the optimizer over the weights as they are now."""
        self.learner = Learner(self.model, self._args, self._device, self._steps_per_rollout)

    @torch.no_grad()
    def values(self, data: TrainData, batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        """Values by sample, fp32 [response_length], on the CPU; zeros for samples that no batch holds. Collective."""
        result = [torch.zeros(n) for n in data["response_lengths"]]

        def evaluate(batch: MicroBatch) -> pipeline.Passed[None]:
            values = self._values(batch, self.model)
            if not self.model.post_process:
                return values
            batch.put(result, values.cpu())
            return values, None

        pipeline.run(self.model, batches, evaluate, train=False)
        return pipeline.from_last(result, self._device)

    def train(
        self, rollout_id: int, data: TrainData, steps: Sequence[Step], packs: Sequence[list[MicroBatch]]
    ) -> dict[str, float]:
        """All value steps of a rollout, each of its micro-batches; collective. Returns metrics."""
        sums: Sums = {}
        for number, (step, batches) in enumerate(zip(steps, packs, strict=True)):
            if step.tokens:
                for name, value in self.step(data, batches, f"rollout {rollout_id}, step {number}").items():
                    sums[name] = sums.get(name, 0.0) + value
        metrics = {f"train/critic-{name}": value / len(steps) for name, value in sums.items()}
        return metrics | {"train/critic-lr-pg_0": self.learner.lr}

    def step(self, data: TrainData, batches: list[MicroBatch], where: str) -> Sums:
        """One update on the clipped value loss of these micro-batches; collective."""

        def evaluate(bare: MicroBatch) -> objective.Objective | torch.Tensor:
            values = self._values(bare, self.learner.ddp)
            if not self.model.post_process:
                return values
            columns = {n: batching.flatten(data[n], bare.samples).to(self._device) for n in ("values", "returns")}
            batch = dataclasses.replace(bare, columns=columns)
            return objective.value_objective(self._args, batch, values)

        return self.learner.step(batches, evaluate, data["sample_indices"], f"{where} of the critic")

    def _values(self, batch: MicroBatch, model: Callable[..., torch.Tensor]) -> torch.Tensor:
        found = model(batch.tokens, batch.packed, batch.rows)
        return batch.whole(found) if self.model.post_process else found


def role_args(args: Any, role: str) -> Any:
    """`args` with what --megatron-config-path overrides for `role` ("actor" or "critic").

    The file is YAML: ``megatron: [{role: critic, overrides: {lr: 1.0e-5}}]``. Raises VimeError for another shape or a name
    that is no option.
    """
    path = args.megatron_config_path
    if not path:
        return args
    import yaml

    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise VimeError(f"not YAML: {error}", where=path) from error
    entries = found.get("megatron") if isinstance(found, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise VimeError(
            "expected a list under 'megatron'", where=path, hint="megatron: [{role: critic, overrides: {}}]"
        )
    changed: dict[str, Any] = {}
    for number, entry in enumerate(entries):
        where = f"{path}: entry {number}"
        if entry.get("role") not in ("actor", "critic"):
            raise VimeError(f"role {entry.get('role')!r} is neither actor nor critic", where=where)
        for name, value in (entry.get("overrides") or {}).items():
            option = catalogue.by_name().get(str(name).replace("-", "_"))
            if option is None:
                raise VimeError(f"{name!r} is no option", where=where)
            if entry["role"] == role:
                changed[option.name] = option.from_value(value, where)
    return Namespace(**(vars(args) | changed))
