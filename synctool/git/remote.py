"""Brings another repository's history in, and sends a ref of ours: the one place where a network, credentials and the user's transport configuration matter.

GitPython does the talking here, since it parses fetch results and progress, and refuses protocols that run programs (``ext::``). Everything else uses the
scrubbed runner.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from synctool.errors import EnvironmentFailure, Refused, RepositoryError
from synctool.git.refs import read_ref
from synctool.git.repo import Repo
from synctool.progress import Progress, silent
from synctool.redact import redact

if TYPE_CHECKING:
    from git import RemoteProgress


def _reporter(progress: Progress, url: str) -> RemoteProgress:
    """A GitPython progress object that tells ours (made here, since GitPython is imported late)."""
    from git import RemoteProgress

    class Reporter(RemoteProgress):  # type: ignore[misc]
        def update(self, op_code: int, cur_count: Any, max_count: Any = None, message: str = "") -> None:
            progress(int(float(cur_count)), int(float(max_count or 0)) or 1, f"{redact(url)} {message}".strip())

    return Reporter()


def remotes(repo: Repo) -> dict[str, str]:
    """The remotes of a repository by name, with their addresses."""
    rows = repo.run("config", "--local", "--null", "--get-regexp", r"^remote\..*\.url$", check=False).stdout.decode(
        errors="replace"
    )
    pairs = (row.partition("\n") for row in rows.split("\0") if row)
    return {key.removeprefix("remote.").removesuffix(".url"): url for key, _, url in pairs}


def remote_ref(repo: Repo, remote: str, ref: str) -> str | None:
    """The commit that a ref of a remote points to, its objects brought here; None when the remote has no such ref.

    Raises:
        EnvironmentFailure: the remote can't be reached.
    """
    listed = _talk(repo, remote, "ls_remote", remote, ref)
    oid = next((line.split()[0] for line in listed.splitlines() if line.split()[1:] == [ref]), None)
    if oid is not None and repo.run("cat-file", "-e", oid, check=False).returncode:
        _talk(repo, remote, "fetch", remote, ref, "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance")
    return oid


def push_ref(repo: Repo, remote: str, oid: str, ref: str) -> bool:
    """Move a ref of a remote forward to a commit; False when it has moved there meanwhile. Never by force.

    Raises:
        EnvironmentFailure: the remote can't be reached, or does not take it.
    """
    try:
        _talk(repo, remote, "push", "--porcelain", remote, f"{oid}:{ref}")
    except EnvironmentFailure as error:
        if "[rejected]" in str(getattr(error.__cause__, "stdout", "")):  # a line of --porcelain: it moved
            return False
        raise
    return True


@contextmanager
def _caller(repo: Repo, *settings: str, **environment: str) -> Iterator[Any]:
    """git in the user's environment (proxies, ssh agent, credential helpers) but for variables that point it at another repository. No hooks run."""
    import git

    opened = git.Repo(str(repo.git_dir))
    try:
        dropped = {name: "" for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE") if name in os.environ}
        opened.git.update_environment(GIT_TERMINAL_PROMPT="0", **dropped, **environment)
        yield opened.git(c=["core.hooksPath=/dev/null", "gc.auto=0", "fetch.recurseSubmodules=false", *settings])
    finally:
        opened.close()


def _talk(repo: Repo, remote: str, verb: str, *words: str) -> str:
    """One git command that reaches a remote."""
    from git.exc import GitCommandError

    if remote.startswith("-"):
        raise Refused(f"{remote!r} is not a remote")
    try:
        with _caller(repo, "protocol.ext.allow=never", LC_ALL="C") as caller:
            return str(getattr(caller, verb)(*words))
    except GitCommandError as error:
        said = redact(f"{error.stdout} {error.stderr}").strip()
        raise EnvironmentFailure(
            f"git {verb.replace('_', '-')} failed: {said[-400:]}", where=redact(remote), hint="check the remote"
        ) from error


def fetch_branch(repo: Repo, url: str, branch: str, ref: str, *, progress: Progress = silent) -> tuple[str | None, str]:
    """Fetch ``branch`` of ``url`` (an address or a local folder) into ``ref``; returns the old and new commit of the ref.

    No tags, no submodules, no hooks. The ref moves even when upstream rewrote its history: the plan detects that and says so.

    Raises:
        EnvironmentFailure: the other side can't be reached or has no such branch.
        Refused: the address uses a protocol that runs programs.
    """
    import git
    from git.cmd import handle_process_output
    from git.exc import GitCommandError, UnsafeOptionError, UnsafeProtocolError
    from git.util import finalize_process

    if url.startswith("-"):
        raise Refused(f"{url!r} is not an address")
    # A colon or a star would make the refspec write other refs than the one named.
    if repo.run("check-ref-format", f"refs/heads/{branch}", check=False).returncode:
        raise Refused(f"{branch!r} is not the name of a branch", hint="mend 'branch' in [upstream] of vime-sync.toml")
    before = read_ref(repo, ref)
    reporter = _reporter(progress, url)
    try:
        git.Git.check_unsafe_protocols(url)
        with _caller(repo) as caller:
            process = caller.fetch(
                url,
                f"+refs/heads/{branch}:{ref}",
                "--progress",
                "--no-tags",
                "--no-write-fetch-head",
                "--no-auto-maintenance",
                as_process=True,
                universal_newlines=True,
            )
            handle_process_output(process, None, reporter.new_message_handler(), finalize_process, decode_streams=False)
    except (UnsafeProtocolError, UnsafeOptionError) as error:
        raise Refused(f"the address {redact(url)} is not allowed: {error}") from error
    except GitCommandError as error:
        said = redact(" ".join(reporter.error_lines) or str(error.stderr)).strip()
        raise EnvironmentFailure(
            f"can't fetch {branch} from {redact(url)}: {said[-400:]}",
            hint="check the address and the branch in vime-sync.toml",
        ) from error
    after = read_ref(repo, ref)
    if after is None:
        raise RepositoryError(f"the fetch from {redact(url)} left no {ref}")
    return before, after
