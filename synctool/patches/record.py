"""The record of a patched installation: ``vime-patch-stack.json`` inside the package folder.

It lies inside, and is listed in the distribution's ``RECORD``, so that it comes and goes in the same step as the patched files and an uninstall
takes it along. Whoever runs the package can read which stack it is: ``digest`` is the stack's identity.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from synctool.errors import RepositoryError
from synctool.patches.digest import SCHEME

#: Names below the package folder.
RECORD_NAME = "vime-patch-stack.json"
ORIGINALS = ".vime-patch-originals"


@dataclass(frozen=True, slots=True)
class InstalledStack:
    """What the record says.

    ``files`` maps a path below the package folder to the SHA-256 of its original and of its patched content, None where the file is not there.
    ``not_installed`` are patched paths outside of the package (tests, build files); ``differing`` are installed files that differ from the pin though no patch
    touches them.
    """

    package: str
    version: str
    archive_sha256: str
    digest: str
    tree: str
    patches: tuple[tuple[str, str], ...]
    files: dict[str, tuple[str | None, str | None]]
    not_installed: tuple[str, ...]
    differing: tuple[str, ...]

    def encode(self) -> bytes:
        """The record's bytes. They depend on the stack and the installation alone: no time, no host."""
        value: dict[str, Any] = {"schema": SCHEME, **asdict(self)}
        value["patches"] = [{"name": name, "sha256": sha256} for name, sha256 in self.patches]
        value["files"] = {path: {"original": old, "patched": new} for path, (old, new) in sorted(self.files.items())}
        return (json.dumps(value, indent=1, ensure_ascii=True) + "\n").encode("ascii")


def read_record(package: Path) -> InstalledStack | None:
    """The record of a package folder, or None when it is not patched.

    Raises:
        RepositoryError: the record is damaged.
    """
    path = package / RECORD_NAME
    try:
        value = json.loads(path.read_bytes())
        if value.pop("schema") != SCHEME:
            raise RepositoryError(
                "the record is of another scheme", where=str(path), hint=f"this vime-sync knows {SCHEME}"
            )
        value["patches"] = tuple((row["name"], row["sha256"]) for row in value["patches"])
        value["files"] = {name: (row["original"], row["patched"]) for name, row in value["files"].items()}
        value["not_installed"], value["differing"] = tuple(value["not_installed"]), tuple(value["differing"])
        return InstalledStack(**value)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise RepositoryError("the record is damaged", where=str(path), hint="reinstall the package") from error


def update_distribution_record(text: str, package_name: str, changes: Mapping[str, bytes | None]) -> str:
    """A wheel's ``RECORD`` with the rows of changed files (paths below the package folder) rewritten, added or removed; all other rows stay as
    they are, so that an uninstall finds every file."""
    due = {f"{package_name}/{path}": data for path, data in changes.items()}
    end = "\r\n" if "\r\n" in text else "\n"
    rows = []
    for line in text.splitlines():
        name = next(csv.reader([line]), [""])[0]
        if name in due:
            data = due.pop(name)
            if data is not None:
                rows.append(_row(name, data))
            continue
        rows.append(line)
    rows += [_row(name, data) for name, data in due.items() if data is not None]
    return "".join(row + end for row in rows)


def _row(name: str, data: bytes) -> str:
    """A row in the form of PEP 376: urlsafe base-64 without padding."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([name, f"sha256={digest}", str(len(data))])
    return out.getvalue()
