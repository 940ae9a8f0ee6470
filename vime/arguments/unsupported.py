"""Options that are known, so that scripts of slime can be read, but that this version does nothing with.

Setting one to anything but its default is an error: an option that is silently ignored is worse than one that does not exist. What may be given
because it asks for what is so anyway is told instead (`notes`). Whoever implements one removes its line.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from vime.arguments import catalogue
from vime.errors import Problem

#: Attribute -> why it does nothing.
UNSUPPORTED = {
    "release_train": "trainer processes stay for the whole run; --offload-train frees their devices between steps",
    "prefill_num_servers": "prefill and decode servers need a network of their own between them; regular engines do both",
    "qwen_gdn_backend": "gated delta networks are not among the supported models",
    "freeze_indexer": "sparse attention is not among the supported models",
    "force_fp8_ue8m0_scale": "training in FP8 is not supported",
    "rollout_buffer_url": "an external generator plugs in with --rollout-function-path instead",
    "enable_mtp_training": "multi-token prediction layers are not among the supported models",
    "use_distributed_post": "the client keeps one pool of connections, which has sufficed",
    "recompute_loss_function": "--log-probs-chunk-size recomputes the loss chunk by chunk",
    "use_rollout_entropy": "the entropy of each training step is logged as train/entropy_loss",
    "keep_old_actor": "--use-rollout-logprobs takes the log-probabilities of the weights that sampled",
    "custom_model_provider_path": "the model follows from --hf-checkpoint",
    "multimodal_keys": "only text models are supported",
    "fetch_trajectory_retry_times": "an external generator plugs in with --rollout-function-path instead",
    "min_batch_collection_ratio": "an external generator plugs in with --rollout-function-path instead",
    "rollout_task_type": "an external generator plugs in with --rollout-function-path instead",
    "vllm_router_ip": "the client spreads requests itself; engines that run already are named with --rollout-external-engine-addrs",
    "vllm_router_port": "the client spreads requests itself; engines that run already are named with --rollout-external-engine-addrs",
    "rollout_session_id": "engines end with their run; to keep them, run them yourself and name them with --rollout-external-engine-addrs",
    "update_weight_mode": "whole weights are sent; on one host they do not leave its memory",
    "update_weight_local_checkpoint_dir": "whole weights are sent; no copy is kept to apply changes to",
    "load_forge_rollout_data": "recorded rollouts are replayed without engines, with --load-debug-rollout-data",
    "profile_target": "perf/* in metrics.jsonl and `vime trace` say where the time goes",
    "memory_snapshot_dir": "--dry-run prints the memory of each part",
    "memory_snapshot_num_steps": "--dry-run prints the memory of each part",
    "record_memory_history": "--dry-run prints the memory of each part",
    "ci_test": "the parity gate (--parity-threshold) is always on",
    "ci_disable_kl_checker": "there is no such check to turn off",
    "ci_save_grad_norm": "train/grad_norm is in metrics.jsonl",
    "ci_load_grad_norm": "train/grad_norm is in metrics.jsonl",
    "virtual_pipeline_model_parallel_size": "a pipeline rank has one stage",
    "overlap_param_gather": "parameters are gathered when the step ends",
}

#: Attribute -> why a flag may be given although nothing reads it: what it asks for is so anyway, or cannot matter here. `notes` tells.
WITHOUT_EFFECT = {
    "train_backend": "there is one",
    "model_name": "the family follows from the checkpoint's config.json",
    "loss_mask_type": "the masks of conversations follow from the model's chat template",
    "data_pad_size_multiplier": "packed rows are not padded",
    "seq_length": "sequences are packed",
    "make_vocab_size_divisible_by": "the embedding is padded to the tensor parallel size alone",
    "disable_bias_linear": "linear layers have the biases that the checkpoint has",
    "rotary_percent": "it follows from the checkpoint",
    "rotary_scaling_factor": "it follows from the checkpoint",
    "attention_backend": "the trainer takes the fastest attention that the device has",
    "attention_softmax_in_fp32": "it always is",
    "accumulate_allreduce_grads_in_fp32": "they always are",
    "no_rope_fusion": "it never is fused",
    "no_masked_softmax_fusion": "it never is fused",
    "no_gradient_accumulation_fusion": "it never is fused",
    "no_check_for_nan_in_loss_and_grad": "a loss that is not finite always stops the run, naming the samples",
    "wandb_always_use_train_step": "metrics have one axis, the rollout step",
    "rollout_health_check_interval": "the end of an engine's process is noticed at once",
    "rollout_health_check_first_wait": "the end of an engine's process is noticed at once",
    "rollout_cleanup_timeout": "an engine that does not stop within seconds is killed",
    "vllm_router_request_timeout_secs": "--rollout-request-timeout bounds a request",
    "ci_train_rollout_logprob_abs_diff_threshold": "--parity-threshold is the bound",
    "update_weight_delta_encoding": "whole weights are sent",
    "update_weight_delta_checksum": "every bucket of weights has a checksum",
    "memory_recorder": "nothing is recorded",
    "deterministic_mode": "on a CPU every step repeats bit for bit; on a GPU the kernels decide",
    "overlap_cpu_optimizer_d2h_h2d": "copies of the optimizer's state are not overlapped",
    "rollout_io_concurrency": "what a step writes is one write",
}


def notes(args: Namespace) -> list[str]:
    """A line for each flag that was given and has no effect."""
    return [f"{catalogue.by_name()[name].flag}: {why}" for name, why in WITHOUT_EFFECT.items() if name in args.given]


def unsupported(args: Namespace) -> Iterator[Problem]:
    for name, reason in UNSUPPORTED.items():
        option = catalogue.by_name()[name]
        if getattr(args, name) != option.default:
            yield Problem(f"{option.flag} is not supported", reason)
