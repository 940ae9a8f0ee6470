"""Routing replay from end to end (R3): a real vLLM records experts, and a real Megatron trainer sends tokens to them again.

vLLM records routed experts in its second model runner only, whose kernels are Triton's; Triton's interpreter runs it on a CPU.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from served_engine import Served

from vime.engine import command, net, requirements
from vime.engine.client import HttpEngineClient
from vime.engine.control import EngineControl
from vime.engine.process import EngineProcess
from vime.rollout.client import Generation, SamplingParams
from vime.sample import ResponseMeta, Sample, Status
from vime.transport import shm
from vime.transport.bucket import Offer, pack

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

TESTS = Path(__file__).parents[2]
sys.path.insert(0, str(TESTS / "vime" / "trainer"))

LIMIT = 1e-5
PROMPTS = [[5, 17, 20, 9, 12, 7, 33], [40, 3, 8], [11, 90, 60, 61, 62], [7, 7, 7, 21]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen3-MoE of three layers, the first one dense."""
    import tiny_models

    return tiny_models.make_checkpoint(tmp_path_factory.mktemp("moe") / "m", "qwen3_moe", layers=3, mlp_only_layers=[0])


@pytest.fixture(scope="module")
def recording(engine_args: Namespace, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    args = Namespace(
        **vars(engine_args)
        | {"hf_checkpoint": str(folder), "use_rollout_routing_replay": True, "rollout_max_context_len": 64}
    )
    inside, triton = TESTS / "patches" / "inside", Path(sys.prefix) / "share" / "triton"
    if not triton.is_dir():
        pytest.fail(f"no Triton in {triton}: run 'make .venv/.triton'", pytrace=False)
    words = command.server_command(args, 0)
    words.insert(words.index("-m"), str(inside / "interpreted.py"))
    environment = command.server_environment(args, threads=1)
    process = EngineProcess(
        words,
        environment | {"PYTHONPATH": os.pathsep.join(map(str, (inside, triton)))},
        net.hold_port("127.0.0.1"),
        tmp_path_factory.mktemp("log") / "engine.log",
    )
    try:
        process.wait_healthy(240)
        control = EngineControl(process.url)
        control.init_weight_transfer(0, 60)
        yield Served(process, control, (folder, folder))
    finally:
        process.stop()


def draw(recording: Served, seed: int) -> list[Sample]:
    """Two answers to each prompt, as a rollout makes samples of them."""
    asked = SamplingParams(max_tokens=10, n=2, seed=seed)

    async def all_prompts(client: HttpEngineClient) -> list[list[Generation]]:
        return await asyncio.gather(
            *(client.generate_group(p, asked, session_id=f"{seed}-{i}", timeout=100) for i, p in enumerate(PROMPTS))
        )

    samples = []
    for group, (prompt, answers) in enumerate(zip(PROMPTS, recording.ask(all_prompts), strict=True)):
        for answer in answers:
            index = len(samples)
            sample = Sample(
                index=index, group_index=group, rollout_id=index, tokens=list(prompt), reward=float(index % 3)
            )
            meta = ResponseMeta(routed_experts=answer.routed_experts)
            replaying = SimpleNamespace(use_rollout_routing_replay=True)
            sample.append_response_tokens(replaying, answer.token_ids, answer.logprobs, True, meta)
            sample.status = Status.COMPLETED
            samples.append(sample)
    return samples


def push(recording: Served, trainer: Any, version: int, run_id: str) -> None:
    metas = tuple(shm.write(pack(trainer.iter_hf_weights(), 1 << 20), run_id, str(version)))
    recording.control.update_weights(Offer(str(version), "shm", metas))
    shm.remove(run_id)


def gaps(recording: Served, folder: Path, steps: int, **flags: Any) -> list[float]:
    """Largest |log p trainer - log p engine| of each step; the engine gets the trainer's weights before each."""
    import tiny_models

    from vime.trainer.trainer import Trainer

    trainer = Trainer(tiny_models.make_args(folder, use_rollout_routing_replay=True, parity_threshold=LIMIT, **flags))
    trainer.init()
    found, run_id = [], f"test-{uuid.uuid4().hex[:8]}"
    for step in range(steps):
        push(recording, trainer, step + 1, run_id)
        samples = draw(recording, seed=step)
        for sample in samples:
            rows = sample.rollout_routed_experts
            assert rows.dtype == np.uint8
            assert rows.shape == (len(sample.tokens) - 1, 3, 2)
        found.append(trainer.train(step, samples)["train/train_rollout_logprob_abs_diff_max"])
        # The last forward pass was of the last micro-batch; its tokens went where the engine sent them.
        chosen = trainer.routing.chosen().numpy()
        last = samples[-1].rollout_routed_experts[:, 1:]
        assert np.array_equal(np.sort(chosen[-len(last) - 1 : -1]), np.sort(last))
    return found


def test_the_server_says_that_it_returns_them(recording: Served, engine_args: Namespace) -> None:
    args = Namespace(**vars(engine_args) | {"use_rollout_routing_replay": True})
    requirements.check(args, recording.control.configuration(), recording.process.url)


def test_parity_stays_flat_while_nothing_is_learnt(recording: Served, folder: Path) -> None:
    assert max(gaps(recording, folder, 5, lr=0.0, min_lr=0.0)) <= LIMIT


def test_parity_stays_flat_while_experts_and_routers_move(recording: Served, folder: Path) -> None:
    assert max(gaps(recording, folder, 3, lr=3e-3)) <= LIMIT
