"""One real vLLM server for all tests of the session that ask for it, and the weights it can be given."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # helpers are plain modules

from served_engine import Served

from vime.engine import command, net
from vime.engine.control import EngineControl
from vime.engine.process import EngineProcess


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two random models of the toy's shape, with tied embeddings, far apart."""
    import torch
    from transformers import AutoModelForCausalLM

    from vime.toy.model import write_model

    root = tmp_path_factory.mktemp("served")
    folders = write_model(root / "a", seed=0), write_model(root / "b", seed=1)
    for number, folder in enumerate(folders):
        model = AutoModelForCausalLM.from_pretrained(folder)
        torch.manual_seed(number)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        # Long enough for tests to come between an answer's tokens.
        model.config.max_position_embeddings = 2048
        model.save_pretrained(folder)
    return folders


@pytest.fixture(scope="session")
def engine_args(model_folders: tuple[Path, Path]) -> Namespace:
    from vime.arguments import parse_args

    flags = {
        "--hf-checkpoint": model_folders[0],
        "--prompt-data": model_folders[0] / "config.json",
        "--rm-type": "random",
        "--num-rollout": 1,
        "--rollout-batch-size": 4,
        "--n-samples-per-prompt": 2,
        "--rollout-max-response-len": 32,
        "--device": "cpu",
        "--vllm-max-num-seqs": 64,
    }
    # Some tests ask the server how many requests it works on.
    return parse_args([*(str(part) for pair in flags.items() for part in pair), "--vllm-no-disable-log-stats"])


@pytest.fixture(scope="session")
def served(
    engine_args: Namespace, model_folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    process = EngineProcess(
        command.server_command(engine_args, 0),
        command.server_environment(engine_args, threads=1),
        net.hold_port("127.0.0.1"),
        tmp_path_factory.mktemp("log") / "engine.log",
    )
    try:
        process.wait_healthy(240)
        control = EngineControl(process.url)
        control.init_weight_transfer(0, 60)
        yield Served(process, control, model_folders)
    finally:
        process.stop()
