"""Applies the mechanical cures: to content, and from there to a tree or to files of a work tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from synctool.audit.finding import Edit, Finding
from synctool.errors import Refused
from synctool.whole_file import write_whole


def edits(findings: Iterable[Finding]) -> dict[str, list[Edit]]:
    """The cures of findings, by path."""
    found: dict[str, list[Edit]] = {}
    for finding in findings:
        for hit in finding.hits:
            if hit.edit is not None and hit.edit not in found.get(hit.edit.path, []):
                found.setdefault(hit.edit.path, []).append(hit.edit)
    return found


def cure(data: bytes, cures: Iterable[Edit]) -> tuple[bytes, int]:
    """Content with the cures applied, and how many held: one whose old text is no longer in its line is left out."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    done = 0
    for one in cures:
        if 1 <= one.line <= len(lines) and one.old in lines[one.line - 1]:
            lines[one.line - 1] = lines[one.line - 1].replace(one.old, one.new)
            done += 1
    return "\n".join(lines).encode("utf-8", "surrogateescape"), done


def fix_work_tree(
    work_tree: Path, found: dict[str, list[Edit]], audited: Callable[[str], bytes], *, dry: bool = False
) -> tuple[dict[str, int], list[str]]:
    """Cure files of a work tree. Returns the number of cures by path, and paths left alone because they differ from what was audited.

    Raises:
        Refused: a path leads out of the work tree.
    """
    done: dict[str, int] = {}
    differ: list[str] = []
    root = work_tree.resolve()
    for path, cures in sorted(found.items()):
        file = root / path
        if file.is_symlink() or root not in file.resolve().parents:
            raise Refused(f"{path} leads out of the work tree", where=str(root))
        if not file.is_file() or file.read_bytes() != audited(path):
            differ.append(path)
            continue
        data, count = cure(file.read_bytes(), cures)
        if count:
            done[path] = count
            if not dry:
                write_whole(file, data, file.stat().st_mode & 0o7777)
    return done, differ
