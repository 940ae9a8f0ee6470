"""Evaluation datasets: from ``--eval-config`` or ``--eval-prompt-data``, every setting resolved.

Precedence: the dataset's own entry, ``eval.defaults``, the ``--eval-*`` options, the rollout's options.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from vime.data.preflight import Columns
from vime.errors import UsageError


@dataclass(frozen=True)
class EvalDataset:
    """One dataset. The fields are the keys that a dataset, or ``defaults``, may have."""

    name: str
    path: str
    rm_type: str | None
    custom_rm_path: str | None
    custom_generate_function_path: str | None
    input_key: str
    label_key: str | None
    tool_key: str | None
    metadata_key: str | None
    apply_chat_template: bool
    apply_chat_template_kwargs: dict[str, Any]
    n_samples_per_eval_prompt: int
    temperature: float
    top_p: float
    top_k: int
    max_response_len: int
    max_prompt_len: int | None
    max_context_len: int | None
    min_new_tokens: int
    stop: list[str] | None
    stop_token_ids: list[int] | None
    repetition_penalty: float
    skip_special_tokens: bool
    metadata_overrides: dict[str, Any] = field(default_factory=dict)
    #: Seconds for one answer and its reward; one that takes longer scores 0.
    eval_task_timeout: float | None = None

    @property
    def cache_key(self) -> tuple[object, ...]:
        """Datasets with the same key have the same prompts."""
        return (
            self.path, self.input_key, self.label_key, self.tool_key, self.metadata_key, self.apply_chat_template,
            repr(sorted(self.apply_chat_template_kwargs.items())), self.max_prompt_len,
        )  # fmt: skip


def eval_datasets(args: Namespace) -> tuple[EvalDataset, ...]:
    """All datasets of the run. Raises UsageError for a malformed file or an unknown key."""
    base = _from_options(args)
    if args.eval_config is None:
        pairs = args.eval_prompt_data or []
        return tuple(replace(base, name=name, path=path) for name, path in zip(pairs[::2], pairs[1::2], strict=True))
    section = _section(args.eval_config)
    defaults = section.get("defaults") or {}
    _known(defaults, args.eval_config, "defaults")
    listed = section["datasets"]
    entries = listed if isinstance(listed, list) else [{"name": name} | (entry or {}) for name, entry in listed.items()]
    datasets: list[EvalDataset] = []
    for entry in entries:
        where = f"dataset {entry.get('name', len(datasets) + 1)!r}"
        _known(entry, args.eval_config, where)
        missing = {"name", "path"} - entry.keys()
        if missing:
            raise UsageError(f"{where} has no {' and no '.join(sorted(missing))}", where=args.eval_config)
        own = dict(defaults) | dict(entry)
        if own.get("rm_type") and "custom_rm_path" not in own:
            own["custom_rm_path"] = None  # a type named here is meant, whatever function the run trains on
        datasets.append(replace(base, **own))
    names = [dataset.name for dataset in datasets]
    if doubled := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"two datasets are called {', '.join(sorted(doubled))}", where=args.eval_config)
    return tuple(datasets)


def eval_columns(dataset: EvalDataset) -> Columns:
    """The columns of a dataset's rows."""
    return Columns(
        input=dataset.input_key,
        label=dataset.label_key,
        metadata=dataset.metadata_key,
        tools=dataset.tool_key,
        chat_template=dataset.apply_chat_template,
    )


def _from_options(args: Namespace) -> EvalDataset:
    return EvalDataset(
        name="",
        path="",
        rm_type=args.rm_type,
        custom_rm_path=args.custom_rm_path,
        custom_generate_function_path=args.custom_generate_function_path,
        input_key=args.eval_input_key,
        label_key=args.eval_label_key,
        tool_key=args.eval_tool_key,
        metadata_key=args.metadata_key,
        apply_chat_template=args.apply_chat_template,
        apply_chat_template_kwargs=args.apply_chat_template_kwargs,
        n_samples_per_eval_prompt=args.n_samples_per_eval_prompt,
        temperature=args.eval_temperature,
        top_p=args.eval_top_p,
        top_k=args.eval_top_k,
        max_response_len=args.eval_max_response_len,
        max_prompt_len=args.eval_max_prompt_len,
        max_context_len=args.eval_max_context_len,
        min_new_tokens=args.eval_min_new_tokens,
        stop=args.rollout_stop,
        stop_token_ids=args.rollout_stop_token_ids,
        repetition_penalty=1.0,
        skip_special_tokens=args.rollout_skip_special_tokens,
    )


def _section(path: str) -> Mapping[str, Any]:
    import yaml

    try:
        tree = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        raise UsageError(
            f"the evaluation file cannot be read: {error}", where=f"{path}:{mark.line + 1}" if mark else path
        ) from error
    section = tree.get("eval", tree) if isinstance(tree, dict) else None
    if not isinstance(section, dict) or not section.get("datasets"):
        raise UsageError(
            "no evaluation datasets", where=path, hint="eval: {defaults: {...}, datasets: [{name: ..., path: ...}]}"
        )
    _only(section, {"defaults", "datasets"}, path, "eval")
    return section


def _known(entry: Any, path: str, where: str) -> None:
    if not isinstance(entry, dict):
        raise UsageError(f"{where} is no mapping", where=path)
    _only(entry, {one.name for one in fields(EvalDataset)}, path, where)


def _only(entry: Mapping[str, Any], allowed: set[str], path: str, where: str) -> None:
    import difflib

    for key in entry.keys() - allowed:
        near = difflib.get_close_matches(key, allowed, n=1)
        raise UsageError(
            f"{where} has the unknown key {key!r}", where=path, hint=f"did you mean {near[0]}?" if near else None
        )
