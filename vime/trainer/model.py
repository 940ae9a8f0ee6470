"""The policy: Megatron's GPTModel for a Hugging Face configuration, scored in tokens rather than in logits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes

from vime.convert.cut import Cut
from vime.convert.families import entries
from vime.convert.hf import WHOLE
from vime.convert.shape import ModelShape
from vime.errors import VimeError
from vime.trainer.architecture import block_spec, transformer_config
from vime.trainer.attention import PackedSequences, Rotary
from vime.trainer.log_probs import Picks, Scores, chunked_log_probs
from vime.trainer.parallel import Layout


@dataclass(frozen=True)
class Scoring:
    """What to score: `rows` int64 [n] are packed positions, `targets` int64 [n] the token that follows each, `picks` further
    tokens that might have. `whole`: logits instead of scores."""

    rows: torch.Tensor
    targets: torch.Tensor
    temperature: float = 1.0
    chunk: int = -1
    picks: Picks | None = None
    whole: bool = False


class PolicyModel(GPTModel):
    """GPTModel whose forward pass gives log-probabilities and entropies of chosen tokens of a packed row."""

    def __init__(self, shape: ModelShape, rotary: Rotary, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shape, self.rotary = shape, rotary

    @property
    def share_of_row(self) -> int:
        """How many ranks share the tokens of a row between layers."""
        return int(self.config.tensor_model_parallel_size) if self.config.sequence_parallel else 1

    def _is_in_embd_group(self) -> bool:
        """Megatron asks only in order to exchange initial embeddings between stages; ours come from a checkpoint."""
        return False

    def hidden_states(self, tokens: torch.Tensor, packed: PackedSequences) -> torch.Tensor:
        """tokens int64 [tokens] -> final hidden states [tokens, hidden], the last norm applied; before the last stage
        [own tokens, 1, hidden], for the next one. Stages after the first go on from what `set_input_tensor` was given.

        Where tensor ranks share the tokens between layers, their number must divide that of the tokens."""
        hidden = self.embedding(input_ids=tokens[None], position_ids=None) if self.pre_process else None
        hidden = self.decoder(hidden_states=hidden, attention_mask=None, packed_seq_params=packed)
        if not self.post_process:
            return hidden
        if self.config.sequence_parallel:
            # Every rank scores every token, so all have the whole gradient of each.
            hidden = gather_from_sequence_parallel_region(
                hidden, tensor_parallel_output_grad=False, group=self.pg_collection.tp
            )
        return hidden.squeeze(1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [n, hidden] -> logits [n, this rank's columns of the padded vocabulary]."""
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        return self.output_layer(hidden[:, None], weight=weight)[0].squeeze(1)

    def forward(  # type: ignore[override]
        self, tokens: torch.Tensor, packed: PackedSequences, scoring: Scoring
    ) -> Scores | torch.Tensor:
        """Log-probabilities and entropies, fp32 [n], of `scoring.targets`, and those of `scoring.picks`; before the last stage
        hidden states.

        Only the scored rows reach the output layer."""
        hidden = self.hidden_states(tokens, packed)
        if not self.post_process:
            return hidden
        hidden = hidden.index_select(0, scoring.rows)
        if scoring.whole:
            return self.logits(hidden)
        return chunked_log_probs(
            hidden,
            scoring.targets,
            self.logits,
            chunk=scoring.chunk,
            temperature=scoring.temperature,
            vocab=self.shape.vocab,
            group=self.pg_collection.tp,
            picks=scoring.picks,
        )


def build_model(
    shape: ModelShape, hf_config: Any, args: Any, device: torch.device, layout: Layout, cut: Cut = WHOLE
) -> PolicyModel:
    """An unfilled model on `device`. Needs Megatron's process groups; fill it with `vime.convert.hf.load_hf`."""
    config = transformer_config(shape, args, device, layout)
    model = PolicyModel(
        shape,
        Rotary.from_hf(hf_config, shape, device),
        config=config,
        transformer_layer_spec=block_spec(config, shape, cut.layers(shape)),
        vocab_size=shape.padded_vocab(layout.tensor),
        max_sequence_length=shape.max_positions,
        parallel_output=True,
        share_embeddings_and_output_weights=shape.tied,
        position_embedding_type="none",
        pre_process=cut.stage.rank == 0,
        post_process=cut.stage.last,
    )
    if config.sequence_parallel and cut.stage.last:
        # The hidden states that reach it are whole.
        model.output_layer.sequence_parallel, model.output_layer.allreduce_dgrad = False, True
    _mark_cut_parameters(model, cut)
    freeze(model, args, cut)
    return model.to(device)


def freeze(model: PolicyModel, args: Any, cut: Cut = WHOLE) -> None:
    """Train only the parameters whose Megatron name in the whole model matches one of `--only-train-params-name-list`, or all
    but those of `--freeze-params-name-list` (regular expressions, searched). Raises VimeError when one matches nothing."""
    whole = {local: entry.name for entry in entries(model.shape) if (local := cut.local_name(entry, model.shape))}
    names = [entry.name for entry in entries(model.shape)]
    for flag, trains_matching in (("only_train_params_name_list", True), ("freeze_params_name_list", False)):
        expressions = getattr(args, flag) or []
        for expression in expressions:
            if not any(re.search(expression, name) for name in names):
                raise VimeError(
                    f"--{flag.replace('_', '-')}: {expression!r} matches no parameter",
                    hint=f"names look like {names[1]}",
                )
        if expressions:
            for name, parameter in model.named_parameters():
                matches = any(re.search(expression, whole[name]) for expression in expressions)
                parameter.requires_grad = matches is trains_matching


def _mark_cut_parameters(model: PolicyModel, cut: Cut) -> None:
    """Tell Megatron which parameters are shards. It marks them while it draws initial values, which we skip; unmarked ones
    count as copies, and the gradient norm would be that of the first tensor rank alone."""
    parameters = dict(model.named_parameters())
    for entry in entries(model.shape):
        parameter = parameters.get(cut.local_name(entry, model.shape) or "")
        if parameter is None or hasattr(parameter, "tensor_model_parallel"):
            continue
        if entry.rule.cut is not None:
            set_tensor_model_parallel_attributes(parameter, True, entry.rule.cut, 1)
