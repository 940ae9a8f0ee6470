"""A launch script of slime as one of ours: flags by their rules, functions by their place, all other words by the vocabulary.

Only text is changed, at the places that the syntax tree gives; the script stays the writer's own, comments and all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vime.migrate.names import GROUPS, IMPLIED, PATHS, Rule, path_here, slime_rule
from vime.migrate.shell import Span, parse, walk, words

if TYPE_CHECKING:
    from tree_sitter import Node

_ARRAY = re.compile(r"[\"']?\$\{(\w+)\[[@*]\]\}?[\"']?")


@dataclass(frozen=True)
class Change:
    """One thing that was done. `after` is empty where there is no equivalent; `note` says why, or what differs."""

    line: int
    before: str
    after: str
    note: str = ""


@dataclass(frozen=True)
class Migrated:
    """`changes`: flags that became others. `dropped`: those without an equivalent. `unknown`: flags that no rule knows and our parser neither."""

    text: str
    changes: tuple[Change, ...]
    dropped: tuple[Change, ...]
    unknown: tuple[Change, ...]


@dataclass
class _Entry:
    """A flag and its values in an array or a command."""

    flag: Span
    values: list[Span]

    @property
    def name(self) -> str:
        return self.flag.raw.split("=", 1)[0]

    @property
    def end(self) -> int:
        return self.values[-1].end if self.values else self.flag.end

    @property
    def value_texts(self) -> list[str]:
        inline = self.flag.raw.split("=", 1)[1:]
        return [*inline, *(value.raw for value in self.values)]

    def text(self) -> str:
        return " ".join([self.flag.raw, *(value.raw for value in self.values)])


@dataclass
class _Edits:
    """Replacements of bytes; they do not overlap."""

    source: bytes
    done: list[tuple[int, int, str]] = field(default_factory=list)
    #: Text that the vocabulary must not touch, by the mark that stands for it until the end.
    kept: dict[str, str] = field(default_factory=dict)

    def keep(self, text: str) -> str:
        mark = f"\x00{len(self.kept)}\x00"
        self.kept[mark] = text
        return mark

    def line(self, at: int) -> int:
        return self.source.count(b"\n", 0, at) + 1

    def around(self, start: int, end: int) -> tuple[bytes, bytes]:
        """What stands before `start` and behind `end` on their lines."""
        first, last = self.source.rfind(b"\n", 0, start) + 1, self.source.find(b"\n", end)
        return self.source[first:start], self.source[end : last if last >= 0 else None]

    def result(self) -> str:
        out, at = [], 0
        for start, end, new in sorted(self.done):
            out += [self.source[at:start], new.encode()]
            at = end
        return b"".join([*out, self.source[at:]]).decode()


def migrate(source: str, vocabulary: Callable[[str], str], known: Mapping[str, object]) -> Migrated:
    """The script in our words. `vocabulary` translates text at large, `known` has our parser's flags. Pure; the script is not run."""
    source, changes = _continued(source)
    edits = _Edits(source.encode())
    dropped: list[Change] = []
    root = parse(source)
    for node in walk(root, ("array", "command")):
        inside = words(node)
        start = _program(inside) if node.type == "command" else -1
        if node.type == "command" and start is None:
            continue
        entries = _entries(inside[(start or 0) + 1 if node.type == "command" else 0 :])
        _rewrite(entries, node.type == "array", edits, changes, dropped)
        if node.type == "command" and start is not None:
            _add_implied(inside[start], source, edits, changes)
    _functions(root, edits, changes)
    text = vocabulary(edits.result())
    for mark, kept in edits.kept.items():
        text = text.replace(mark, kept)
    return Migrated(text, tuple(changes), tuple(dropped), tuple(_unknown(text, known)))


def _continued(source: str) -> tuple[str, list[Change]]:
    """`source` with the backslashes that training commands lack: a line of nothing but flags behind one is no command, and was meant for it."""
    root, data = parse(source), source.encode()
    holders = {
        (node.parent.named_children[0].text or b"").decode()
        for node in walk(root, ("array",))
        if node.parent is not None and any(word.raw.startswith("--") for word in words(node))
    }

    def is_flags(word: Span) -> bool:
        array = _ARRAY.fullmatch(word.raw)
        return word.raw.startswith("--") or (array is not None and array[1] in holders)

    changes: list[Change] = []
    for node in reversed([*walk(root, ("command",))]):
        after, inside = node.next_named_sibling, words(node)
        rest = words(after) if after is not None and after.type == "command" else []
        if _program(inside) is None or not rest or data[inside[-1].end : rest[0].start].strip():
            continue
        if (rest[0].raw.startswith("--") or _ARRAY.fullmatch(rest[0].raw)) and any(map(is_flags, rest)):
            end = inside[-1].end
            note = "a backslash was missing here: the lines below never reached the program"
            changes.insert(0, Change(data.count(b"\n", 0, end) + 1, inside[-1].raw, inside[-1].raw + " \\", note))
            data = data[:end] + b" \\" + data[end:]
    return data.decode(), changes


def _program(inside: list[Span]) -> int | None:
    """Where the training program is among a command's words, or None."""
    for number, word in enumerate(inside):
        if re.search(r"(^|/)train(_async)?\.py$", word.raw.strip("\"'")):
            return number
    return None


def _entries(inside: list[Span]) -> list[_Entry]:
    entries: list[_Entry] = []
    for word in inside:
        if word.raw.startswith("--"):
            entries.append(_Entry(word, []))
        elif entries and not _ARRAY.match(word.raw):
            entries[-1].values.append(word)
    return entries


def _rewrite(
    entries: list[_Entry], in_array: bool, edits: _Edits, changes: list[Change], dropped: list[Change]
) -> None:
    groups: dict[str, list[_Entry]] = {}
    removed: list[_Entry] = []
    for entry in entries:
        rule = slime_rule(entry.name)
        if rule is None:
            continue
        if rule.group:
            groups.setdefault(rule.group, []).append(entry)
        elif rule.to is None:
            if not _drop(entry, rule.note, in_array, edits, dropped):
                removed.append(entry)
        else:
            _rename(entry, rule, edits, changes)
    for name, members in groups.items():
        made, note = GROUPS[name]({one.name: one.value_texts for one in members})
        first, *others = members
        line, before = edits.line(first.flag.start), " ".join(one.text() for one in members)
        if made:
            edits.done.append((first.flag.start, first.end, " ".join(made)))
            changes.append(Change(line, before, " ".join(made), note))
        elif not _drop(first, note, in_array, edits, dropped):
            removed.append(first)
        removed += others
    _remove(removed, edits)


def _rename(entry: _Entry, rule: Rule, edits: _Edits, changes: list[Change]) -> None:
    assert rule.to is not None
    equals = "=" in entry.flag.raw
    values = [(rule.values or {}).get(value.strip("\"'"), value) for value in entry.value_texts]
    new_flag = f"{rule.to}={values[0]}" if equals and values else rule.to
    edits.done.append((entry.flag.start, entry.flag.end, new_flag))
    for old, new in zip(entry.values, values[equals:], strict=False):
        if old.raw != new:
            edits.done.append((old.start, old.end, new))
    changes.append(Change(edits.line(entry.flag.start), entry.name, rule.to, rule.note))


def _drop(entry: _Entry, note: str, in_array: bool, edits: _Edits, dropped: list[Change]) -> bool:
    """In an array the flag stays as a comment that says why. False in a command, where a comment would end it: the flag has to go."""
    dropped.append(Change(edits.line(entry.flag.start), entry.text(), "", note))
    start, end = entry.flag.start, entry.end
    before, after = edits.around(start, end)
    if not in_array or before.strip() or after.strip()[:1] not in (b"", b"#") or b"\n" in edits.source[start:end]:
        return False
    edits.done.append((start, end, "# " + edits.keep(f"{entry.text()}  # {note}")))
    return True


def _remove(entries: list[_Entry], edits: _Edits) -> None:
    """Cut the words with the blanks before them; with the whole line, where they are alone on it."""
    cuts: list[tuple[int, int]] = []
    for entry in sorted(entries, key=lambda one: one.flag.start):
        start, end = entry.flag.start, entry.end
        before, after = edits.around(start, end)
        if not after.strip():
            # The last on its line: what continues the line before goes too, or the next command would be joined.
            start = _back(edits.source, start, cuts)
            alone = not edits.around(start, end)[0]
            end += len(after) + alone
        elif before.strip():
            start -= len(before) - len(before.rstrip())
        elif after.strip() == b"\\":
            start, end = start - len(before), end + len(after) + 1
        else:
            end += len(after) - len(after.lstrip())
        cuts.append((start, end))
    edits.done += [(start, end, "") for start, end in cuts]


def _back(source: bytes, at: int, cuts: list[tuple[int, int]]) -> int:
    """The end of the last word before `at` that stays. Cuts in between are taken from `cuts`: they become part of the one that begins here."""
    while True:
        if cuts and cuts[-1][0] < at <= cuts[-1][1]:
            at = cuts.pop()[0]
        elif source[at - 1 : at] in (b" ", b"\t"):
            at -= 1
        elif source[max(at - 2, 0) : at] == b"\\\n":
            at -= 2
        else:
            return at


def _add_implied(program: Span, source: str, edits: _Edits, changes: list[Change]) -> None:
    added = [
        flag for unwanted, flag in IMPLIED if not any(re.search(rf"(?<![\w-]){one}\b", source) for one in unwanted)
    ]
    for flag in added:
        changes.append(Change(edits.line(program.start), "", flag, "slime sets it for every run"))
    new = program.raw.replace("train_async.py", "train.py")
    generates = not re.search(r"(?<![\w-])--(debug-train-only|loss-type sft_loss)\b", source)
    if new != program.raw and generates and "generate_rollout_fully_async" not in source:
        # Its loop launched the next rollout before it trained the present one.
        schedule = "fully-async" if re.search(r"--partial-rollout\b", source) else "one-step-ahead"
        added.append(f"--rollout-schedule {schedule}")
        changes.append(Change(edits.line(program.start), program.raw, added[-1], "one loop, with a schedule"))
    if added or new != program.raw:
        edits.done.append((program.start, program.end, " ".join([new, *added])))


def _functions(root: Node, edits: _Edits, changes: list[Change]) -> None:
    """Dotted paths of slime's functions, wherever they are words."""
    taken = [(start, end) for start, end, _ in edits.done]
    for node in walk(root, ("word", "string_content", "raw_string")):
        raw = (node.text or b"").decode()
        for match in re.finditer("|".join(rf"{re.escape(old)}\w*" for old in PATHS), raw):
            start = node.start_byte + len(raw[: match.start()].encode())
            new = path_here(match[0])
            if any(first < start + len(match[0]) and start < last for first, last in taken):
                continue
            edits.done.append((start, start + len(match[0].encode()), new))
            taken.append((start, start + len(match[0])))
            changes.append(Change(edits.line(start), match[0], new))


def _unknown(text: str, known: Mapping[str, object]) -> list[Change]:
    """Flags in arrays and training commands of the result that our parser does not have."""
    found: list[Change] = []
    data = text.encode()
    for node in walk(parse(text), ("array", "command")):
        inside = words(node)
        start = _program(inside) if node.type == "command" else -1
        if start is None:
            continue
        for entry in _entries(inside[start + 1 :]):
            if entry.name not in known:
                found.append(Change(data.count(b"\n", 0, entry.flag.start) + 1, entry.name, ""))
    return found
