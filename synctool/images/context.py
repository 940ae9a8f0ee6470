"""What a builder sees: the tree of one commit, wheels and the pin's archive, in one folder, without a checkout.

The digest of a context covers every input by content. Two builds with equal digests must give equal images.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import shutil
from dataclasses import dataclass
from pathlib import Path

from synctool.errors import ConfigError, Refused
from synctool.git.tree import EXECUTABLE, SUBMODULE, SYMLINK, Tree, check_path
from synctool.images.oci import canonical, file_digest


@dataclass(frozen=True, slots=True)
class Material:
    """An input by name and digest."""

    name: str
    digest: str


@dataclass(frozen=True)
class Context:
    """A folder ready for a builder, and what is in it. ``digest`` is ``sha256:`` over all of it and the Dockerfile."""

    folder: Path
    dockerfile: Path
    materials: tuple[Material, ...]
    digest: str


def assemble(
    folder: Path,
    *,
    tree: Tree,
    tree_id: str,
    dockerfile: str,
    base_digest: str,
    wheels: Path,
    archive: Path,
    archive_sha256: str,
) -> Context:
    """Fill an empty folder.

    Raises:
        ConfigError: no wheels, or two of one project.
        Refused: the archive is not the pin's, or a path of the tree would leave the folder.
    """
    if file_digest(archive) != f"sha256:{archive_sha256}":
        raise Refused("the archive is not the one that the pin names", where=str(archive))
    found = sorted(wheels.glob("*.whl"))
    names = [path.name.partition("-")[0].lower() for path in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not found or twice:
        problem = f"two wheels of {', '.join(twice)}" if twice else "no wheels"
        raise ConfigError(
            problem, where=str(wheels), hint="fill it with 'pip wheel', one wheel a project; 'make image' does"
        )
    _write_tree(folder / "tree", tree)
    for source, target in [
        *((path, folder / "wheels" / path.name) for path in found),
        (archive, folder / "pin" / archive.name),
    ]:
        target.parent.mkdir(exist_ok=True)
        _link(source, target)
    file = folder / "Dockerfile"
    file.write_text(dockerfile, encoding="utf-8")
    materials = (
        Material("base", base_digest),
        Material(archive.name, f"sha256:{archive_sha256}"),
        *(Material(path.name, file_digest(path)) for path in found),
    )
    inputs = [[one.name, one.digest] for one in materials]
    digest = hashlib.sha256(canonical({"dockerfile": dockerfile, "tree": tree_id, "materials": inputs})).hexdigest()
    return Context(folder, file, materials, f"sha256:{digest}")


def _write_tree(folder: Path, tree: Tree) -> None:
    """The files of a git tree, as git stores them: no filters, no hooks, no attributes of anyone's."""
    folder.mkdir(parents=True)
    for path, entry in tree.items():
        check_path(path)
        if entry.mode == SUBMODULE:
            continue
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        data = tree.store.read(entry.oid)
        if entry.mode == SYMLINK:
            to = os.fsdecode(data)
            if to.startswith("/") or posixpath.normpath(posixpath.join(posixpath.dirname(path), to)).startswith(".."):
                raise Refused(f"a link of the tree points outside: {to}", where=path)
            target.symlink_to(to)
        else:
            target.write_bytes(data)
            # Git knows one bit; the umask of whoever builds must not get into the image.
            target.chmod(0o755 if entry.mode == EXECUTABLE else 0o644)
    for here, folders, _ in os.walk(folder):
        Path(here).chmod(0o755)
        folders.sort()


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)
