"""Rewards from a server: one POST an answer, retried while the server is busy or away."""

from __future__ import annotations

import asyncio
import random
from argparse import Namespace
from typing import Any

from vime.errors import VimeError
from vime.sample import Sample

_ATTEMPTS = 10
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 10.0


async def remote_rm(args: Namespace, sample: Sample) -> Any:
    """The JSON that --rm-url answers to {prompt, response, label}. Raises VimeError after the last attempt, and at once for a 4xx status."""
    import aiohttp

    body = {"prompt": sample.prompt, "response": sample.response, "label": sample.label}
    wait = _FIRST_WAIT
    async with aiohttp.ClientSession() as session:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with session.post(args.rm_url, json=body, proxy=args.http_proxy) as reply:
                    if reply.status == 200:
                        return await reply.json(content_type=None)
                    failure = f"status {reply.status}: {(await reply.text())[:200]}"
                    if 400 <= reply.status < 500 and reply.status != 429:
                        raise VimeError(f"the reward server refused the answer with {failure}", where=args.rm_url)
            except (aiohttp.ClientError, OSError, ValueError) as error:
                failure = f"{type(error).__name__}: {error}"
            if attempt < _ATTEMPTS:
                await asyncio.sleep(wait * random.uniform(0.75, 1.25))
                wait = min(2 * wait, _LONGEST_WAIT)
    raise VimeError(f"the reward server failed {_ATTEMPTS} times, last with {failure}", where=args.rm_url)
