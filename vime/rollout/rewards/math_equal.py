r"""Whether two answers to a mathematical question mean the same: as texts, as numbers, as tuples, as expressions.

LaTeX is rewritten to plain arithmetic first (``\frac{1}{2}`` to ``(1)/(2)``), units, text and decoration are dropped.
"""

from __future__ import annotations

import re

from vime.rollout.rewards import expression
from vime.rollout.rewards.boxed import last_boxed

#: Longer answers are compared as they stand: no sensible one is that long, and patterns over thousands of characters take time.
_MAX_LENGTH = 500
_DROPPED = re.compile(
    r"\\left|\\right|\\displaystyle|\\!|\\,|\\;|\\:|\\ |~|\$|\\\(|\\\)|\^\\circ|\^\{\\circ\}|\\degree|°"
)
_TEXT = re.compile(r"\\(?:text|mathrm|mbox|textbf|mathbf|operatorname)\s*\{([^{}]*)\}")
_UNIT = re.compile(
    r"(?<=[\d)}\s])\s*(?:degrees?|cm|mm|km|kg|g|m|ft|feet|foot|inch(?:es)?|miles?|hours?|minutes?|seconds?|days?|units?|dollars?|cents?|percent|"
    r"square\s+\w+|cubic\s+\w+)(?:\s*\^\s*\{?[23]\}?)?\s*$"
)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?:\D|$))")
_MIXED = re.compile(r"(?<![\w.)])(\d+)\s*\\[dt]?frac")


def is_equal(answer: str, reference: str) -> bool:
    """Whether `answer` means `reference`. Never raises."""
    if max(len(answer), len(reference)) > _MAX_LENGTH:
        return answer.strip() == reference.strip()
    one, other = normalise(answer), normalise(reference)
    if not one or not other:
        return False
    if one == other or one.lower() == other.lower():
        return True
    if "," in one or "," in other:
        return _lists_equal(one, other)
    return _scalars_equal(one, other)


def _scalars_equal(one: str, other: str) -> bool:
    if "=" in one or "=" in other:
        return expression.equal(one.rpartition("=")[2], other.rpartition("=")[2])
    return expression.equal(one, other)


def grade(response: str, label: object) -> float:
    r"""1.0 when the last ``\boxed{}`` of `response` means `label` (its own box, where it has one; any of them, where it is a list), else 0.0."""
    answer = last_boxed(response)
    if answer is None:
        return 0.0
    labels = label if isinstance(label, list | tuple) else [label]
    return float(any(is_equal(answer, last_boxed(str(one)) or str(one)) for one in labels))


def normalise(text: str) -> str:
    """`text` as plain arithmetic, without units and decoration."""
    text = text.strip().rstrip(".").strip()
    text = _DROPPED.sub("", text)
    text = (
        text.replace(r"\%", "")
        .replace("%", "")
        .replace("−", "-")
        .replace("×", "*")
        .replace("π", "pi")
        .replace("√", "sqrt")
    )
    text = _TEXT.sub(lambda match: " " + match[1], text)
    text = _MIXED.sub(lambda match: f"{match[1]}+\\frac", text)
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    text = re.sub(r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", text)
    text = _brace_pairs(text)
    for latex, plain in (
        (r"\cdot", "*"),
        (r"\times", "*"),
        (r"\div", "/"),
        (r"\pi", " pi "),
        (r"\infty", "infinity"),
        (r"\ne", "!="),
    ):
        text = text.replace(latex, plain)
    text = re.sub(r"\\(sin|cos|tan|cot|sec|csc|log|ln|exp|arcsin|arccos|arctan)\b", r" \1", text)
    text = re.sub(r"\^\s*\{", "^(", text).replace("{", "(").replace("}", ")")
    text = _THOUSANDS.sub("", text)
    text = _UNIT.sub("", text)
    return re.sub(r"\s+", " ", text.replace("\\", "")).strip().strip(".")


def _brace_pairs(text: str) -> str:
    r"""\frac{a}{b} and \sqrt[n]{a}, innermost first."""
    for _ in range(20):
        before = text
        text = re.sub(r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"((\1)/(\2))", text)
        text = re.sub(r"\\sqrt\s*\[([^\[\]]*)\]\s*\{([^{}]*)\}", r"((\2)^(1/(\1)))", text)
        text = re.sub(r"\\sqrt\s*\{([^{}]*)\}", r"sqrt(\1)", text)
        text = re.sub(r"\\sqrt\s*(\w)", r"sqrt(\1)", text)
        if text == before:
            return text
    return text


def _lists_equal(one: str, other: str) -> bool:
    """Tuples and intervals compare in order and with their brackets; bare lists as sets."""
    brackets = [(text[:1], text[-1:]) if text[:1] in "([" and text[-1:] in ")]" else ("", "") for text in (one, other)]
    if brackets[0] != brackets[1]:
        return False
    bare = brackets[0] == ("", "")
    first, second = ([part.strip() for part in _split(text if bare else text[1:-1])] for text in (one, other))
    if len(first) != len(second):
        return False
    if len(first) == 1:
        return _scalars_equal(first[0], second[0])
    # Each part is shorter than the whole, so this ends.
    if not bare:
        return all(is_equal(a, b) for a, b in zip(first, second, strict=True))
    rest = list(second)
    for part in first:
        match = next((candidate for candidate in rest if is_equal(part, candidate)), None)
        if match is None:
            return False
        rest.remove(match)
    return True


def _split(text: str) -> list[str]:
    """At commas outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
