"""Gitignore-like globs: checked when the policy is loaded, compiled once.

Accepted: ``*`` and ``?`` (never a slash), ``[abc]``, ``[a-z]``, ``[!abc]``, ``**`` as a whole path part. A glob with no slash, or with one
at its end only, matches at any depth; else it is anchored at the root. A glob that matches a folder covers everything below it; one that
ends in a slash matches folders only. Anything else that shells accept (``{a,b}``, ``!(x)``, a leading ``!``, a backslash) is an error: a
pattern that silently matches nothing is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError


def _refuse(glob: str, why: str, fix: str) -> PydanticCustomError:
    return PydanticCustomError("glob", "glob '{glob}' is not supported: {why}", {"glob": glob, "why": why, "hint": fix})


def check_glob(glob: str) -> str:
    """The glob itself, if its syntax is supported.

    Raises:
        PydanticCustomError: it is not; the context holds ``hint``.
    """
    if not glob.strip("/") or glob != glob.strip():
        raise _refuse(glob, "it is empty or has spaces around it", "write a path or a pattern such as 'docs/**/*.md'")
    if glob.startswith("!"):
        raise _refuse(glob, "negation", "the last matching rule wins: add a later rule for the exception")
    if re.search(r"[!@?*+]\(", glob):
        raise _refuse(
            glob, "shell extended patterns", "list the patterns one by one, or add a later rule for the exception"
        )
    if "{" in glob or "}" in glob:
        raise _refuse(glob, "braces", "list the alternatives as separate globs")
    if "\\" in glob:
        raise _refuse(
            glob,
            "backslash escapes",
            "put the special character in brackets, such as '[*]'; parts are separated by '/'",
        )
    for part in glob.strip("/").split("/"):
        if "**" in part and part != "**":
            raise _refuse(
                glob, f"'**' inside the part '{part}'", "use '**' as a whole part, such as 'a/**/b', or a single '*'"
            )
        if part in (".", "..", ""):
            raise _refuse(glob, f"the part '{part}'", "write the path from the root of the tree, without '.' or '..'")
    if re.search(r"\[(?![!^]?\]?[^\[\]/]*[^\[\]/]\])", glob):
        raise _refuse(glob, "an unclosed or empty bracket", "close it, such as '[abc]'")
    return glob


Glob = Annotated[str, AfterValidator(check_glob)]


@lru_cache(maxsize=4096)
def glob_regex(glob: str) -> re.Pattern[str]:
    """A compiled pattern for ``fullmatch`` on a path."""
    folders_only = glob.endswith("/")
    body = glob.strip("/")
    anchored = glob.startswith("/") or "/" in body
    parts = body.split("/")
    pieces = [] if anchored else ["(?:[^/]+/)*"]
    for position, part in enumerate(parts):
        last = position == len(parts) - 1
        if part == "**":
            pieces.append(".+" if last else "(?:[^/]+/)*")
        else:
            pieces.append(_part_regex(part) + ("" if last else "/"))
    if parts[-1] != "**":
        pieces.append("/.*" if folders_only else "(?:/.*)?")
    return re.compile("".join(pieces), re.DOTALL)


def _part_regex(part: str) -> str:
    pieces = []
    position = 0
    while position < len(part):
        character = part[position]
        position += 1
        if character == "*":
            pieces.append("[^/]*")
        elif character == "?":
            pieces.append("[^/]")
        elif character == "[":
            end = part.index("]", position + (2 if part[position] in "!^" else 1))
            inside = part[position:end]
            negated = inside[0] in "!^"
            inside = (inside[1:] if negated else inside).replace("\\", "\\\\").replace("[", "\\[")
            inside = (
                inside.replace("]", "\\]")
                .replace("^", "\\^")
                .replace("&", "\\&")
                .replace("~", "\\~")
                .replace("|", "\\|")
            )
            pieces.append(f"(?!/)[{'^' if negated else ''}{inside}]")
            position = end + 1
        else:
            pieces.append(re.escape(character))
    return "".join(pieces)


def matches(glob: str, path: str) -> bool:
    """Whether the glob covers the path."""
    return glob_regex(glob).fullmatch(path) is not None


def first_match(globs: Iterable[str], path: str) -> str | None:
    """The first of several globs that covers the path."""
    return next((glob for glob in globs if matches(glob, path)), None)
