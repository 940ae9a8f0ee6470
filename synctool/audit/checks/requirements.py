"""Requirement pins that contradict each other, the engine's own, or what the base image holds."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from synctool.audit.context import Audit
from synctool.audit.embedded import shell_texts
from synctool.audit.finding import Hit, Rule
from synctool.audit.shelltext import commands

CONFLICT = Rule(
    "requirement-conflict",
    "two requirements that no version meets",
    "the installation fails, or the later one breaks what the earlier one installed",
)
IMAGE = Rule(
    "requirement-image", "a requirement that the base image contradicts", "installing it breaks a package of the image"
)
RULES = (CONFLICT, IMAGE)


@dataclass(frozen=True, slots=True)
class _Asked:
    """``path`` is empty for the engine's own requirement; then ``source`` says where it stands."""

    name: str
    specifier: SpecifierSet
    path: str
    line: int
    source: str


def check(audit: Audit) -> Iterator[Hit]:
    """Requirement files, pyproject.toml, and what scripts, Dockerfiles and CI install."""
    asked = [*_of_files(audit), *_of_commands(audit)]
    by_name: dict[str, list[_Asked]] = {}
    for one in asked:
        by_name.setdefault(one.name, []).append(one)
    engines: dict[str, list[_Asked]] = {}
    for path, line, text in audit.engine.requirements if audit.engine is not None else ():
        parsed = _parse(text, "", 0, f"{audit.engine.label if audit.engine else ''} {path}:{line}")
        if parsed is not None:
            engines.setdefault(parsed.name, []).append(parsed)
    for name, group in sorted(by_name.items()):
        for place, one in enumerate(group):
            for other in (*group[:place], *engines.get(name, ())):
                if one.path != other.path and not compatible(one.specifier, other.specifier):
                    message = f"{name}{one.specifier} contradicts {name}{other.specifier} ({other.source})"
                    yield Hit(CONFLICT, name, one.path, one.line, message, "choose bounds that a version meets")
    yield from _image(audit, by_name)


def _image(audit: Audit, by_name: dict[str, list[_Asked]]) -> Iterator[Hit]:
    """Against the distributions of the base image: bounds that they do not accept."""
    for holder, (version, wants) in sorted(audit.image.items()):
        for text in wants:
            need = _parse(text, "", 0, "")
            if need is None:
                continue
            for one in by_name.get(need.name, ()):
                pinned = {
                    canonicalize_name(other)
                    for other, group in by_name.items()
                    if any(str(o.specifier) and o.path == one.path for o in group)
                }
                if holder not in pinned and not compatible(one.specifier, need.specifier):
                    message = f"{one.name}{one.specifier}, but {holder} {version} of the image needs {one.name}{need.specifier}"
                    yield Hit(
                        IMAGE,
                        f"{one.name} {one.specifier}",
                        one.path,
                        one.line,
                        message,
                        f"pin {holder} to a version that accepts it, beside it",
                    )


def compatible(left: SpecifierSet, right: SpecifierSet) -> bool:
    """Whether some version meets both. Candidates are the versions that they name and those just beside them."""
    both = left & right
    named: set[Version] = set()
    for specifier in both:
        try:
            version = Version(specifier.version.removesuffix(".*"))
        except InvalidVersion:
            return True
        release = version.release
        named.add(version)
        for place in range(len(release)):
            up = (*release[:place], release[place] + 1)
            named.add(Version(".".join(map(str, up))))
            if release[place]:
                down = (*release[:place], release[place] - 1, 9999)
                named.add(Version(".".join(map(str, down))))
        named.add(Version(".".join(map(str, (*release, 1)))))
    return not named or any(both.contains(version, prereleases=True) for version in named)


def _parse(text: str, path: str, line: int, source: str) -> _Asked | None:
    text = text.split(" #")[0].strip().rstrip("\\").strip()
    if not text or text.startswith(("-", "git+", "http", ".", "/", "$")):
        return None
    try:
        found = Requirement(text)
    except InvalidRequirement:
        return None
    if found.url is not None or (found.marker is not None and not _may_hold(str(found.marker))):
        return None
    return _Asked(canonicalize_name(found.name), found.specifier, path, line, source or f"{path}:{line}")


def _may_hold(marker: str) -> bool:
    """Markers about extras, other systems and other machines are about other installations."""
    return not re.search(
        r"extra|sys_platform == .(?:win32|darwin)|platform_system == .(?:Windows|Darwin)|python_version < .3\.1[01]",
        marker,
    )


def _of_files(audit: Audit) -> Iterator[_Asked]:
    for path in sorted(audit.tree.entries):
        name = path.rpartition("/")[2]
        if re.fullmatch(r"(?:requirements|constraints)[\w.-]*\.txt", name) and "/" not in path.replace(
            "requirements/", "", 1
        ):
            for number, line in enumerate(audit.tree.lines(path), 1):
                if (found := _parse(line.split("#")[0], path, number, "")) is not None:
                    yield found
        elif path == "pyproject.toml":
            yield from _of_pyproject(audit, path)


def _of_pyproject(audit: Audit, path: str) -> Iterator[_Asked]:
    try:
        project = tomllib.loads(audit.tree.text(path) or "").get("project", {})
    except tomllib.TOMLDecodeError:
        return
    lines = audit.tree.lines(path)
    for text in project.get("dependencies", []):
        number = next((n for n, line in enumerate(lines, 1) if text in line), 1)
        if (found := _parse(text, path, number, "")) is not None:
            yield found


_VALUED = ("--index-url", "-i", "--extra-index-url", "-f", "--find-links", "-r", "-c", "--target", "-t", "--root")


def _of_commands(audit: Audit) -> Iterator[_Asked]:
    """What ``pip install`` is given in shell text. A word that holds a variable is not known."""
    for shell in shell_texts(audit):
        for command in commands(shell.text, shell.line):
            words = command.words
            texts = command.texts()
            at = next(
                (n for n, word in enumerate(texts) if word == "install" and any("pip" in w for w in texts[:n])), None
            )
            if at is None:
                continue
            skip = False
            for word in words[at + 1 :]:
                if skip or word.text in _VALUED:
                    skip = word.text in _VALUED
                    continue
                if "$" not in word.text and (found := _parse(word.text, shell.path, word.line, "")) is not None:
                    yield found
