"""A run on an engine that somebody else started, which is also its teacher: attached to, given every version, left running.

Teacher and student are then the same weights at every step, so the reverse KL must vanish, at another temperature than 1 too.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vime.arguments import parse_args
from vime.engine import command, net
from vime.engine.control import EngineControl
from vime.engine.process import EngineProcess
from vime.observe.metrics import read_metrics
from vime.toy import model, words

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[3]
STEPS = 2


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("served")
    checkpoint = model.write_model(folder / "start", seed=0)
    rows = words.write_rows(folder / "train.jsonl", [word for word, _ in zip(words.words(1), range(64), strict=False)])
    return [
        *("--hf-checkpoint", str(checkpoint), "--prompt-data", str(rows), "--input-key", "prompt", "--label-key", "answer"),
        *("--rm-type", "reverse_word", "--num-rollout", str(STEPS), "--rollout-batch-size", "4", "--n-samples-per-prompt", "2"),
        *("--rollout-max-response-len", "8", "--rollout-temperature", "0.8", "--device", "cpu", "--lr", "1e-3"),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def server(flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    args = parse_args([*flags, "--vllm-max-num-seqs", "16", "--vllm-max-logprobs", "-1"])
    process = EngineProcess(
        command.server_command(args, 0),
        command.server_environment(args, threads=1),
        net.hold_port("127.0.0.1"),
        tmp_path_factory.mktemp("log") / "engine.log",
    )
    try:
        process.wait_healthy(300)
        yield process
    finally:
        process.stop()


def test_an_external_engine_takes_the_weights_and_scores_as_the_teacher(
    flags: list[str], server: EngineProcess, tmp_path: Path
) -> None:
    models = tmp_path / "models.yaml"
    models.write_text(
        f"vllm:\n  - {{name: policy, urls: ['{server.url}']}}\n"
        f"  - {{name: teacher, urls: ['{server.url}'], update_weights: false}}\n"
    )
    run = [*flags, "--vllm-config", str(models), "--use-opd", "--opd-type", "vllm", "--run-dir", str(tmp_path / "run")]
    run.append("--check-weight-update-equal")
    done = subprocess.run([sys.executable, str(ROOT / "train.py"), *run], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tensors were sent" in done.stdout
    steps = read_metrics(tmp_path / "run", "step")
    assert len(steps) == STEPS
    for step in steps:
        assert abs(step["train/opd_reverse_kl"]) < 1e-5
        assert step["train/train_rollout_logprob_abs_diff"] < 1e-5
    # Two updates and the first one; the server goes on with the last version, and was not paused.
    control = EngineControl(server.url)
    assert control.healthy(10)
    assert control.weight_version() == str(STEPS + 1)
    assert not control.is_paused()


def test_a_server_that_cannot_be_trained_with_is_refused_in_one_line(
    flags: list[str], server: EngineProcess, tmp_path: Path
) -> None:
    run = [*flags, "--bf16", "--rollout-external-engine-addrs", server.url, "--run-dir", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, str(ROOT / "train.py"), *run], capture_output=True, text=True, timeout=500)
    assert done.returncode == 5
    assert f"error: {server.url}: the server computes in float32, the trainer in bfloat16" in done.stderr
    assert "Traceback" not in done.stderr
