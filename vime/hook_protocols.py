"""The functions that a user may put in the place of ours: their parameters, what they return, and when they run.

`vime.hooks` checks a user's function against these at start. Annotations are for the reader: what counts is that a function can be called with
the parameters by position (those after ``*`` by name), and whether it is async. A worked example of each is in ``examples/hooks/``.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from vime.data.protocol import DataSource, Group
from vime.rollout.types import DynamicFilterOutput, RolloutFnEvalOutput, RolloutFnTrainOutput
from vime.sample import Sample

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vime.agents.sandbox import Sandbox

#: Columns of a rank's samples: one entry a sample, lists or tensors of its response tokens. `vime.trainer.batching` says which.
TrainData = dict[str, list[Any]]


class RolloutFunction(Protocol):
    """One rollout step, or an evaluation. Runs in the rollout manager; requests go through ``vime.rollout.context.current()``."""

    def __call__(
        self, args: Namespace, rollout_id: int, data_source: DataSource, *, evaluation: bool
    ) -> RolloutFnTrainOutput | RolloutFnEvalOutput | list[Group] | dict[str, Any]: ...


class DataSourceClass(Protocol):
    """A class whose objects deal prompts: see `vime.data.protocol.DataSource`."""

    def __call__(self, args: Namespace) -> DataSource: ...


class GenerateFunction(Protocol):
    """Answers one sample. It may return several samples, which then are one trajectory. `sampling_params` is a `SamplingParams`."""

    async def __call__(
        self, args: Namespace, sample: Sample, sampling_params: Any, *, evaluation: bool
    ) -> Sample | list[Sample]: ...


class PlainGenerateFunction(Protocol):
    """The same for one that does the same in evaluation."""

    async def __call__(self, args: Namespace, sample: Sample, sampling_params: Any) -> Sample | list[Sample]: ...


class Agent(Protocol):
    """One run of an agent on `sample`. The model answers at `address` (`vime.agents.server`); `sandbox` is the run's own. Returns the reward,
    or None when the run's reward function is to score what was written."""

    async def __call__(self, address: str, sample: Sample, sandbox: Sandbox) -> float | dict[str, Any] | None: ...


class SampleHook(Protocol):
    """Changes a finished sample in place before it is scored. It may also be async."""

    def __call__(
        self, args: Namespace, sample: Sample, *, rollout_id: int | None, evaluation: bool
    ) -> Sample | None: ...


class PlainSampleHook(Protocol):
    """The same for one that does not look at the step."""

    async def __call__(self, args: Namespace, sample: Sample) -> Sample | None: ...


class RewardFunction(Protocol):
    """Scores one answer; with --group-rm the second parameter is the list of all answers to a prompt, and a list of scores comes back.

    An exception, None or NaN marks that sample failed; training goes on without it.
    """

    async def __call__(self, args: Namespace, sample: Sample) -> float | dict[str, Any] | list[Any]: ...


class DynamicFilter(Protocol):
    """Whether a scored group is trained on. A rejected one is replaced by another prompt's."""

    def __call__(self, args: Namespace, samples: list[Sample]) -> bool | DynamicFilterOutput: ...


class BufferFilter(Protocol):
    """Takes up to `num_samples` groups out of `buffer`, the groups that wait to be dealt again."""

    def __call__(
        self, args: Namespace, rollout_id: int | None, buffer: list[Group], num_samples: int
    ) -> list[Group]: ...


class SampleFilter(Protocol):
    """Sets ``remove_sample`` on samples of a step that are not to be trained, whose rewards still count for their groups."""

    def __call__(self, args: Namespace, samples: list[Group]) -> None: ...


class AllSamplesProcess(Protocol):
    """Sees all groups of a step, also those that the dynamic filter rejected."""

    def __call__(self, args: Namespace, all_groups: list[Group], data_source: DataSource) -> None: ...


class RewardPostProcess(Protocol):
    """(raw rewards, rewards to train on) of a step's samples; takes the place of the normalisation within groups.

    Runs on every trainer rank with the same samples, so it must give the same on each.
    """

    def __call__(self, args: Namespace, samples: Sequence[Sample]) -> tuple[list[float], list[float]]: ...


class ConvertSamples(Protocol):
    """The columns of a step's samples: at least tokens, response_lengths, rewards and loss_masks; the others follow where it leaves them out.

    Runs on every trainer rank with the same samples, so it must give the same on each.
    """

    def __call__(self, args: Namespace, samples: Sequence[Sample]) -> TrainData: ...


class DataPostprocess(Protocol):
    """Changes the columns of a rank's samples in place, after log-probabilities and advantages."""

    def __call__(self, args: Namespace, rollout_id: int, rollout_data: TrainData) -> None: ...


class PlainDataPostprocess(Protocol):
    """The same without the step."""

    def __call__(self, args: Namespace, rollout_data: TrainData) -> None: ...


class AdvantageFunction(Protocol):
    """Sets rollout_data["advantages"] (and "returns" where a critic learns): for each sample fp32 [response_length]."""

    def __call__(self, args: Namespace, rollout_data: TrainData) -> None: ...


class LossFunction(Protocol):
    """The loss of a micro-batch (--loss-type custom_loss) from fp32 logits [response tokens, vocabulary of this rank], and metrics.

    `sum_of_sample_mean` turns values [response tokens] into the sum over samples of their token means.
    """

    def __call__(
        self,
        args: Namespace,
        batch: dict[str, Any],
        logits: Tensor,
        sum_of_sample_mean: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, dict[str, Any]]: ...


class TisFunction(Protocol):
    """(loss, masks or None, metrics) after a correction for the engine's policy. Columns are lists of fp32 [response_length]."""

    def __call__(
        self,
        args: Namespace,
        *,
        pg_loss: Tensor,
        train_log_probs: list[Tensor],
        rollout_log_probs: list[Tensor],
        loss_masks: list[Tensor],
        total_lengths: list[int],
        response_lengths: list[int],
    ) -> tuple[Tensor, list[Tensor] | None, dict[str, Any]]: ...


class LossReducer(Protocol):
    """How the policy loss of a micro-batch's tokens becomes a number; `per_token` is --calculate-per-token-loss."""

    def __call__(
        self, total_lengths: list[int], response_lengths: list[int], loss_masks: list[Tensor], per_token: bool
    ) -> Callable[[Tensor], Tensor]: ...


class RolloutLog(Protocol):
    """Sees a step's samples and metrics, which it may change or add to. True: its own logging is enough, ours is left out."""

    def __call__(
        self,
        rollout_id: int,
        args: Namespace,
        samples: list[Sample],
        extra_metrics: dict[str, float],
        rollout_time: float,
    ) -> bool: ...


class EvalLog(Protocol):
    """The same for an evaluation: `data` is data set name -> rewards, truncated, samples."""

    def __call__(
        self, rollout_id: int, args: Namespace, data: dict[str, dict[str, Any]], extra_metrics: dict[str, float]
    ) -> bool: ...


class ModelProvider(Protocol):
    """A Megatron model of the user's own."""

    def __call__(self, pre_process: bool, post_process: bool, *, vp_stage: int | None) -> nn.Module: ...


class MegatronInit(Protocol):
    """Runs on each trainer rank once, after the process groups and before the model."""

    def __call__(self, args: Namespace) -> None: ...


class BeforeLogProb(Protocol):
    """Runs before a pass without gradients; `store_prefix` is "" for the policy, "ref_" or "teacher_"."""

    def __call__(self, args: Namespace, model: nn.Module, store_prefix: str) -> None: ...


class BeforeTrainStep(Protocol):
    """Runs before each optimizer step."""

    def __call__(
        self,
        args: Namespace,
        rollout_id: int,
        step_id: int,
        model: nn.Module,
        optimizer: Any,
        opt_param_scheduler: Any,
    ) -> None: ...


class PostWrite(Protocol):
    """Runs on each trainer rank after a version of the weights lies in `version_dir` (--update-weight-transport disk) and before the engines
    read it: to copy it to them, say. `rollout_engines` are their addresses."""

    def __call__(self, args: Namespace, version_dir: str, rollout_engines: list[str]) -> None: ...
