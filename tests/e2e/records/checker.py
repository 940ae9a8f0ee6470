"""Reads a rendered body as a sceptic would: without our own renderer, from git and the raw records."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from tests.e2e.records.world import World

KNOWN = {"manifest", "policy", "patches", "git"}


@dataclass
class Line:
    """One line of the body, its section, the text without marks, and the sources that it names."""

    section: str
    text: str
    sources: list[str]


def lines_of(body: str) -> list[Line]:
    """All lines that claim something: list items and table rows, the list of sources left out."""
    found, section = [], ""
    for row in body.split("<details><summary>Sources")[0].splitlines():
        if row.startswith("### "):
            section = row[4:]
        elif row.startswith("- "):
            marks = re.search(r"<sup>(.*?)</sup>$", row)
            assert marks, f"a line without a source: {row}"
            found.append(Line(section, row[: marks.start()], marks[1].split(", ")))
        elif row.startswith("| ") and not row.startswith(("| --- ", "| upstream ", "| patch ")):
            found.append(Line(section, row, ["manifest", "git"] if section == "Taken" else ["patches"]))
        else:
            assert not row.strip() or row.startswith(("|", "<details>", "</details>")), f"loose text: {row}"
    return found


def records(world: World) -> dict[str, dict[str, Any]]:
    """Every record by id, read from the ref with git alone."""
    names = world.git("ls-tree", "-r", "--name-only", "refs/vime-sync/evidence").split()
    return {n[-17:-5]: json.loads(world.git("show", f"refs/vime-sync/evidence:{n}")) for n in names}


def ground(world: World, source: str, known: dict[str, dict[str, Any]], base: str, body: str) -> str:
    """Everything that a source says, as text."""
    if source == "manifest":
        (name,) = set(re.findall(r"sync_manifests/[\w.]+\.toml", body.split("### ")[1]))
        text = name + world.git("show", f"HEAD:{name}")
        counts = [text.count(f'decision = "{kind}"') for kind in ("take", "exclude", "present", "defer")]
        return f"{text} {counts} {text.count('[[change]]')}"
    if source == "policy":
        return world.git("show", "HEAD:vime-sync.toml") + " https://github.com"
    if source == "patches":
        names = world.git("ls-tree", "-r", "--name-only", "HEAD", "patches/").split()
        texts = [world.git("show", f"HEAD:{name}") for name in names]
        digest = world.data("patch", "list")["digest"]
        return f"{' '.join(names)} {' '.join(texts)} {digest} {sum(n.endswith('.patch') for n in names)}"
    if source == "git":
        rows = world.git("diff", "--name-status", "--no-renames", base, "HEAD").splitlines()
        letters = [row[0] for row in rows]
        folders = [row.split("\t")[1].split("/")[0] for row in rows]
        counts = [letters.count(x) for x in set(letters)] + [folders.count(x) for x in set(folders)]
        return f"{world.git('rev-parse', 'HEAD', 'HEAD^{tree}', base)} {world.git('rev-list', f'{base}..HEAD')} {len(rows)} {counts} {' '.join(folders)}"
    record = known[source]
    text = json.dumps(record, ensure_ascii=False)
    if record.get("tree"):
        changed = world.git("diff", "--name-only", record["tree"], "HEAD").splitlines()
        text += f" {len(changed)} {' '.join(changed)} "
    # a line about a replaced record names what replaced it
    return text + " ".join(known)


def check(world: World, body: str, base: str) -> list[Line]:
    """Fail when a line names a source that is not recorded, or states a figure or id that its sources do not hold."""
    known = records(world)
    cache: dict[str, str] = {}
    found = lines_of(body)
    assert len(found) > 8
    for line in found:
        for source in line.sources:
            assert source in KNOWN or source in known, f"unknown source {source}: {line.text}"
            cache.setdefault(source, ground(world, source, known, base, body))
        said = " ".join(cache[source] for source in line.sources)
        plain = re.sub(r"\]\([^)]*\)", "]", line.text).replace("<!-- -->", "")
        for number in re.findall(r"(?<![\w.])\d[\d,]*(?![\w])", plain):
            # The short form of an id may be digits alone; its source holds the whole id.
            assert (len(number) >= 7 and number in said) or re.search(
                rf"(?<!\d){number.replace(',', '')}(?!\d)", said.replace(",", "")
            ), (number, line)
        for oid in re.findall(r"\b(?=[0-9a-f]*\d)[0-9a-f]{7,64}\b", plain):
            assert oid in said, (oid, line)
    return found
