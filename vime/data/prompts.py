"""Prompts: rows turned into the texts and tokens that an engine gets."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vime.data.files import Row, read_rows
from vime.data.preflight import Columns, check_rows
from vime.errors import DataError
from vime.sample import Sample


@dataclass(frozen=True)
class Prompt:
    """`content` is what the user wrote (text or messages), `text` what the model reads, `tokens` its ids. `row` is its number in the file."""

    row: int
    content: str | list[dict[str, Any]]
    text: str
    tokens: tuple[int, ...]
    label: Any
    metadata: dict[str, Any]

    def sample(self, group_index: int, index: int) -> Sample:
        """A new, unanswered sample of this prompt."""
        return Sample(
            group_index=group_index,
            index=index,
            rollout_id=index,
            prompt=self.text,
            tokens=list(self.tokens),
            label=copy.deepcopy(self.label),
            metadata=copy.deepcopy(self.metadata),
        )


def load_prompts(
    path: str,
    columns: Columns,
    tokenizer: Any,
    *,
    template_kwargs: Mapping[str, Any] | None = None,
    max_tokens: int | None = None,
) -> tuple[Prompt, ...]:
    """The prompts of a file in its order, those longer than `max_tokens` left out.

    Raises DataError for bad rows, a template that fails, or when no prompt is short enough.
    """
    rows = read_rows(path)
    check_rows(path, rows, columns)
    texts = [_text(path, row, columns, tokenizer, template_kwargs or {}) for row in rows]
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    prompts = tuple(
        Prompt(
            row=row.number,
            content=row.values[columns.input],
            text=text,
            tokens=tuple(tokens),
            label=row.values[columns.label] if columns.label is not None else None,
            metadata=_metadata(row, columns),
        )
        for row, text, tokens in zip(rows, texts, ids, strict=True)
        if max_tokens is None or len(tokens) <= max_tokens
    )
    empty = [prompt.row for prompt in prompts if not prompt.tokens]
    if empty:
        raise DataError(f"the prompts of rows {', '.join(map(str, empty[:10]))} have no tokens", where=path)
    if not prompts:
        shortest = min(map(len, ids))
        raise DataError(
            f"none of {len(rows)} prompts fits --rollout-max-prompt-len {max_tokens}: the shortest has {shortest} tokens",
            where=path,
        )
    return prompts


def fingerprint(prompts: Sequence[Prompt]) -> str:
    """A digest of contents and labels in order: the same data gives the same digest, whatever file it is in."""
    digest = hashlib.blake2b(digest_size=16)
    for prompt in prompts:
        digest.update(
            json.dumps([prompt.content, prompt.label], sort_keys=True, ensure_ascii=False, default=str).encode()
        )
        digest.update(b"\0")
    return digest.hexdigest()


def render(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: Any,
    tools: Any,
    template_kwargs: Mapping[str, Any],
    *,
    generate: bool = True,
) -> str:
    """Messages through the chat template; with `generate`, up to where the model's answer begins."""
    text = tokenizer.apply_chat_template(
        list(messages), tools=tools or None, tokenize=False, add_generation_prompt=generate, **dict(template_kwargs)
    )
    return str(text)


def _text(path: str, row: Row, columns: Columns, tokenizer: Any, template_kwargs: Mapping[str, Any]) -> str:
    content = row.values[columns.input]
    if not columns.chat_template:
        return str(content)
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    tools = row.values.get(columns.tools) if columns.tools is not None else None
    try:
        return render(messages, tokenizer, tools, template_kwargs)
    except Exception as error:  # a template is a program of the checkpoint's author: any exception may come out of it
        raise DataError(f"the chat template refused the messages: {error}", where=f"{path}:{row.number}") from error


def _metadata(row: Row, columns: Columns) -> dict[str, Any]:
    metadata = dict(row.values.get(columns.metadata) or {}) if columns.metadata is not None else {}
    if columns.tools is not None and row.values.get(columns.tools):
        metadata.setdefault("tools", row.values[columns.tools])
    if isinstance(row.values[columns.input], list):
        metadata.setdefault("messages", row.values[columns.input])
    return metadata
