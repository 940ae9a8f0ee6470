"""What is wrong with a folder of documentation: links, names, tables of contents, and languages out of step. Pure over parsed pages."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from fnmatch import fnmatch
from urllib.parse import unquote

from synctool.docs.page import Link, Page, Section, is_page

_ACCEPT = "bring the translation in step, then run 'vime-sync docs check --accept'"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to mend; ``line`` counts from 1."""

    path: str
    line: int
    rule: str
    message: str
    fix: str


def check(
    pages: Mapping[str, Page],
    exists: Callable[[str], bool],
    *,
    folder: str,
    languages: Sequence[str],
    recorded: Mapping[str, Sequence[str]],
) -> list[Finding]:
    """All findings, in order of path and line.

    Args:
        pages: every page below ``folder``, by path from the top of the repository.
        exists: whether the repository has a file or folder.
        folder: the folder of the documentation.
        languages: names of the folders of the languages below it, the one that is written first in front. Fewer than two: no comparison.
        recorded: ``Record.languages``.
    """
    found = [*_links(pages, exists), *_contents(pages, folder)]
    for other in languages[1:]:
        found += _parity(pages, posixpath.join(folder, languages[0]), posixpath.join(folder, other), recorded)
    return sorted(found, key=lambda one: (one.path, one.line, one.rule, one.message))


def in_step(pages: Mapping[str, Page], folder: str, languages: Sequence[str]) -> dict[str, list[str]]:
    """The record that says that every page with a counterpart is in step with the first language now."""
    first = posixpath.join(folder, languages[0])
    pairs = {
        path: path.replace(first, posixpath.join(folder, other), 1)
        for other in languages[1:]
        for path in pages
        if path.startswith(first + "/")
    }
    return {
        counterpart: [section.digest for section in pages[path].sections]
        for path, counterpart in pairs.items()
        if counterpart in pages
    }


def _links(pages: Mapping[str, Page], exists: Callable[[str], bool]) -> Iterator[Finding]:
    labels = {anchor for page in pages.values() for anchor in page.anchors}
    for path, page in pages.items():
        for link in page.links:
            if link.label:
                if link.target not in labels:
                    yield _missing(path, link, "anchor", f"no page has the label '{link.target}'", labels)
            elif not _outside(link.target):
                yield from _link(pages, exists, path, page, link)


def _link(
    pages: Mapping[str, Page], exists: Callable[[str], bool], path: str, page: Page, link: Link
) -> Iterator[Finding]:
    target, _, anchor = unquote(link.target).partition("#")
    place = path if not target else _resolve(path, target)
    if target and place not in pages:
        named = next((place + end for end in (".md", ".rst") if place + end in pages), None)
        if named is None and not exists(place):
            yield _missing(path, link, "link", f"the link leads to '{place}', which does not exist", pages)
            return
        place = named or place
    if anchor and place in pages and anchor not in pages[place].anchors:
        yield _missing(path, link, "anchor", f"'{place}' has no heading or label '{anchor}'", pages[place].anchors)


def _contents(pages: Mapping[str, Page], folder: str) -> Iterator[Finding]:
    """Entries that lead nowhere, and pages that no table of contents leads to, below each folder whose index has one."""
    reached: set[str] = set()
    for path, page in pages.items():
        for entry in page.contents:
            place = entry.target if _outside(entry.target) else _resolve(path, entry.target)
            matches = {one for one in pages if fnmatch(one.rpartition(".")[0], place) or one == place}
            reached |= matches
            if not matches and not _outside(entry.target):
                yield _missing(path, entry, "toctree", f"the entry leads to '{place}', which is not a page", pages)
    roots = {posixpath.dirname(path) for path, page in pages.items() if page.contents and _stem(path) == "index"}
    tops = {root for root in roots if not any(root.startswith(other + "/") for other in roots)}
    for path in pages:
        root = next((top for top in tops if path.startswith(top + "/")), None)
        if root is not None and path not in reached and path.rpartition(".")[0] != f"{root}/index":
            yield Finding(path, 1, "orphan", "no table of contents leads to this page", "add it to a toctree")


def _parity(
    pages: Mapping[str, Page], first: str, other: str, recorded: Mapping[str, Sequence[str]]
) -> Iterator[Finding]:
    for path, page in pages.items():
        for here, there in ((first, other), (other, first)):
            if path.startswith(here + "/") and path.replace(here, there, 1) not in pages:
                yield Finding(
                    path, 1, "page", f"the page has no counterpart in {there}", "translate the page, or remove it"
                )
        counterpart = path.replace(first, other, 1)
        if path.startswith(first + "/") and counterpart in pages:
            yield from _compare(page, pages[counterpart], recorded.get(counterpart))


def _compare(page: Page, other: Page, recorded: Sequence[str] | None) -> Iterator[Finding]:
    left, right = page.sections, other.sections
    levels = [section.level for section in left], [section.level for section in right]
    blocks = SequenceMatcher(None, *levels, autojunk=False).get_opcodes()
    for tag, i1, i2, j1, j2 in blocks:
        if tag == "equal":
            continue
        for sections, mine, theirs in ((left[i1:i2], page, other), (right[j1:j2], other, page)):
            for section in sections:
                message = f"section '{section.title}' has no counterpart in {theirs.path}"
                yield Finding(mine.path, section.line, "section", message, "translate the section")
    if recorded is None:
        message = f"it was never recorded which sections of {page.path} this page was made from"
        yield Finding(other.path, 1, "unrecorded", message, "read both, then run 'vime-sync docs check --accept'")
        return
    yield from _stale(page, other, recorded)


def _stale(page: Page, other: Page, recorded: Sequence[str]) -> Iterator[Finding]:
    """Sections whose source is not among those recorded, and one finding when sections went away or changed their order."""
    changed = [section for section in page.sections if section.digest not in recorded]
    for section in changed:
        message = f"'{section.title or 'the beginning'}' ({page.path}:{section.line}) changed since it was translated"
        yield Finding(other.path, _line_of(page, other, section), "stale", message, _ACCEPT)
    if not changed and [section.digest for section in page.sections] != list(recorded):
        message = f"sections of {page.path} were removed or moved since it was translated"
        yield Finding(other.path, 1, "stale", message, _ACCEPT)


def _line_of(page: Page, other: Page, section: Section) -> int:
    """The line of a section's counterpart, by its place."""
    place = page.sections.index(section)
    return other.sections[place].line if place < len(other.sections) else 1


def _outside(target: str) -> bool:
    return "://" in target or target.startswith(("mailto:", "//"))


def _resolve(path: str, target: str) -> str:
    """A target from the top of the repository; one with a leading slash counts from the folder of the page's language or documentation."""
    if target.startswith("/"):
        return posixpath.normpath("/".join(path.split("/")[:2]) + target)
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def _stem(path: str) -> str:
    return posixpath.basename(path).rpartition(".")[0]


def _missing(
    path: str, link: Link, rule: str, message: str, known: Mapping[str, object] | frozenset[str] | set[str]
) -> Finding:
    wanted = link.target.rpartition("#")[2] if rule == "anchor" else link.target
    near = get_close_matches(wanted, [str(name) for name in known], n=1, cutoff=0.6)
    return Finding(path, link.line, rule, message, f"did you mean '{near[0]}'?" if near else "mend or remove it")


def page_paths(paths: Sequence[str], folder: str) -> list[str]:
    """The pages below a folder; folders whose name begins with an underscore or a point hold what was built."""
    prefix = f"{folder}/" if folder not in ("", ".") else ""
    return sorted(
        path
        for path in paths
        if path.startswith(prefix) and is_page(path) and not any(part[0] in "_." for part in path.split("/"))
    )
