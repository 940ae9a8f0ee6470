"""A forge out of files: answers come from a folder of JSON, so that plans work offline and tests tell a fixed story.

Layout: ``pulls/NUMBER.json`` (a pull request, or null for "there is none"), ``commits/OID.json`` (numbers of pull requests) and ``heads/OID.json``.
``Recorder`` writes that layout while it passes questions on to a live forge.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from synctool.errors import ConfigError
from synctool.forge.base import Budget, Forge, PullRequest, from_json, to_json
from synctool.jsontext import dumps
from synctool.whole_file import write_whole


class RecordedForge:
    """Answers from a folder only. What was never recorded is unknown, not an error."""

    name = "recorded"

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ConfigError(
                "no folder of recorded forge answers",
                where=str(folder),
                hint="record one with --forge github --record FOLDER",
            )
        self.folder = folder

    def pull(self, number: int) -> PullRequest | None:
        """See ``Forge``."""
        path = self.folder / "pulls" / f"{number}.json"
        data = _read(path)
        if data is None:
            return None
        try:
            return from_json(data)
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"not a recorded pull request: {error}", where=str(path), hint="delete the file and record it again"
            ) from error

    def pulls_of_commit(self, oid: str) -> tuple[PullRequest, ...]:
        """See ``Forge``."""
        return self._numbered(self.folder / "commits" / f"{oid}.json")

    def pulls_of_head(self, oid: str) -> tuple[PullRequest, ...]:
        """See ``Forge``."""
        return self._numbered(self.folder / "heads" / f"{oid}.json")

    def _numbered(self, path: Path) -> tuple[PullRequest, ...]:
        numbers = _read(path)
        if numbers is None:
            return ()
        if not isinstance(numbers, list) or not all(isinstance(number, int) for number in numbers):
            raise ConfigError(
                "a recorded list of pull requests must hold numbers",
                where=str(path),
                hint="delete the file and record it again",
            )
        return tuple(pull for pull in map(self.pull, numbers) if pull is not None)

    def budget(self) -> Budget | None:
        """None: nothing is spent."""
        return None


class Recorder:
    """Passes every question to another forge once and keeps the answer in a folder."""

    def __init__(self, live: Forge, folder: Path) -> None:
        self.live = live
        self.name = live.name
        folder.mkdir(parents=True, exist_ok=True)
        self.kept = RecordedForge(folder)

    def pull(self, number: int) -> PullRequest | None:
        """See ``Forge``."""
        path = self.kept.folder / "pulls" / f"{number}.json"
        if not path.is_file():
            found = self.live.pull(number)
            _write(path, to_json(found) if found else None)
        return self.kept.pull(number)

    def pulls_of_commit(self, oid: str) -> tuple[PullRequest, ...]:
        """See ``Forge``."""
        path = self.kept.folder / "commits" / f"{oid}.json"
        if not path.is_file():
            self._keep(path, self.live.pulls_of_commit(oid))
        return self.kept.pulls_of_commit(oid)

    def pulls_of_head(self, oid: str) -> tuple[PullRequest, ...]:
        """See ``Forge``."""
        path = self.kept.folder / "heads" / f"{oid}.json"
        if not path.is_file():
            self._keep(path, self.live.pulls_of_head(oid))
        return self.kept.pulls_of_head(oid)

    def budget(self) -> Budget | None:
        """See ``Forge``."""
        return self.live.budget()

    def _keep(self, path: Path, pulls: tuple[PullRequest, ...]) -> None:
        for pull in pulls:
            _write(self.kept.folder / "pulls" / f"{pull.number}.json", to_json(pull))
        # The list last: when it is there, all that it names is there.
        _write(path, [pull.number for pull in pulls])


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ConfigError(
            f"a recorded answer is damaged: {error}", where=str(path), hint="delete the file and record it again"
        ) from error


def _write(path: Path, data: Any) -> None:
    write_whole(path, dumps(data, indent=1, sort_keys=True) + "\n", 0o600)
