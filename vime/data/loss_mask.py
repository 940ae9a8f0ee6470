"""Which tokens of a conversation are the assistant's, so that supervised training learns those and no others.

The chat template decides, not a table of models: it is rendered once, exactly as at inference, and the assistant's turns are found in that text.
A turn starts after the generation prompt (what the template adds to make the model answer) and ends with the token that ends a turn, included:
the model must learn to stop. Thinking blocks and tool calls that the template writes are part of the turn, tool replies are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from vime.data.prompts import render
from vime.errors import DataError

#: Stands for content while the marks of a template are found; a private-use character that no text has.
_PROBE = "\ue000"


@dataclass(frozen=True)
class Marks:
    """`header` opens an assistant's turn, `end` closes one."""

    header: str
    end: str


@dataclass(frozen=True)
class Masked:
    """token_ids and mask (1: trained), equally long."""

    token_ids: list[int]
    mask: list[int]

    @property
    def response_length(self) -> int:
        """Tokens from the first trained one on."""
        return len(self.mask) - self.mask.index(1) if 1 in self.mask else 0


def mask_conversation(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: Any,
    *,
    tools: Any = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> Masked:
    """Token ids of the whole conversation and its loss mask.

    A message with ``step_loss_mask`` 0 is left out of training. Raises DataError when the assistant's turns cannot be told apart in the text, or
    when nothing would be trained.
    """
    kwargs = dict(template_kwargs or {})
    text = render(messages, tokenizer, tools, kwargs, generate=False)
    marks = template_marks(tokenizer, kwargs)
    spans = assistant_spans(text, marks)
    turns = [message for message in messages if message["role"] == "assistant"]
    if len(spans) != len(turns):
        raise DataError(
            f"{len(turns)} assistant messages became {len(spans)} turns in the rendered text, so their tokens cannot be told apart",
            hint=f"a turn begins with {marks.header!r} in this template; does a message contain that text?",
        )
    trained = [span for span, message in zip(spans, turns, strict=True) if message.get("step_loss_mask", 1)]
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    mask = _mask(encoded["offset_mapping"], trained)
    if 1 not in mask:
        raise DataError(
            "no token of the conversation would be trained",
            hint="it needs an assistant message with step_loss_mask other than 0",
        )
    return Masked(list(encoded["input_ids"]), mask)


def assistant_spans(text: str, marks: Marks) -> list[tuple[int, int]]:
    """Character ranges of the assistant's turns in a rendered conversation, without header, with end mark."""
    spans, position = [], 0
    while (start := text.find(marks.header, position)) != -1:
        start += len(marks.header)
        end = text.find(marks.end, start) if marks.end else -1
        position = end + len(marks.end) if end != -1 else len(text)
        spans.append((start, position))
    return spans


def show_mask(masked: Masked, tokenizer: Any) -> str:
    """The text with trained runs in double brackets, for a person to look at."""
    parts: list[str] = []
    run: list[int] = []
    inside = 0
    for token, trained in zip([*masked.token_ids, None], [*masked.mask, -1], strict=True):
        if trained != inside and run:
            text = tokenizer.decode(run)
            parts.append(f"⟦{text}⟧" if inside else text)
            run = []
        inside = trained
        if token is not None:
            run.append(token)
    return "".join(parts)


def template_marks(tokenizer: Any, template_kwargs: Mapping[str, Any]) -> Marks:
    """The marks of the tokenizer's template. Raises DataError when it has no generation prompt to find a turn by."""
    return _marks(_Template(tokenizer, dict(template_kwargs)))


class _Template:
    """Hashes by the template's text and arguments."""

    def __init__(self, tokenizer: Any, kwargs: dict[str, Any]) -> None:
        self.tokenizer, self.kwargs = tokenizer, kwargs
        self.key = (tokenizer.chat_template, repr(sorted(kwargs.items())))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Template) and self.key == other.key

    def render(self, *messages: Mapping[str, Any], generate: bool = False) -> str:
        return render(messages, self.tokenizer, None, self.kwargs, generate=generate)


@lru_cache(maxsize=8)
def _marks(template: _Template) -> Marks:
    question, answer = {"role": "user", "content": "?"}, {"role": "assistant", "content": _PROBE}
    closed, opened = template.render(question), template.render(question, generate=True)
    header = opened.removeprefix(closed)
    if not opened.startswith(closed) or not header:
        raise DataError("the chat template has no generation prompt, so the assistant's turns cannot be found")
    last = template.render(question, answer)
    earlier = template.render(question, answer, question)
    # A thinking block may be opened by the generation prompt, or be written into the last turn only. What all three ways share is the header.
    for turn in (last, earlier):
        header = _shared(header, turn.partition(_PROBE)[0].removeprefix(closed))
    if not header.strip():
        raise DataError(
            "the chat template opens finished turns otherwise than the ones it asks for, so turns cannot be found"
        )
    return Marks(header=header, end=last.partition(_PROBE)[2].rstrip())


def _shared(one: str, other: str) -> str:
    """The common beginning."""
    length = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:length]


def _mask(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> list[int]:
    """1 for each token that begins inside a span."""
    mask, spans = [], list(spans)
    for start, _ in offsets:
        while spans and start >= spans[0][1]:
            spans = spans[1:]
        mask.append(int(bool(spans) and spans[0][0] <= start))
    return mask
