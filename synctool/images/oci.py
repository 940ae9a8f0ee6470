"""OCI image layouts: a deterministic writer and a reader that believes nothing it has not hashed.

Layers are written uncompressed: the digest then depends on the files alone, not on the version of a compressor. Format: OCI image spec 1.1,
``image-layout.md``, ``manifest.md``, ``config.md`` and ``layer.md``.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from synctool.errors import Refused, RepositoryError
from synctool.whole_file import write_whole

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
#: Every time stamp in what we write.
EPOCH = "1970-01-01T00:00:00Z"
REF_NAME = "org.opencontainers.image.ref.name"

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A blob by media type, digest (``sha256:`` and 64 hex digits) and size in bytes."""

    media_type: str
    digest: str
    size: int

    def to_json(self) -> dict[str, Any]:
        """As OCI writes it."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


@dataclass(frozen=True)
class Image:
    """One image of a layout. ``digest`` is that of its manifest: what a registry answers and what evidence names."""

    layout: Path
    descriptor: Descriptor
    manifest: dict[str, Any]
    config: dict[str, Any]

    @property
    def digest(self) -> str:
        """Digest of the manifest."""
        return self.descriptor.digest

    @property
    def layers(self) -> tuple[Descriptor, ...]:
        """The layers, lowest first."""
        return tuple(_descriptor(entry, self.layout) for entry in self.manifest["layers"])

    @property
    def platform(self) -> str:
        """``linux/amd64``."""
        return f"{self.config.get('os', '')}/{self.config.get('architecture', '')}"

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the configuration."""
        return dict((self.config.get("config") or {}).get("Labels") or {})


def canonical(value: Any) -> bytes:
    """JSON bytes that equal values share."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def blob_path(layout: Path, digest: str) -> Path:
    """Where a layout keeps a blob.

    Raises:
        Refused: not a SHA-256 digest. A digest from a manifest becomes a path: anything else could leave the layout.
    """
    algorithm, _, text = digest.partition(":")
    if algorithm != "sha256" or len(text) != 64 or set(text) - set("0123456789abcdef"):
        raise Refused(f"not a sha256 digest: {digest!r}", where=str(layout))
    return layout / "blobs" / "sha256" / text


# ---- reading -----------------------------------------------------------------------------------------------------------------------------


def read_image(layout: Path) -> Image:
    """The only image of a layout; its manifest and configuration are hashed, its layers are not (see ``contents``).

    Raises:
        RepositoryError: no layout, or not exactly one image in it.
        Refused: a blob is not what its digest says.
    """
    try:
        index = json.loads((layout / "index.json").read_bytes())
        manifests = index["manifests"]
    except (FileNotFoundError, NotADirectoryError):
        raise RepositoryError(
            "no OCI layout", where=str(layout), hint="build one with 'vime-sync image build'"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise Refused("index.json is not an OCI index", where=str(layout)) from None
    if len(manifests) != 1:
        raise RepositoryError(f"{len(manifests)} images in the layout, not one", where=str(layout))
    descriptor = _descriptor(manifests[0], layout)
    if descriptor.media_type != MANIFEST:
        raise RepositoryError(f"the layout holds a {descriptor.media_type}, not an image manifest", where=str(layout))
    manifest = json.loads(_checked(layout, descriptor))
    return Image(layout, descriptor, manifest, json.loads(_checked(layout, _descriptor(manifest["config"], layout))))


def file_digest(path: Path) -> str:
    """``sha256:...`` of a file."""
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def _descriptor(entry: dict[str, Any], layout: Path) -> Descriptor:
    try:
        return Descriptor(str(entry["mediaType"]), str(entry["digest"]), int(entry["size"]))
    except (KeyError, TypeError, ValueError):
        raise Refused("a descriptor lacks mediaType, digest or size", where=str(layout)) from None


def _checked(layout: Path, descriptor: Descriptor) -> bytes:
    try:
        data = blob_path(layout, descriptor.digest).read_bytes()
    except FileNotFoundError:
        raise Refused(f"blob {descriptor.digest} is missing", where=str(layout)) from None
    if "sha256:" + hashlib.sha256(data).hexdigest() != descriptor.digest:
        raise Refused(f"blob {descriptor.digest} has another content", where=str(layout))
    return data


# ---- writing -----------------------------------------------------------------------------------------------------------------------------


class Writer:
    """Writes blobs into a layout, each through a temporary file, and the index last: an interrupted layout has no image."""

    def __init__(self, layout: Path) -> None:
        self.layout = layout
        self.blobs = layout / "blobs" / "sha256"
        self.blobs.mkdir(parents=True, exist_ok=True)
        (layout / "oci-layout").write_bytes(canonical({"imageLayoutVersion": "1.0.0"}))

    def blob(self, data: bytes, media_type: str) -> Descriptor:
        """Store bytes."""
        with self._stream() as (file, done):
            file.write(data)
            return done(media_type)

    def layer(self, fill: Callable[[tarfile.TarFile], None]) -> Descriptor:
        """Store a layer that ``fill`` writes."""
        with self._stream() as (file, done):
            with tarfile.open(fileobj=cast(IO[bytes], file), mode="w|", format=tarfile.PAX_FORMAT) as archive:
                fill(archive)
            return done(LAYER)

    def copy(self, image: Image) -> None:
        """Take over an image's layers, by hard link where that is possible."""
        for layer in image.layers:
            source, target = blob_path(image.layout, layer.digest), blob_path(self.layout, layer.digest)
            if target.exists():
                continue
            try:
                os.link(source, target)
            except OSError:
                with self._stream() as (file, done), source.open("rb") as data:
                    while chunk := data.read(_CHUNK):
                        file.write(chunk)
                    if done(layer.media_type).digest != layer.digest:
                        raise Refused(f"layer {layer.digest} has another content", where=str(image.layout)) from None

    def image(self, config: dict[str, Any], layers: Iterable[Descriptor]) -> Image:
        """Store configuration, manifest and index."""
        inner = self.blob(canonical(config), CONFIG)
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": inner.to_json(),
            "layers": [layer.to_json() for layer in layers],
        }
        outer = self.blob(canonical(manifest), MANIFEST)
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [outer.to_json()]}
        write_whole(self.layout / "index.json", canonical(index))
        return Image(self.layout, outer, manifest, config)

    @contextmanager
    def _stream(self) -> Iterator[tuple[_Hashed, Callable[[str], Descriptor]]]:
        handle, name = tempfile.mkstemp(dir=self.blobs, prefix=".partial-")
        path = Path(name)
        with os.fdopen(handle, "wb") as raw:
            hashed = _Hashed(raw)

            def done(media_type: str) -> Descriptor:
                raw.flush()
                path.chmod(0o644)
                path.replace(self.blobs / hashed.sha256.hexdigest())
                return Descriptor(media_type, f"sha256:{hashed.sha256.hexdigest()}", hashed.size)

            try:
                yield hashed, done
            finally:
                with suppress(FileNotFoundError):
                    path.unlink()


class _Hashed:
    """A file that knows the digest and the size of what was written."""

    def __init__(self, raw: IO[bytes]) -> None:
        self.raw, self.sha256, self.size = raw, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.size += len(data)
        return self.raw.write(data)


def add_file(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    """One regular file of root's, without a time."""
    import io

    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))


def add_folder(archive: tarfile.TarFile, root: Path, leave_out: Callable[[str], bool]) -> None:
    """A folder's content, sorted, owners by number, without times; hard links stay links. Devices, sockets and pipes are left out.

    ``leave_out`` is asked for each path below the root; a folder that it names stays, empty.
    """
    seen: dict[tuple[int, int], str] = {}

    def add(path: Path) -> None:
        name = path.relative_to(root).as_posix()
        status = path.lstat()
        entry = tarfile.TarInfo(name)
        entry.mode, entry.uid, entry.gid = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
        if stat.S_ISDIR(status.st_mode):
            entry.type = tarfile.DIRTYPE
            archive.addfile(entry)
            if not leave_out(name):
                for child in sorted(path.iterdir()):
                    add(child)
        elif leave_out(name):
            return
        elif stat.S_ISLNK(status.st_mode):
            entry.type, entry.linkname = tarfile.SYMTYPE, str(path.readlink())
            archive.addfile(entry)
        elif stat.S_ISREG(status.st_mode):
            first = seen.setdefault((status.st_dev, status.st_ino), name)
            if first != name:
                entry.type, entry.linkname = tarfile.LNKTYPE, first
                archive.addfile(entry)
            else:
                entry.size = status.st_size
                with path.open("rb") as file:
                    archive.addfile(entry, file)

    for child in sorted(root.iterdir()):
        add(child)
