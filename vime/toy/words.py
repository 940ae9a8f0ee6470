"""The task: the prompt `rABCDE=` asks for `EDCBA`. Pure."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from vime.files import whole_file

LETTERS = "abcdefghijklmnopqrstuvwxyz"
LENGTH = 5
PAD, EOS = "<pad>", "<eos>"
#: Tokens in the order of their ids.
VOCABULARY = (PAD, EOS, "<bos>", "<unk>", *"0123456789", *LETTERS, "=")


def words(seed: int, letters: int = LENGTH) -> Iterator[str]:
    """Random words without end."""
    rng = random.Random(seed)
    while True:
        yield "".join(rng.choice(LETTERS) for _ in range(letters))


def prompt(word: str) -> str:
    return f"r{word}="


def answer(word: str) -> str:
    return word[::-1]


def write_rows(path: Path, chosen: Iterable[str]) -> Path:
    """A prompt file in the format of ``--prompt-data``: one JSON object a line, keys `prompt` and `answer`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        for word in chosen:
            file.write(json.dumps({"prompt": prompt(word), "answer": answer(word)}).encode() + b"\n")
    return path
