#!/usr/bin/env python3
"""The algorithm: place, then generate, check, train, save, push weights, evaluate, until the steps are done.

`python train.py` without arguments trains the toy (vime/toy) on this machine. `python train.py --help` lists the options.
"""

from __future__ import annotations

import sys
import time

from vime import environment

prepared = environment.prepare()  # before anything can load torch

from vime.arguments import parse_args  # noqa: E402
from vime.arguments.plan import describe, resolve_plan  # noqa: E402
from vime.cluster.run import Run, due, open_run  # noqa: E402
from vime.data.preflight import preflight, steps_of  # noqa: E402
from vime.errors import VimeError  # noqa: E402
from vime.hooks import check_hooks  # noqa: E402


def loop(run: Run) -> None:
    """Every step trains a batch, then hands the new weights to the engines. Whether they generate meanwhile: --rollout-schedule."""
    args = run.args
    # Always once, also after a resume: the engines hold the checkpoint's first weights, not the trainer's.
    run.push_weights()
    if args.eval_interval is not None and run.start == 0 and not args.skip_eval_before_train:
        run.evaluate(0)
    for rollout_id in range(run.start, run.total):
        began = time.time()
        samples, metrics, first = run.rollouts.generate(rollout_id)
        generated = time.time()
        # Refuses, naming the first layer that differs, when trainer and engine disagree (--parity-threshold).
        learnt, trained = run.train(rollout_id, samples)
        done = time.time()
        run.trained(rollout_id, trained, metrics | learnt)
        run.trace(rollout_id, first, [("generate", began, generated), ("train", generated, done)])
        if due(rollout_id, args.save_interval, run.total) and args.save:
            run.save(rollout_id)
        if args.save_hf and due(rollout_id, args.save_interval, run.total):
            run.trainers.save_hf(args.save_hf.format(rollout_id=rollout_id))
        pushed = run.push_weights()
        run.record_step(rollout_id, metrics | learnt | pushed | {"perf/step_time": time.time() - began})
        if due(rollout_id, args.eval_interval, run.total):
            run.evaluate(rollout_id + 1)


def main(argv: list[str]) -> int:
    """Exit code 0 when all steps were done; else a line that says why not."""
    try:
        if not argv:
            from vime.toy.flags import default_flags

            argv = default_flags()
        args = parse_args(argv)
        # Before a process starts: the user's functions by signature, every row of the prompt files, the number of steps.
        check_hooks(args)
        args.num_rollout = steps_of(args, preflight(args))
        if args.dry_run:
            print(describe(resolve_plan(args)))
            return 0
        with open_run(args, prepared) as run:
            run.to_end(loop)
            run.finish()
        return 0
    except VimeError as error:
        print(error.render(), file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped; with --save and --load the same command resumes", file=sys.stderr, flush=True)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
