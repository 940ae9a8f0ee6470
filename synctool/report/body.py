"""The body as text: a sandboxed template over proved claims, and the part of a description between two markers that is ours."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synctool.errors import ConfigError, Refused
from synctool.redact import redact
from synctool.report.claims import GIT, MANIFEST, PATCHES, POLICY, Claim, Section, all_sources, prove
from synctool.report.facts import Facts
from synctool.report.markdown import code, plain
from synctool.report.sections import sections, sources

#: GitHub's bound on a description, in characters.
LIMIT = 65_536
_BEGIN = re.compile(r"<!-- vime-sync:begin key=(\S+) sha256=([0-9a-f]{64}) -->")
_END = "<!-- vime-sync:end -->"


def render(facts: Facts, template: Path | None = None) -> str:
    """The generated part, proved. ``template`` is a Jinja file of a person's; it gets ``sections``, ``listed`` and ``facts``.

    Raises:
        Refused: a claim is not in its sources, or the body is too long for the forge.
        ConfigError: the template is wrong; ``where`` is file:line.
    """
    found, known = sections(facts), sources(facts)
    prove(found, known)
    text = _fill(found, known, facts, template)
    if len(text) > LIMIT - 2_000:
        raise Refused(
            f"the body has {len(text):,} characters, over the forge's {LIMIT:,}",
            hint="give a shorter --template, or keep one sync smaller; the records are in refs/vime-sync/evidence",
        )
    return text


def _fill(found: Sequence[Section], known: Mapping[str, Any], facts: Facts, template: Path | None) -> str:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    environment.filters["marks"] = _marks
    environment.filters["code"] = code
    environment.filters["plain"] = plain
    shown = template or Path(__file__).with_name("templates") / "body.md.j2"
    try:
        made = environment.from_string(shown.read_text(encoding="utf-8"))
        values = {"head": facts.target.head, "tree": facts.target.tree, "upstream": facts.policy.upstream.name}
        text = made.render(
            sections=found, listed=[_source(name, known[name]) for name in all_sources(found)], facts=values
        )
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read the template: {error}", where=str(shown)) from None
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None) or 1
        raise ConfigError(
            f"the template is wrong: {error}", where=f"{shown}:{line}", hint="it gets sections, listed and facts"
        ) from None
    return re.sub(r"\n{3,}", "\n\n", redact(text)).strip() + "\n"


def _marks(claim: Claim) -> str:
    return f"<sup>{', '.join(claim.sources)}</sup>"


def _source(name: str, value: Mapping[str, Any]) -> str:
    if name == GIT:
        return "`git`: this head's commits and trees"
    if name in (MANIFEST, POLICY):
        return f"`{name}`: {code(str(value['file']))} at this head"
    if name == PATCHES:
        return "`patches`: series and patch headers at this head"
    what = value.get("name") or value.get("topic")
    about = f", head {code(value['head'][:12])}" if value.get("head") else ""
    about += f", tree {code(value['tree'][:12])}" if value.get("tree") else ""
    when = re.sub(r"\.\d+", "", str(value["when"]))  # records keep fractions of a second, which tell a reader nothing
    return f"`{name}`: {plain(str(what))}, {when}, by {plain(str(value['by']))}{about}"


@dataclass(frozen=True, slots=True)
class Split:
    """A description: people's text before and after ours, ours, and whether someone edited ours since it was written."""

    before: str
    ours: str
    after: str
    key: str
    edited: bool


def split(description: str) -> Split | None:
    """Take a description apart, None when it holds no part of ours.

    Raises:
        Refused: the markers are damaged, so that nobody can say where ours ends.
    """
    begins = list(_BEGIN.finditer(description))
    if not begins:
        return None
    start = begins[0]
    end = description.find(_END, start.end())
    if len(begins) > 1 or end < 0 or description.count(_END) > 1:
        raise Refused(
            "the markers of the generated part are damaged",
            hint="leave one '<!-- vime-sync:begin ... -->' and one '<!-- vime-sync:end -->', or remove both",
        )
    ours = description[start.end() : end]
    return Split(
        description[: start.start()],
        ours,
        description[end + len(_END) :],
        start[1],
        _digest(ours) != start[2],
    )


def _digest(text: str) -> str:
    """Of the words alone: the web form turns every line end into CR LF, which is no edit."""
    return hashlib.sha256("\n".join(text.replace("\r\n", "\n").strip().split("\n")).encode()).hexdigest()


def block(text: str, key: str) -> str:
    """The generated part between its markers."""
    body = f"\n{text.strip()}\n"
    return f"<!-- vime-sync:begin key={key} sha256={_digest(body)} -->{body}{_END}"


def merge(description: str, text: str, key: str) -> str:
    """The description with our part put in, or replaced; people's text around it stays to the byte.

    Raises:
        Refused: as ``split``, or the whole is too long for the forge.
    """
    parts = split(description)
    if parts is None:
        gap = "" if not description or description.endswith("\n\n") else "\n\n"
        whole = f"{description}{gap}{block(text, key)}\n"
    else:
        whole = f"{parts.before}{block(text, key)}{parts.after}"
    if len(whole) > LIMIT:
        raise Refused(f"the description would have {len(whole):,} characters, over the forge's {LIMIT:,}")
    return whole
