"""Where each value of a TOML file stands: a map from its path (as pydantic names locations) to a line number.

``tomllib`` gives values without positions. This scanner finds only positions, and only in text that ``tomllib`` accepted.
"""

from __future__ import annotations

import re
import tomllib

Location = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_STRING = re.compile(r'''"""(?:[^\\]|\\.)*?"{3,5}|\'{3}.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*\'''', re.DOTALL)
_SCALAR = re.compile(r"[^,\]}#\n]+")


class LineIndex:
    """Line numbers (from 1) of tables, keys and array elements."""

    def __init__(self, text: str) -> None:
        self.lines: dict[Location, int] = {}
        self._text = text
        self._position = 0
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._array_sizes: dict[Location, int] = {}
        self._scan()

    def line(self, location: Location) -> int:
        """The line of a location, or of the nearest enclosing one that stands in the file; 1 when none does."""
        while location:
            if location in self.lines:
                return self.lines[location]
            location = location[:-1]
        return 1

    def _here(self) -> int:
        import bisect

        return bisect.bisect_right(self._line_starts, self._position)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._position)
        if match is None:
            raise ValueError(f"line {self._here()}: this TOML is not understood")
        self._position = match.end()
        return match.group()

    def _at(self, word: str) -> bool:
        if self._text.startswith(word, self._position):
            self._position += len(word)
            return True
        return False

    def _scan(self) -> None:
        table: Location = ()
        while True:
            self._skip(_BLANK)
            if self._position >= len(self._text):
                return
            line = self._here()
            if self._at("[["):
                name = self._resolve(self._keys())
                index = self._array_sizes.get(name, 0)
                self._array_sizes[name] = index + 1
                table = (*name, index)
                self.lines.setdefault(name, line)
                self.lines[table] = line
                self._position += 2
            elif self._at("["):
                table = self._resolve(self._keys())
                self.lines[table] = line
                self._position += 1
            else:
                self._pair(table)

    def _resolve(self, keys: Location) -> Location:
        """A header's full location: a name that is an array of tables means its newest element."""
        place: Location = ()
        for position, key in enumerate(keys):
            place = (*place, key)
            if position < len(keys) - 1 and place in self._array_sizes:
                place = (*place, self._array_sizes[place] - 1)
        return place

    def _keys(self) -> Location:
        keys: list[str | int] = []
        while True:
            self._skip(_SPACE)
            word = self._skip(_KEY)
            keys.append(next(iter(tomllib.loads(f"{word} = 0"))))
            self._skip(_SPACE)
            if not self._at("."):
                return tuple(keys)

    def _pair(self, table: Location) -> None:
        line = self._here()
        place = table
        for key in self._keys():
            place = (*place, key)
            self.lines.setdefault(place, line)
        self._position += 1  # the equals sign
        self._value(place)

    def _value(self, place: Location) -> None:
        self._skip(_SPACE)
        if self._at("["):
            index = 0
            while True:
                self._skip(_BLANK)
                if self._at("]"):
                    return
                self.lines[(*place, index)] = self._here()
                self._value((*place, index))
                self._skip(_BLANK)
                self._at(",")
                index += 1
        elif self._at("{"):
            while True:
                self._skip(_BLANK)
                if self._at("}"):
                    return
                self._pair(place)
                self._skip(_BLANK)
                self._at(",")
        elif self._text[self._position] in "\"'":
            self._skip(_STRING)
        else:
            self._skip(_SCALAR)
