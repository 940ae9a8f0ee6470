"""Cross checks: what each option may be beside the others. Every check is pure and all problems are reported at once.

A check takes the derived namespace and yields problems. ``CHECKS`` is the list that a run goes through.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from vime.agents import GENERATE
from vime.arguments.catalogue import nearest
from vime.arguments.check_algorithm import ALGORITHM_CHECKS
from vime.arguments.check_sizes import SIZE_CHECKS
from vime.arguments.unsupported import unsupported
from vime.errors import Problem
from vime.rollout.pool.schedules import IN_FLIGHT, ONE_STEP_AHEAD, SYNCHRONOUS
from vime.rollout.rewards.names import KNOWN, LABELLED, base_name

Check = Callable[[Namespace], Iterator[Problem]]


def check(args: Namespace) -> list[Problem]:
    """All problems of `args`, in the order of the checks."""
    return [problem for one in CHECKS for problem in one(args)]


def required(args: Namespace) -> Iterator[Problem]:
    """What no run can do without."""
    if args.hf_checkpoint is None:
        yield Problem("--hf-checkpoint is missing", "a folder with config.json, tokenizer and weights")
    if args.rollout_batch_size is None:
        yield Problem("--rollout-batch-size is missing", "the number of prompts of one step")
    if args.num_rollout is None and args.num_epoch is None and not args.dry_run:
        yield Problem(
            "neither --num-rollout nor --num-epoch is given", "say how many steps, or how many passes over the data"
        )
    if args.debug_train_only:
        return
    own_source = "data_source_path" in args.given
    if args.prompt_data is None and not own_source:
        yield Problem(
            "--prompt-data is missing", "a jsonl or parquet file, or a class of your own with --data-source-path"
        )
    if args.loss_type == "sft_loss":
        return
    if args.rollout_max_response_len is None:
        yield Problem("--rollout-max-response-len is missing", "the most tokens that one answer may have")
    own_function = {
        "rollout_function_path",
        "custom_rm_path",
        "custom_generate_function_path",
        "agent_path",
    } & args.given
    if args.rm_type is None and not own_function:
        yield Problem(
            "nothing scores the answers: --rm-type and --custom-rm-path are missing",
            "`train.py --help` lists the reward types",
        )


def files_exist(args: Namespace) -> Iterator[Problem]:
    """Paths that are read at start. The rows of the prompt file are checked by ``vime.data.preflight``."""
    from vime.data.files import split_slice

    if args.assume_files:
        if not args.dry_run:
            yield Problem("--assume-files without --dry-run", "a run needs its files")
        return
    if args.hf_checkpoint is not None and not (Path(args.hf_checkpoint) / "config.json").is_file():
        yield Problem(
            f"--hf-checkpoint: no config.json in {args.hf_checkpoint}",
            "a local folder with config.json, tokenizer and weights",
        )
    if args.prompt_data is not None and not Path(split_slice(args.prompt_data).path).exists():
        yield Problem(f"--prompt-data: no file {split_slice(args.prompt_data).path}", None)
    for name in ("eval_config", "vllm_config", "megatron_config_path", "rollout_storage_declaration"):
        if (path := getattr(args, name)) is not None and not Path(path).is_file():
            yield Problem(f"--{name.replace('_', '-')}: no file {path}")


def reference_exists(args: Namespace) -> Iterator[Problem]:
    """A KL term needs a reference model."""
    uses_kl = args.kl_coef != 0 or args.use_kl_loss
    found = args.ref_load is not None and (args.assume_files or Path(args.ref_load).exists())
    if uses_kl and not found:
        term = "--use-kl-loss" if args.use_kl_loss else f"--kl-coef {args.kl_coef}"
        yield Problem(
            f"--ref-load missing: {args.ref_load or 'not given'} does not exist, and {term} needs a reference model"
        )


def checkpointing(args: Namespace) -> Iterator[Problem]:
    if args.save_interval is not None and args.save is None:
        yield Problem("--save-interval without --save", "say where to save")
    if args.use_stateless_adam and not args.no_save_optim:
        yield Problem("--use-stateless-adam keeps no optimizer state to save", "add --no-save-optim")
    if args.save_debug_train_data and args.save_debug_train_data == args.save_debug_rollout_data:
        yield Problem("--save-debug-train-data and --save-debug-rollout-data name the same file")


def evaluation(args: Namespace) -> Iterator[Problem]:
    datasets = args.eval_prompt_data or args.eval_config
    if args.eval_interval is not None and not datasets:
        yield Problem("--eval-interval without a dataset", "add --eval-prompt-data NAME PATH or --eval-config FILE")
    if args.eval_prompt_data and len(args.eval_prompt_data) % 2:
        yield Problem("--eval-prompt-data takes pairs NAME PATH", f"{len(args.eval_prompt_data)} values were given")
    if args.group_rm and datasets:
        yield Problem(
            "--group-rm cannot score evaluation, whose prompts have groups of their own size",
            "evaluate with --eval-function-path",
        )


def agents(args: Namespace) -> Iterator[Problem]:
    ours = args.custom_generate_function_path == GENERATE
    if ours and args.agent_path is None:
        yield Problem(f"--custom-generate-function-path {GENERATE} needs --agent-path")
    if args.agent_path is not None and not ours:
        yield Problem("--agent-path with another --custom-generate-function-path", f"the agent is run by {GENERATE}")
    if args.agent_max_turns < 1 or args.agent_timeout <= 0:
        yield Problem(
            f"--agent-max-turns {args.agent_max_turns}, --agent-timeout {args.agent_timeout}", "both must be over 0"
        )


def placement(args: Namespace) -> Iterator[Problem]:
    if args.device == "cpu":
        if args.distributed_backend == "nccl":
            yield Problem("--distributed-backend nccl needs GPUs", "leave it out: gloo is used on a CPU")
        if args.update_weight_transport in ("nccl", "ipc"):
            yield Problem(
                f"--update-weight-transport {args.update_weight_transport} needs GPUs",
                "leave it out: gloo is used on a CPU",
            )
    if args.rollout_num_gpus and args.rollout_num_gpus % args.rollout_num_gpus_per_engine:
        yield Problem(
            f"--rollout-num-gpus {args.rollout_num_gpus} is no multiple of --rollout-num-gpus-per-engine {args.rollout_num_gpus_per_engine}"
        )
    if args.loss_type == "sft_loss" and args.rollout_num_gpus:
        yield Problem(
            f"--loss-type sft_loss needs no engines, but --rollout-num-gpus is {args.rollout_num_gpus}",
            "leave --rollout-num-gpus out: there would be engines to sync weights to and nothing to generate",
        )
    if args.debug_rollout_only and args.debug_train_only:
        yield Problem("--debug-rollout-only and --debug-train-only (or --load-debug-rollout-data) exclude each other")
    if (
        args.rollout_num_gpus == 0
        and not args.debug_train_only
        and args.loss_type != "sft_loss"
        and not args.model_groups[0].urls
    ):
        yield Problem(
            "--rollout-num-gpus 0 leaves nobody to generate",
            "name running engines with --rollout-external-engine-addrs",
        )
    yield from serving(args)


def serving(args: Namespace) -> Iterator[Problem]:
    """Models that are served beside the policy, and engines that are not ours."""
    if args.vllm_config and (args.prefill_num_servers or args.rollout_external_engine_addrs):
        yield Problem(
            "--vllm-config excludes --prefill-num-servers and --rollout-external-engine-addrs",
            "name running servers as `urls` of a model in it",
        )
        return
    policy, *frozen = args.model_groups
    devices = sum(group.devices for group in args.model_groups)
    if args.vllm_config and devices != args.rollout_num_gpus:
        yield Problem(
            f"--rollout-num-gpus {args.rollout_num_gpus}, but the models of {args.vllm_config} have {devices}"
        )
    for option in ("colocate", "offload_rollout"):
        if policy.urls and getattr(args, option):
            yield Problem(
                f"--{option.replace('_', '-')} with engines that run already ({', '.join(policy.urls)})",
                "they cannot share devices with the trainer: leave it out",
            )
    started = [group for group in frozen if group.engines]
    if started and args.colocate:
        yield Problem(
            f"--colocate with the frozen model {started[0].name}",
            "it keeps its devices while the trainer works: leave --colocate out",
        )
    for group in started:
        if not args.assume_files and not (Path(group.path) / "config.json").is_file():
            yield Problem(f"no config.json in {group.path}, of model {group.name} in {args.vllm_config}")


def weight_update(args: Namespace) -> Iterator[Problem]:
    if args.update_weight_transport == "disk" and args.update_weight_disk_dir is None:
        yield Problem(
            "--update-weight-transport disk needs --update-weight-disk-dir", "a folder that trainer and engines see"
        )
    if args.custom_update_weight_post_write_path and args.update_weight_transport != "disk":
        yield Problem(
            "--custom-update-weight-post-write-path needs --update-weight-transport disk", "only then files are written"
        )
    if args.update_weights_interval != 1:
        yield Problem(
            "--update-weights-interval is gone: the engines are updated after every step",
            "to overlap generation and training, choose a --rollout-schedule",
        )


def generation_workers(args: Namespace) -> Iterator[Problem]:
    count = args.rollout_generation_workers
    if count < 1:
        yield Problem(f"--rollout-generation-workers {count}", "at least 1, the rollout manager itself")
    if count < 2:
        return
    if "rollout_function_path" in args.given:
        yield Problem(
            "--rollout-generation-workers with --rollout-function-path",
            "workers answer the groups of our own rollout function; give one worker",
        )
    groups = args.vllm_server_concurrency * max(1, args.model_groups[0].count) // args.n_samples_per_prompt
    if groups < count:
        yield Problem(
            f"--rollout-generation-workers {count} for {groups} groups in flight",
            "fewer workers, or a higher --vllm-server-concurrency",
        )


def rollout_schedule(args: Namespace) -> Iterator[Problem]:
    """Schedules that generate while a batch trains need engines that never sleep."""
    name, lag = args.rollout_schedule, args.max_policy_lag
    if args.flush_cache_interval != 1 and name != IN_FLIGHT:
        yield Problem(
            f"--flush-cache-interval {args.flush_cache_interval} with --rollout-schedule {name}",
            "only --rollout-schedule in-flight keeps what older weights computed",
        )
    if lag is not None and lag < 0:
        yield Problem(f"--max-policy-lag {lag}", "a number of versions, at least 0")
    if name == SYNCHRONOUS:
        return
    if name == ONE_STEP_AHEAD and lag != 1:
        yield Problem(f"--max-policy-lag {lag} with --rollout-schedule {name}", "one step ahead is a lag of 1")
    elif lag == 0:
        yield Problem(f"--max-policy-lag 0 with --rollout-schedule {name}", "without any lag, say synchronous")
    for option in ("colocate", "offload_rollout", "release_train", "debug_rollout_only", "debug_train_only"):
        if getattr(args, option):
            yield Problem(
                f"--rollout-schedule {name} with --{option.replace('_', '-')}",
                "generating while training needs engines and a trainer, on devices of their own",
            )
    if args.over_sampling_batch_size != args.rollout_batch_size:
        yield Problem(
            f"--over-sampling-batch-size with --rollout-schedule {name}",
            "leave it out: more than a batch is in flight anyway, and what is left over is kept",
        )
    if name == ONE_STEP_AHEAD and args.partial_rollout:
        yield Problem(
            f"--partial-rollout with --rollout-schedule {name}", "its updates wait for running answers; say fully-async"
        )


def queue(args: Namespace) -> Iterator[Problem]:
    """The durable queue owns order and persistence, so hooks that reorder groups behind its back are refused."""
    index = (args.save_debug_rollout_data or "").endswith(".straw.json")
    if index and args.rollout_data_transport != "straw":
        yield Problem(
            "--save-debug-rollout-data names an index (.straw.json), which needs --rollout-data-transport straw",
            "a .pt file holds the samples itself",
        )
    if args.rollout_data_transport == "nixl":
        yield Problem("--rollout-data-transport nixl is not supported", "object-store, or straw for a durable queue")
    if args.routing_replay_prefetch_microbatches < 0:
        yield Problem("--routing-replay-prefetch-microbatches is negative", "0 lets routes travel with their samples")
    if args.routing_replay_prefetch_microbatches > 0 and args.rollout_data_transport != "straw":
        yield Problem(
            "--routing-replay-prefetch-microbatches reads from a queue, which needs --rollout-data-transport straw"
        )
    if args.rollout_data_transport != "straw":
        return
    if find_spec("straw") is None:
        yield Problem(
            "--rollout-data-transport straw needs the straw-queue package", "pip install 'straw-queue>=0.1.6'"
        )
    if args.rollout_data_dir is None:
        yield Problem("--rollout-data-transport straw needs --rollout-data-dir or --save")
    if args.buffer_filter_path:
        yield Problem("--buffer-filter-path cannot be used with --rollout-data-transport straw")
    if args.rollout_storage_profile == "juicefs" and not args.rollout_storage_declaration:
        yield Problem("--rollout-storage-profile juicefs needs --rollout-storage-declaration")


def reward(args: Namespace) -> Iterator[Problem]:
    kind = base_name(args.rm_type or "")
    if not kind or args.custom_rm_path:
        return
    if kind not in KNOWN:
        near = nearest(kind, KNOWN)
        yield Problem(
            f"--rm-type {args.rm_type} is not known", f"did you mean {near}?" if near else f"known: {', '.join(KNOWN)}"
        )
    if kind in LABELLED and args.label_key is None and args.prompt_data is not None:
        yield Problem(f"--rm-type {args.rm_type} compares with a reference answer", "name its column with --label-key")
    if kind == "remote_rm" and args.rm_url is None:
        yield Problem("--rm-type remote_rm needs --rm-url")
    if args.group_rm and not args.custom_rm_path:
        yield Problem("--group-rm needs --custom-rm-path", "the built-in rewards score one answer at a time")


CHECKS: tuple[Check, ...] = (
    required,
    files_exist,
    reward,
    reference_exists,
    *SIZE_CHECKS,
    *ALGORITHM_CHECKS,
    checkpointing,
    evaluation,
    agents,
    placement,
    weight_update,
    rollout_schedule,
    generation_workers,
    queue,
    unsupported,
)
