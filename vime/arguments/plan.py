"""What a run would do, as a value: the answer to ``--dry-run``."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass

from vime.arguments import vllm
from vime.arguments.model_shape import cache_width, parameter_count
from vime.arguments.unsupported import notes


@dataclass(frozen=True)
class Processes:
    """What is started, and on how many devices (on a CPU: ranks). `frozen`: engines of models that are not trained, by name."""

    trainer_ranks: int
    engines: int
    devices_per_engine: int
    devices: int
    colocated: bool
    frozen: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Batches:
    """Sizes of one rollout step. tokens_* are upper bounds: every prompt and answer at its longest."""

    prompts: int
    samples: int
    optimizer_steps: int
    samples_per_optimizer_step: int
    data_parallel: int
    tokens_generated: int | None
    tokens_trained: int | None


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, without activations, which depend on kernels and recomputation."""

    parameters: int
    weights: int
    gradients: int
    optimizer: int
    reference: int
    engine_weights: int
    kv_cache_per_token: int
    #: Buckets that an update over device memory holds at a time.
    buckets: int = 0

    @property
    def trainer(self) -> int:
        """Of a training step; the reference waits on the host."""
        return self.weights + self.gradients + self.optimizer

    @property
    def update(self) -> int:
        """Of a weight update to engines on the trainer's devices, both sides together."""
        return self.weights + self.engine_weights + self.buckets


@dataclass(frozen=True)
class Plan:
    device: str
    steps: int | None
    processes: Processes
    batches: Batches
    memory: Memory | None
    weight_update: str
    engine_flags: tuple[str, ...]
    given: tuple[tuple[str, object], ...]
    notes: tuple[str, ...] = ()


def resolve_plan(args: Namespace) -> Plan:
    """The plan of resolved arguments (``parse_args``). Pure: nothing is started or read."""
    ranks = 0 if args.debug_rollout_only else args.actor_num_nodes * args.actor_num_gpus_per_node
    policy, *frozen = args.model_groups
    rollout_devices = sum(group.devices for group in args.model_groups)
    devices = max(ranks, rollout_devices) if args.colocate else ranks + rollout_devices
    engines = policy.count
    transport = args.update_weight_transport if engines and ranks else "none"
    return Plan(
        device=args.device,
        steps=args.num_rollout,
        processes=Processes(
            ranks,
            engines,
            policy.engines[0].devices if policy.engines else args.rollout_num_gpus_per_engine,
            devices,
            args.colocate,
            tuple((group.name, group.count) for group in frozen),
        ),
        batches=_batches(args, max(ranks, 1)),
        memory=_memory(args, max(ranks, 1)) if args.num_layers and args.hidden_size and args.vocab_size else None,
        weight_update=f"{args.update_weight_mode} over {transport}",
        engine_flags=tuple(vllm.engine_flags(args)) if engines else (),
        given=tuple(sorted((name, getattr(args, name)) for name in args.given if name != "wandb_key")),
        notes=tuple(notes(args)),
    )


def describe(plan: Plan) -> str:
    """The plan as a few lines of text."""
    unit = "GPU" if plan.device == "cuda" else "CPU rank"
    processes, batches = plan.processes, plan.batches
    lines = [
        f"device         {plan.device}",
        f"steps          {plan.steps if plan.steps is not None else 'from --num-epoch and the data'}",
        f"trainer        {_count(processes.trainer_ranks, unit)}, data parallel {batches.data_parallel}",
        f"engines        {processes.engines} vLLM of {_count(processes.devices_per_engine, unit)} each"
        + (", sharing devices with the trainer" if processes.colocated else ""),
        *(f"frozen         {name}: {engines} vLLM" for name, engines in processes.frozen),
        f"in all         {_count(processes.devices, unit)}",
        f"rollout step   {batches.prompts} prompts, {batches.samples} samples"
        + (f", at most {batches.tokens_generated:,} generated tokens" if batches.tokens_generated is not None else ""),
        f"training step  {batches.optimizer_steps} optimizer steps of {batches.samples_per_optimizer_step} samples"
        + (f", at most {batches.tokens_trained:,} tokens" if batches.tokens_trained is not None else ""),
        f"weights        {plan.weight_update}",
    ]
    if plan.memory is not None:
        memory = plan.memory
        lines += [
            f"parameters     {memory.parameters:,}",
            f"memory         trainer {_size(memory.trainer)} a device before activations (weights {_size(memory.weights)}, gradients "
            f"{_size(memory.gradients)}, optimizer {_size(memory.optimizer)}, reference {_size(memory.reference)} on the host)",
            f"               engine {_size(memory.engine_weights)} of weights a device, {memory.kv_cache_per_token:,} bytes of cache a token",
        ]
        if plan.processes.colocated and plan.device == "cuda":
            lines.append(
                f"               in turns: {_size(memory.trainer)} and activations in training, {_size(memory.update)} in a weight update, "
                "the engine's share of the device in generation"
            )
    if plan.engine_flags:
        lines.append(f"engine flags   {' '.join(plan.engine_flags)}")
    lines += [f"no effect      {note}" for note in plan.notes]
    lines.append("given          " + (", ".join(f"{name}={value!r}" for name, value in plan.given) or "nothing"))
    return "\n".join(lines)


def _batches(args: Namespace, ranks: int) -> Batches:
    samples = args.rollout_batch_size * args.n_samples_per_prompt
    model_ranks = args.tensor_model_parallel_size * args.pipeline_model_parallel_size * args.context_parallel_size
    longest = None
    if args.rollout_max_response_len is not None:
        prompt = args.rollout_max_prompt_len or 0
        longest = min(
            prompt + args.rollout_max_response_len,
            args.rollout_max_context_len or prompt + args.rollout_max_response_len,
        )
    return Batches(
        prompts=args.rollout_batch_size,
        samples=samples,
        optimizer_steps=samples // args.global_batch_size,
        samples_per_optimizer_step=args.global_batch_size,
        data_parallel=max(1, ranks // model_ranks),
        tokens_generated=samples * args.rollout_max_response_len if args.rollout_max_response_len is not None else None,
        tokens_trained=samples * longest if longest is not None else None,
    )


def _memory(args: Namespace, ranks: int) -> Memory:
    """Adam in mixed precision: 2 bytes of weights, 4 of gradients, 12 of fp32 master and moments; in fp32 4, 4 and 8."""
    count = parameter_count(args)
    half = args.bf16 or args.fp16
    model_ranks = args.tensor_model_parallel_size * args.pipeline_model_parallel_size
    local = count // model_ranks
    share = max(1, ranks // (model_ranks * args.context_parallel_size)) if args.use_distributed_optimizer else 1
    optimizer = local * (12 if half else 8) // share
    width = 2 if half else 4
    uses_reference = args.use_kl_loss or args.kl_coef != 0
    return Memory(
        parameters=count,
        weights=local * width,
        gradients=local * 4,
        optimizer=0 if args.optimizer_cpu_offload else optimizer,
        reference=local * width if uses_reference else 0,
        engine_weights=count * width // args.rollout_num_gpus_per_engine,
        kv_cache_per_token=args.num_layers * cache_width(args) * width,
        buckets=min(2 * args.update_weight_buffer_size, count * width) if args.update_weight_transport == "ipc" else 0,
    )


def _size(count: int) -> str:
    """Bytes for people: MiB below one GiB."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}" + ("" if number == 1 else "s")
