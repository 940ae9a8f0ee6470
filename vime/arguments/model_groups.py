"""``--vllm-config``: the models that are served, the policy and frozen ones (a teacher, a judge, a reference), and the engines of each.

vllm:
  - name: policy
    num_gpus: 4                  # engines of --rollout-num-gpus-per-engine each
  - name: teacher
    model_path: /models/teacher  # another path than --hf-checkpoint: frozen
    server_groups:
      - {num_gpus: 2, num_gpus_per_engine: 2, overrides: {max_num_seqs: 64}}
  - name: judge
    urls: [http://10.0.0.5:8000] # runs already
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vime.arguments import vllm
from vime.arguments.catalogue import nearest
from vime.errors import UsageError

_MODEL_KEYS = (
    "name",
    "model_path",
    "update_weights",
    "num_gpus",
    "num_gpus_per_engine",
    "server_groups",
    "overrides",
    "urls",
)
_GROUP_KEYS = ("worker_type", "num_gpus", "num_gpus_per_engine", "overrides")
#: The policy's name where there is no --vllm-config.
POLICY = "policy"


@dataclass(frozen=True)
class EngineSpec:
    """One engine: its devices and what its command line overrides, by field name of vLLM."""

    devices: int
    overrides: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class ModelGroup:
    """A served model. `trained`: it gets the trainer's weights. `urls`: servers that run already, instead of `engines`."""

    name: str
    path: str
    trained: bool
    engines: tuple[EngineSpec, ...] = ()
    urls: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        return sum(engine.devices for engine in self.engines)

    @property
    def count(self) -> int:
        """Servers of the model, whoever started them."""
        return len(self.urls) or len(self.engines)


def model_groups(args: Namespace) -> tuple[ModelGroup, ...]:
    """The models of the run, the policy first; in a training on rollouts of before nobody serves them. Raises UsageError naming file and model."""
    groups = (_plain_policy(args),) if args.vllm_config is None else _configured(args)
    return tuple(replace(group, engines=(), urls=()) for group in groups) if args.debug_train_only else groups


def _configured(args: Namespace) -> tuple[ModelGroup, ...]:
    entries = _read(args.vllm_config)
    groups = [_group(args, entry, f"{args.vllm_config}: model {number}") for number, entry in enumerate(entries, 1)]
    names = [group.name for group in groups]
    if len(set(names)) < len(names):
        raise UsageError("two models have one name", where=args.vllm_config)
    trained = [group for group in groups if group.trained]
    if len(trained) != 1:
        raise UsageError(
            f"{len(trained)} models are to get the trainer's weights ({', '.join(g.name for g in trained) or 'none'}), one must",
            where=args.vllm_config,
            hint=f"the policy's model_path is --hf-checkpoint {args.hf_checkpoint}; others need update_weights: false",
        )
    return (trained[0], *(group for group in groups if not group.trained))


def served_args(args: Namespace, group: ModelGroup, engine: EngineSpec) -> Namespace:
    """The arguments that start `engine`: those of the run with the group's model and the engine's devices."""
    own = Namespace(**vars(args))
    own.hf_checkpoint = group.path
    own.rollout_num_gpus_per_engine = engine.devices
    if not group.trained:
        # What is recorded for training is the policy's.
        own.use_rollout_routing_replay = own.use_score_centering = own.offload_rollout = False
        own.rollout_top_p, own.rollout_top_k = 1.0, -1
        own.kv_channels = own.rollout_max_context_len = None
        if args.use_opd and group.name == args.opd_teacher_model and args.rollout_temperature != 1.0:
            own.vllm_max_logprobs = -1  # see `vime.rollout.frozen`
    return own


def _plain_policy(args: Namespace) -> ModelGroup:
    addresses = args.rollout_external_engine_addrs or []
    if addresses:
        return ModelGroup(POLICY, args.hf_checkpoint, True, urls=tuple(map(url_of, addresses)))
    size = args.rollout_num_gpus_per_engine
    engines = (EngineSpec(size),) * ((args.rollout_num_gpus or 0) // size)
    return ModelGroup(POLICY, args.hf_checkpoint, True, engines)


def url_of(address: str) -> str:
    """HOST:PORT or a URL, as a URL without a slash at its end. Raises UsageError for what is neither."""
    url = address if "://" in address else f"http://{address}"
    bare = url.split("://", 1)[1].rstrip("/")
    host, _, port = bare.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"{address!r} is no HOST:PORT", hint="as in 10.0.0.5:8000, or [::1]:8000")
    return url.rstrip("/")


def _read(path: str) -> list[Mapping[str, Any]]:
    import yaml

    try:
        tree = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"the file of models cannot be read: {error}", where=path) from error
    entries = tree.get("vllm", tree.get("models")) if isinstance(tree, dict) else tree
    if not isinstance(entries, list) or not entries or not all(isinstance(one, dict) for one in entries):
        raise UsageError(
            "no list of models",
            where=path,
            hint="vllm: [{name: policy, num_gpus: 4}, {name: teacher, model_path: ...}]",
        )
    return entries


def _group(args: Namespace, entry: Mapping[str, Any], where: str) -> ModelGroup:
    _known(entry, _MODEL_KEYS, where)
    if not isinstance(entry.get("name"), str):
        raise UsageError("it has no name", where=where)
    where = f"{args.vllm_config}: model {entry['name']}"
    path = str(entry.get("model_path") or args.hf_checkpoint)
    trained = entry.get("update_weights", "auto")
    if trained == "auto":
        trained = path == args.hf_checkpoint
    urls = tuple(url_of(str(one)) for one in entry.get("urls") or ())
    groups = entry.get("server_groups") or [{key: entry[key] for key in _GROUP_KEYS if key in entry}]
    if urls:
        return ModelGroup(entry["name"], path, bool(trained), urls=urls)
    size = entry.get("num_gpus_per_engine", args.rollout_num_gpus_per_engine)
    engines = tuple(engine for one in groups for engine in _engines(one, size, where))
    return ModelGroup(entry["name"], path, bool(trained), engines)


def _engines(group: Mapping[str, Any], size: int, where: str) -> tuple[EngineSpec, ...]:
    _known(group, _GROUP_KEYS, where)
    kind = group.get("worker_type", "regular")
    if kind != "regular":
        raise UsageError(
            f"worker_type {kind} is not supported",
            where=where,
            hint="prefill, decode and encoder servers need a network of their own between them; regular engines do all",
        )
    size = group.get("num_gpus_per_engine", size)
    count = group.get("num_gpus", size)
    if not all(isinstance(one, int) and one > 0 for one in (size, count)) or count % size:
        raise UsageError(f"num_gpus {count} is no multiple of num_gpus_per_engine {size}", where=where)
    overrides = tuple((str(key).replace("-", "_"), value) for key, value in (group.get("overrides") or {}).items())
    fields = [name.removeprefix("vllm_") for name in vllm.engine_options()]
    for key, _ in overrides:
        if key in vllm.OWNED:
            raise UsageError(f"{key} is set by vime", where=where, hint=f"set {vllm.OWNED[key]}")
        if fields and key not in fields:
            near = nearest(key, fields)
            raise UsageError(
                f"{key} is no field of the installed vLLM",
                where=where,
                hint=f"did you mean {near}?" if near else None,
            )
    return (EngineSpec(size, overrides),) * (count // size)


def _known(entry: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    for key in entry:
        if key not in keys:
            near = nearest(str(key), keys)
            raise UsageError(
                f"unknown key {key!r}",
                where=where,
                hint=f"did you mean {near}?" if near else f"known: {', '.join(keys)}",
            )
