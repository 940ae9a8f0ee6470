"""Is the pipeline what its description says, and does every test run in exactly one step?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from synctool.ci.model import Description, covers


@dataclass(frozen=True, slots=True)
class Problem:
    """``rule``: ``missing``, ``twice``, ``gone``, ``not-run`` or ``stale``."""

    rule: str
    path: str
    message: str


def tests_of(files: Iterable[str], roots: Iterable[str]) -> list[str]:
    """The test files (``test_*.py``) below the roots."""
    tops = tuple(root.rstrip("/") + "/" for root in roots)
    return sorted(
        path
        for path in files
        if path.startswith(tops) and path.endswith(".py") and path.rpartition("/")[2].startswith("test_")
    )


def check(description: Description, files: Iterable[str]) -> list[Problem]:
    """Registration against the files of the tree. Pure."""
    known = set(files)
    found = []
    claims = [(step.key, entry.rstrip("/")) for step in description.steps for entry in step.tests]
    for test in tests_of(known, description.test_roots):
        owners = [key for key, entry in claims if covers(entry, test)]
        if not owners:
            found.append(Problem("missing", test, "no step runs it; 'vime-sync ci register' adds it"))
        elif len(owners) > 1:
            found.append(Problem("twice", test, f"listed {len(owners)} times: {', '.join(owners)}"))
    for key, entry in claims:
        if entry not in known and not any(path.startswith(entry + "/") for path in known):
            found.append(Problem("gone", entry, f"step {key} names it, and it does not exist"))
    for step in description.steps:
        for arguments in step.run:
            for word in arguments:
                if word.endswith((".py", ".sh")) and "/" in word and not word.startswith("-") and word not in known:
                    found.append(Problem("gone", word, f"a command of step {step.key} names it, and it does not exist"))
    return found
