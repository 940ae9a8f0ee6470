"""A folder that is not shared as a queue needs it is refused before anything is in it, and the line says what was seen.

The bad file systems are folders of their own that a thread keeps in step with the first one, each in its own wrong way.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from vime.durable.probe import Child, Hand, Here, probe, second_process
from vime.errors import MachineError

DEADLINE = 1.5  # how long a view that never comes right is waited for; the good ones take milliseconds
Copy = Callable[[Path, Path], None]


def whole(source: Path, target: Path) -> None:
    if not target.exists() or source.read_bytes() != target.read_bytes():
        aside = target.with_name(f"{target.name}.copy")
        shutil.copyfile(source, aside)
        aside.replace(target)


def first_version(source: Path, target: Path) -> None:
    """As a client that keeps what it has opened."""
    if not target.exists():
        whole(source, target)


def half(source: Path, target: Path) -> None:
    """As a client that shows a replaced file before all of it is there."""
    if source.name != "replaced":
        whole(source, target)
        return
    contents = source.read_bytes()
    target.write_bytes(contents[: len(contents) // 2])


def gap(source: Path, target: Path) -> None:
    """As a client that removes the old file first."""
    if source.name != "replaced" or (not target.exists() and source.read_bytes()[:8] == b"0" * 8):
        whole(source, target)
    else:
        target.unlink(missing_ok=True)


@contextmanager
def second_view(folder: Path, copy: Copy | None, removes: bool = True) -> Iterator[Path]:
    """A folder that shows `folder`, both ways, by way of `copy`."""
    view, ends = folder.with_name("view"), threading.Event()
    view.mkdir()

    def known(root: Path) -> set[str]:
        return {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and p.suffix not in (".tmp", ".copy")}

    def mirror() -> None:
        before: set[str] = set()
        while not ends.wait(0.0005):
            try:
                here, there = known(folder), known(view)
                for name in sorted(here):
                    (view / name).parent.mkdir(parents=True, exist_ok=True)
                    assert copy is not None
                    copy(folder / name, view / name)
                for name in sorted(there - here - before):
                    whole(view / name, folder / name)
                for name in sorted(before - here) if removes else ():
                    (view / name).unlink(missing_ok=True)
                before = here
            except OSError:  # it went while we looked
                continue

    thread = threading.Thread(target=mirror)
    if copy is not None:
        thread.start()
    try:
        yield view
    finally:
        ends.set()
        if copy is not None:
            thread.join()


def test_three_processes_and_one_folder_pass_and_nothing_is_left(tmp_path: Path) -> None:
    with second_process(tmp_path) as second, second_process(tmp_path) as third:
        assert probe(tmp_path, [Here("this process", Hand(tmp_path)), second, third], "--rollout-data-dir") > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("copy", "removes", "seen"),
    [
        (None, True, "view did not see a new file of this process: no such file after 1.5 s"),
        (first_version, True, "view did not see an addition to a file of this process: 4 of 8 bytes after 1.5 s"),
        (
            half,
            True,
            "view read a torn file, (0|8192) of 16384 bytes or of two versions, while it was replaced by this process",
        ),
        (gap, True, "view (found no file while it was replaced|saw version -1 of 19 after 1.5 s) by this process"),
        (whole, False, "view did not see a removal of this process: it is still there after 1.5 s"),
        (whole, True, "view took a lock that this process holds"),
    ],
)
def test_a_view_that_is_late_stale_or_torn_or_keeps_locks_to_itself_is_refused(
    tmp_path: Path, copy: Copy | None, removes: bool, seen: str
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    with ExitStack() as stack:
        view = stack.enter_context(second_view(folder, copy, removes))
        child = Child(view, "view")
        stack.callback(child.close)
        with pytest.raises(MachineError, match=seen) as refused:
            probe(folder, [Here("this process", Hand(folder)), child], "--rollout-data-dir", DEADLINE)
        assert refused.value.where == str(folder)
        assert "\n" not in refused.value.title


def test_what_fails_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.touch()
    with second_process(tmp_path) as second, pytest.raises(MachineError, match="--save: Not a directory"):
        probe(folder, [Here("this process", Hand(folder)), second], "--save", DEADLINE)


def test_a_process_that_dies_is_named(tmp_path: Path) -> None:
    with second_process(tmp_path) as second:
        second._process.kill()
        with pytest.raises(MachineError, match=r"a second process ended|Broken pipe"):
            probe(tmp_path, [Here("this process", Hand(tmp_path)), second], "--save", DEADLINE)
