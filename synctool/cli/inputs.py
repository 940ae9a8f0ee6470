"""What most verbs need before they start: the policy, the translator, upstream's tip."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from synctool.errors import RepositoryError
from synctool.git.refs import read_ref

if TYPE_CHECKING:
    from synctool.git.repo import Repo
    from synctool.policy.model import Policy
    from synctool.translate.translator import Translator


def policy_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--policy FILE``."""
    return click.option(
        "--policy",
        "policy_file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The policy file.  [default: vime-sync.toml at the top of the repository]",
    )(function)


def upstream_ref(branch: str) -> str:
    """Where ``fetch`` puts a branch of upstream."""
    return f"refs/vime-sync/upstream/{branch}"


def work_tree(repo: Repo) -> Path:
    """The folder of a repository's files.

    Raises:
        RepositoryError: the repository is bare.
    """
    if repo.work_tree is None:
        raise RepositoryError(
            "a bare repository has no files on disk", hint="run this verb in a clone with a work tree"
        )
    return repo.work_tree


@dataclass
class Inputs:
    """A loaded policy and what follows from it."""

    repo: Repo
    policy: Policy

    @cached_property
    def translator(self) -> Translator:
        """The policy's vocabulary, compiled."""
        from synctool.translate.translator import Translator

        return Translator.from_policy(self.policy)

    def upstream_tip(self) -> str:
        """The last fetched upstream commit.

        Raises:
            RepositoryError: nothing was fetched yet.
        """
        ref = upstream_ref(self.policy.upstream.branch)
        tip = read_ref(self.repo, ref)
        if tip is None:
            raise RepositoryError("upstream was not fetched yet", where=ref, hint="run 'vime-sync fetch'")
        return tip


def load(repo: Repo, policy_file: Path | None) -> Inputs:
    """The policy of this repository, or the named one.

    Raises:
        ConfigError: it is missing or wrong.
    """
    from synctool.policy.loading import find_policy, load_policy

    return Inputs(repo, load_policy(find_policy(repo.work_tree, policy_file)))
