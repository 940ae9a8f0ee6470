"""A driver on a node of a cluster, without engines and trainers: places, checks folders, asks an actor on each device where it is, and after a line
on its input says what became of the second. ``python -m tests.vime.cluster.on_node PICKLED_ARGUMENTS``."""

from __future__ import annotations

import os
import pickle
import sys
import time
from pathlib import Path

from vime.cluster import processes
from vime.cluster.folders import check_folders
from vime.cluster.session import Session
from vime.cluster.watch import Deaths, wait
from vime.errors import VimeError


class Actor:
    def where(self) -> tuple[str, str | None]:
        from vime.engine.net import hold_port, own_host

        port = hold_port(own_host())
        try:
            return port.host, os.environ.get(processes.RUN_VARIABLE)
        finally:
            port.close()

    def died(self) -> None:
        time.sleep(600)


def main(path: str) -> None:
    import ray

    args = pickle.loads(Path(path).read_bytes())
    with Session(args) as session:
        session.start_ray(2)
        placement = session.place(1, [1], 2)
        print(placement.across(), flush=True)
        check_folders(args, session.other_nodes(placement))
        print("folders are shared", flush=True)
        bundles = (placement.trainers[0], placement.engines[0][0])
        remote = ray.remote(Actor)
        actors = [remote.options(max_concurrency=2, **session.options(bundle, 1, {})).remote() for bundle in bundles]
        print(wait([actor.where.remote() for actor in actors], owner="actors", deadline=60), flush=True)
        deaths = Deaths()
        deaths.watch(actors[1].died.remote(), "engine 0")
        sys.stdin.readline()
        for says in (
            lambda: wait([actors[0].died.remote()], owner="trainer", deadline=90, deaths=deaths),
            lambda: wait([actors[1].where.remote()], owner="actor", deadline=90),
            lambda: session.options(bundles[1], 1, {}),
        ):
            try:
                says()
            except VimeError as error:
                print(error.render().splitlines()[0], flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
