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

#: Beginning of the name of an entry that removes what lower layers hold; the whole name of one that removes all that they hold in its folder.
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"

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
    #: What the layer that is being read holds itself: its whiteouts, in whatever order they come, are about lower ones.
    own: set[str] = set()

    def take(entry: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        path = entry_path(entry)
        if (gone := removed(path)) is not None:
            for known in [one for one in found.keys() - own if one == gone or one.startswith(gone + "/")]:
                del found[known]
        elif content is not None and entry.size <= _LARGEST and _wanted(path):
            found[path] = content.read()
            own.add(path)

    return Contents(tuple(verify(image, take, own.clear)), found)


def entry_path(entry: tarfile.TarInfo) -> str:
    """The path of an entry below the root of the image."""
    return posixpath.normpath(entry.name.lstrip("/"))


def removed(path: str) -> str | None:
    """What an entry of that path removes, or None if it is no whiteout. An opaque one names its folder, which itself stays."""
    folder, base = posixpath.split(path)
    if not base.startswith(WHITEOUT):
        return None
    return folder if base == OPAQUE else posixpath.join(folder, base.removeprefix(WHITEOUT))


def _wanted(path: str) -> bool:
    return path == DPKG_STATUS or path.endswith((".dist-info/METADATA", "/" + RECORD_NAME))


def verify(
    image: Image, take: Take = lambda entry, content: None, begin: Callable[[], None] = lambda: None
) -> list[str]:
    """What is wrong with an image's layers: sizes, digests, and their content against the ``diff_ids`` of the configuration. Empty: nothing.

    ``take`` sees every entry on the way; ``begin`` is called before the first of each layer.
    """
    diff_ids = image.config.get("rootfs", {}).get("diff_ids", [])
    if len(diff_ids) != len(image.layers):
        return [f"{len(image.layers)} layers, but {len(diff_ids)} diff_ids"]
    wrong = []
    for layer, diff_id in zip(image.layers, diff_ids, strict=True):
        begin()
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
