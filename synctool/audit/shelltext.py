"""Reads shell text into commands, well enough to see words, quoting and redirections. It runs nothing and expands nothing.

Grammar: POSIX shell, sections 2.2 (quoting), 2.3 (token recognition) and 2.7 (redirection), with bash's here-strings and ``&>``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Word:
    """A word with its quotes removed. ``line`` counts from 1. ``quoted``: a part of it was in quotes."""

    text: str
    line: int
    quoted: bool


@dataclass(frozen=True, slots=True)
class Redirect:
    """``operator`` and its target. ``attached``: it follows a word without a space, so that the two look like one."""

    operator: str
    target: Word
    attached: bool


@dataclass
class Command:
    """One simple command."""

    words: list[Word] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)

    @property
    def line(self) -> int:
        """The line on which it begins."""
        return self.words[0].line if self.words else self.redirects[0].target.line

    def texts(self) -> list[str]:
        """The words' texts."""
        return [word.text for word in self.words]


_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|&>>|&>|<<<|<<-|<<|<&|>&|<>|>>|>\||[|&;()<>\n]")
#: Words after which a command begins.
_RESERVED = frozenset(("if", "elif", "while", "until", "for", "!", "then", "do", "else", "time"))
_REDIRECTS = {"<", ">", ">>", ">|", "<>", "<&", ">&", "&>", "&>>", "<<<", "<<", "<<-"}


def commands(text: str, first_line: int = 1) -> Iterator[Command]:
    """The simple commands of a shell text, those inside substitutions and of nested ``bash -c`` scripts included."""
    yield from _Reader(text, first_line).all()


class _Reader:
    def __init__(self, text: str, first_line: int) -> None:
        self.text, self.at, self.line = text, 0, first_line
        self.current = Command()
        self.done: list[Command] = []
        self.heredocs: list[tuple[str, bool]] = []

    def all(self) -> Iterator[Command]:
        pending: tuple[str, bool] | None = None
        while self.at < len(self.text):
            if self.text[self.at] in " \t\r":
                self.at += 1
                continue
            if self.text.startswith("\\\n", self.at):
                self.at += 2
                self.line += 1
                continue
            if self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
                continue
            if self.text.startswith("((", self.at) and _RESERVED.issuperset(
                self.current.texts()
            ):  # arithmetic: > and < compare
                end = self.text.find("))", self.at)
                end = len(self.text) if end < 0 else end + 2
                self.line += self.text.count("\n", self.at, end)
                self.at = end
                continue
            found = _OPERATOR.match(self.text, self.at)
            if found:
                operator = found[0]
                attached = self.at > 0 and self.text[self.at - 1] not in " \t\n;&|("
                self.at = found.end()
                if operator in _REDIRECTS:
                    pending = (operator, attached)
                elif operator == "\n":
                    self._end()
                    self.line += 1
                    self._skip_heredocs()
                    pending = None
                else:
                    self._end()
                    pending = None
                continue
            word = self._word()
            if pending is None:
                if word.text.isdigit() and not word.quoted and self.text[self.at : self.at + 1] in ("<", ">"):
                    continue  # the number of a file descriptor
                self.current.words.append(word)
            else:
                self.current.redirects.append(Redirect(pending[0], word, pending[1]))
                if pending[0] in ("<<", "<<-"):
                    self.heredocs.append((word.text, pending[0] == "<<-"))
                pending = None
        self._end()
        yield from self.done

    def _end(self) -> None:
        command, self.current = self.current, Command()
        if not command.words and not command.redirects:
            return
        self.done.append(command)
        script = nested_script(command)
        if script is not None:
            self.done.extend(commands(script.text, script.line))

    def _skip_heredocs(self) -> None:
        for end_word, tabs in self.heredocs:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                self.line += 1
                if (line.lstrip("\t") if tabs else line) == end_word:
                    break
        self.heredocs = []

    def _word(self) -> Word:
        start_line, parts, quoted = self.line, [], False
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter in " \t\r" or _OPERATOR.match(self.text, self.at):
                break
            if letter == "\\":
                piece = self.text[self.at + 1 : self.at + 2]
                self.line += piece == "\n"
                parts.append("" if piece == "\n" else piece)
                self.at += 2
            elif letter == "'":
                end = self.text.find("'", self.at + 1)
                end = len(self.text) if end < 0 else end
                self._take(self.at + 1, end, parts)
                self.at, quoted = end + 1, True
            elif letter == '"':
                self._double(parts)
                quoted = True
            elif letter == "`":
                end = self.text.find("`", self.at + 1)
                end = len(self.text) if end < 0 else end
                self.done.extend(commands(self.text[self.at + 1 : end], self.line))
                self._take(self.at, end + 1, parts)
                self.at = end + 1
            elif letter == "$" and self.text[self.at + 1 : self.at + 2] in ("(", "{"):
                self._substitution(parts)
            else:
                parts.append(letter)
                self.at += 1
        return Word("".join(parts), start_line, quoted)

    def _double(self, parts: list[str]) -> None:
        self.at += 1
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == '"':
                self.at += 1
                return
            if letter == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`", "\n"):
                piece = self.text[self.at + 1]
                self.line += piece == "\n"
                parts.append("" if piece == "\n" else piece)
                self.at += 2
            elif letter == "$" and self.text[self.at + 1 : self.at + 2] in ("(", "{"):
                self._substitution(parts)
            else:
                self.line += letter == "\n"
                parts.append(letter)
                self.at += 1

    def _substitution(self, parts: list[str]) -> None:
        """``$(...)`` and ``${...}``: taken as they stand; the commands of the former are read, too."""
        opening = self.text[self.at + 1]
        closing = {"(": ")", "{": "}"}[opening]
        depth, end, quote = 0, self.at + 1, ""
        while end < len(self.text):
            letter = self.text[end]
            if quote:
                if letter == "\\" and quote == '"':
                    end += 1
                elif letter == quote:
                    quote = ""
            elif letter == "\\":
                end += 1
            elif letter in "'\"":
                quote = letter
            elif letter == opening:
                depth += 1
            elif letter == closing:
                depth -= 1
                if depth == 0:
                    break
            end += 1
        if opening == "(" and self.text[self.at + 2 : self.at + 3] != "(":
            self.done.extend(commands(self.text[self.at + 2 : end], self.line))
        self._take(self.at, min(end + 1, len(self.text)), parts)
        self.at = end + 1

    def _take(self, start: int, end: int, parts: list[str]) -> None:
        piece = self.text[start:end]
        self.line += piece.count("\n")
        parts.append(piece)


def nested_script(command: Command) -> Word | None:
    """The script of ``bash -c SCRIPT`` (also behind ``docker run IMAGE``, ``ssh``, ``exec``), or None."""
    for place, word in enumerate(command.words[:-2]):
        if word.text.rpartition("/")[2] in ("bash", "sh"):
            flags = 1
            while place + flags < len(command.words) and re.fullmatch(r"-\w+", command.words[place + flags].text):
                if "c" in command.words[place + flags].text:
                    after = place + flags + 1
                    return command.words[after] if after < len(command.words) else None
                flags += 1
    return None
