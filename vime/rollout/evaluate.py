"""Evaluation inside the run: every dataset with its own sampling parameters, prompts and rewards."""

from __future__ import annotations

import asyncio
import logging
from argparse import Namespace
from functools import lru_cache
from typing import Any

from vime.data.preflight import Columns
from vime.data.prompts import Prompt, load_prompts
from vime.data.tokenizer import load_tokenizer
from vime.errors import EngineError, UsageError
from vime.hooks import load_hook
from vime.rollout.context import RolloutContext
from vime.rollout.eval_config import EvalDataset, eval_columns, eval_datasets
from vime.rollout.group import GroupTask, sample_hooks
from vime.rollout.metrics import eval_metrics
from vime.rollout.rewards.score import Judge
from vime.rollout.sampling import eval_sampling
from vime.rollout.types import RolloutFnEvalOutput
from vime.sample import Sample, Status

logger = logging.getLogger(__name__)


async def evaluate(args: Namespace, context: RolloutContext) -> RolloutFnEvalOutput:
    """All datasets, side by side under the one limit on requests.

    An answer whose request or reward fails scores 0 and is counted in eval/<name>-failed_ratio. Raises UsageError with --group-rm.
    """
    if args.group_rm:
        raise UsageError("--group-rm cannot score evaluation", hint="use --eval-function-path")
    datasets = eval_datasets(args)
    results = await asyncio.gather(*(_dataset(args, context, dataset) for dataset in datasets))
    output = RolloutFnEvalOutput(data={})
    for dataset, (samples, rewards) in zip(datasets, results, strict=True):
        output.data[dataset.name] = {
            "rewards": [reward for row in rewards for reward in row],
            "truncated": [sample.status is Status.TRUNCATED for sample in samples],
            "samples": samples,
        }
        output.metrics |= eval_metrics(dataset.name, rewards, samples)
    return output


async def _dataset(
    args: Namespace, context: RolloutContext, dataset: EvalDataset
) -> tuple[list[Sample], list[list[float]]]:
    prompts = _prompts(dataset, args.hf_checkpoint)
    size = dataset.n_samples_per_eval_prompt
    path = dataset.custom_generate_function_path
    task = GroupTask(
        args,
        context,
        eval_sampling(dataset, args),
        Judge(dataset.rm_type, dataset.custom_rm_path),
        evaluation=True,
        generate=load_hook("custom_generate_function_path", path) if path else None,
        sample_hooks=sample_hooks(args),
    )
    groups = await asyncio.gather(
        *(_group(task, dataset, prompt, number, size) for number, prompt in enumerate(prompts))
    )
    rewards = [[_value(args, sample) for sample in group] for group in groups]
    return [sample for group in groups for sample in group], rewards


async def _group(task: GroupTask, dataset: EvalDataset, prompt: Prompt, number: int, size: int) -> list[Sample]:
    group = [prompt.sample(number, number * size + i) for i in range(size)]
    for sample in group:
        sample.metadata |= dataset.metadata_overrides
    try:
        async with asyncio.timeout(dataset.eval_task_timeout):
            return await task.run(group)
    except (EngineError, TimeoutError) as error:
        logger.warning("evaluation %s, row %d: %s; it scores 0", dataset.name, prompt.row, error or "took too long")
        for sample in group:
            sample.fail("timeout" if isinstance(error, TimeoutError) else "engine_error")
        return group


def _value(args: Namespace, sample: Sample) -> float:
    return (
        0.0
        if sample.status is Status.FAILED or sample.reward is None
        else sample.get_reward_value(args, evaluation=True)
    )


def _prompts(dataset: EvalDataset, tokenizer_folder: str) -> tuple[Prompt, ...]:
    """The prompts, read once for all evaluations of a run."""
    return _cached(_Key(dataset.cache_key, dataset, tokenizer_folder))


class _Key:
    """Hashes by what determines the prompts."""

    def __init__(self, key: tuple[object, ...], dataset: EvalDataset, tokenizer_folder: str) -> None:
        self.key, self.dataset, self.tokenizer_folder = (*key, tokenizer_folder), dataset, tokenizer_folder

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Key) and self.key == other.key


@lru_cache(maxsize=32)
def _cached(key: _Key) -> tuple[Prompt, ...]:
    dataset = key.dataset
    columns: Columns = eval_columns(dataset)
    return load_prompts(
        dataset.path,
        columns,
        load_tokenizer(key.tokenizer_folder),
        template_kwargs=dataset.apply_chat_template_kwargs,
        max_tokens=dataset.max_prompt_len,
    )
