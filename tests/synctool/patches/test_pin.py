"""The pin: verified on each use, offline after the first, and nothing unsafe taken from an archive."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from synctool.errors import ConfigError, EnvironmentFailure, Refused, RepositoryError, SyncError
from synctool.patches.acquire import find_sdist, pip_config
from synctool.patches.pin import load_pin, render_pin
from synctool.patches.store import cache_folder, learn_archive, open_pin

from .conftest import FILES, House, git, make_archive


def test_from_the_index_then_offline(house: House) -> None:
    pin = load_pin(house.stack / "pin.toml")
    with pytest.raises(EnvironmentFailure, match="not in the cache"):
        open_pin(pin, offline=True)
    first = open_pin(pin)
    assert first.origin == "index"
    assert {path for path, _ in first.tree.items()} == set(house.files)
    house.archive.unlink()
    again = open_pin(pin, offline=True)
    assert (again.origin, again.tree_oid) == ("cache", pin.archive.tree)


def test_tree_is_the_one_git_makes(house: House, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    for name, data in house.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    assert git(folder, "write-tree").stdout.decode().strip() == load_pin(house.stack / "pin.toml").archive.tree


def test_cut_off_archive_and_wrong_hash_are_refused_and_leave_nothing(house: House) -> None:
    pin = load_pin(house.stack / "pin.toml")
    whole = house.archive.read_bytes()
    house.archive.write_bytes(whole[:-10])
    with pytest.raises(Refused, match="cut off"):
        open_pin(pin)
    house.archive.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(Refused, match="sha256"):
        open_pin(pin, source=house.archive)
    house.archive.write_bytes(whole + b"more")
    with pytest.raises(Refused, match="larger"):
        open_pin(pin)
    assert not [p for p in (cache_folder() / "pins").iterdir() if not p.name.endswith(".lock")]
    house.archive.write_bytes(whole)
    assert open_pin(pin).tree_oid == pin.archive.tree


def test_damaged_cache_is_noticed_and_rebuilt(house: House) -> None:
    pin = load_pin(house.stack / "pin.toml")
    open_pin(pin)
    pack = next((cache_folder() / "pins" / pin.archive.sha256 / "source.git" / "objects" / "pack").glob("*.pack"))
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 0xFF
    pack.chmod(0o644)
    pack.write_bytes(data)
    with pytest.raises(EnvironmentFailure, match="not in the cache"):
        open_pin(pin, offline=True)
    assert open_pin(pin).origin == "index"
    assert open_pin(pin, offline=True).origin == "cache"


def test_folder_and_git_sources(house: House, tmp_path: Path) -> None:
    pin = load_pin(house.stack / "pin.toml")
    folder = tmp_path / "unpacked"
    with tarfile.open(house.archive) as archive:
        archive.extractall(folder, filter="data")
    source = folder / "engine-1.0"
    (source / "__pycache__").mkdir()
    (source / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert open_pin(pin, source=source).tree_oid == pin.archive.tree
    (source / "README.md").write_bytes(b"changed")
    other = pin.model_copy(update={"archive": pin.archive.model_copy(update={"sha256": "0" * 64})})
    with pytest.raises(Refused, match="the folder's tree"):
        open_pin(other, source=source)
    git(source, "init", "-q", "-b", "main")
    git(source, "add", "engine", "README.md")
    git(source, "commit", "-q", "-m", "release")
    git(source, "tag", "v1.0")
    commit, tree = (git(source, "rev-parse", name).stdout.decode().strip() for name in ("HEAD", "HEAD^{tree}"))
    text = (
        house.stack / "pin.toml"
    ).read_text() + f'\n[git]\nurl = "{source}"\ntag = "v1.0"\ncommit = "{commit[:9]}"\ntree = "{tree}"\n'
    (house.stack / "pin.toml").write_text(text)
    pin = load_pin(house.stack / "pin.toml")
    found = open_pin(pin, use_git=True)
    assert (found.origin, found.tree_oid) == ("git", tree)
    (house.stack / "pin.toml").write_text(text.replace(commit[:9], "0123456").replace(tree, "1" * 40))
    with pytest.raises(Refused, match="is commit"):
        open_pin(load_pin(house.stack / "pin.toml"), use_git=True)
    with pytest.raises(RepositoryError, match="no git source"):
        open_pin(other.model_copy(update={"git": None}), use_git=True)


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("engine-1.0/../evil", tarfile.REGTYPE, "not allowed"),
        ("/etc/evil", tarfile.REGTYPE, "top folder"),
        ("other/file", tarfile.REGTYPE, "top folder"),
        ("engine-1.0/link", tarfile.SYMTYPE, "link or a device"),
        ("engine-1.0/hard", tarfile.LNKTYPE, "link or a device"),
        ("engine-1.0/dev", tarfile.CHRTYPE, "link or a device"),
        ("engine-1.0/README.md", tarfile.REGTYPE, "twice"),
        ("engine-1.0/.git/config", tarfile.REGTYPE, "not allowed"),
    ],
)
def test_unsafe_archives(tmp_path: Path, name: str, kind: bytes, says: str) -> None:
    path = make_archive(tmp_path / "engine-1.0.tar.gz", FILES)
    with tarfile.open(tmp_path / "bad.tar", "w") as archive, tarfile.open(path) as good:
        for member in good:
            archive.addfile(member, good.extractfile(member))
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info, io.BytesIO(b""))
    with pytest.raises(Refused, match=says):
        learn_archive(tmp_path / "bad.tar")


def test_damaged_archive_is_told_as_such(tmp_path: Path) -> None:
    path = make_archive(tmp_path / "engine-1.0.tar.gz", {"a": os.urandom(5000)})
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(ConfigError, match="damaged"):
        learn_archive(path)


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("schema = 1", "schema = 2", 1, "schema"),
        ('package = "engine"', "", 1, "package: is missing"),
        ("size = ", "size = -", 9, "archive.size"),
        ("files = ", "file = ", 10, "archive.file"),
        ('sha256 = "', 'sha256 = "xx', 8, "archive.sha256"),
        ("[archive]", "[archive", 6, "not TOML"),
    ],
)
def test_errors_in_a_pin_name_file_and_line(house: House, old: str, new: str, line: int, says: str) -> None:
    path = house.stack / "pin.toml"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        load_pin(path)
    assert says in caught.value.title
    assert (caught.value.where or "").startswith(str(path))
    if "missing" not in says and "archive.file" not in says:
        assert caught.value.where == f"{path}:{line}"


def test_pin_round_trips(house: House, tmp_path: Path) -> None:
    pin = load_pin(house.stack / "pin.toml")
    (tmp_path / "pin.toml").write_text(render_pin(pin))
    assert load_pin(tmp_path / "pin.toml") == pin


def test_pip_configuration_is_honoured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "simple" / "engine"
    page.mkdir(parents=True)
    archive = make_archive(tmp_path / "engine-2.0.tar.gz", FILES, "engine-2.0")
    (page / "index.html").write_text(f'<html><body><a href="../../{archive.name}">{archive.name}</a></body></html>')
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    config = pip_config()
    assert config.indexes[0] == (tmp_path / "simple").as_uri()
    assert find_sdist("engine", "2.0", config).url == archive.as_uri()
    with pytest.raises(EnvironmentFailure, match="no source archive"):
        find_sdist("engine", "3.0", config)


def test_new_pin_is_written_from_the_archive(house: House) -> None:
    make_archive(house.archive.with_name("engine-1.1.tar.gz"), FILES | {"engine/new.py": b"n = 1\n"}, "engine-1.1")
    shown = house.run("pin", "1.1", "--dry-run")
    assert not (house.stack.parent / "1.1").exists()
    written = house.run("pin", "1.1")
    assert written["data"]["pin"] == shown["data"]["pin"]
    pin = load_pin(house.stack.parent / "1.1" / "pin.toml")
    assert open_pin(pin).tree_oid == pin.archive.tree
    house.run("pin", "1.1", code=2)


def test_no_source_at_all(house: House) -> None:
    house.archive.unlink()
    with pytest.raises(SyncError, match="no source archive"):
        open_pin(load_pin(house.stack / "pin.toml"))
