"""Files that are replaced in one step, on a real file system."""

from __future__ import annotations

from pathlib import Path

import pytest

from synctool.errors import UsageError
from synctool.whole_file import whole_file, write_whole


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def test_a_file_is_there_whole_with_its_mode_and_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.txt"
    write_whole(path, "é\r\n", 0o600)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == ("é\r\n".encode(), 0o600)
    write_whole(path, b"more")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"more", 0o644)
    assert names(path.parent) == ["b.txt"]


def test_after_an_error_the_old_one_is_there_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_text("old")
    with pytest.raises(TypeError), whole_file(path) as stream:
        stream.writelines([b"half", None])  # type: ignore[list-item]
    assert path.read_text() == "old"
    assert names(tmp_path) == ["kept"]


@pytest.mark.parametrize("place", ["file/new", "folder"])
def test_a_path_that_cannot_be_a_file_is_the_users_to_mend(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    with pytest.raises(UsageError, match="can't be written"):
        write_whole(tmp_path / place, b"")
    assert names(tmp_path) == ["file", "folder"]
