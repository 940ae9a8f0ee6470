"""``vime-sync init``: a starter policy, learned from the two histories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from synctool.cli.app import Context, verb
from synctool.cli.inputs import upstream_ref
from synctool.cli.report import Report
from synctool.cli.terminal import progress
from synctool.errors import EnvironmentFailure, RepositoryError, UsageError
from synctool.whole_file import whole_file

if TYPE_CHECKING:
    from synctool.git.repo import Repo
    from synctool.policy.learn.ownership import Ownership
    from synctool.policy.learn.pairs import Pairing
    from synctool.policy.learn.words import Vocabulary

#: Files larger than this teach nothing that smaller ones don't.
MAX_BYTES = 400_000


@click.command(name="init")
@click.option("--baseline", required=True, help="The upstream commit that the fork began at.")
@click.option(
    "--upstream",
    "revision",
    help="A later upstream commit, to tell ported files from downstream's own.  [default: what was fetched, else the baseline]",
)
@click.option("--downstream", default="HEAD", show_default=True, help="The downstream commit to learn from.")
@click.option("--upstream-name", help="Upstream's name.  [default: the first learned word]")
@click.option("--downstream-name", help="Downstream's name.  [default: the first learned word]")
@click.option("--upstream-url", help="Where upstream lives.")
@click.option("--branch", default="main", show_default=True, help="Upstream's branch.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write.  [default: vime-sync.toml at the top]",
)
@click.option("--force", is_flag=True, help="Replace a policy that is there already.")
@click.option("--dry-run", is_flag=True, help="Print the policy, and write nothing.")
@verb
def command(
    context: Context,
    baseline: str,
    revision: str | None,
    downstream: str,
    upstream_name: str | None,
    downstream_name: str | None,
    upstream_url: str | None,
    branch: str,
    output: Path | None,
    force: bool,
    dry_run: bool,
) -> Report:
    """Write a starter vime-sync.toml: names, vocabulary, flags, moves and owners, each with a comment that says how sure it is."""
    from synctool.policy.learn.starter import Names, render_starter
    from synctool.policy.loading import POLICY_FILE, parse_policy

    repo = context.repo()
    base = _resolve_baseline(repo, baseline)
    ours = repo.resolve(downstream)
    tip = repo.resolve(revision) if revision else _fetched(repo, branch) or base
    target = output or (repo.work_tree or context.directory) / POLICY_FILE
    if target.exists() and not (force or dry_run):
        raise UsageError(
            "there is a policy already", where=str(target), hint="look first with --dry-run, or replace it with --force"
        )
    with progress("learning from both histories", quiet=context.quiet):
        pairing, vocabulary, ownership = _learn(repo, base, tip, ours)
    first = vocabulary.families[0].family if vocabulary.families else None
    names = Names(
        upstream_name or (first.from_.lower() if first else "upstream"),
        downstream_name or (first.to.lower() if first else "downstream"),
        upstream_url,
        _origin(repo),
        branch,
        (repo.head_branch() or "refs/heads/main").removeprefix("refs/heads/"),
        base,
    )
    text = render_starter(names, pairing, vocabulary, ownership)
    parse_policy(text, str(target))
    if not dry_run:
        _write(target, text)
    learned = {
        "paired_files": len(pairing.pairs),
        "families": len(vocabulary.families),
        "flags": len(vocabulary.flags),
        "terms": len(vocabulary.terms),
        "moves": len(pairing.moves),
        "equal_lines": [vocabulary.equal.seen, vocabulary.equal.total],
    }
    told = ", ".join(f"{value} {key.replace('_', ' ')}" for key, value in learned.items() if isinstance(value, int))
    messages = [f"learned: {told}"]
    if dry_run:
        return Report(
            "init",
            {"policy": text, "learned": learned, "dry_run": True},
            messages=messages,
            body=text,
        )
    messages.append("next: read it, then 'vime-sync policy check'")
    return Report(
        "init",
        {"file": str(target), "policy": text, "learned": learned},
        summary=[f"wrote {target}"],
        messages=messages,
    )


def _resolve_baseline(repo: Repo, baseline: str) -> str:
    try:
        return repo.resolve(baseline)
    except RepositoryError as error:
        hint = "upstream's history must be in this repository: 'vime-sync fetch --from URL' brings it"
        raise RepositoryError(error.title, where=error.where, hint=hint) from None


def _fetched(repo: Repo, branch: str) -> str | None:
    from synctool.git.refs import read_ref

    return read_ref(repo, upstream_ref(branch))


def _origin(repo: Repo) -> str | None:
    """The address of ``origin``, without any password in it."""
    import re

    found = repo.run("config", "--get", "remote.origin.url", check=False).stdout.decode("utf-8", "replace").strip()
    return re.sub(r"//[^/@]*@", "//", found) or None


def _learn(repo: Repo, base: str, tip: str, ours: str) -> tuple[Pairing, Vocabulary, Ownership]:
    """Read both trees and histories, and hand them to the pure learners."""
    from synctool.git.diff import tree_diff
    from synctool.git.tree import SUBMODULE, SYMLINK
    from synctool.policy.learn.ownership import learn_ownership
    from synctool.policy.learn.pairs import pair_paths, replace_words
    from synctool.policy.learn.words import learn_vocabulary

    theirs_tree = dict(repo.tree(base).items())
    ours_tree = dict(repo.tree(ours).items())
    renames = [(c.old_path, c.path, c.similarity) for c in tree_diff(repo, base, ours, renames=50) if c.status == "R"]
    pairing = pair_paths(theirs_tree, ours_tree, renames)
    wanted = {
        (theirs_tree[old].oid, ours_tree[new].oid): new
        for old, new in pairing.pairs.items()
        if theirs_tree[old].mode not in (SYMLINK, SUBMODULE) and ours_tree[new].mode not in (SYMLINK, SUBMODULE)
    }
    blobs = repo.objects.read_many(oid for pair in wanted for oid in pair)
    texts = {
        name: (old, new)
        for (one, other), name in wanted.items()
        if (old := _text(blobs.get(one))) is not None
        and (new := _text(blobs.get(other))) is not None
        and not name.endswith(".patch")
    }
    vocabulary = learn_vocabulary(list(texts.values()), pairing.words)
    words = dict(pairing.words.keys())
    translate = vocabulary.translate()
    ownership = learn_ownership(
        pairing,
        upstream=theirs_tree,
        downstream=ours_tree,
        once_upstream=_touched(repo, base, tip) | set(dict(repo.tree(tip).items())),
        once_downstream=_touched(repo, base, ours) | (set(theirs_tree) if repo.is_ancestor(base, ours) else set()),
        path=lambda path: pairing.pairs.get(path) or replace_words(translate(path), words),
        rewritten=[name for name, (old, new) in texts.items() if _is_rewritten(translate(old), new)],
    )
    return pairing, vocabulary, ownership


def _text(data: bytes | None) -> str | None:
    from synctool.translate.translator import decode

    return decode(data) if data is not None and len(data) <= MAX_BYTES else None


def _is_rewritten(old: str, new: str) -> bool:
    """Whether less than a tenth of upstream's lines is left in a file of some length."""
    lines = {line for line in old.splitlines() if len(line.strip()) > 3}
    return len(lines) >= 20 and len(lines & set(new.splitlines())) < 0.1 * len(lines)


def _touched(repo: Repo, base: str, tip: str) -> set[str]:
    """Every path that a commit of ``base..tip`` changed."""
    out = repo.run("log", "--format=", "--name-only", "--no-renames", "-z", "-m", f"{base}..{tip}", "--").stdout
    return {name for field in out.split(b"\0") if (name := field.decode("utf-8", "surrogateescape").strip("\n"))}


def _write(target: Path, text: str) -> None:
    try:
        with whole_file(target) as stream:  # a folder that is not there is a slip of the finger
            stream.write(text.encode())
    except OSError as error:
        raise EnvironmentFailure(
            f"can't write the policy: {error.strerror}", where=str(target), hint="check the folder, or use --output"
        ) from None
