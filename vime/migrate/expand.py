"""Words of a script as the fields that bash would make of them, as far as the text alone tells.

What only a run could tell (a variable of the environment, a command's output) stays as it is written, so it is visible in the result.
Rules: bash manual, 3.5 (shell expansions); of 3.5.3 the forms with a default and with a length.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from vime.migrate.shell import closing, quote_end

Value = str | list[str]


@dataclass
class Scope:
    """Variables and arrays. `run` gives the output of a command's text, or None when that cannot be told."""

    values: dict[str, Value] = field(default_factory=dict)
    run: Callable[[str], str | None] = lambda _: None

    def text(self, name: str) -> str | None:
        """The value of a variable, the first one of an array; None when it is not set."""
        value = self.values.get(name)
        if isinstance(value, list):
            return value[0] if value else ""
        return value


@dataclass
class _Piece:
    text: str
    split: bool = False  # unquoted expansion: blanks separate fields
    many: list[str] | None = None  # "${a[@]}": fields of its own
    literal: bool = False  # a plain character outside quotes


def fields(word: str, scope: Scope) -> list[str]:
    """The fields of one word: none, one or several."""
    done: list[str] = []
    current: str | None = None
    for piece in _pieces(word, scope):
        if piece.many is not None:
            parts = piece.many
        elif piece.split:
            parts = piece.text.split()
            if current is not None and piece.text[:1].isspace():
                done.append(current)
                current = None
        else:
            parts = [piece.text]
        for number, part in enumerate(parts):
            if number:
                done.append(current or "")
                current = None
            current = (current or "") + part
        if piece.split and piece.text[-1:].isspace() and current is not None:
            done.append(current)
            current = None
    return done if current is None else [*done, current]


def text(word: str, scope: Scope) -> str:
    """A word where bash does not split: an assignment, a test, a redirection."""
    return "".join(" ".join(piece.many) if piece.many is not None else piece.text for piece in _pieces(word, scope))


def is_open(value: str) -> bool:
    """Whether a part of the value was left as written."""
    return "$" in value or "`" in value


def _pieces(word: str, scope: Scope, *, quoted: bool = False) -> list[_Piece]:
    pieces: list[_Piece] = []
    at = 0
    while at < len(word):
        character = word[at]
        if character == "'" and not quoted:
            end = quote_end(word, at)
            pieces.append(_Piece(word[at + 1 : end - 1]))
        elif character == '"' and not quoted:
            end = quote_end(word, at)
            inner = _pieces(word[at + 1 : end - 1], scope, quoted=True)
            pieces += inner or [_Piece("")]
        elif character == "\\" and at + 1 < len(word):
            end = at + 2
            kept = quoted and word[at + 1] not in '$`"\\\n'
            pieces.append(_Piece("" if word[at + 1] == "\n" else word[at : at + 2] if kept else word[at + 1]))
        elif word.startswith("$((", at):
            end = closing(word, at + 2, "(", ")")
            number = arithmetic(word[at + 3 : end - 2], scope)
            pieces.append(_Piece(word[at:end] if number is None else str(number)))
        elif word.startswith("$(", at):
            end = closing(word, at + 2, "(", ")")
            pieces.append(_output(word[at + 2 : end - 1], word[at:end], scope, quoted))
        elif word.startswith("${", at):
            end = closing(word, at + 2, "{", "}")
            pieces += _parameter(word[at + 2 : end - 1], word[at:end], scope, quoted)
        elif match := re.compile(r"\$([A-Za-z_]\w*|[0-9@*#?$!])").match(word, at):
            end = match.end()
            pieces += _parameter(match[1], match[0], scope, quoted)
        else:
            end = at + 1
            pieces.append(_Piece(character, literal=not quoted))
        at = end
    return pieces


def _output(command: str, raw: str, scope: Scope, quoted: bool) -> _Piece:
    output = scope.run(command)
    return _Piece(raw) if output is None else _Piece(output.rstrip("\n"), split=not quoted)


def _parameter(body: str, raw: str, scope: Scope, quoted: bool) -> list[_Piece]:
    if match := re.fullmatch(r"#(\w+)(?:\[[@*]\])?", body):
        value = scope.values.get(match[1])
        return [_Piece(raw if value is None else str(len(value)))]
    match = re.fullmatch(r"(\w+|[@*#?!$])(?:\[([^\]]*)\])?(?:(:?[-=+?])(.*))?", body, re.DOTALL)
    if match is None:
        return [_Piece(raw)]
    name, index, action, word = match.groups()
    value = scope.values.get(name)
    if index in ("@", "*") and value is not None:
        items = value if isinstance(value, list) else [value]
        if index == "*" and quoted:
            return [_Piece(_joint(scope).join(items))]
        return [_Piece("", many=items if quoted else [part for item in items for part in item.split()])]
    if index is not None and index not in ("@", "*"):
        value = _item(value, index, scope)
    plain = value if isinstance(value, str) else (value[0] if value else None)
    missing = plain is None or (plain == "" and (action or "").startswith(":"))
    if action and action[-1] == "+":
        return [] if missing else _alternative(word, scope, quoted)
    if missing and action and action[-1] in "-=":
        if action[-1] == "=":
            scope.values[name] = text(word, scope)
        return _alternative(word, scope, quoted)
    if plain is None:
        return [_Piece(raw)] if index not in ("@", "*") else [_Piece("", many=[])]
    return [_Piece(plain, split=not quoted)]


def _alternative(word: str, scope: Scope, quoted: bool) -> list[_Piece]:
    """The word of ${x:-word}: what is not in quotes there is split like any expansion."""
    pieces = _pieces(word, scope, quoted=quoted)
    return [replace(piece, split=True, literal=False) if piece.literal else piece for piece in pieces]


def _item(value: Value | None, index: str, scope: Scope) -> str | None:
    number = arithmetic(index, scope)
    if isinstance(value, str):
        return value if number == 0 else None
    return value[number] if value is not None and number is not None and -len(value) <= number < len(value) else None


def _joint(scope: Scope) -> str:
    separator = scope.text("IFS")
    return " " if separator is None else separator[:1]


_BINARY: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod, ast.FloorDiv: operator.floordiv,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift,
}  # fmt: skip


def arithmetic(expression: str, scope: Scope) -> int | None:
    """The value of an arithmetic expression over whole numbers, or None when it cannot be told."""
    source = re.sub(r"\$\{?([A-Za-z_]\w*)\}?", r"\1", expression).replace("&&", " and ").replace("||", " or ")
    source = re.sub(r"!(?!=)", " not ", source).replace("/", "//")
    try:
        return _evaluate(ast.parse(source.strip(), mode="eval").body, scope)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError):
        return None


def _evaluate(node: ast.expr, scope: Scope) -> int:
    """Raises ValueError for what is no whole-number arithmetic or has no known value."""
    match node:
        case ast.Constant(value=int() as number):
            return number
        case ast.Name(id=name):
            return int(scope.text(name) or "")
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in _BINARY:
            return _BINARY[type(kind)](_evaluate(left, scope), _evaluate(right, scope))
        case ast.Compare(left=left, ops=[kind], comparators=[right]) if type(kind) in _BINARY:
            return int(_BINARY[type(kind)](_evaluate(left, scope), _evaluate(right, scope)))
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_evaluate(inner, scope)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return int(not _evaluate(inner, scope))
        case ast.BoolOp(op=kind, values=values):
            parts = [bool(_evaluate(value, scope)) for value in values]
            return int(all(parts) if isinstance(kind, ast.And) else any(parts))
    raise ValueError(ast.dump(node))
