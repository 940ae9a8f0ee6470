"""Pushes a candidate under its one tag and proves that nothing else moved."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from synctool.errors import EnvironmentFailure, Refused
from synctool.images.oci import Image
from synctool.images.registry import Registry
from synctool.images.tags import check_tag

#: Read before and after, never written.
GUARDED = "latest"


@dataclass(frozen=True, slots=True)
class Promotion:
    """What was pushed and read back. ``latest`` is the digest of that tag before and after, None if there is none."""

    tag: str
    digest: str
    latest: str | None
    pushed: bool

    def to_json(self) -> dict[str, Any]:
        """For reports and records."""
        return asdict(self)


def promote(image: Image, registry: Registry, *, tag: str, tree: str, dry_run: bool = False) -> Promotion:
    """Push an image under a candidate tag. A tag that names this digest already is left alone.

    Raises:
        Refused: the tag is not this candidate's (``latest`` never is), or it names another digest already.
        EnvironmentFailure: the registry answers another digest than was pushed, or ``latest`` moved meanwhile.
    """
    check_tag(tag, image.platform, tree)
    before, there = registry.digest(GUARDED), registry.digest(tag)
    if there not in (None, image.digest):
        raise Refused(
            f"tag {tag} exists with another digest: {there}, not {image.digest}",
            hint="the same tree gave two images: find out which input differs ('vime-sync image inspect' shows both inputs digests)",
        )
    if there or dry_run:
        return Promotion(tag, image.digest, before, pushed=False)
    registry.push(image.layout, tag)
    back, after = registry.digest(tag), registry.digest(GUARDED)
    if back != image.digest:
        raise EnvironmentFailure(f"the registry answers {back} for {tag}, pushed was {image.digest}")
    if after != before:
        raise EnvironmentFailure(
            f"{GUARDED} moved from {before} to {after} during the push; vime-sync did not write it"
        )
    return Promotion(tag, image.digest, before, pushed=True)
