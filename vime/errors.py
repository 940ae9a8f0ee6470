"""Every error that a user of the runtime can meet, and the exit code each one gives.

An error says what is wrong (``title``), where (``where``: ``file:line``, a flag or a sample) and what to do (``hint``). The command line prints
those and no traceback; anything that is not a ``VimeError`` is a bug of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class VimeError(Exception):
    """Base of all expected errors."""

    exit_code = 1

    def __init__(self, title: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(title)
        self.title = title
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.where}: {self.title}" if self.where else self.title

    def __reduce__(self) -> tuple[object, ...]:
        # Ray pickles errors across processes; keyword-only arguments do not survive the default way.
        return (_rebuild, (type(self), self.__dict__.copy()))

    def render(self) -> str:
        """The lines a user sees, without a trailing newline."""
        return f"error: {self}" + (f"\n  hint: {self.hint}" if self.hint else "")


class UsageError(VimeError):
    """The command line or the configuration file is wrong."""

    exit_code = 2


class DataError(VimeError):
    """A prompt file is wrong, has changed since the checkpoint, or is exhausted."""

    exit_code = 3


class HookError(VimeError):
    """A user's function cannot be imported, has the wrong signature, or broke its contract."""

    exit_code = 4


class EngineError(VimeError):
    """An inference engine did not answer, or answered something that must not be trained on."""

    exit_code = 5


class EngineTimeout(EngineError):
    """One request took longer than it may. The group is requeued or closed; the run goes on."""


class MachineError(VimeError):
    """The machine lacks something: a package, a port, memory, a file descriptor."""

    exit_code = 30


@dataclass(frozen=True)
class Problem:
    """One of several things wrong with the same input."""

    title: str
    hint: str | None = None

    def render(self) -> str:
        return self.title + (f"\n    hint: {self.hint}" if self.hint else "")


class Problems(UsageError):
    """All that is wrong with the arguments, at once."""

    def __init__(self, problems: Sequence[Problem], *, where: str | None = None) -> None:
        if not problems:
            raise ValueError("Problems needs at least one problem")
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"{count} with the arguments", where=where)
        self.problems = tuple(problems)

    def render(self) -> str:
        return "\n".join([f"error: {self}", *(f"  - {problem.render()}" for problem in self.problems)])


def _rebuild(kind: type[VimeError], state: dict[str, object]) -> VimeError:
    error = kind.__new__(kind)
    Exception.__init__(error, state["title"])
    error.__dict__.update(state)
    return error
