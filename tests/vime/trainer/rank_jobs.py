"""What each of several trainer processes does in `test_ranks`. A module of its own, so that spawned processes import it."""

from __future__ import annotations

import os
import traceback
from multiprocessing.queues import Queue
from typing import Any

import numpy
import torch
from tiny_models import add_supports, make_args, make_samples

from vime.engine import net
from vime.errors import VimeError
from vime.sample import Sample
from vime.trainer import parallel
from vime.trainer.trainer import Trainer


def run(rank: int, world: int, ports: Queue[int], jobs: dict[str, dict[str, Any]], results: Queue[Any]) -> None:
    """Do every job on this rank, each in a fresh world, and report (rank, {job: outcome or traceback})."""
    torch.set_num_threads(1)
    # The store exists already: torch must join it instead of opening one.
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    outcomes: dict[str, Any] = {}
    for name, job in jobs.items():
        if rank == 0:
            store = net.open_rendezvous("127.0.0.1", world)  # kept until the next one: the others may still leave it
            for _ in range(world - 1):
                ports.put(store.port)
            port = store.port
        else:
            port = ports.get(timeout=600)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        try:
            outcomes[name] = train(rank, world, **job)
        except Exception:
            outcomes[name] = traceback.format_exc()
            break
        finally:
            parallel.destroy_process_groups()
    results.put((rank, outcomes))


def recorded(samples: list[Sample]) -> list[Sample]:
    """With everything that an engine may record: supports, and experts that no router would choose."""
    for sample in add_supports(samples):
        random = numpy.random.default_rng(sample.index)
        rows = [[random.permutation(8)[:2] for _ in range(2)] for _ in sample.tokens[:-1]]
        sample.rollout_routed_experts = numpy.array(rows)
    return samples


def train(
    rank: int,
    world: int,
    checkpoint: str,
    flags: dict[str, Any],
    rollouts: list[int],
    save_after: int | None = None,
    layers: bool = False,
) -> dict[str, Any]:
    """Train on seeded rollouts; returns metrics of each, exported weights, and log-probabilities of a fixed batch.

    `layers`: also how each layer differs from Hugging Face's, and the refusal of a rollout that the engine did not sample."""
    trainer = Trainer(make_args(checkpoint, **flags), rank=rank, world_size=world)
    start = trainer.init()
    first_weights = {name: tensor.clone().numpy() for name, tensor in trainer.iter_hf_weights()}
    metrics = []
    for rollout in rollouts:
        metrics.append(trainer.train(rollout, recorded(make_samples(4, 2, seed=rollout))))
        if rollout == save_after:
            trainer.save(rollout, blob={"cursor": rollout})
    found: dict[str, Any] = {}
    if layers:
        found["layers"] = trainer.first_divergent_layer(make_samples(3, 2, seed=5)).differences
        # One sample leaves a data rank without work, which ranks that share experts may not be.
        count = 1 if trainer.layout.expert == 1 else 4
        trainer.args.parity_threshold, trainer.args.global_batch_size = 0.0, count
        try:
            trainer.train(9, recorded(make_samples(count, 1, seed=9)))
        except VimeError as error:
            found["refusal"] = str(error)
    return found | {
        "start": start,
        "restored": trainer.restored,
        "first_weights": first_weights,
        "metrics": metrics,
        "weights": {name: tensor.clone().numpy() for name, tensor in trainer.iter_hf_weights()},
        "log_probs": [x.numpy() for x in trainer.log_probs(recorded(make_samples(3, 2, seed=77)))],
        "shard_sizes": sum(p.numel() for p in trainer.model.parameters()),
    }
