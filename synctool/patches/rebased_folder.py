"""A rebased stack as a folder: pin, series, patches, and for each conflict the files as the merge left them."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from synctool.errors import ConfigError, RepositoryError
from synctool.git.tree import check_path
from synctool.patches.digest import patch_sha256
from synctool.patches.pin import Pin, render_pin
from synctool.patches.rebase import Fate, Rebase
from synctool.patches.stack import Stack, StackPatch

CONFLICTS = "conflicts"
_INDEX = "index.json"


def rebase_data(rebase: Rebase) -> list[dict[str, Any]]:
    """The JSON form of a rebase, one row a patch."""
    return [
        {
            "patch": patch.name,
            "fate": str(patch.fate),
            "review": patch.review,
            "reasons": list(patch.reasons),
            "landed_units": sum(proof.landed for proof in patch.landing.proofs),
            "units": len(patch.landing.proofs),
            "conflicts": [{"path": c.path, "why": c.why, "markers": c.merged is not None} for c in patch.conflicts],
        }
        for patch in rebase.patches
    ]


def write_rebased(folder: Path, old: Stack, pin: Pin, rebase: Rebase) -> None:
    """Write a new stack folder, whole or not at all. A folder that holds a pin and an empty series only is filled.

    A conflicting patch keeps its old text and its place in the series, so that ``verify`` names it until it is resolved.

    Raises:
        RepositoryError: the folder has patches already.
    """
    present = {p.name for p in folder.iterdir()} - {"pin.toml", "series"} if folder.is_dir() else set()
    listed = (folder / "series").read_text().strip() if (folder / "series").is_file() else ""
    if present or listed:
        raise RepositoryError(
            "the folder holds a stack already",
            where=str(folder),
            hint="remove it to rebase afresh; edit its patches to go on",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        pin_text = (folder / "pin.toml").read_text() if (folder / "pin.toml").is_file() else render_pin(pin)
        (scratch / "pin.toml").write_text(pin_text)
        kept = [patch for patch in rebase.patches if patch.data is not None]
        lines = [f"# Carried over from {old.pin.label}. What has landed there or was dropped is left out:"]
        lines += [f"#   {patch.name}: {patch.fate}" for patch in rebase.patches if patch.data is None]
        lines = lines if len(lines) > 1 else lines[:0]
        (scratch / "series").write_text("".join(f"{line}\n" for line in [*lines, *(patch.name for patch in kept)]))
        for patch in kept:
            assert patch.data is not None
            (scratch / patch.name).write_bytes(patch.data)
            if patch.fate is Fate.CONFLICT:
                _write_conflict(scratch / CONFLICTS / patch.name, patch.data, dict(patch.merged))
        scratch.chmod(0o755)
        if folder.is_dir():
            shutil.rmtree(folder)
        scratch.rename(folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _write_conflict(folder: Path, data: bytes, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True)
    index = {"patch_sha256": patch_sha256(data), "files": {}}
    for number, (path, text) in enumerate(sorted(files.items())):
        (folder / f"{number:03}.merged").write_bytes(text)
        index["files"][path] = f"{number:03}.merged"  # type: ignore[index]
    (folder / _INDEX).write_text(json.dumps(index, indent=1, ensure_ascii=True) + "\n")


def read_conflicts(folder: Path, patch: StackPatch) -> dict[str, bytes]:
    """What a rebase recorded for a patch that conflicts, by path; empty when there is nothing, or the patch was rewritten since.

    Raises:
        ConfigError: the record is damaged.
    """
    place = folder / CONFLICTS / patch.name
    if not (place / _INDEX).is_file():
        return {}
    try:
        index = json.loads((place / _INDEX).read_text())
        if index["patch_sha256"] != patch.sha256:
            return {}
        for path in index["files"]:
            check_path(path)
        return {path: (place / Path(name).name).read_bytes() for path, name in index["files"].items()}
    except (ValueError, KeyError, OSError) as error:
        raise ConfigError("the record of a conflict is damaged", where=str(place), hint="rebase again") from error


def settle_conflict(folder: Path, name: str) -> None:
    """Forget the recorded conflict of a patch that was rewritten."""
    shutil.rmtree(folder / CONFLICTS / name, ignore_errors=True)
    if (folder / CONFLICTS).is_dir() and not any((folder / CONFLICTS).iterdir()):
        (folder / CONFLICTS).rmdir()
