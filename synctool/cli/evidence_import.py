"""``vime-sync evidence import``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from synctool.cli.app import Context, verb
from synctool.cli.evidence_common import (
    artifact_option,
    checked,
    checked_name,
    dry_run_option,
    options,
    parse_artifacts,
    person,
    platform_option,
    signed,
    store,
    sync_of,
    sync_option,
)
from synctool.cli.report import Report
from synctool.errors import ConfigError, Refused, RepositoryError, UsageError

if TYPE_CHECKING:
    from synctool.evidence.record import Artifact, Fact
    from synctool.git.repo import Repo

MAX_BYTES = 64 << 20


@click.command(name="import")
@options(
    click.option("--name", callback=checked_name, help="The name of the record: needed for JUnit files and builds."),
    click.option("--head", help="The commit that a JUnit file is about."),
    click.option("--run", "run_name", default="", help="Name of the CI run of a JUnit file, such as '#1383'."),
    click.option("--url", default="", help="Where that run can be looked at."),
    artifact_option,
    platform_option,
    click.option(
        "--ref",
        "refs",
        multiple=True,
        help="Take all records that this ref or commit keeps (another clone's, fetched). Repeatable.",
    ),
    sync_option,
    dry_run_option,
)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False))
@verb
def command(
    context: Context,
    name: str | None,
    head: str | None,
    run_name: str,
    url: str,
    artifacts: tuple[str, ...],
    platform: str,
    refs: tuple[str, ...],
    sync: str | None,
    dry_run: bool,
    files: tuple[Path, ...],
) -> Report:
    """Record what others wrote: Buildkite builds (JSON of the REST API), JUnit XML, records ('evidence list --json'), or another clone's ref.

    What comes from a CI service is marked as imported. Records of other clones keep who recorded them.
    """
    from synctool.evidence.store import load

    repo = context.repo()
    if not files and not refs:
        raise UsageError("name files, or --ref REF")
    found: list[Fact] = []
    for ref in refs:
        found += load(repo, repo.resolve(ref)).facts
    given = _Given(repo, name, head, run_name, url, parse_artifacts(artifacts), platform, sync_of(repo, sync))
    for path in files:
        found += given.read(path)
    fresh, messages = store(repo, found, reason=f"import {len(found)} record(s)", dry_run=dry_run)
    lines = [f"{fact.id}  {getattr(fact, 'name', None) or getattr(fact, 'topic', '')}" for fact in fresh]
    data = {"read": len(found), "new": [fact.to_json() for fact in fresh]}
    return Report("evidence import", data, [*lines, f"{len(found)} read, {len(fresh)} new"], messages=messages)


class _Given:
    """What the command line says about files that do not say it themselves."""

    def __init__(
        self,
        repo: Repo,
        name: str | None,
        head: str | None,
        run: str,
        url: str,
        artifacts: tuple[Artifact, ...],
        platform: str,
        sync: str,
    ) -> None:
        self.repo, self.name, self.head, self.run, self.url = repo, name, head, run, url
        self.artifacts, self.platform, self.sync = artifacts, platform, sync

    def read(self, path: Path) -> list[Fact]:
        """The facts of one file.

        Raises:
            ConfigError: it can't be read, or is none of the known forms.
            UsageError: it does not say what it is about, and neither does the command line.
        """
        try:
            if path.stat().st_size > MAX_BYTES:
                raise Refused(f"a file of over {MAX_BYTES:,} bytes", where=str(path))
            start = path.read_bytes()[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
        except OSError as error:
            raise ConfigError(f"can't read: {error.strerror}", where=str(path)) from None
        return [self._junit(path)] if start.startswith(b"<") else self._json(path)

    def _needs(self, value: str | None, option: str, path: Path) -> str:
        if not value:
            raise UsageError(f"{path.name} does not say its {option}", where=str(path), hint=f"give --{option}")
        return value

    def _junit(self, path: Path) -> Fact:
        from synctool.evidence.junit import read_junit
        from synctool.evidence.record import Outcome, Record, Source, now
        from synctool.policy.model import EvidenceKind
        from synctool.redact import redact

        name, head = self._needs(self.name, "name", path), self.repo.resolve(self._needs(self.head, "head", path))
        figures, artifact = read_junit(path)
        failed = figures["failures"] or figures["errors"]
        return checked(
            lambda: Record(
                head=head,
                tree=self.repo.resolve(head, "tree"),
                sync=self.sync,
                when=now(),
                by=signed(person(self.repo)),
                name=name,
                kind=EvidenceKind.TEST,
                outcome=Outcome.FAILED if failed else Outcome.PASSED,
                source=Source.IMPORTED,
                figures=figures,
                artifacts=(*self.artifacts, artifact),
                run=self.run,
                url=redact(self.url),
                platform=self.platform,
            )
        )

    def _json(self, path: Path) -> list[Fact]:
        from synctool.evidence.buildkite import is_build
        from synctool.evidence.record import decode

        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"neither JSON nor XML: {error}", where=str(path)) from None
        items: list[Any] = value if isinstance(value, list) else _records(value)
        facts: list[Fact] = []
        for item in items:
            if is_build(item):
                facts.append(self._build(item, path))
            elif isinstance(item, dict):
                facts.append(decode(_bare(item), str(path)))
            else:
                raise ConfigError("not a list of records or builds", where=str(path))
        return facts

    def _build(self, item: dict[str, Any], path: Path) -> Fact:
        from synctool.evidence.buildkite import read_build

        name, who = self._needs(self.name, "name", path), signed(person(self.repo))
        given = {"platform": self.platform, "sync": self.sync}
        return checked(lambda: read_build(item, name=name, who=who, where=str(path), tree_of=self._tree, **given))

    def _tree(self, commit: str) -> str | None:
        try:
            return self.repo.resolve(self.repo.resolve(commit), "tree")
        except RepositoryError:
            return None


def _records(value: Any) -> list[Any]:
    """The items of one JSON value: our own envelope, or the value itself."""
    if isinstance(value, dict) and value.get("schema") == "vime-sync/1" and isinstance(value.get("data"), dict):
        data = value["data"]
        return [*data.get("records", ()), *data.get("statements", ())] or [r for r in [data.get("record")] if r]
    return [value]


def _bare(item: dict[str, Any]) -> dict[str, Any]:
    """A record without what 'evidence list' adds about its standing."""
    added = ("standing", "paths", "path_count", "rules", "replaced_by", "counts", "green")
    return {key: value for key, value in item.items() if key not in added}
