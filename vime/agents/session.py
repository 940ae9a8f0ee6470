"""One conversation with the policy: messages in, messages out, and every token kept for training."""

from __future__ import annotations

import copy
import time
import uuid
from argparse import Namespace
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from vime.agents.messages import Message
from vime.agents.tools import ToolParser
from vime.agents.trajectory import Answer, Node, Trajectory
from vime.errors import EngineError, UsageError
from vime.rollout.answer import meta_of
from vime.rollout.client import SamplingParams
from vime.rollout.context import RolloutContext
from vime.sample import Sample, Status


@dataclass(frozen=True)
class Turn:
    """An answer as a client sees it. `reason`: "stop", "length" or "tool_calls"."""

    message: Message
    reason: str
    prompt_tokens: int
    completion_tokens: int


class Session:
    """A conversation that `sample` stands at the beginning of. Turns of one session may run at once; each is a branch of its own then."""

    def __init__(
        self,
        args: Namespace,
        sample: Sample,
        params: SamplingParams,
        context: RolloutContext,
        parser: ToolParser,
        tools: list[dict[str, Any]] | None = None,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.args, self.sample, self.params, self.context, self.parser = args, sample, params, context, parser
        self._tools = tools
        self._trajectory = Trajectory(self._render, self._stop_ids())
        self.drifts = 0
        #: Seconds that the engine worked for this session, waiting for a place included.
        self.generating = 0.0
        self.truncated = self.aborted = False

    async def complete(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, max_tokens: int | None = None
    ) -> Turn:
        """The policy's next message. Sampling parameters are the run's: what a client asks for besides is not followed, since it would not be
        what is trained. Raises UsageError when the turns or tokens of the session are used up."""
        if self._trajectory.turns >= self.args.agent_max_turns:
            raise UsageError(f"the session has had its {self.args.agent_max_turns} turns", hint="--agent-max-turns")
        if tools is not None:
            self._tools = tools
        prompt = self._trajectory.prompt(messages)
        self.drifts += prompt.drifted
        longest = self.params.max_context_len
        room = self.params.max_tokens if longest is None else min(self.params.max_tokens, longest - len(prompt.tokens))
        if max_tokens is not None:
            room = min(room, max_tokens)
        if room < 1:
            self.truncated = True
            raise UsageError(
                f"{len(prompt.tokens)} tokens leave no room for an answer",
                hint="--rollout-max-context-len, --eval-max-context-len",
            )
        begun = time.time()
        one = await self.context.generate(prompt.tokens, self.params.with_budget(room), self.id)
        self.generating += time.time() - begun
        if one.finish_reason == "abort":
            self.aborted = True
            raise EngineError("the rollout step has ended")
        finished = one.finish_reason == "stop"
        self.truncated |= not finished
        content, calls = self.parser(self.context.text(one.token_ids, finished))
        message: Message = {"role": "assistant", "content": content}
        if calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{uuid.uuid4().hex[:12]}",
                    "type": "function",
                    "function": {"name": name, "arguments": given},
                }
                for name, given in calls
            ]
        self._trajectory.add(prompt, Answer(one.token_ids, one.logprobs, meta_of(one), finished), message)
        reason = "tool_calls" if calls else "stop" if finished else "length"
        return Turn(message, reason, len(prompt.tokens), len(one.token_ids))

    def samples(self) -> list[Sample]:
        """A sample for every branch, all of one trajectory. What two branches share is trained in the first of them only."""
        trained: set[int] = set()
        found = []
        for branch in self._trajectory.branches():
            found.append(self._sample_of(branch, trained))
        for number, sample in enumerate(found):
            sample.metadata = dict(sample.metadata) | {
                "agent_turns": len(self._trajectory.branches()[number]),
                "agent_drifts": self.drifts,
            }
        return found

    def _sample_of(self, branch: list[Node], trained: set[int]) -> Sample:
        sample = copy.deepcopy(self.sample)
        sample.tokens, sample.response_length = list(branch[0].context), 0
        sample.loss_mask, sample.rollout_log_probs = [], []
        for number, node in enumerate(branch):
            if number and node.context:
                sample.append_response_tokens(self.args, node.context, trainable=False)
            before = sample.response_length
            sample.append_response_tokens(
                self.args, node.answer.tokens, node.answer.log_probs, meta_info=node.answer.record
            )
            if id(node) in trained and sample.loss_mask is not None:
                sample.loss_mask[before:] = [0] * len(node.answer.tokens)
            trained.add(id(node))
        sample.response = self.context.text(sample.tokens[sample.prompt_length :], branch[-1].answer.finished)
        sample.status = Status.COMPLETED if branch[-1].answer.finished else Status.TRUNCATED
        return sample

    def _render(self, messages: list[Message], answer_follows: bool) -> list[int]:
        kwargs = self.args.apply_chat_template_kwargs or {}
        try:
            ids = self.context.tokenizer.apply_chat_template(
                messages,
                tools=self._tools,
                add_generation_prompt=answer_follows,
                tokenize=True,
                return_dict=False,
                **kwargs,
            )
        except TemplateError as error:
            raise UsageError(f"the chat template does not take these messages: {error}") from error
        return list(ids)

    def _stop_ids(self) -> list[int]:
        tokenizer = self.context.tokenizer
        named = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")]
        known = {one for one in named if one is not None and one != tokenizer.unk_token_id}
        return [*known, *self.params.stop_token_ids]


def first_messages(sample: Sample) -> list[Message]:
    """The messages that a sample's row holds; a plain prompt is one message of the user."""
    given = sample.metadata.get("messages") or sample.prompt
    return list(given) if isinstance(given, list) else [{"role": "user", "content": str(given)}]
