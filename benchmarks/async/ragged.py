"""The toy with uneven lengths: most words have 3 letters, one in five has 16 to 24, so that answers differ up to 6 times in length.

    python benchmarks/async/ragged.py FOLDER SEED        prompts and a starting checkpoint, where `vime.toy.flags` looks for them

The starting checkpoint is the toy's own supervised warm-up on these words.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from vime import environment

environment.prepare()  # before anything can load torch

from vime.toy import warmup  # noqa: E402
from vime.toy.words import LETTERS, write_rows  # noqa: E402

_ROWS = 16384


def words(seed: int, letters: int = 0) -> Iterator[str]:
    """In the place of the toy's own, whose words all have `letters` letters."""
    rng = random.Random(seed)
    while True:
        yield "".join(rng.choice(LETTERS) for _ in range(rng.randint(16, 24) if rng.random() < 0.2 else 3))


def main(folder: Path, seed: int) -> None:
    if not (folder / "train.jsonl").exists():
        write_rows(folder / "train.jsonl", itertools.islice(words(seed + 1), _ROWS))
        write_rows(folder / "eval.jsonl", itertools.islice(words(seed + 20_000), 256))
    warmup.words = words
    warmup.ensure_start(folder / "start", seed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
