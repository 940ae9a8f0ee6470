"""What was said in a session, as a tree of messages with the tokens that were sent and sampled; a branch becomes a sample. Pure.

A client sends its whole history at every turn. As long as that is what was recorded, the recorded tokens go on; where the client changed something
(it summarised, repaired or cut a message), a new branch begins there, and its own messages are context that nobody is trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vime.agents.messages import Message, for_template, key

#: Messages, and whether an answer is to follow -> token ids.
Render = Callable[[list[Message], bool], list[int]]


@dataclass
class Answer:
    """What the engine sampled for one turn. `record` is what goes with the tokens (see `vime.sample.ResponseMeta`)."""

    tokens: list[int]
    log_probs: list[float]
    record: Any = None
    finished: bool = True


@dataclass
class Node:
    """A turn: `context` are the tokens between the answer before it and its own, `history` the keys of all messages up to its answer's."""

    history: tuple[Any, ...]
    context: list[int]
    answer: Answer
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)

    def path(self) -> list[Node]:
        """From the first turn to this one."""
        return [*(self.parent.path() if self.parent else []), self]

    def tokens(self) -> list[int]:
        """Everything up to the end of this answer."""
        return [token for node in self.path() for token in (*node.context, *node.answer.tokens)]


@dataclass(frozen=True)
class Prompt:
    """What to send: all `tokens`, of which `context` are new since `parent`. `history`: the keys of its messages. `drifted`: the client changed
    what was recorded."""

    tokens: list[int]
    context: list[int]
    parent: Node | None
    history: tuple[Any, ...]
    drifted: bool


class Trajectory:
    """The tree of one session. `stop_ids` are the tokens that end a turn."""

    def __init__(self, render: Render, stop_ids: Sequence[int]) -> None:
        self._render = render
        self._stop = frozenset(stop_ids)
        self.roots: list[Node] = []
        self.turns = 0

    def prompt(self, messages: list[Message]) -> Prompt:
        """The tokens for a client's history."""
        keys = tuple(key(one) for one in messages)
        parent = self._longest(keys)
        known = len(parent.history) if parent else 0
        drifted = any(one["role"] == "assistant" for one in messages[known:]) or (parent is None and bool(self.roots))
        whole = self._render([for_template(one) for one in messages], True)
        if parent is None:
            return Prompt(whole, whole, None, keys, drifted)
        context = self._after(parent, messages[:known], whole)
        if context is None:  # the template rewrote what was before: the new turn cannot be appended
            return Prompt(whole, whole, None, keys, True)
        return Prompt([*parent.tokens(), *context], context, parent, keys, drifted)

    def add(self, prompt: Prompt, answer: Answer, message: Message) -> Node:
        """Record the answer to `prompt`, which the client will know as `message`."""
        node = Node((*prompt.history, key(message)), prompt.context, answer, prompt.parent)
        (prompt.parent.children if prompt.parent else self.roots).append(node)
        self.turns += 1
        return node

    def branches(self) -> list[list[Node]]:
        """The path to every leaf, in the order in which they were begun."""
        found: list[list[Node]] = []

        def walk(node: Node) -> None:
            if not node.children:
                found.append(node.path())
            for child in node.children:
                walk(child)

        for root in self.roots:
            walk(root)
        return found

    def _longest(self, keys: tuple[Any, ...]) -> Node | None:
        """The turn with the longest recorded history that `keys` begins with; of equals the newest."""
        best: Node | None = None
        stack = list(self.roots)
        while stack:
            node = stack.pop(0)
            if len(node.history) < len(keys) and keys[: len(node.history)] == node.history:
                if best is None or len(node.history) >= len(best.history):
                    best = node
                stack += node.children
        return best

    def _after(self, parent: Node, before: list[Message], whole: list[int]) -> list[int] | None:
        """The tokens of `whole` behind the end of the parent's answer, as the template separates turns; None when the template changed the past.

        The recorded answer need not be what its text tokenises to, so the place is found by counting turns' ends in what the template makes of
        the messages before.
        """
        past = self._render([for_template(one) for one in before], False)
        if whole[: len(past)] != past:
            return None
        end = len(past)
        for number in range(len(past) - 1, -1, -1):
            if past[number] in self._stop:
                end = number + 1
                break
        # A turn that was cut off has no end token: the template's is put there, as context.
        cut_off = not parent.answer.tokens or parent.answer.tokens[-1] not in self._stop
        return whole[end - 1 :] if cut_off and end else whole[end:]
