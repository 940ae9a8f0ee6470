"""The pinned source as git objects, in a cache that is checked on each use and needs no network after the first.

One folder a source in the user's cache: ``source.git`` (a bare repository whose one pack holds the tree) and ``stamp.json`` (what was put in, with
the pack's hash). It is built beside and renamed into place, under a lock. Trees of patched sources are written into the same repository.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synctool.cli.terminal import Progress, silent
from synctool.errors import EnvironmentFailure, Refused, RepositoryError
from synctool.git.quoting import quote
from synctool.git.repo import Repo
from synctool.git.runner import git_command, run_git, scrubbed_environment
from synctool.git.tree import Tree
from synctool.patches.acquire import download_pinned
from synctool.patches.archive import Member, check_archive, file_sha256, read_archive, read_folder
from synctool.patches.pin import Pin

_REF = "refs/heads/pin"


@dataclass(frozen=True, slots=True)
class PinnedSource:
    """The verified source of a pin. ``origin``: ``cache``, ``index``, ``git``, or the path it came from."""

    pin: Pin
    repo: Repo
    tree_oid: str
    origin: str

    @property
    def tree(self) -> Tree:
        """The pinned tree."""
        return Tree(self.repo.objects, self.tree_oid)


def cache_folder() -> Path:
    """Where pinned sources and parse verdicts are kept, by the platform's convention."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("vime-sync", appauthor=False))


def open_pin(
    pin: Pin,
    *,
    source: Path | None = None,
    use_git: bool = False,
    offline: bool = False,
    dry: bool = False,
    progress: Progress = silent,
) -> PinnedSource:
    """The pinned source, from the cache if it holds up, else from ``source``, git or the index.

    With ``dry``, objects written later stay in memory.

    Raises:
        Refused: what was found is not what the pin names.
        EnvironmentFailure: it is not in the cache and cannot be had.
    """
    if use_git and pin.git is None:
        raise RepositoryError(f"the pin of {pin.label} names no git source", hint="add a [git] table to pin.toml")
    key = f"git-{(pin.git.tree or pin.git.commit or pin.git.tag)}" if use_git and pin.git else pin.archive.sha256
    folder = cache_folder() / "pins" / str(key).replace("/", "_")
    origin = "cache"
    if (stamp := _checked_stamp(folder)) is None:
        if offline and source is None:
            raise EnvironmentFailure(
                f"{pin.label} is not in the cache",
                where=str(folder),
                hint="run once without --offline, or give --source PATH",
            )
        from filelock import FileLock

        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(str(folder) + ".lock"):
            if (stamp := _checked_stamp(folder)) is None:  # another process may have built it meanwhile
                origin, stamp = _build(pin, folder, source, use_git, progress)
    expected = pin.git.tree if use_git and pin.git else pin.archive.tree
    if expected is not None and stamp["tree"] != expected:
        raise Refused(f"the source's tree is {stamp['tree']}, the pin says {expected}", where=str(folder))
    return PinnedSource(pin, Repo.open(folder / "source.git", dry=dry), stamp["tree"], origin)


def _checked_stamp(folder: Path) -> dict[str, Any] | None:
    """The stamp of a cached source whose pack still has the recorded hash; None when there is none or it was damaged."""
    try:
        stamp: dict[str, Any] = json.loads((folder / "stamp.json").read_text())
        pack = folder / "source.git" / "objects" / "pack" / stamp["pack"]
        good = (
            file_sha256(pack) == stamp["pack_sha256"] and file_sha256(pack.with_suffix(".idx")) == stamp["index_sha256"]
        )
    except (OSError, ValueError, KeyError):
        return None
    return stamp if good else None


def _build(
    pin: Pin, folder: Path, source: Path | None, use_git: bool, progress: Progress
) -> tuple[str, dict[str, Any]]:
    """Fill the cache folder. Built beside, then renamed."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="build-") as name:
        scratch = Path(name)
        git_dir = scratch / "made" / "source.git"
        git_dir.mkdir(parents=True)
        run_git(git_dir, "init", "--quiet", "--bare", "--initial-branch=pin", ".")
        if use_git:
            origin, tree, files = "git", *_from_git(pin, git_dir)
        elif source is not None and source.is_dir():
            origin = str(source)
            tree, files = import_members(git_dir, read_folder(source))
            if tree != pin.archive.tree:
                raise Refused(
                    f"the folder's tree is {tree}, the pin says {pin.archive.tree}",
                    where=str(source),
                    hint="unpack the pinned archive afresh",
                )
        else:
            origin, archive = _archive(pin, source, scratch, progress)
            check_archive(archive, sha256=pin.archive.sha256, size=pin.archive.size)
            tree, files = import_members(git_dir, read_archive(archive), progress, pin.archive.files)
            if files != pin.archive.files:
                raise Refused(
                    f"the archive holds {files:,} files, the pin says {pin.archive.files:,}", where=str(archive)
                )
        packs = sorted((git_dir / "objects" / "pack").glob("*.pack"))
        if len(packs) != 1:
            raise RepositoryError(f"expected one pack, found {len(packs)}", where=str(git_dir))
        stamp = {
            "tree": tree,
            "files": files,
            "pack": packs[0].name,
            "pack_sha256": file_sha256(packs[0]),
            "index_sha256": file_sha256(packs[0].with_suffix(".idx")),
        }
        (scratch / "made" / "stamp.json").write_text(json.dumps(stamp, indent=1) + "\n")
        if folder.exists():  # it was damaged
            folder.rename(scratch / "old")
        (scratch / "made").rename(folder)
    return origin, stamp


def _archive(pin: Pin, source: Path | None, scratch: Path, progress: Progress) -> tuple[str, Path]:
    if source is not None:
        return str(source), source
    path = scratch / "archive"
    download_pinned(pin, path, progress)
    return "index", path


def _from_git(pin: Pin, git_dir: Path) -> tuple[str, int]:
    """Fetch the pinned commit, one deep, and return its tree and number of files."""
    assert pin.git is not None
    wanted = f"refs/tags/{pin.git.tag}" if pin.git.tag else pin.git.commit
    if wanted is None or (not pin.git.tag and len(wanted) < 40):
        raise RepositoryError("the pin's [git] names neither a tag nor a full commit", hint="add one of them")
    environment = {"GIT_ALLOW_PROTOCOL": "https:ssh:file"}
    # Packed however small it is: the stamp checks one pack.
    run_git(
        git_dir,
        "-c",
        "fetch.unpackLimit=1",
        "fetch",
        "--quiet",
        "--depth=1",
        "--no-tags",
        "--",
        pin.git.url,
        wanted,
        environment=environment,
    )
    commit = run_git(git_dir, "rev-parse", "FETCH_HEAD^{commit}").stdout.decode().strip()
    if pin.git.commit and not commit.startswith(pin.git.commit):
        raise Refused(f"{wanted} is commit {commit}, the pin says {pin.git.commit}", where=pin.git.url)
    run_git(git_dir, "update-ref", _REF, commit)
    tree = run_git(git_dir, "rev-parse", f"{commit}^{{tree}}").stdout.decode().strip()
    files = run_git(git_dir, "ls-tree", "-r", "-z", "--name-only", tree).stdout.count(b"\0")
    return tree, files


def import_members(
    git_dir: Path, members: Iterable[Member], progress: Progress = silent, total: int = 0
) -> tuple[str, int]:
    """Write files into one pack by ``git fast-import`` and return the tree and the number of files.

    Raises:
        EnvironmentFailure: git failed.
    """
    command = git_command(git_dir, ["-c", "core.compression=1", "-c", "pack.compression=1", "-c", "fastimport.unpackLimit=0",
                                    "fast-import", "--quiet", "--depth=0"])  # fmt: skip
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors, env=scrubbed_environment())
        assert process.stdin is not None
        rows: list[bytes] = []
        try:
            for count, member in enumerate(members, 1):
                process.stdin.write(b"blob\nmark :%d\ndata %d\n" % (count, len(member.data)) + member.data + b"\n")
                rows.append(f"M {member.mode} :{count} ".encode() + quote(member.path).encode() + b"\n")
                if count % 256 == 0:
                    progress(count, total, "files")
            # A fixed identity and time: the commit, too, depends on the content alone.
            process.stdin.write(
                f"commit {_REF}\ncommitter vime-sync <vime-sync@localhost> 0 +0000\ndata 3\npin\n".encode()
                + b"".join(rows)
                + b"\n"
            )
            process.stdin.close()
        except BrokenPipeError:
            pass
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.wait():
            errors.seek(0)
            raise EnvironmentFailure(
                f"git fast-import failed: {errors.read().decode(errors='replace')[:300]}", where=str(git_dir)
            )
    return run_git(git_dir, "rev-parse", f"{_REF}^{{tree}}").stdout.decode().strip(), len(rows)


def learn_archive(path: Path) -> tuple[str, int]:
    """Tree and number of files of an archive that is to be pinned, computed in a throw-away repository."""
    with tempfile.TemporaryDirectory(prefix="vime-sync-") as scratch:
        git_dir = Path(scratch) / "source.git"
        git_dir.mkdir()
        run_git(git_dir, "init", "--quiet", "--bare", ".")
        return import_members(git_dir, read_archive(path))


@contextmanager
def joined(*sources: PinnedSource) -> Iterator[Repo]:
    """A throw-away repository that borrows the objects of several sources; what is written goes away with it."""
    with tempfile.TemporaryDirectory(prefix="vime-sync-") as scratch:
        git_dir = Path(scratch) / "joined.git"
        git_dir.mkdir()
        run_git(git_dir, "init", "--quiet", "--bare", "--initial-branch=pin", ".")
        borrowed = "".join(f"{source.repo.common_dir / 'objects'}\n" for source in sources)
        (git_dir / "objects" / "info" / "alternates").write_text(borrowed)
        repo = Repo.open(git_dir)
        try:
            yield repo
        finally:
            repo.close()
