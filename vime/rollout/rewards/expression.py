"""Mathematical expressions as sympy objects, built by an own parser.

sympy's parser evaluates Python: an answer of a model must never reach it. This one knows numbers, letters, the usual operators and functions, and
bounds what it computes, so that no answer can run code or take for ever.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

_TOKEN = re.compile(r"\s*(?:(?P<number>\d+(?:\.\d+)?|\.\d+)|(?P<name>[A-Za-z]+)|(?P<operator>\*\*|[-+*/^()!=,]))")
_FUNCTIONS = (
    "sqrt",
    "sin",
    "cos",
    "tan",
    "cot",
    "sec",
    "csc",
    "asin",
    "acos",
    "atan",
    "arcsin",
    "arccos",
    "arctan",
    "exp",
    "log",
    "ln",
    "abs",
)
_RENAMED = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "ln": "log", "abs": "Abs"}
#: Longest input, largest exponent, and largest number that a factorial is taken of.
_MAX_LENGTH, _MAX_EXPONENT, _MAX_FACTORIAL = 200, 64, 20


class NotAnExpression(ValueError):
    """The text is no expression that we compute."""


@lru_cache(maxsize=4096)
def parse(text: str) -> Any:
    """A sympy expression. Raises NotAnExpression."""
    if len(text) > _MAX_LENGTH:
        raise NotAnExpression("too long")
    return _Parser(_tokens(text)).whole()


def equal(one: str, other: str) -> bool:
    """Whether two expressions are equal for all values of their letters. False where either is no expression."""
    import sympy

    try:
        difference = parse(one) - parse(other)
        if difference == 0:
            return True
        if difference.is_number:
            size = abs(complex(parse(one).evalf(30))) if parse(one).is_number else 1.0
            return abs(complex(difference.evalf(30))) < 1e-9 * max(1.0, size)
        return bool(
            _agrees_at_points(difference) and sympy.count_ops(difference) < 60 and sympy.simplify(difference) == 0
        )
    except (NotAnExpression, TypeError, ValueError, OverflowError, ZeroDivisionError, RecursionError, AttributeError):
        return False


def _agrees_at_points(difference: Any) -> bool:
    """A cheap no before the costly simplification: the difference is not 0 at some point."""
    letters = sorted(difference.free_symbols, key=str)
    for seed in (0.7312, 1.9173):
        value = complex(difference.evalf(20, subs={letter: seed + 0.37 * i for i, letter in enumerate(letters)}))
        if value == value and abs(value) > 1e-6:
            return False
    return True


def _tokens(text: str) -> list[str]:
    tokens, position = [], 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise NotAnExpression(f"unexpected {text[position : position + 5]!r}")
        name = match["name"]
        tokens += _names(name) if name else [match[0].strip()]
        position = match.end()
    return tokens


def _names(run: str) -> list[str]:
    """'xsinpi' -> x, sin, pi: letters side by side are a product, unless they spell something known."""
    found = []
    while run:
        known = next((word for word in (*_FUNCTIONS, "pi") if run.startswith(word)), run[0])
        found.append(known)
        run = run[len(known) :]
    return found


class _Parser:
    """Recursive descent: sum > product (also implied) > sign > power > postfix > atom."""

    def __init__(self, tokens: list[str]) -> None:
        import sympy

        self.sympy, self.tokens, self.position = sympy, tokens, 0

    def whole(self) -> Any:
        if not self.tokens:
            raise NotAnExpression("empty")
        value = self._sum()
        if self._peek() is not None:
            raise NotAnExpression(f"unexpected {self._peek()!r}")
        return value

    def _peek(self) -> str | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def _take(self) -> str:
        token = self._peek()
        if token is None:
            raise NotAnExpression("it ends too early")
        self.position += 1
        return token

    def _sum(self) -> Any:
        value = self._product()
        while self._peek() in ("+", "-"):
            value = value + self._product() if self._take() == "+" else value - self._product()
        return value

    def _product(self) -> Any:
        value = self._sign()
        while (token := self._peek()) is not None and token not in "+-),=!":
            if token in ("*", "/"):
                self._take()
                factor = self._sign()
                if token == "/" and factor == 0:
                    raise NotAnExpression("division by zero")
                value = value * factor if token == "*" else value / factor
            else:
                value = value * self._power()
        return value

    def _sign(self) -> Any:
        if self._peek() in ("+", "-"):
            return self._sign() if self._take() == "+" else -self._sign()
        return self._power()

    def _power(self) -> Any:
        base = self._postfix()
        if self._peek() not in ("^", "**"):
            return base
        self._take()
        exponent = self._sign()
        if not exponent.is_number or abs(complex(exponent.evalf(10))) <= _MAX_EXPONENT:
            return base**exponent
        raise NotAnExpression("exponent out of bounds")

    def _postfix(self) -> Any:
        value = self._atom()
        while self._peek() == "!":
            self._take()
            if not value.is_Integer or not 0 <= value <= _MAX_FACTORIAL:
                raise NotAnExpression("factorial out of bounds")
            value = self.sympy.factorial(value)
        return value

    def _atom(self) -> Any:
        token = self._take()
        if token == "(":
            value = self._sum()
            if self._take() != ")":
                raise NotAnExpression("a bracket is not closed")
            return value
        if token[0].isdigit() or token[0] == ".":
            return self.sympy.Rational(token)
        if token in _FUNCTIONS:
            argument = self._atom() if self._peek() == "(" else self._power()
            return getattr(self.sympy, _RENAMED.get(token, token))(argument)
        if token in ("pi", "e"):
            return self.sympy.pi if token == "pi" else self.sympy.E
        if token.isalpha():
            return self.sympy.Symbol(token)
        raise NotAnExpression(f"unexpected {token!r}")
