"""A CycloneDX 1.5 bill of materials, read from the layers themselves: what is installed, not what was asked for.

Python distributions from ``*.dist-info/METADATA``, Debian packages from dpkg's status. Deterministic: no serial number, no time.
"""

from __future__ import annotations

import email.parser
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from synctool.images.contents import DPKG_STATUS, Contents
from synctool.images.oci import Image


def bill(image: Image, contents: Contents, *, name: str) -> dict[str, Any]:
    """The bill of an image whose contents were read; its components are sorted by kind and name."""
    found = contents.files.items()
    unique = {component["purl"]: component for path, data in found for component in _components(path, data)}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "name": name,
                "version": image.digest,
                "hashes": [{"alg": "SHA-256", "content": image.digest.partition(":")[2]}],
            }
        },
        "components": [unique[purl] for purl in sorted(unique)],
    }


def versions(value: dict[str, Any]) -> dict[str, str]:
    """Python distributions of a bill: normalised name to version."""
    return {
        one["name"]: one["version"]
        for one in value.get("components", [])
        if one.get("purl", "").startswith("pkg:pypi/")
    }


def _components(path: str, data: bytes) -> Iterator[dict[str, str]]:
    text = data.decode("utf-8", "replace")
    if path.endswith("/METADATA"):
        fields = email.parser.Parser().parsestr(text, headersonly=True)
        name, version = str(fields["Name"]).lower().replace("_", "-").replace(".", "-"), str(fields["Version"])
        yield _component(name, version, f"pkg:pypi/{name}@{quote(version)}")
    if path != DPKG_STATUS:
        return
    for part in text.split("\n\n"):
        fields = email.parser.Parser().parsestr(part, headersonly=True)
        if str(fields["Status"] or "").endswith(" installed"):
            name, version = str(fields["Package"]), str(fields["Version"])
            yield _component(
                name, version, f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={fields['Architecture']}"
            )


def _component(name: str, version: str, purl: str) -> dict[str, str]:
    return {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}
