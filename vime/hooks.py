"""The functions that a user may put in the place of ours: how each is called, and a check of that at start.

Each hook is a Protocol of `vime.hook_protocols`; ``SPECS`` says which one every option takes, so a wrong signature is found before anything runs
instead of after the first rollout.
"""

from __future__ import annotations

import importlib
import inspect
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vime import hook_protocols as protocols
from vime.errors import HookError, Problem, Problems


@dataclass(frozen=True)
class Call:
    """One way of calling: names of positional arguments, then of keyword arguments."""

    positional: tuple[str, ...]
    keywords: tuple[str, ...] = ()

    @classmethod
    def of(cls, protocol: type) -> Call:
        """How a function of the protocol is called."""
        parameters = list(inspect.signature(protocol.__call__).parameters.values())[1:]
        by_name = [one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]
        return cls(tuple(one.name for one in parameters if one.name not in by_name), tuple(by_name))

    def text(self, name: str) -> str:
        keywords = (", *" + "".join(f", {keyword}" for keyword in self.keywords)) if self.keywords else ""
        return f"{name}({', '.join(self.positional)}{keywords})"


class Spec:
    """The protocols that a hook may have, the preferred one first.

    `calls`: how it is called. `asynchronous`: must be (True), must not be (False), may be (None). `methods`: the hook is a class with these.
    """

    def __init__(self, *protocols: type, methods: tuple[str, ...] = ()) -> None:
        kinds = {inspect.iscoroutinefunction(one.__call__) for one in protocols}
        self.protocols = protocols
        self.calls = tuple(Call.of(one) for one in protocols)
        self.asynchronous: bool | None = kinds.pop() if len(kinds) == 1 else None
        self.methods = methods


SPECS: dict[str, Spec] = {
    "rollout_function_path": Spec(protocols.RolloutFunction),
    "eval_function_path": Spec(protocols.RolloutFunction),
    "data_source_path": Spec(
        protocols.DataSourceClass, methods=("get_samples", "add_samples", "save", "load", "__len__")
    ),
    "custom_generate_function_path": Spec(protocols.GenerateFunction, protocols.PlainGenerateFunction),
    "agent_path": Spec(protocols.Agent),
    "rollout_sample_hook_path": Spec(protocols.SampleHook, protocols.PlainSampleHook),
    "custom_rm_path": Spec(protocols.RewardFunction),
    "dynamic_sampling_filter_path": Spec(protocols.DynamicFilter),
    "buffer_filter_path": Spec(protocols.BufferFilter),
    "rollout_sample_filter_path": Spec(protocols.SampleFilter),
    "rollout_all_samples_process_path": Spec(protocols.AllSamplesProcess),
    "custom_reward_post_process_path": Spec(protocols.RewardPostProcess),
    "custom_convert_samples_to_train_data_path": Spec(protocols.ConvertSamples),
    "rollout_data_postprocess_path": Spec(protocols.DataPostprocess, protocols.PlainDataPostprocess),
    "custom_advantage_function_path": Spec(protocols.AdvantageFunction),
    "custom_loss_function_path": Spec(protocols.LossFunction),
    "custom_tis_function_path": Spec(protocols.TisFunction),
    "custom_pg_loss_reducer_function_path": Spec(protocols.LossReducer),
    "custom_rollout_log_function_path": Spec(protocols.RolloutLog),
    "custom_eval_rollout_log_function_path": Spec(protocols.EvalLog),
    "custom_model_provider_path": Spec(protocols.ModelProvider),
    "custom_megatron_init_path": Spec(protocols.MegatronInit),
    "custom_megatron_before_log_prob_hook_path": Spec(protocols.BeforeLogProb),
    "custom_megatron_before_train_step_hook_path": Spec(protocols.BeforeTrainStep),
    "custom_update_weight_post_write_path": Spec(protocols.PostWrite),
}


def load_object(path: str, where: str) -> Any:
    """The object at the dotted `path`, as pkg.module.name. Raises HookError that tells a missing module from an error inside it."""
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise HookError(f"{path!r} is no dotted path", where=where, hint="write package.module.function")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise HookError(f"no module {error.name!r}", where=where, hint="is its folder on PYTHONPATH?") from error
        raise HookError(f"{module_name} imports {error.name!r}, which is not installed", where=where) from error
    except Exception as error:  # the user's module ran, and anything may come out of it
        raise HookError(f"importing {module_name} failed: {type(error).__name__}: {error}", where=where) from error
    if not hasattr(module, name):
        raise HookError(f"{module_name} has no {name!r}", where=where)
    return getattr(module, name)


def load_hook(option: str, path: str) -> Callable[..., Any]:
    """The hook at `path`, checked against the specification of `option` (an argument name). Raises HookError."""
    where = f"--{option.replace('_', '-')}"
    hook, spec = load_object(path, where), SPECS[option]
    if not callable(hook):
        raise HookError(f"{path} is a {type(hook).__name__}, not a function", where=where)
    if spec.methods:
        missing = [method for method in spec.methods if not callable(getattr(hook, method, None))]
        if missing:
            raise HookError(f"{path} lacks {', '.join(missing)}", where=where)
    _check_call(hook, path, spec, where)
    _check_async(hook, path, spec, where)
    return hook


def call_hook(args: Namespace, option: str, *given: Any) -> None:
    """Call the function that `option` names, where the user gave one, for what it does."""
    if path := getattr(args, option):
        load_hook(option, path)(*given)


def accepts(hook: Callable[..., Any], call: Call) -> bool:
    """Whether `hook` can be called that way. True where its signature cannot be read."""
    try:
        signature = inspect.signature(hook)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*call.positional, **dict.fromkeys(call.keywords))
    except TypeError:
        return False
    return True


def is_async(hook: Callable[..., Any]) -> bool:
    """Whether calling `hook` gives an awaitable; callable objects are judged by their ``__call__``."""
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(getattr(hook, "__call__", None))  # noqa: B004


def check_hooks(args: Namespace) -> None:
    """Load every hook that `args` and its evaluation datasets name. Raises Problems with all that is wrong."""
    from vime.rollout.eval_config import eval_datasets

    named = [(option, getattr(args, option)) for option in SPECS]
    for dataset in eval_datasets(args):
        named += [(option, getattr(dataset, option)) for option in ("custom_rm_path", "custom_generate_function_path")]
    problems: dict[tuple[str, str], Problem] = {}
    for option, paths in named:
        for path in paths if isinstance(paths, list) else [paths]:
            try:
                if path is not None:
                    load_hook(option, path)
            except HookError as error:
                problems[option, path] = Problem(str(error), error.hint)
    if problems:
        raise Problems(list(problems.values()))


def _check_call(hook: Callable[..., Any], path: str, spec: Spec, where: str) -> None:
    if any(accepts(hook, call) for call in spec.calls):
        return
    name = path.rpartition(".")[2]
    raise HookError(
        f"{path}{inspect.signature(hook)} cannot be called as {spec.calls[0].text(name)}",
        where=where,
        hint="change its parameters to these",
    )


def _check_async(hook: Callable[..., Any], path: str, spec: Spec, where: str) -> None:
    if spec.asynchronous is None or spec.methods or spec.asynchronous == is_async(hook):
        return
    raise HookError(
        f"{path} must {'' if spec.asynchronous else 'not '}be async",
        where=where,
        hint="`async def`" if spec.asynchronous else "plain `def`",
    )
