"""``vime-sync rage``: one file with what a maintainer needs to understand a fault, and no secret in it."""

from __future__ import annotations

import importlib.metadata
import io
import json
import platform
import subprocess
import tarfile
from pathlib import Path

import click

from synctool import __version__
from synctool.cli.app import Context, verb
from synctool.cli.log import moment, state_folder
from synctool.cli.report import Report
from synctool.errors import SyncError
from synctool.redact import redact
from synctool.whole_file import write_whole

PACKAGES = ("click", "gitpython", "jinja2", "pydantic", "pygithub", "rich", "tomlkit", "unidiff")
#: Newest logs and at most this much of each file: a bundle is read by people.
MAX_LOGS, MAX_BYTES = 5, 200_000


def versions() -> dict[str, str]:
    """Versions of ourselves, Python, git and the libraries that matter."""
    found = {"vime-sync": __version__, "python": platform.python_version(), "platform": platform.platform()}
    try:
        found["git"] = subprocess.run(["git", "--version"], capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        found["git"] = "not found"
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def collect(context: Context) -> dict[str, str]:
    """Bundle member name -> redacted text."""
    members = {"versions.json": json.dumps(versions(), indent=1)}
    logs = sorted(state_folder().glob("crash-*.log"), reverse=True)[:MAX_LOGS] if state_folder().is_dir() else []
    for path in logs:
        members[f"logs/{path.name}"] = path.read_text(errors="replace")[-MAX_BYTES:]
    try:
        repo = context.repo()
    except SyncError as error:
        members["repository.txt"] = str(error)
    else:
        facts = {
            "bare": repo.work_tree is None,
            "shallow": repo.is_shallow,
            "format": repo.algorithm,
            "head": repo.head_branch(),
        }
        members["repository.json"] = json.dumps(facts, indent=1)
        members["refs.txt"] = repo.text("for-each-ref", "refs/vime-sync/")
        folder = repo.common_dir / "vime-sync"
        for path in sorted(folder.rglob("*.json")) if folder.is_dir() else []:
            members[f"state/{path.relative_to(folder)}"] = path.read_text(errors="replace")[:MAX_BYTES]
        policy = (repo.work_tree or Path()) / "vime-sync.toml"
        if policy.is_file():
            members["vime-sync.toml"] = policy.read_text(errors="replace")[:MAX_BYTES]
    return {name: redact(text) for name, text in members.items()}


@click.command(name="rage")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Where to write.  [default: vime-sync-rage-TIME.tar.gz here]",
)
@click.option("--dry-run", is_flag=True, help="List what would be bundled, and write nothing.")
@verb
def command(context: Context, output: Path | None, dry_run: bool) -> Report:
    """Bundle versions, session state and crash logs for a bug report.

    Tokens, passwords in URLs and keys are removed. Look inside before you send it.
    """
    members = collect(context)
    path = output or Path(f"vime-sync-rage-{moment()}.tar.gz")
    sizes = {name: len(text.encode("utf-8", "replace")) for name, text in members.items()}
    lines = [f"{size:>8,} bytes  {name}" for name, size in sizes.items()]
    if dry_run:
        return Report("rage", {"written": None, "members": sizes}, summary=[*lines, "dry run: nothing was written"])
    write_whole(path, _archive(members))
    return Report("rage", {"written": str(path), "members": sizes}, summary=[*lines, f"written: {path}"])


def _archive(members: dict[str, str]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        for name, text in members.items():
            data = text.encode("utf-8", "replace")
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return whole.getvalue()
