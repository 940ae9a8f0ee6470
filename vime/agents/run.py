"""Agents as ``--custom-generate-function-path``: the agent talks to its session's address as to any model, and is told what it achieved.

The agent is named by ``--agent-path``, see `vime.hook_protocols.Agent`.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from argparse import Namespace

from vime.agents.sandbox import local_sandbox
from vime.agents.server import AgentServer
from vime.agents.session import Session
from vime.agents.tools import tool_parser
from vime.hooks import load_hook
from vime.rollout.client import SamplingParams
from vime.rollout.context import current
from vime.sample import Sample, Status

log = logging.getLogger(__name__)

_servers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[AgentServer]] = (
    weakref.WeakKeyDictionary()
)


async def generate(
    args: Namespace, sample: Sample, sampling_params: SamplingParams, evaluation: bool = False
) -> list[Sample]:
    """``--custom-generate-function-path vime.agents.run.generate``: one run of the agent. An error of the agent marks the trajectory failed."""
    agent = load_hook("agent_path", args.agent_path)
    session = Session(args, sample, sampling_params, current(), tool_parser(args.agent_tool_parser))
    server = await _server()
    address = server.open(session)
    failure, reward, begun = None, None, time.time()
    try:
        async with local_sandbox() as sandbox, asyncio.timeout(args.agent_timeout):
            reward = await agent(address, sample, sandbox)
    except TimeoutError:
        failure = "agent_timeout"
    except Exception as error:
        log.warning("the agent failed on %s: %r", sample.name, error)
        failure = f"agent_{type(error).__name__}"
    finally:
        server.close(session)
    if session.aborted:
        sample.status = Status.ABORTED  # the step closed: the run of the agent begins anew another time
        return [sample]
    samples = session.samples()
    if not samples:
        sample.fail(failure or "agent_said_nothing")
        return [sample]
    for one in samples:
        one.reward = reward
        one.trace.append({"name": "agent", "start": begun, "end": time.time()})
        one.non_generation_time = max(time.time() - begun - session.generating, 0.0)
        if failure is not None:
            one.fail(failure)
    return samples


async def _server() -> AgentServer:
    """The one of this event loop. Many runs begin at once: the first starts it, the others wait for that."""
    loop = asyncio.get_running_loop()
    if loop not in _servers:
        _servers[loop] = asyncio.ensure_future(_started())
    return await asyncio.shield(_servers[loop])


async def _started() -> AgentServer:
    server = AgentServer()
    await server.start()
    return server
