"""A trainer that died is replaced, and its steps since the checkpoint are done again, while engines and rollout manager stay up.

Starting a server takes many times as long as starting a trainer. What else dies ends the run, and the same command resumes it: the driver takes
everything with it (see `guardian`), and without the rollout manager nobody holds the queue.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from vime.cluster.weights import WeightUpdater
from vime.errors import VimeError
from vime.observe.ledger import Ledger

if TYPE_CHECKING:
    from vime.cluster.run import Run

log = logging.getLogger(__name__)

#: How often the same checkpoint is gone back to before the run is given up: what always fails there will fail again.
_TIMES = 3


def recover(run: Run, error: VimeError) -> bool:
    """Whether `error` came of a dead trainer and the run can go on, from its newest checkpoint. Called by the driver's loop.

    Only with ``--use-fault-tolerance`` and a checkpoint to go back to, and not where trainer and engines take turns on the same devices.
    """
    args = run.args
    if (
        not args.use_fault_tolerance
        or args.load is None
        or args.load != args.save
        or args.offload_rollout
        or args.offload_train
        or args.debug_train_only
    ):
        return False
    lost = run.trainers.lost()
    if not lost:
        return False
    run.trainers.kill()
    run.recoveries += 1
    run.console.say(
        f"trainer rank {', '.join(map(str, lost))} died ({error.title.splitlines()[0]}); starting it anew, engines stay up"
    )
    trainers = run.respawn(run.recoveries)
    start, _ = trainers.init()
    run.resumed[start] += 1
    if run.resumed[start] > _TIMES:
        return False
    unsure = run.weights.unsure
    run.rollouts.restart(start - 1)
    run.ledger.close()
    run.ledger = Ledger(run.session.directory, start)
    run.trainers, run.start = trainers, start
    run.weights = WeightUpdater(args, trainers, run.engines, start, run.weights.schedule)
    run.weights.unsure = unsure
    run.console.say(f"going on at step {start + 1} of {run.total}")
    return True
