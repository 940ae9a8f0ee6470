"""Puts a stack into an environment's installed package, and takes it out again.

The installed files are first proven to be the pin's, the stack is applied to the pin's tree, and what changed below the package folder is put in
place in one step (see ``swap``), together with a record and the originals. The distribution's ``RECORD`` follows; a kill between the two is
mended by the next run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from synctool.errors import NothingToDo, Refused, RepositoryError
from synctool.git.tree import SYMLINK, Tree
from synctool.patches.pin import Pin
from synctool.patches.processes import users_of
from synctool.patches.record import ORIGINALS, RECORD_NAME, InstalledStack, read_record, update_distribution_record
from synctool.patches.stack import Application, Stack
from synctool.patches.swap import interrupted, locked, recover, replace_files
from synctool.patches.target import Target

_PARTIAL_LISTING = ".RECORD.vime-partial"

State = Literal["stock", "patched", "damaged", "foreign"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The installed files against the pin's: how many are equal, which differ, how many of the pin's are not installed."""

    equal: int
    differing: tuple[str, ...]
    absent: int


@dataclass(frozen=True, slots=True)
class Status:
    """What an installation is.

    ``stock``: no patch in it. ``patched``: exactly the recorded stack. ``damaged``: recorded, but the files named in ``wrong`` are not what the record says.
    ``foreign``: no record, and the files in ``wrong`` differ from the pin.
    """

    state: State
    record: InstalledStack | None
    wrong: tuple[str, ...] = ()
    #: A killed run left something; ``pending`` files are still to be switched.
    left_over: str | None = None
    pending: tuple[str, ...] = ()


# ---- looking -----------------------------------------------------------------------------------------------------------------------------


def compare_with_pin(target: Target, tree: Tree, pin: Pin) -> Comparison:
    """Every file that the pin has below the package folder against the installed one, by git blob id."""
    equal = absent = 0
    differing = []
    prefix = pin.import_name + "/"
    for path, entry in tree.items(pin.import_name):
        name = path.removeprefix(prefix)
        try:
            data = (target.package / name).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            absent += 1
            continue
        if tree.store.hash("blob", data) == entry.oid:
            equal += 1
        else:
            differing.append(name)
    return Comparison(equal, tuple(differing), absent)


def look(target: Target, originals: Mapping[str, str | None] | None = None) -> Status:
    """The state of an installation; changes nothing.

    ``originals``: for the files that a stack touches, the SHA-256 that the pin gives them (None: the pin has no such file). Without it a package that
    has no record counts as stock.
    """
    left = interrupted(target.package)
    record = read_record(target.package)
    wrong: list[str] = []
    if record is not None:
        wrong = [path for path, (_, patched) in record.files.items() if _sha256(target.package / path) != patched]
        state: State = "damaged" if wrong else "patched"
    else:
        wrong = [path for path, digest in (originals or {}).items() if _sha256(target.package / path) != digest]
        state = "foreign" if wrong else "stock"
    return Status(
        state,
        record,
        tuple(wrong),
        None if left is None else str(left.work),
        () if left is None else left.pending or (),
    )


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None


# ---- changing ----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InstallPlan:
    """What applying would do: contents by path below the package folder (None removes), the record, and what was compared."""

    target: Target
    record: InstalledStack
    changes: dict[str, bytes | None]
    comparison: Comparison
    replaces: str | None


def plan_install(
    stack: Stack, application: Application, base: Tree, target: Target, *, replace: bool = False
) -> InstallPlan:
    """Prove that the installation is the pin's (or holds a recorded stack, with ``replace``), and compute what would change.

    Raises:
        NothingToDo: this very stack is installed.
        Refused: a file that the stack touches is not the pin's, another version or another stack is installed.
    """
    pin = stack.pin
    if target.version is not None and target.version.partition("+")[0] != pin.version:
        raise Refused(
            f"{target.distribution} {target.version} is installed, the stack is for {pin.label}",
            where=str(target.package),
        )
    originals, patched, outside = _contents(stack, application, base)
    status = look(target, {path: _digest_of(data) for path, data in originals.items()})
    if status.pending:
        raise RepositoryError(
            f"an earlier run was killed with {len(status.pending)} files still to switch",
            where=status.left_over,
            hint="run 'vime-sync patch apply' or 'revert' without --dry-run: it carries that run to its end first",
        )
    if status.state in ("damaged", "foreign"):
        what = "recorded stack was changed since" if status.record else "installed files are not the pin's"
        some = ", ".join(status.wrong[:5]) + (f" and {len(status.wrong) - 5} more" if len(status.wrong) > 5 else "")
        raise Refused(
            f"{what}: {some}",
            where=str(target.package),
            hint="reinstall the package, then apply again; nothing was changed",
        )
    if status.record is not None and status.record.digest == stack.digest:
        raise NothingToDo(f"stack {stack.digest[:16]} is applied already", where=str(target.package))
    if status.record is not None and not replace:
        raise Refused(
            f"another stack is applied: {status.record.digest[:16]}",
            where=str(target.package),
            hint="revert it first, or give --replace",
        )
    changes: dict[str, bytes | None] = {}
    if status.record is not None:
        # Files of the old stack go back to their originals first; those are the pin's where this stack touches them too.
        changes.update(_restored(target, status.record))
        for path, (original, _) in status.record.files.items():
            if path in originals and original != _digest_of(originals[path]):
                raise Refused(
                    f"{path} was not the pin's before the other stack",
                    where=str(target.package),
                    hint="reinstall the package",
                )
    comparison = compare_with_pin(target, base, pin)
    known = set(originals) | set(status.record.files if status.record else {})
    record = InstalledStack(
        package=pin.package,
        version=pin.version,
        archive_sha256=pin.archive.sha256,
        digest=stack.digest,
        tree=application.tree,
        patches=tuple((p.name, p.sha256) for p in stack.patches),
        files={path: (_digest_of(originals[path]), _digest_of(patched[path])) for path in originals},
        not_installed=tuple(outside),
        differing=tuple(path for path in comparison.differing if path not in known),
    )
    changes.update(patched)
    changes.update({f"{ORIGINALS}/{path}": data for path, data in originals.items() if data is not None})
    if target.info is not None:
        changes[f"{ORIGINALS}/RECORD"] = _original_listing(target)
    changes[RECORD_NAME] = record.encode()
    return InstallPlan(target, record, changes, comparison, status.record.digest if status.record else None)


def _original_listing(target: Target) -> bytes:
    """The distribution's ``RECORD`` as it was before any stack."""
    assert target.info is not None
    kept = target.package / ORIGINALS / "RECORD"
    return kept.read_bytes() if kept.is_file() else (target.info / "RECORD").read_bytes()


def _contents(
    stack: Stack, application: Application, base: Tree
) -> tuple[dict[str, bytes | None], dict[str, bytes | None], list[str]]:
    """Original and patched content by path below the package folder, and patched paths outside of it."""
    final = Tree(base.store, application.tree)
    prefix = stack.pin.import_name + "/"
    originals: dict[str, bytes | None] = {}
    patched: dict[str, bytes | None] = {}
    outside = []
    for path in sorted({p for step in application.steps for o in step.outcomes for p in o.change.paths}):
        before, after = base.get(path), final.get(path)
        if before == after:
            continue
        if not path.startswith(prefix):
            outside.append(path)
            continue
        if SYMLINK in (before.mode if before else "", after.mode if after else ""):
            raise Refused(f"{path} is a symbolic link, which is not installed", where=str(stack.folder))
        name = path.removeprefix(prefix)
        originals[name] = base.store.read(before.oid, "blob") if before else None
        patched[name] = base.store.read(after.oid, "blob") if after else None
    return originals, patched, outside


def _digest_of(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()


def refuse_running(target: Target) -> None:
    """Refuse to change a package that a process uses.

    Raises:
        RepositoryError: one does.
    """
    users = users_of(target.package)
    if users:
        first = users[0]
        more = f" and {len(users) - 1} more" if len(users) > 1 else ""
        raise RepositoryError(
            f"process {first.pid} {first.why}{more}: {first.command}",
            where=str(target.package),
            hint="stop it first; nothing was changed",
        )


def install(plan: InstallPlan) -> str:
    """Carry a plan out. Returns how files were switched: ``exchange`` or ``files``.

    Raises:
        RepositoryError: a process uses the package, or another run holds the lock.
    """
    target = plan.target
    refuse_running(target)
    with locked(target.package.parent):
        how = replace_files(target.package, plan.changes)
        mend_listing(target)
    return how


def revert(target: Target) -> InstalledStack:
    """Put the originals back. Returns the record of what was taken out.

    Raises:
        NothingToDo: the package is not patched.
        Refused: patched files were changed since, or an original is damaged.
    """
    status = look(target)
    if status.left_over is not None or status.record is None:
        finish_interrupted(target)
        status = look(target)
    if status.record is None:
        raise NothingToDo("no stack is applied", where=str(target.package))
    if status.wrong:
        some = ", ".join(status.wrong[:5])
        raise Refused(
            f"patched files were changed since: {some}",
            where=str(target.package),
            hint="reinstall the package; nothing was changed",
        )
    changes = _restored(target, status.record)
    refuse_running(target)
    with locked(target.package.parent):
        # The listing goes back first: with the files patched it names too few, and the next run mends that; the other way round it would name
        # files that are gone, with nobody left who knows.
        if target.info is not None:
            _write_listing(target.info, _original_listing(target))
        replace_files(target.package, changes)
    return status.record


def _restored(target: Target, record: InstalledStack) -> dict[str, bytes | None]:
    """Changes that put the originals back and remove record and originals."""
    changes: dict[str, bytes | None] = {RECORD_NAME: None, f"{ORIGINALS}/RECORD": None}
    for path, (original, _) in record.files.items():
        if original is None:
            changes[path] = None
            continue
        kept = target.package / ORIGINALS / path
        data = kept.read_bytes() if kept.is_file() else b""
        if _digest_of(data) != original:
            raise Refused("a kept original is missing or damaged", where=str(kept), hint="reinstall the package")
        changes[path] = data
        changes[f"{ORIGINALS}/{path}"] = None
    return changes


def mend_listing(target: Target) -> bool:
    """Make the distribution's ``RECORD`` list what is installed, from the kept original. Returns whether it had to be changed."""
    record = read_record(target.package)
    if record is None or target.info is None:
        return False
    changes: dict[str, bytes | None] = {}
    for path in record.files:
        file = target.package / path
        changes[path] = file.read_bytes() if file.is_file() else None
    changes[RECORD_NAME] = (target.package / RECORD_NAME).read_bytes()
    for folder, _, names in os.walk(target.package / ORIGINALS):
        for name in names:
            kept = Path(folder, name)
            changes[kept.relative_to(target.package).as_posix()] = kept.read_bytes()
    original = _original_listing(target).decode("utf-8", "surrogateescape")
    wanted = update_distribution_record(original, target.package.name, changes).encode("utf-8", "surrogateescape")
    if (target.info / "RECORD").read_bytes() == wanted:
        return False
    _write_listing(target.info, wanted)
    return True


def _write_listing(info: Path, data: bytes) -> None:
    """Replace a distribution's ``RECORD`` by rename. The temporary name is fixed, so that ``finish_interrupted`` finds what a kill leaves."""
    partial = info / _PARTIAL_LISTING
    partial.write_bytes(data)
    partial.chmod((info / "RECORD").stat().st_mode & 0o7777)
    partial.replace(info / "RECORD")


def finish_interrupted(target: Target) -> bool:
    """Carry to its end what a killed run began, and clean up after it. Returns whether there was anything.

    Raises:
        RepositoryError: there is, and a process uses the package.
    """
    found = interrupted(target.package) is not None
    if found:
        refuse_running(target)
    with locked(target.package.parent):
        recover(target.package)
        if target.info is not None and (target.info / _PARTIAL_LISTING).exists():
            (target.info / _PARTIAL_LISTING).unlink()
            found = True
        return (not look(target).wrong and mend_listing(target)) or found
