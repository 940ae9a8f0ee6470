"""Each cross check, by what makes it speak and what does not."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from vime.arguments.checks import check
from vime.arguments.parse import parse_args
from vime.errors import Problems

Make = Callable[..., Namespace]

SPOKEN = [
    ("--rm-type maths", "did you mean math?"),
    ("--rm-type remote_rm", "needs --rm-url"),
    ("--group-rm", "--group-rm needs --custom-rm-path"),
    ("--rollout-temperature 0", "--rollout-temperature 0.0"),
    ("--rollout-top-p 0", "--rollout-top-p 0.0"),
    ("--rollout-top-k 0", "--rollout-top-k 0"),
    ("--eval-top-k 0", "--eval-top-k 0"),
    ("--eval-max-response-len 0", "--eval-max-response-len is 0"),
    ("--kl-coef 0.1 --use-kl-loss --kl-loss-coef 0.1", "are both set"),
    ("--kl-loss-coef 0.1", "no effect without --use-kl-loss"),
    ("--use-unbiased-kl", "no effect without --use-kl-loss"),
    ("--use-kl-loss --ref-load /nowhere", "--ref-load missing: /nowhere does not exist"),
    ("--advantage-estimator reinforce_plus_plus", "needs --normalize-advantages"),
    ("--use-rollout-logprobs --use-tis", "leave no ratio to correct"),
    ("--get-mismatch-metrics", "needs --custom-tis-function-path"),
    ("--use-tis --tis-clip-low 3", "0 <= low <= high"),
    ("--save-interval 2", "--save-interval without --save"),
    ("--eval-interval 2", "--eval-interval without a dataset"),
    ("--eval-prompt-data dev", "takes pairs NAME PATH"),
    ("--over-sampling-batch-size 3", "smaller than --rollout-batch-size 4"),
    ("--update-weight-mode delta", "--update-weight-mode is not supported"),
    ("--update-weight-local-checkpoint-dir /x", "--update-weight-local-checkpoint-dir is not supported"),
    ("--rollout-external-engine-addrs h:1 --offload-rollout", "--offload-rollout with engines that run already"),
    ("--update-weight-transport disk", "needs --update-weight-disk-dir"),
    ("--update-weight-transport nccl", "nccl needs GPUs"),
    ("--custom-generate-function-path vime.agents.run.generate", "needs --agent-path"),
    ("--agent-path a.b --custom-generate-function-path a.c", "the agent is run by vime.agents.run.generate"),
    ("--agent-max-turns 0", "must be over 0"),
    ("--custom-update-weight-post-write-path a.b", "needs --update-weight-transport disk"),
    ("--distributed-backend nccl", "needs GPUs"),
    ("--release-train", "--release-train is not supported"),
    ("--update-weights-interval 2", "--update-weights-interval is gone"),
    ("--rollout-max-prompt-len 512", "leaves no token for an answer"),
    ("--rollout-max-response-len 512", "does not fit --rollout-max-context-len 512"),
    ("--rollout-max-context-len 1024", "longer than the model's 512 positions"),
    ("--rollout-max-response-len 0", "--rollout-max-response-len is 0"),
    ("--use-opd", "--use-opd needs --opd-type"),
    ("--use-opd --opd-type megatron", "needs --opd-teacher-load"),
    ("--use-opd --opd-type vllm --opd-teacher-load /x", "no effect with --opd-type vllm"),
    ("--opd-type vllm", "no effect without --use-opd"),
    ("--use-score-centering --rollout-top-k 5", "needs --rollout-top-k -1"),
    ("--use-score-centering --rollout-top-p 0.9", "vllm-score-centering.patch"),
    ("--rollout-top-p 0.9", "on a CPU"),
    ("--use-rollout-routing-replay", "on a CPU"),
    ("--use-score-centering --advantage-estimator gspo", "with gspo"),
    ("--use-score-centering --use-opsm", "--use-score-centering with --use-opsm"),
    ("--use-score-centering --use-tis --tis-clip inf", "finite --tis-clip"),
    ("--rollout-data-transport straw", "needs --rollout-data-dir or --save"),
    ("--rollout-data-transport straw --save /tmp/x --buffer-filter-path a.b", "--buffer-filter-path cannot be used"),
    ("--flush-cache-interval 3 --colocate", "--rollout-schedule in-flight with --colocate"),
    ("--flush-cache-interval 3 --rollout-schedule fully-async", "only --rollout-schedule in-flight keeps what"),
    ("--max-policy-lag -1", "--max-policy-lag -1"),
    ("--rollout-schedule one-step-ahead --max-policy-lag 2", "one step ahead is a lag of 1"),
    ("--rollout-schedule one-step-ahead --partial-rollout", "say fully-async"),
    ("--rollout-schedule fully-async --max-policy-lag 0", "say synchronous"),
    ("--rollout-schedule fully-async --over-sampling-batch-size 8", "what is left over is kept"),
    ("--use-dynamic-batch-size", "needs --max-tokens-per-gpu"),
    ("--balance-by-flops", "needs --use-dynamic-batch-size"),
    ("--global-batch-size 3", "nearest that do: 2 or 4"),
    ("--global-batch-size 4 --num-steps-per-rollout 3", "is not 8 samples"),
    ("--actor-num-gpus-per-node 3 --tensor-model-parallel-size 2", "3 trainer ranks cannot be cut"),
    ("--actor-num-gpus-per-node 3 --global-batch-size 8", "no multiple of 3"),
    ("--actor-num-gpus-per-node 8 --tensor-model-parallel-size 8", "4 num attention heads cannot be cut"),
    ("--actor-num-gpus-per-node 3 --pipeline-model-parallel-size 3", "layers cannot be spread over"),
    ("--decoder-last-pipeline-num-layers 1", "--decoder-last-pipeline-num-layers 1 without stages"),
    ("--hidden-dropout 0.1", "the engine drops nothing"),
    ("--rollout-num-gpus 3 --rollout-num-gpus-per-engine 2", "no multiple of --rollout-num-gpus-per-engine 2"),
    ("--rollout-num-gpus 0", "leaves nobody to generate"),
    ("--loss-type sft_loss --rollout-num-gpus 1", "needs no engines"),
    ('--multimodal-keys {"image":"images"}', "only text models are supported"),
    ("--loss-type custom_loss", "needs --custom-loss-function-path"),
    ("--eps-clip-c 0.5", "dual clip is over 1"),
    ("--only-train-params-name-list a --freeze-params-name-list b", "exclude each other"),
    ("--use-stateless-adam", "keeps no optimizer state"),
    ("--mask-offpolicy-in-partial-rollout", "without --partial-rollout"),
    ("--max-failed-sample-ratio 0", "a share in (0, 1]"),
    ("--save-debug-train-data x --save-debug-rollout-data x", "name the same file"),
    ("--debug-rollout-only --debug-train-only", "exclude each other"),
    ("--n-samples-per-prompt 1", "--n-samples-per-prompt 1 teaches nothing"),
    ("--prompt-data /nowhere.jsonl", "no file /nowhere.jsonl"),
    ("--group-rm --eval-prompt-data dev /nowhere.jsonl", "cannot score evaluation"),
    ("--qwen-gdn-backend flashqla", "--qwen-gdn-backend is not supported"),
]


@pytest.mark.parametrize(("flags", "said"), SPOKEN)
def test_a_check_speaks(make_args: Make, flags: str, said: str) -> None:
    with pytest.raises(Problems) as error:
        make_args(*flags.split())
    assert said in error.value.render()
    given = [flag for flag in flags.split() if flag.startswith("--")]
    assert any(flag in f"{one.title} {one.hint}" for one in error.value.problems for flag in given)


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--use-kl-loss --kl-loss-coef 0.1",
        "--advantage-estimator reinforce_plus_plus --normalize-advantages",
        "--use-rollout-logprobs --use-tis --pg-loss-type reinforce",
        "--n-samples-per-prompt 1 --advantage-estimator ppo",
        "--n-samples-per-prompt 1 --debug-rollout-only",
        "--loss-type sft_loss --n-samples-per-prompt 1",
        "--actor-num-gpus-per-node 2 --tensor-model-parallel-size 2",
        "--actor-num-gpus-per-node 2 --pipeline-model-parallel-size 2",
        "--use-score-centering --use-tis",
        "--partial-rollout --mask-offpolicy-in-partial-rollout",
        "--rollout-num-gpus 0 --rollout-external-engine-addrs 127.0.0.1:8000",
    ],
)
def test_a_sound_run_passes(make_args: Make, flags: str) -> None:
    assert check(make_args(*flags.split())) == []


def test_all_problems_are_reported_at_once(make_args: Make) -> None:
    with pytest.raises(Problems) as error:
        make_args("--rollout-temperature", "-1", "--save-interval", "2", "--global-batch-size", "3")
    assert len(error.value.problems) == 3
    assert error.value.render().startswith("error: 3 problems with the arguments\n  - ")


def test_an_empty_command_line_says_what_is_missing() -> None:
    with pytest.raises(Problems) as error:
        parse_args([])
    for flag in (
        "--hf-checkpoint",
        "--rollout-batch-size",
        "--prompt-data",
        "--num-rollout",
        "--rollout-max-response-len",
        "--rm-type",
    ):
        assert f"{flag}" in error.value.render()


def test_a_group_size_that_does_not_divide_names_valid_ones(make_args: Make) -> None:
    """Public report trl#3199: "4 not divisible by 1"."""
    with pytest.raises(Problems) as error:
        make_args("--n-samples-per-prompt", "3", "--rollout-batch-size", "4", "--global-batch-size", "8")
    assert "--global-batch-size 8 does not divide the 12 samples of a step (4 prompts x 3)" in error.value.render()
    assert "nearest that do: 6 or 12" in error.value.render()


def test_model_flags_follow_the_checkpoint_or_are_refused(make_args: Make) -> None:
    """Public report slime#1059: the model script and the checkpoint disagreed, and training went on silently wrong."""
    args = make_args("--num-layers", "4", "--swiglu", "--norm-epsilon", "1e-6")
    assert (args.hidden_size, args.ffn_hidden_size, args.num_query_groups, args.kv_channels) == (128, 320, 2, 32)
    assert (args.add_qkv_bias, args.untie_embeddings_and_output_weights, args.rotary_base) == (True, False, 10000.0)
    with pytest.raises(Problems) as error:
        make_args("--num-layers", "5", "--rotary-base", "1e6", "--untie-embeddings-and-output-weights")
    assert len(error.value.problems) == 3
    assert "--num-layers 5 contradicts" in error.value.render()


def with_config(make_args: Make, checkpoint: Path, tmp_path: Path, *flags: str, **changes: object) -> Namespace:
    (tmp_path / "config.json").write_text(json.dumps(json.loads((checkpoint / "config.json").read_text()) | changes))
    return make_args("--hf-checkpoint", str(tmp_path), *flags)


def test_a_head_size_without_a_cpu_kernel_is_found_before_the_first_request(
    make_args: Make, checkpoint: Path, tmp_path: Path
) -> None:
    """With head size 16 the server starts and the first request kills it."""
    with pytest.raises(Problems, match="1 problem") as error:
        with_config(make_args, checkpoint, tmp_path, num_attention_heads=8)
    assert "no attention for heads of 16" in error.value.render()


def test_quantisation_blocks_must_fit_the_tensor_parallel_size(
    make_args: Make, checkpoint: Path, tmp_path: Path
) -> None:
    """Public report slime#1796: "48 % 128"."""
    changes = {"intermediate_size": 384, "quantization_config": {"weight_block_size": [128, 128]}}
    with pytest.raises(Problems) as error:
        with_config(
            make_args, checkpoint, tmp_path, "--rollout-num-gpus", "2", "--rollout-num-gpus-per-engine", "2", **changes
        )
    assert "intermediate_size 384 cannot be cut into 2 parts" in error.value.render()
    assert "--rollout-num-gpus-per-engine 1 fits" in error.value.render()
