"""The only tags that are ever written: ``cand-<arch>-<first 12 hex digits of the tree>``."""

from __future__ import annotations

import re

from synctool.errors import Refused, UsageError

#: Platform (as OCI says it) to the short name in a tag.
ARCHITECTURES = {"linux/amd64": "amd64", "linux/arm64": "arm64"}

_CANDIDATE = re.compile(r"cand-(amd64|arm64)-([0-9a-f]{12})")


def architecture(platform: str) -> str:
    """``amd64`` for ``linux/amd64``.

    Raises:
        UsageError: the platform is none that candidates are built for.
    """
    try:
        return ARCHITECTURES[platform]
    except KeyError:
        raise UsageError(
            f"no candidates are built for {platform!r}", hint=f"one of: {', '.join(ARCHITECTURES)}"
        ) from None


def candidate_tag(platform: str, tree: str) -> str:
    """The tag of the candidate of a tree (full hexadecimal id)."""
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", tree):
        raise UsageError(f"not a full tree id: {tree!r}")
    return f"cand-{architecture(platform)}-{tree[:12]}"


def check_tag(tag: str, platform: str, tree: str) -> str:
    """The tag, if it is the one that this candidate may have.

    Raises:
        Refused: it is ``latest``, not a candidate tag at all, or that of another tree or architecture.
    """
    wanted = candidate_tag(platform, tree)
    if tag == wanted:
        return tag
    if not _CANDIDATE.fullmatch(tag):
        raise Refused(
            f"tag {tag!r} is not a candidate tag", hint=f"vime-sync moves no other tags; this one is {wanted}"
        )
    raise Refused(f"tag {tag!r} names another tree or architecture", hint=f"this candidate is {wanted}")
