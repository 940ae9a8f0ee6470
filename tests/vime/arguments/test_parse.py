"""The command line, configuration files, help and the reference page."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from vime.arguments import catalogue, vllm
from vime.arguments.config_file import read_config
from vime.arguments.help import help_text, reference_page
from vime.arguments.megatron import given_fields
from vime.arguments.parse import parse_args, read_flags
from vime.errors import Problems, UsageError
from vime.migrate.names import SGLANG_FLAGS

Make = Callable[..., Namespace]


def test_every_option_is_an_attribute(make_args: Make) -> None:
    """Hooks and trainers read attributes; none may need a default of its own."""
    args = make_args()
    assert not catalogue.by_name().keys() - vars(args).keys()


def test_no_name_or_flag_is_declared_twice() -> None:
    options = [option for group in catalogue.sections().values() for section in group for option in section.options]
    for kind in ("name", "flag"):
        names = [getattr(option, kind) for option in options]
        assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})


def test_unknown_flags_are_errors_with_the_nearest_real_one() -> None:
    """slime ignores a misspelt flag in silence."""
    with pytest.raises(Problems) as error:
        parse_args(["--rolout-batch-size", "4", "--vllm-max-modle-len", "8", "--tensor-model-paralel-size=2"])
    said = error.value.render()
    assert "did you mean --rollout-batch-size?" in said
    assert "did you mean --vllm-max-model-len?" in said
    assert "did you mean --tensor-model-parallel-size?" in said


def test_abbreviations_are_not_guessed() -> None:
    with pytest.raises(Problems, match="1 problem"):
        parse_args(["--rollout-batch", "4"])


def test_flags_of_slime_and_owned_fields_say_what_to_use() -> None:
    with pytest.raises(Problems) as error:
        parse_args(
            [
                "--sglang-mem-fraction-static",
                "0.8",
                "--vllm-tensor-parallel-size",
                "2",
                "--disable-rollout-global-dataset",
            ]
        )
    said = error.value.render()
    assert "use --vllm-gpu-memory-utilization" in said
    assert "--vllm-tensor-parallel-size is set by vime" in said
    assert "set --rollout-num-gpus-per-engine" in said
    assert "--data-source-path" in said


def test_every_translation_of_a_slime_flag_names_a_flag_that_exists() -> None:
    for rule in SGLANG_FLAGS.values():
        assert rule.to is None or rule.to in catalogue.by_flag(), rule


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--rollout-batch-size", "many"], "--rollout-batch-size: 'many' is not a whole number"),
        (["--loss-type", "sft"], "--loss-type: 'sft' is none of policy_loss, sft_loss, custom_loss"),
        (["--train-env-vars", "{a"], "--train-env-vars: '{a' is not JSON"),
        (["--rollout-batch-size"], "--rollout-batch-size: expected one argument"),
        (["--colocate", "true"], "'true' does not belong to any option"),
    ],
)
def test_a_bad_value_names_its_flag(argv: list[str], said: str) -> None:
    with pytest.raises(UsageError) as error:
        read_flags(argv)
    assert str(error.value) == said


def test_values_lists_negatives_and_switches() -> None:
    line = (
        "--rollout-top-k -1 --kl-coef -1e-3 --rollout-stop a b --colocate --no-colocate --disable-bias-linear --rollout-sample-hook-path m.a "
        "--rollout-sample-hook-path m.b --vllm-no-enable-prefix-caching --vllm-max-model-len=4k"
    )
    flags = read_flags(line.split())
    assert flags == {
        "rollout_top_k": -1,
        "kl_coef": -1e-3,
        "rollout_stop": ["a", "b"],
        "colocate": False,
        "disable_bias_linear": True,
        "rollout_sample_hook_path": ["m.a", "m.b"],
        "vllm_enable_prefix_caching": False,
        "vllm_max_model_len": 4000,
    }


def test_every_field_of_the_installed_engine_is_an_option_and_travels_back(make_args: Make) -> None:
    """Read from source, compared with the imported class."""
    from dataclasses import fields

    arg_utils = pytest.importorskip("vllm.engine.arg_utils")
    real = {field.name for field in fields(arg_utils.AsyncEngineArgs) if not field.name.startswith("_")}
    ours = {name.removeprefix("vllm_") for name in vllm.engine_options()}
    assert not real - ours - vllm.OWNED.keys()
    args = make_args(
        "--vllm-enforce-eager",
        "--vllm-no-enable-prefix-caching",
        "--vllm-max-num-seqs",
        "16",
        "--vllm-hf-overrides",
        '{"a": 1}',
    )
    assert sorted(vllm.engine_flags(args, {"dtype": "float32"})) == sorted(
        [
            "--enforce-eager",
            "--no-enable-prefix-caching",
            "--max-num-seqs",
            "16",
            "--hf-overrides",
            '{"a": 1}',
            "--dtype",
            "float32",
        ]
    )


def test_further_fields_of_megatron_core_reach_their_configuration(make_args: Make) -> None:
    args = make_args("--moe-z-loss-coeff", "0.5", "--muon-momentum", "0.9", "--bucket-size", "100")
    assert given_fields(args, "TransformerConfig") == {"moe_z_loss_coeff": 0.5}
    assert given_fields(args, "OptimizerConfig") == {"muon_momentum": 0.9}
    assert given_fields(args, "DistributedDataParallelConfig") == {"bucket_size": 100}


def test_the_help_text_needs_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess
    import sys

    code = "import sys; from vime.arguments.help import help_text; help_text('vime'); print([m for m in ('vllm', 'torch', 'megatron') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_help_and_reference_page_show_every_option() -> None:
    page, text = reference_page(), help_text("all", width=120)
    for flag in (option.flag for option in catalogue.by_name().values()):
        assert f"| `{flag}` |" in page
        assert f"  {flag}" in text
    assert "vime.data.source.RolloutDataSourceWithBuffer" in page


def test_the_command_line_overrides_the_file(make_args: Make, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('lr = 0.5\n[anything]\n"clip-grad" = 2\ncolocate = true\n[vllm]\nmax_model_len = 64\n')
    args = make_args("--config", str(path), "--lr", "0.25", "--no-colocate")
    assert (args.lr, args.clip_grad, args.colocate, args.vllm_max_model_len) == (0.25, 2.0, False, 64)
    assert {"lr", "clip_grad", "vllm_max_model_len"} <= args.given
    assert "kl_coef" not in args.given


def test_yaml_and_toml_mean_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('lr = 1e-4\nrollout_stop = ["x"]\ntrain_env_vars = {A = "1"}\n')
    (tmp_path / "a.yaml").write_text("lr: 1e-4\nrollout-stop: [x]\ntrain_env_vars: {A: '1'}\n")
    assert (
        read_config(str(tmp_path / "a.toml"))
        == read_config(str(tmp_path / "a.yaml"))
        == {
            "lr": 1e-4,
            "rollout_stop": ["x"],
            "train_env_vars": {"A": "1"},
        }
    )


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.toml", "lr = 1\n\nrollout_bach_size = 4\n", "a.toml:3: rollout_bach_size is not an option"),
        ("a.yaml", "lr: fast\n", "a.yaml:1: lr is 'fast', which is not a number"),
        ("a.yaml", "batch:\n  colocate: 1\n", "a.yaml:2: colocate is 1, which is not true or false"),
        ("a.toml", "[vllm]\nmax_modle_len = 4\n", "a.toml:2: vllm_max_modle_len is not an option"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_line(tmp_path: Path, name: str, content: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(Problems) as error:
        read_config(str(path))
    assert said in error.value.render()


@pytest.mark.parametrize(("name", "content"), [("a.toml", "lr = \n"), ("a.yaml", "a: [\n"), ("a.yaml", "- 1\n")])
def test_a_file_that_cannot_be_parsed_is_a_usage_error(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=name):
        read_config(str(tmp_path / name))


def test_custom_attributes_come_last_and_near_misses_are_refused(make_args: Make, tmp_path: Path) -> None:
    path = tmp_path / "custom.yaml"
    path.write_text("lr: 0.125\nmy_reward_scale: 3\n")
    args = make_args("--custom-config-path", str(path), "--lr", "1")
    assert (args.lr, args.my_reward_scale) == (0.125, 3)
    path.write_text("rollout_batch_siz: 3\n")
    with pytest.raises(UsageError, match="one letter from the option rollout_batch_size"):
        make_args("--custom-config-path", str(path))


def test_defaults_are_not_shared_between_runs(make_args: Make) -> None:
    make_args().train_env_vars["A"] = "1"
    assert make_args().train_env_vars == {}
