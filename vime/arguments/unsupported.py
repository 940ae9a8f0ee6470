"""Options that are known, so that scripts of slime can be read, but that this version does nothing with.

Setting one to anything but its default is an error: an option that is silently ignored is worse than one that does not exist. Whoever
implements one removes its line.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from vime.arguments import catalogue
from vime.errors import Problem

#: Attribute -> why it does nothing.
UNSUPPORTED = {
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
}


def unsupported(args: Namespace) -> Iterator[Problem]:
    for name, reason in UNSUPPORTED.items():
        option = catalogue.by_name()[name]
        if getattr(args, name) != option.default:
            yield Problem(f"{option.flag} is not supported", reason)
