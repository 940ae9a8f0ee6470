"""Every error a user can meet, and the exit code each one gives.

An error says what is wrong (``title``), where (``where``, as ``file:line``, a revision or a path) and what to do (``hint``). The command line
prints those three and no traceback. Anything that is not a ``SyncError`` is a bug of ours: exit code 31 and a log file.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every verb. They are part of the interface: scripts may rely on them."""

    OK = 0
    #: The verb ran and found something that needs a person: conflicts left, audit findings, a failed verification.
    ATTENTION = 1
    #: The command line itself is wrong.
    USAGE = 2
    #: ``vime-sync.toml``, a manifest, a pin or a patch header is wrong.
    CONFIG = 3
    #: Nothing to do: the range is mirrored already, the stack is applied already.
    NO_OP = 4
    #: The repository is not in a state in which this verb may run.
    REPOSITORY = 5
    #: Input was refused as hostile or out of bounds.
    REFUSED = 6
    #: A network service, a tool or the machine failed.
    ENVIRONMENT = 30
    #: A bug of vime-sync.
    BUG = 31
    #: Ctrl-C.
    INTERRUPTED = 130


class SyncError(Exception):
    """Base of all expected errors."""

    exit_code: Exit = Exit.ATTENTION

    def __init__(self, title: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(title)
        self.title = title
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.where}: {self.title}" if self.where else self.title


class UsageError(SyncError):
    """A verb was called with arguments that do not fit together."""

    exit_code = Exit.USAGE


class ConfigError(SyncError):
    """A file that a person wrote for vime-sync is wrong; ``where`` names file and line."""

    exit_code = Exit.CONFIG


class NothingToDo(SyncError):
    """The asked-for state holds already. Not a failure, but scripts can tell it from success."""

    exit_code = Exit.NO_OP


class RepositoryError(SyncError):
    """A repository, revision, ref or session is missing or not usable."""

    exit_code = Exit.REPOSITORY


class Refused(SyncError):
    """Input breaks the path policy or a size bound; nothing of it was used."""

    exit_code = Exit.REFUSED


class EnvironmentFailure(SyncError):
    """A tool, service or resource outside vime-sync failed."""

    exit_code = Exit.ENVIRONMENT
