"""A generation worker without an engine, as a process of its own: ``python -m tests.vime.rollout.workers.answering HOST PORT KEY NAME CAPACITY LEASE``.

It answers each sample with two tokens; one whose name begins with "deaf" takes groups and never answers.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from vime.data.protocol import Group
from vime.rollout.workers.worker import work
from vime.sample import ResponseMeta, Status, VersionSpan


async def main(host: str, port: str, key: str, name: str, capacity: str, lease: str) -> None:
    still = asyncio.Event()

    async def one(step: int, group: Group) -> Group:
        if name.startswith("deaf"):
            await still.wait()
        if step < 0:
            raise ZeroDivisionError("of a user's function")
        meta = ResponseMeta(versions=[VersionSpan(str(step), 0, 2)])
        for sample in group:
            sample.append_response_tokens(None, [7, 8], [-0.1, -0.2], meta_info=meta, text="ab")
            sample.status, sample.reward = Status.COMPLETED, 1.0
        return group

    def obey(word: str, *given: Any) -> Any:
        if word == "idle" and name.startswith("deaf"):
            return still.wait()
        return None

    await work((host, int(port)), key, name, int(capacity), float(lease), one, obey)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
