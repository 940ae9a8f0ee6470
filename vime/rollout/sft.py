"""Supervised fine-tuning as a rollout function: conversations become samples with loss masks, and no engine is asked.

``--rollout-function-path vime.rollout.sft.generate_rollout --loss-type sft_loss``. A row's prompt is a list of messages with the answers in it
(or a text, with the answer as its label).
"""

from __future__ import annotations

import logging
from argparse import Namespace
from typing import Any

from vime.data.loss_mask import Masked, mask_conversation, show_mask
from vime.data.protocol import DataSource, SettlingDataSource
from vime.data.tokenizer import load_tokenizer
from vime.errors import DataError
from vime.rollout.types import RolloutFnTrainOutput
from vime.sample import Sample, Status

logger = logging.getLogger(__name__)


def generate_rollout(
    args: Namespace, rollout_id: int, data_source: DataSource, evaluation: bool = False
) -> RolloutFnTrainOutput:
    """--rollout-batch-size conversations, each a group of one. Raises DataError for evaluation and for rows that hold no answer."""
    if evaluation:
        raise DataError("supervised fine-tuning has no evaluation by generation", hint="give --eval-function-path")
    tokenizer = load_tokenizer(args.hf_checkpoint)
    groups = data_source.get_samples(args.rollout_batch_size)
    for number, group in enumerate(groups):
        for sample in group:
            masked = masked_sample(args, sample, tokenizer)
            if rollout_id == 0 and number == 0:
                logger.info("first conversation, trained parts in brackets: %s", show_mask(masked, tokenizer))
    if isinstance(data_source, SettlingDataSource):
        data_source.settle(rollout_id, groups, "trained")
    lengths = [len(sample.tokens) for group in groups for sample in group]
    return RolloutFnTrainOutput(samples=groups, metrics={"rollout/total_lengths": sum(lengths) / len(lengths)})


def masked_sample(args: Namespace, sample: Sample, tokenizer: Any) -> Masked:
    """Fill `sample` from its messages: tokens, response from the first trained token on, loss mask; reward 0."""
    messages = sample.metadata.get("messages")
    if messages is None:
        masked = _text_pair(sample, tokenizer)
    else:
        masked = mask_conversation(
            messages, tokenizer, tools=sample.metadata.get("tools"), template_kwargs=args.apply_chat_template_kwargs
        )
    sample.tokens = masked.token_ids
    sample.response_length = masked.response_length
    sample.loss_mask = masked.mask[-masked.response_length :]
    sample.response = tokenizer.decode(sample.tokens[sample.prompt_length :])
    sample.reward = 0.0
    sample.status = Status.COMPLETED
    sample.validate()
    return masked


def _text_pair(sample: Sample, tokenizer: Any) -> Masked:
    """Prompt text, then the label and the end token."""
    if sample.label is None:
        raise DataError(
            "a row without an answer",
            where=sample.name,
            hint="give messages with --apply-chat-template, or --label-key",
        )
    answer = [*tokenizer(str(sample.label), add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    return Masked([*sample.tokens, *answer], [0] * len(sample.tokens) + [1] * len(answer))
