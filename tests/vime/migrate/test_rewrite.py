"""Scripts of slime in our words: what changes, what stays, what is said."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from synctool.policy.loading import load_policy
from vime.arguments import catalogue
from vime.cli.app import cli
from vime.cli.migrate_flags import POLICY, vocabulary
from vime.migrate.names import OTHER_FLAGS, PATHS, SGLANG_FLAGS, slime_hint
from vime.migrate.rewrite import Migrated, migrate

_SCRIPT = """#!/bin/bash
# trains slime on one node
source "$(dirname "$0")/models/tiny.sh"
SGLANG_ARGS=(
   --rollout-num-gpus-per-engine 8
   --sglang-mem-fraction-static 0.7   # leaves room
   --sglang-cuda-graph-bs 1 2 $(seq 8 8 32)
   --sglang-ep-size 8
   --sglang-enable-dp-lm-head
   --sglang-speculative-algorithm EAGLE
   --sglang-speculative-num-steps 3
   --sglang-speculative-eagle-topk 1
   --sglang-attention-backend fa3
   --sglang-kv-cache-dtype fp8_e4m3
)
ROLLOUT_ARGS=(
   --hf-checkpoint /models/tiny --prompt-data /data/p.jsonl --rm-type math --label-key label
   --rollout-batch-size 8 --n-samples-per-prompt 8 --rollout-max-response-len 64 --num-rollout 3
   --dynamic-sampling-filter-path slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std
)
ray job submit -- python3 train.py \\
   --actor-num-gpus-per-node 8 \\
   --sglang-disable-radix-cache \\
   --sglang-enable-metrics \\
   --colocate \\
   ${MODEL_ARGS[@]} ${ROLLOUT_ARGS[@]} \\
   ${SGLANG_ARGS[@]}
"""
_MODEL = "MODEL_ARGS=(\n   --spec slime_plugins.models.x get_spec\n   --num-layers 2\n   --hidden-size 64\n   --num-attention-heads 8\n   --vocab-size 99\n)\n"


@pytest.fixture(scope="module")
def migrated() -> Migrated:
    return migrate(_SCRIPT, vocabulary(POLICY), catalogue.by_flag())


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny.sh").write_text(_MODEL)
    path = tmp_path / "run.sh"
    path.write_text(_SCRIPT)
    path.chmod(0o755)
    return path


def test_flags_functions_and_words_become_ours(migrated: Migrated) -> None:
    for line in (
        "# trains vime on one node",
        "VLLM_ARGS=(",
        "   --vllm-gpu-memory-utilization 0.7   # leaves room",
        "   --vllm-cudagraph-capture-sizes 1 2 $(seq 8 8 32)",
        "   --vllm-enable-expert-parallel",
        '   --vllm-speculative-config \'{"method":"mtp","num_speculative_tokens":3}\'',
        "   --vllm-attention-backend FLASH_ATTN",
        "   --vllm-kv-cache-dtype fp8_e4m3",
        "   --dynamic-sampling-filter-path vime.rollout.filters.check_reward_nonzero_std",
        "ray job submit -- python3 train.py --bf16 --use-distributed-optimizer \\",
        "   --vllm-no-enable-prefix-caching \\",
    ):
        assert line in migrated.text.splitlines(), line
    assert not migrated.unknown


def test_what_has_no_equivalent_is_listed_and_stays_visible(migrated: Migrated) -> None:
    assert [(one.line, one.before) for one in migrated.dropped] == [
        (9, "--sglang-enable-dp-lm-head"),
        (24, "--sglang-enable-metrics"),
    ]
    assert "   # --sglang-enable-dp-lm-head  # vLLM has no such choice" in migrated.text.splitlines()
    # In a command a comment would end the line, so the flag is gone and the next one follows.
    assert "--vllm-no-enable-prefix-caching \\\n   --colocate \\\n" in migrated.text


def test_the_result_is_a_valid_script_with_nothing_left_to_change(migrated: Migrated) -> None:
    subprocess.run(["bash", "-n"], input=migrated.text, text=True, check=True)
    again = migrate(migrated.text, vocabulary(POLICY), catalogue.by_flag())
    assert (again.changes, again.dropped, again.unknown) == ((), (), ())


def test_unknown_flags_are_listed() -> None:
    found = migrate(
        "A=(\n  --sglang-brand-new 1\n  --rolout-batch-size 3\n)",
        lambda text: text.replace("sglang", "vllm"),
        catalogue.by_flag(),
    )
    assert [(one.line, one.before) for one in found.unknown] == [(2, "--vllm-brand-new"), (3, "--rolout-batch-size")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("--sglang-ep-size 1", ""),
        ("--sglang-mem-fraction-static=0.5", "--vllm-gpu-memory-utilization=0.5"),
        (
            "--sglang-moe-a2a-backend deepep --sglang-deepep-mode normal",
            "--vllm-all2all-backend deepep_high_throughput",
        ),
        (
            "--sglang-speculative-algorithm EAGLE --sglang-speculative-num-steps 2 --sglang-speculative-draft-model-path /d",
            '--vllm-speculative-config \'{"method":"eagle","num_speculative_tokens":2,"model":"/d"}\'',
        ),
    ],
)
def test_flags_that_become_one(before: str, after: str) -> None:
    found = migrate(f"python train.py --bf16 --use-distributed-optimizer {before}", str, catalogue.by_flag())
    assert " ".join(found.text.split()) == f"python train.py --bf16 --use-distributed-optimizer {after}".strip()


def test_supervised_training_has_no_schedule_of_generation() -> None:
    for flags, schedule in (("--loss-type sft_loss", False), ("--debug-train-only", False), ("--colocate", True)):
        found = migrate(f"python train_async.py {flags}", str, catalogue.by_flag())
        assert ("--rollout-schedule" in found.text) is schedule
        assert "train_async" not in found.text


def test_the_rules_agree_with_the_vocabulary_of_the_synced_fork() -> None:
    """Two tables that name the same flags must not part."""
    for flag in load_policy(POLICY).flags:
        rule = SGLANG_FLAGS[str(flag.from_)]
        assert flag.to is None or rule.to == flag.to, flag.from_


def test_hints_and_functions_name_what_exists() -> None:
    from importlib import import_module

    for rule in OTHER_FLAGS.values():
        assert rule.to is None
    assert slime_hint("--sglang-brand-new") == "use --vllm-brand-new"
    assert slime_hint("--rollout-batch-size") is None
    for ours in PATHS.values():
        module, _, name = ours.rstrip(".").rpartition(".")
        found = import_module(ours.rstrip(".")) if ours.endswith(".") else getattr(import_module(module), name)
        assert found


def test_check_holds_the_command_against_the_parser(script: Path) -> None:
    done = CliRunner().invoke(cli, ["migrate-flags", str(script), "--check", "--json"])
    assert done.exit_code == 0, done.output
    check = json.loads(done.stdout)["data"]["check"]
    assert check["problems"] == []
    assert "--num-layers" in check["commands"][0]


def test_a_refused_command_is_exit_2_with_the_reason(script: Path) -> None:
    script.write_text(_SCRIPT.replace("--rollout-batch-size 8", "--rollout-batch-size eight"))
    done = CliRunner().invoke(cli, ["migrate-flags", str(script), "--check"])
    assert done.exit_code == 2
    assert "'eight' is not a whole number" in done.stderr


def test_output_is_written_whole_with_the_mode_of_the_script(script: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["migrate-flags", str(script), "-o", str(tmp_path / "new.sh")])
    assert done.exit_code == 0
    assert done.stdout == ""
    assert "without an equivalent" in done.stderr
    assert (tmp_path / "new.sh").stat().st_mode & 0o777 == 0o755
    assert script.read_text() == _SCRIPT


@pytest.mark.parametrize(
    "arguments", [["/no/such.sh"], ["SCRIPT", "--policy", "/no/policy.toml"], ["SCRIPT", "-o", "/no/folder/x.sh"]]
)
def test_files_that_cannot_be_used_are_one_line(script: Path, arguments: list[str]) -> None:
    from vime.errors import UsageError

    done = CliRunner().invoke(cli, ["migrate-flags", *(str(script) if one == "SCRIPT" else one for one in arguments)])
    assert isinstance(done.exception, UsageError)


@pytest.mark.parametrize(
    ("flags", "schedule"),
    [
        ("", "--rollout-schedule one-step-ahead"),
        ("--partial-rollout", "--rollout-schedule fully-async"),
        (
            "--rollout-function-path slime.rollout.fully_async_rollout.generate_rollout_fully_async",
            "--rollout-function-path vime.rollout.fully_async_rollout.generate_rollout_fully_async",
        ),
    ],
)
def test_the_asynchronous_loop_becomes_a_schedule(flags: str, schedule: str) -> None:
    words = vocabulary(POLICY)
    text = migrate(f"python3 train_async.py {flags}\n", words, catalogue.by_flag()).text
    assert "train_async" not in text
    assert "python3 train.py" in text
    assert schedule in text
    assert text.count("schedule") == schedule.count("schedule")


_WORDS = ["--colocate", "--seed 3", "--sglang-enable-metrics", "--sglang-tp-size 2", "--sglang-ep-size 1"]
_BETWEEN = st.sampled_from([" ", "  ", " \\\n   ", "\t\\\n"])
_ENDING = st.sampled_from(["\n", " \n", " # told\n", "; echo next\n", " && echo next\n", " | cat\n"])


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.tuples(_BETWEEN, st.sampled_from(_WORDS)), max_size=5), _ENDING), max_size=3),
    st.booleans(),
)
def test_flags_that_go_take_no_other_word_and_join_no_commands(
    commands: list[tuple[list[tuple[str, str]], str]], cut: bool
) -> None:
    source, expected = "", []
    for given_words, ending in [*commands, ([(" ", "--sglang-enable-metrics")], "\n")]:
        source += "python3 train.py --fp16 --use-distributed-optimizer" + "".join(map("".join, given_words)) + ending
        kept = [word for _, word in given_words if not word.startswith("--sglang")]
        expected.append(" ".join(["--fp16 --use-distributed-optimizer", *kept]))
        expected += ["next"] * ("echo" in ending)
    migrated = migrate(source[:-1] if cut else source, lambda text: text, catalogue.by_flag()).text
    program = 'python3() { shift; echo "$@"; }\n'
    done = subprocess.run(["bash", "-c", program + migrated], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == expected, migrated


def test_the_last_line_of_a_script_without_a_newline_is_read_whole() -> None:
    found = migrate("A=(\n  --seed 3\n  --sglang-enable-metrics)", lambda text: text, catalogue.by_flag())
    assert found.text == "A=(\n  --seed 3\n  )"


def test_a_missing_backslash_is_put_back_and_told(migrated: Migrated) -> None:
    broken = _SCRIPT.replace("   --colocate \\\n", "   --colocate\n")
    found = migrate(broken, vocabulary(POLICY), catalogue.by_flag())
    assert found.text == migrated.text
    (told,) = set(found.changes) - set(migrated.changes)
    assert (told.line, told.before) == (25, "--colocate")
    assert "backslash" in told.note
    after = 'python3 train.py --seed 1\n"${CLEAN[@]}"\n'
    assert after.splitlines()[1] in migrate(after, lambda text: text, catalogue.by_flag()).text.splitlines()
    assert "--seed 1\n" in migrate(after, lambda text: text, catalogue.by_flag()).text
