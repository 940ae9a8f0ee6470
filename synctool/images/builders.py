"""Builders: a context and a base become an OCI layout. None needs a daemon unless it is docker itself.

- ``buildah``: runs the Dockerfile in a chroot, without a network. Time stamps are set to zero, so the same context gives the same digest.
- ``docker``: the same Dockerfile, where a daemon answers.
- ``overlay``: runs nothing; puts the tree as one more layer on a base that already holds the environment and the patched engine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from synctool.errors import EnvironmentFailure, Refused, UsageError
from synctool.images.context import Context
from synctool.images.oci import EPOCH, Image, Writer, add_folder, read_image

#: Where the tree lies in an image.
SOURCE = "opt/vime/src"


class Builder(Protocol):
    """Something that builds images."""

    @property
    def name(self) -> str:
        """As ``--builder`` says it."""

    def version(self) -> str:
        """Name and version of the tool, for the statement."""

    def build(self, context: Context, base: Path, output: Path, labels: dict[str, str]) -> Image:
        """Build into the layout ``output``, which does not exist yet.

        Raises:
            EnvironmentFailure: the tool failed; the last lines of its output say why.
        """


@dataclass(frozen=True)
class Buildah:
    """Buildah as root. ``storage`` holds its layers and is removed afterwards when it was made here."""

    storage: Path | None = None
    name: str = "buildah"

    def version(self) -> str:
        return _output(["buildah", "--version"]).split(" (")[0]

    def build(self, context: Context, base: Path, output: Path, labels: dict[str, str]) -> Image:
        made = None if self.storage else tempfile.mkdtemp(prefix="vime-buildah-")
        storage = self.storage or Path(str(made))
        flags = [
            "--root",
            str(storage / "root"),
            "--runroot",
            str(storage / "run"),
            "--storage-driver",
            _driver(storage),
        ]
        ids = storage / "image-id"
        try:
            # Under a name of ours: buildah would make one from the layout's path, and refuses paths with capital letters.
            there = f"localhost/vime-base:{read_image(base).digest.partition(':')[2]}"
            place = f"[{_driver(storage)}@{storage / 'root'}+{storage / 'run'}]"
            _run(["skopeo", "copy", "--quiet", f"oci:{base}", f"containers-storage:{place}{there}"])
            # A namespace of its own instead of --network none, which chroot isolation does not offer.
            _run(
                ["unshare", "--net", "buildah", *flags, "build", "--pull-never", "--isolation", "chroot", "--timestamp", "0", "--identity-label=false",
                 "--layers=false", "--build-arg", f"BASE={there}", "--iidfile", str(ids), "--file", str(context.dockerfile), str(context.folder)],
            )  # fmt: skip
            # Buildah 1.28 compresses into a layout whatever it is told, so the digest also holds for its version, which the statement names.
            _run(["buildah", *flags, "push", ids.read_text().strip(), f"oci:{output}"])
        finally:
            if made:
                shutil.rmtree(made, ignore_errors=True)
        return read_image(output)


@dataclass(frozen=True)
class Docker:
    """Docker with BuildKit 0.13 or newer (``rewrite-timestamp``)."""

    name: str = "docker"

    def version(self) -> str:
        return _output(["docker", "--version"])

    def build(self, context: Context, base: Path, output: Path, labels: dict[str, str]) -> Image:
        export = f"type=oci,dest={output},tar=false,compression=uncompressed,rewrite-timestamp=true"
        _run(
            ["docker", "buildx", "build", "--network", "none", "--provenance=false", "--output", export, "--build-arg", "SOURCE_DATE_EPOCH=0",
             "--build-arg", "BASE=base", "--build-context", f"base=oci-layout://{base}", "--file", str(context.dockerfile), str(context.folder)],
        )  # fmt: skip
        return read_image(output)


@dataclass(frozen=True)
class Overlay:
    """One deterministic layer on a base that holds the environment already, proven by the base's own labels."""

    name: str = "overlay"

    def version(self) -> str:
        from synctool import __version__

        return f"vime-sync overlay {__version__}"

    def build(self, context: Context, base: Path, output: Path, labels: dict[str, str]) -> Image:
        below = read_image(base)
        for key in ("io.vime.pin", "io.vime.stack"):
            if below.labels.get(key) != labels[key]:
                raise Refused(
                    f"the base's {key} is {below.labels.get(key, 'missing')}, not {labels[key]}",
                    where=str(base),
                    hint="an overlay changes the tree only; build with --builder buildah to install another engine or stack",
                )
        writer = Writer(output)
        writer.copy(below)
        # The folder is replaced, not merged: a file that the tree no longer has must not shine through.
        layer = writer.layer(lambda archive: _replace(archive, context.folder / "tree"))
        config = json.loads(json.dumps(below.config))
        config.setdefault("config", {})["Labels"] = {**below.labels, **labels}
        config["rootfs"]["diff_ids"].append(layer.digest)
        config.setdefault("history", []).append({"created": EPOCH, "created_by": "vime-sync image build: the tree"})
        return writer.image(config, [*below.layers, layer])


def _replace(archive: object, tree: Path) -> None:
    import tarfile

    assert isinstance(archive, tarfile.TarFile)
    with tempfile.TemporaryDirectory(prefix="vime-overlay-") as scratch:
        target = Path(scratch) / SOURCE
        target.parent.mkdir(parents=True)
        for folder in (target.parent, *target.parent.parents):
            if folder.is_relative_to(scratch):
                folder.chmod(0o755)
        shutil.copytree(tree, target, symlinks=True)
        (target / ".wh..wh..opq").touch(mode=0o644)
        add_folder(archive, Path(scratch), lambda path: False)


def choose(name: str | None) -> Builder:
    """The builder of that name, or the first that works here.

    Raises:
        UsageError: no such builder.
        EnvironmentFailure: its tool is missing, or none is there.
    """
    if name == "overlay":
        return Overlay()
    if name in (None, "buildah") and shutil.which("buildah") and shutil.which("skopeo"):
        if os.geteuid():
            raise EnvironmentFailure("buildah needs root here", hint="run as root, or use --builder overlay")
        return Buildah()
    if name in (None, "docker") and docker_answers():
        return Docker()
    if name not in (None, "buildah", "docker"):
        raise UsageError(f"no builder is named {name!r}", hint="buildah, docker or overlay")
    raise EnvironmentFailure(
        f"{name or 'neither buildah nor a docker daemon'} is not usable here", hint="apt-get install buildah skopeo"
    )


def docker_answers() -> bool:
    """Whether there is a docker client with a daemon behind it."""
    if not shutil.which("docker"):
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=30).returncode == 0


def _driver(storage: Path) -> str:
    """overlay, unless the storage lies on an overlay file system itself, where it cannot nest."""
    storage.mkdir(parents=True, exist_ok=True)
    kind = subprocess.run(["stat", "-f", "-c", "%T", str(storage)], capture_output=True, text=True, check=False).stdout
    return "vfs" if kind.strip() == "overlayfs" else "overlay"


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _run(command: Sequence[str]) -> str:
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    output = ended.stdout.decode(errors="replace").strip()
    if ended.returncode:
        lines = output.splitlines()[-6:]
        raise EnvironmentFailure(f"{command[0]} failed with {ended.returncode}: " + " | ".join(lines))
    return output
