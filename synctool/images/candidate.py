"""A candidate on disk: a folder with ``layout/``, ``sbom.cdx.json``, ``statement.json`` and ``candidate.json``, written last."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from synctool.errors import Refused, RepositoryError
from synctool.images import oci, sbom
from synctool.images.contents import read_contents
from synctool.images.statement import subject_digest
from synctool.images.tags import candidate_tag

LAYOUT, BILL, STATEMENT, SUMMARY = "layout", "sbom.cdx.json", "statement.json", "candidate.json"


@dataclass(frozen=True, slots=True)
class Candidate:
    """The facts of a candidate. ``digest`` is the manifest's, ``inputs`` covers everything it was built from."""

    tag: str
    digest: str
    platform: str
    commit: str
    tree: str
    pin: str
    stack: str
    inputs: str
    builder: str

    def to_json(self) -> dict[str, str]:
        """For reports and records."""
        return asdict(self)


def save(folder: Path, candidate: Candidate, bill: dict[str, Any], statement: dict[str, Any]) -> None:
    """Write the three files beside a layout; the summary last, for it says that all is there."""
    for name, value in ((BILL, bill), (STATEMENT, statement), (SUMMARY, candidate.to_json())):
        partial = folder / f".{name}.partial"
        partial.write_text(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=True) + "\n", encoding="utf-8")
        partial.replace(folder / name)


def load(folder: Path) -> tuple[Candidate, oci.Image]:
    """A candidate and its image.

    Raises:
        RepositoryError: the folder holds none, or only a part of one.
        Refused: candidate.json is malformed, or a blob is not what its digest says.
    """
    try:
        candidate = Candidate(**json.loads((folder / SUMMARY).read_bytes()))
    except FileNotFoundError:
        raise RepositoryError(
            "no candidate", where=str(folder), hint="build one with 'vime-sync image build'"
        ) from None
    except (ValueError, TypeError):
        raise Refused("candidate.json is malformed", where=str(folder / SUMMARY)) from None
    return candidate, oci.read_image(folder / LAYOUT)


def check(folder: Path) -> list[str]:
    """Everything that does not fit together in a candidate; empty when it is sound. Reads every blob once."""
    candidate, image = load(folder)
    contents = read_contents(image)
    wrong = list(contents.wrong)
    expected = {
        "digest": (candidate.digest, image.digest),
        "platform": (candidate.platform, image.platform),
        "tag": (candidate.tag, candidate_tag(candidate.platform, candidate.tree)),
        "tree": (candidate.tree, image.labels.get("io.vime.tree", "")),
        "pin": (candidate.pin, image.labels.get("io.vime.pin", "")),
        "stack": (candidate.stack, image.labels.get("io.vime.stack", "")),
    }
    wrong += [
        f"{name}: candidate.json says {said}, the image {real or 'nothing'}"
        for name, (said, real) in expected.items()
        if said != real
    ]
    if wrong:
        return wrong
    if subject_digest(_read(folder / STATEMENT)) != image.digest:
        wrong.append("statement.json is about another image")
    if _read(folder / BILL) != sbom.bill(image, contents, name=candidate.tag):
        wrong.append("sbom.cdx.json is not what the layers hold")
    if contents.stack != candidate.stack:
        wrong.append(f"the engine inside holds the stack {contents.stack or 'none'}, not {candidate.stack}")
    return wrong


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
