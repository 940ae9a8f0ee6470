"""Writes patches from trees: the same trees give the same bytes on every machine.

Full blob ids, no signature or version line, three lines of context, fixed prefixes and algorithm, no rename guessing and no attributes of either
tree, so that a re-export without a change of content is a no-op.
"""

from __future__ import annotations

from synctool.git.repo import Repo

#: Order matters to nobody; every setting that a user's configuration could change stands here.
_DIFF = (
    "diff-tree", "-r", "-p", "--full-index", "--binary", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--no-indent-heuristic",
    "--diff-algorithm=myers", "--unified=3", "--inter-hunk-context=0", "--src-prefix=a/", "--dst-prefix=b/", "--ignore-submodules=none",
    "--no-relative",
)  # fmt: skip


def diff_trees(repo: Repo, before: str, after: str) -> bytes:
    """The patch body that turns one tree into the other. Both must be written to the repository."""
    return repo.run(*_DIFF, before, after).stdout


def join_patch(header: bytes, body: bytes) -> bytes:
    """A patch file: the header's bytes as they are, then the body."""
    if header and not header.endswith(b"\n"):
        header += b"\n"
    return header + body
