"""Folders that a run's processes share, put to the test from every node that has some of them before anything is written there."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vime.cluster.watch import wait
from vime.durable.probe import DEADLINE, Hand, Here, Party, probe, second_process
from vime.errors import MachineError

log = logging.getLogger(__name__)

#: Seconds for an order to a node, beside what the order itself waits for.
_MARGIN = 60.0


class NodeHand(Hand):
    """A party of a probe on its node, as a Ray actor."""

    def missing(self, paths: list[str]) -> list[str]:
        return [path for path in paths if not Path(path).exists()]


class NodeParty:
    """Orders to a `NodeHand`."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name, self.actor = name, actor

    def order(self, act: str, *given: Any) -> Callable[[], Any]:
        import ray

        ref = getattr(self.actor, act).remote(*given)

        def answer() -> Any:
            try:
                return wait([ref], owner=f"{self.name} (shared folders)", deadline=DEADLINE + _MARGIN)[0]
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, OSError):
                    raise error.cause from None
                raise

        return answer


_PATHS = (
    *("hf_checkpoint", "load", "save", "save_hf", "ref_load", "opd_teacher_load", "run_dir", "dump_details"),
    *("rollout_data_dir", "rollout_storage_declaration", "update_weight_disk_dir"),
    *("prompt_data", "save_debug_rollout_data", "load_debug_rollout_data", "save_debug_train_data"),
)


def absolute_paths(args: Namespace) -> None:
    """Make paths of the command line absolute: a cluster's workers were started in other folders than the driver."""
    for name in _PATHS:
        path = getattr(args, name, None)
        # A checkpoint may be a name on a hub.
        if path is not None and (name != "hf_checkpoint" or Path(path).exists()):
            setattr(args, name, str(Path(path).absolute()))
    pairs = args.eval_prompt_data or []
    args.eval_prompt_data = [str(Path(one).absolute()) if place % 2 else one for place, one in enumerate(pairs)] or None


def check_folders(args: Namespace, nodes: Mapping[str, str]) -> None:
    """`nodes`: id -> address of the other nodes that processes of the run are on.

    Raises MachineError, one line: a folder that not all see alike, or a checkpoint that a node lacks.
    """
    queue = args.rollout_data_transport == "straw" and not args.debug_train_only
    shared = {"--rollout-data-dir": args.rollout_data_dir} if queue else {}
    if nodes:
        shared["--save"] = args.save
        if args.update_weight_transport == "disk":
            shared["--update-weight-disk-dir"] = args.update_weight_disk_dir
        _check_checkpoint(args, nodes)
    for flag, folder in shared.items():
        if folder is not None:
            _check(flag, Path(folder).resolve(), nodes)


def _check(flag: str, folder: Path, nodes: Mapping[str, str]) -> None:
    import ray

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(f"{flag}: {error.strerror or error}", where=str(folder)) from error
    here = Here("this process", Hand(folder))
    if not nodes:
        with second_process(folder) as child:
            seconds = probe(folder, [here, child], flag)
    else:
        actors = {address: _on(node, str(folder)) for node, address in nodes.items()}
        parties: list[Party] = [NodeParty(f"node {address}", actor) for address, actor in actors.items()]
        seconds = probe(folder, [here, *parties], flag)
        for actor in actors.values():
            ray.kill(actor)
    log.info("%s %s: seen alike by %d processes, in %.2f s", flag, folder, 1 + max(1, len(nodes)), seconds)


def _check_checkpoint(args: Namespace, nodes: Mapping[str, str]) -> None:
    """Trainers and engines read it wherever they are."""
    paths = [str(Path(args.hf_checkpoint).resolve())] if Path(args.hf_checkpoint).exists() else []
    for node, address in nodes.items():
        party = NodeParty(f"node {address}", _on(node, "/"))
        if missing := party.order("missing", paths)():
            raise MachineError(
                f"--hf-checkpoint: node {address} has no {missing[0]}", hint="put it on a folder that all nodes mount"
            )


def _on(node: str, folder: str) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    placed = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(NodeHand).options(num_cpus=0, scheduling_strategy=placed).remote(folder)
