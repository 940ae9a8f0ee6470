"""Rewards by rule: pure functions of a response, a label and the sample's metadata."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping
from typing import Any

from vime.rollout.rewards.boxed import after_thinking, last_boxed
from vime.rollout.rewards.math_equal import grade, is_equal

#: Characters from the end of a response in which dapo looks for the answer: a long answer must end with it.
_DAPO_TAIL = 300


def math(response: str, label: Any, metadata: Mapping[str, Any]) -> float:
    r"""1.0 when the last \boxed{} means the label."""
    return grade(response, label)


def dapo(response: str, label: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """{"score": 1.0 or -1.0, "acc": bool, "pred": str}: what follows the last "Answer:" (or the last box) near the end."""
    tail = response[-_DAPO_TAIL:]
    found = re.findall(r"(?i)answer\s*:\s*([^\n]+)", tail)
    prediction = found[-1].strip() if found else last_boxed(tail)
    if prediction is not None:
        prediction = last_boxed(prediction) or prediction
    correct = prediction is not None and is_equal(prediction, str(label))
    return {
        "score": 1.0 if correct else -1.0,
        "acc": correct,
        "pred": prediction if prediction is not None else "[none]",
    }


def deepscaler(response: str, label: Any, metadata: Mapping[str, Any]) -> float:
    r"""1.0 when the box *after the thinking* means the label; an answer that never stops thinking scores 0."""
    if "</think>" in response:
        answer = after_thinking(response)
    elif "###Response" in response:
        answer = response.rpartition("###Response")[2]
    else:
        return 0.0
    return grade(answer, label)


def f1(response: str, label: Any, metadata: Mapping[str, Any]) -> float:
    """Overlap of words, harmonic mean of precision and recall; the best over labels (SQuAD, arXiv 1606.05250, section 6)."""
    labels = label if isinstance(label, list | tuple) else [label]
    return max((_word_f1(response, str(one)) for one in labels), default=0.0)


def gpqa(response: str, label: Any, metadata: Mapping[str, Any]) -> float:
    """1.0 when the chosen letter is the label; a label that is a text is found among metadata["choices"]."""
    choices = [str(choice) for choice in metadata.get("choices") or ()]
    letters = string.ascii_uppercase[: max(len(choices), 4)] if choices else string.ascii_uppercase[:10]
    correct = str(label).strip()
    if len(correct) != 1 or correct.upper() not in letters:
        matching = [
            letter for letter, choice in zip(letters, choices, strict=False) if _plain(choice) == _plain(correct)
        ]
        if not matching:
            return float(_plain(correct) == _plain(last_boxed(response) or ""))
        correct = matching[0]
    return float(_chosen_letter(after_thinking(response), letters) == correct.upper())


def reverse_word(response: str, label: Any, metadata: Mapping[str, Any]) -> float:
    """The toy: half for the share of right letters in their places, half for the exact word."""
    word, answer = str(label), response.strip()
    right = sum(a == b for a, b in zip(answer, word, strict=False))
    return 0.5 * right / max(len(word), 1) + 0.5 * (answer == word)


def _chosen_letter(text: str, letters: str) -> str | None:
    """The last letter that is offered as the answer: boxed, after "answer is", or alone on a line."""
    group = f"[{letters}]"
    for pattern in (
        rf"\\boxed\s*\{{\s*(?:\\text\s*\{{)?\s*\(?({group})\b",
        rf"(?i:answer)\s*(?i:is)?\s*:?\s*\**\s*\(?({group})\b",
        rf"(?m)^\s*\**\(?({group})\)?[.:]?\**\s*$",
    ):
        if found := re.findall(pattern, text):
            return str(found[-1])
    return None


def _word_f1(prediction: str, truth: str) -> float:
    one, other = _plain(prediction).split(), _plain(truth).split()
    shared = sum((Counter(one) & Counter(other)).values())
    if not shared:
        return float(one == other and not one)
    precision, recall = shared / len(one), shared / len(other)
    return 2 * precision * recall / (precision + recall)


def _plain(text: str) -> str:
    """Lower case, without punctuation and articles, single spaces."""
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())
