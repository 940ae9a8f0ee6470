"""Translation speed against the plain way, one ``re.sub`` a rule, in the same run and with the same result.

    python benchmarks/sync/translate.py [--megabytes 4] [--json]

The text is generated: prose, code and flags, of which about one word in forty is upstream's.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time

from synctool.policy import parse_policy
from synctool.translate import Translator

RULES = """
schema = 1
[upstream]
name = "otter"
[downstream]
name = "badger"
[[family]]
from = "otter"
to = "badger"
[[family]]
from = "BlueJay"
to = "RedKite"
"""
FLAGS = [(f"--bluejay-option-{n}", f"--redkite-choice-{n}") for n in range(30)]
FORMS = [
    ("otter", "badger"),
    ("Otter", "Badger"),
    ("OTTER", "BADGER"),
    ("BlueJay", "RedKite"),
    ("bluejay", "redkite"),
    ("BLUEJAY", "REDKITE"),
]


def generate(size: int) -> str:
    """About ``size`` characters, the same each time."""
    choose = random.Random(7)
    plain = [
        "the",
        "server",
        "self.",
        "return",
        "x =",
        "(args)",
        "weight",
        "update",
        "\n",
        "    ",
        "# note",
        "import",
        "torch",
        "rollout",
        "0.5",
        "用",
    ]
    theirs = [word for word, _ in FORMS] + [flag for flag, _ in FLAGS]
    words = [choose.choice(theirs) if choose.random() < 1 / 40 else choose.choice(plain) for _ in range(size // 6)]
    return " ".join(words)


def plain_way(text: str) -> str:
    """One pass a rule, longest first."""
    for flag, target in FLAGS:
        text = re.sub(re.escape(flag) + r"(?![\w-])", target, text)
    for word, target in FORMS:
        text = re.sub(word, target, text)
    return text


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    text = generate(int(options.megabytes * 1e6))
    flags = "".join(f'[[flag]]\nfrom = "{flag}"\nto = "{target}"\n' for flag, target in FLAGS)
    translator = Translator.from_policy(parse_policy(RULES + flags))
    best = {}
    results = {}
    for name, way in (("vime-sync", translator.text), ("re.sub a rule", plain_way)):
        times = []
        for _ in range(3):
            start = time.perf_counter()
            results[name] = way(text)
            times.append(time.perf_counter() - start)
        best[name] = min(times)
    assert len(set(results.values())) == 1, "the two ways differ"
    ratio = best["re.sub a rule"] / best["vime-sync"]
    value = {"megabytes": len(text) / 1e6, "seconds": best, "ratio": ratio}
    print(json.dumps(value) if options.json else f"{value['megabytes']:.1f} MB: {best}; {ratio:.1f} times as fast")


if __name__ == "__main__":
    main()
