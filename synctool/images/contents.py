"""What the layers of an image hold, read once: every blob is hashed, and packages and the installed stack are found on the way."""

from __future__ import annotations

import gzip
import hashlib
import json
import posixpath
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, cast

from synctool.images.oci import LAYER, Descriptor, Image, blob_path
from synctool.patches.record import RECORD_NAME

#: Called for every entry of a layer, with its content if it is a regular file.
Take = Callable[[tarfile.TarInfo, IO[bytes] | None], None]

DPKG_STATUS = "var/lib/dpkg/status"
_LARGEST = 64 << 20
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Contents:
    """``wrong``: what does not fit its digest. ``files``: the metadata of packages and of the installed stack, by path, as the top layer shows them."""

    wrong: tuple[str, ...]
    files: dict[str, bytes]

    @property
    def stack(self) -> str:
        """Digest of the patch stack that is really installed (the installation's own record), or an empty text."""
        for path, data in sorted(self.files.items()):
            if path.endswith("/" + RECORD_NAME):
                try:
                    return str(json.loads(data)["digest"])
                except (ValueError, KeyError, TypeError):
                    return ""
        return ""


def read_contents(image: Image) -> Contents:
    """Read all layers, lowest first, each once. Nothing of ``files`` may be believed while anything is ``wrong``."""
    found: dict[str, bytes] = {}

    def take(entry: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        path = posixpath.normpath(entry.name.lstrip("/"))
        folder, base = posixpath.split(path)
        if base.startswith(".wh."):
            gone = folder if base == ".wh..wh..opq" else posixpath.join(folder, base.removeprefix(".wh."))
            for known in [one for one in found if one == gone or one.startswith(gone + "/")]:
                del found[known]
        elif content is not None and entry.size <= _LARGEST and _wanted(path):
            found[path] = content.read()

    return Contents(tuple(verify(image, take)), found)


def _wanted(path: str) -> bool:
    return path == DPKG_STATUS or path.endswith((".dist-info/METADATA", "/" + RECORD_NAME))


def verify(image: Image, take: Take = lambda entry, content: None) -> list[str]:
    """What is wrong with an image's layers: sizes, digests, and their content against the ``diff_ids`` of the configuration. Empty: nothing.

    ``take`` sees every entry on the way.
    """
    diff_ids = image.config.get("rootfs", {}).get("diff_ids", [])
    if len(diff_ids) != len(image.layers):
        return [f"{len(image.layers)} layers, but {len(diff_ids)} diff_ids"]
    wrong = []
    for layer, diff_id in zip(image.layers, diff_ids, strict=True):
        problem = _read_layer(image, layer, diff_id, take)
        if problem:
            wrong.append(f"layer {layer.digest} {problem}")
    return wrong


def _read_layer(image: Image, layer: Descriptor, diff_id: str, take: Take) -> str:
    path = blob_path(image.layout, layer.digest)
    if not path.is_file():
        return "is missing"
    if path.stat().st_size != layer.size:
        return f"has {path.stat().st_size} bytes, not {layer.size}"
    if layer.media_type not in (LAYER, LAYER + "+gzip"):
        return f"is a {layer.media_type}, which is not read here"
    unreadable = ""
    with path.open("rb") as file:
        outer = _Hashing(file)
        inner = outer if layer.media_type == LAYER else _Hashing(gzip.GzipFile(fileobj=cast(IO[bytes], outer)))
        try:
            with tarfile.open(fileobj=cast(IO[bytes], inner), mode="r|") as archive:
                for entry in archive:
                    take(entry, archive.extractfile(entry) if entry.isreg() else None)
            inner.drain()
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            unreadable = f"cannot be read: {error}"
        outer.drain()
    if outer.digest != layer.digest:
        return "has another content"
    if not unreadable and inner.digest != diff_id:
        return f"holds {inner.digest}, but its diff_id is {diff_id}"
    return unreadable


class _Hashing:
    """A readable stream that knows the digest of what was read."""

    def __init__(self, raw: Any) -> None:
        self._raw, self._sha256 = raw, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._raw.read(size)
        self._sha256.update(data)
        return data

    def drain(self) -> None:
        """Read to the end."""
        while self.read(_CHUNK):
            pass

    @property
    def digest(self) -> str:
        """Of everything up to here."""
        return f"sha256:{self._sha256.hexdigest()}"
