"""The life of a patch through the verbs: new, edit, refresh, drop, import, export, lint, verify, apply to a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from synctool.patches.difftext import parse_patch
from synctool.patches.stack import load_stack

from .conftest import FILES, HEADER, House, git

NEW = ("-d", "add a thing", "--removal-condition", "never", "--regression-test", "tests/test_it.py::test_it")


@pytest.fixture
def two(house: House) -> House:
    house.add("a.patch", {"engine/sub/util.py": b"A = 10\nB = 2\nC = 3\n"})
    house.add("b.patch", {"engine/sub/util.py": b"A = 10\nB = 2\nC = 30\n", "engine/b.py": b"B = 1\n"})
    return house


def test_new_edit_refresh(two: House, tmp_path: Path) -> None:
    work = tmp_path / "work"
    assert two.run("new", "c", str(work), *NEW, "--dry-run")["data"]["patch"] == "c.patch"
    assert not work.exists()
    two.run("new", "c", str(work), *NEW)
    assert (work / "engine/sub/util.py").read_bytes() == b"A = 10\nB = 2\nC = 30\n"
    two.run("refresh", "c", "--from", str(work), code=4)  # nothing edited
    (work / "engine/core.py").write_bytes(FILES["engine/core.py"].replace(b"x + 4", b"x + 40"))
    (work / "engine/core.py~").write_bytes(b"an editor's")
    (work / "engine/last.py").unlink()
    (work / "engine/new.py").write_bytes(b"N = 1\n")
    two.run("refresh", "c", "--from", str(work), "--accept")
    patch = parse_patch((two.stack / "c.patch").read_bytes(), "c")
    assert {(c.old_path, c.new_path) for c in patch.files} == {
        ("engine/core.py",) * 2,
        ("engine/last.py", None),
        (None, "engine/new.py"),
    }
    told = two.run("verify", "--no-drift", "--referee")["data"]
    assert [step["patch"] for step in told["steps"]] == ["a.patch", "b.patch", "c.patch"]
    two.run("new", "c", str(tmp_path / "again"), *NEW, code=2)
    two.run(
        "new",
        "d",
        str(tmp_path / "d"),
        "-d",
        "x",
        "--removal-condition",
        "never",
        "--regression-test",
        "nothing",
        code=2,
    )


def test_refresh_tells_context_from_content_and_keeps_the_original(two: House, tmp_path: Path) -> None:
    original = (two.stack / "a.patch").read_bytes()
    two.run("edit", "a", str(tmp_path / "w"))
    util = tmp_path / "w" / "engine/sub/util.py"
    assert util.read_bytes() == b"A = 10\nB = 2\nC = 3\n"
    util.write_bytes(b"A = 11\nB = 2\nC = 3\n")
    told = two.run("refresh", "a", "--from", str(tmp_path / "w"), code=1)["data"]["patches"][0]
    assert told["change"] == "content"
    assert "b.patch" in told["breaks"]
    assert (two.stack / "a.patch").read_bytes() == original
    assert (two.stack / "proposed/a.patch").is_file()
    load_stack(two.stack)  # a proposal is no part of the stack
    two.run("refresh", "a", "--accept")
    assert (two.stack / "a.patch").read_bytes() != original
    assert not (two.stack / "proposed").exists()
    two.run("verify", code=1)
    two.run("refresh", "a", "--from", str(tmp_path / "w"), code=5)  # the patch is not the one that edit began with


def test_canonical_refresh_is_context_only_and_then_a_no_op(two: House) -> None:
    path = two.stack / "a.patch"
    plain = b"".join(line for line in path.read_bytes().splitlines(keepends=True) if not line.startswith(b"index "))
    path.write_bytes(plain)
    assert two.run("verify", "--no-drift", code=1)["data"]["drift"] == ["a.patch"]
    assert any(f["rule"] == "index" for f in two.run("lint", code=1)["data"]["findings"])
    shown = two.run("refresh", "--dry-run")["data"]["patches"]
    assert [(row["patch"], row["change"]) for row in shown] == [("a.patch", "context"), ("b.patch", "none")]
    assert path.read_bytes() == plain
    two.run("refresh", "--accept")
    two.run("verify", "--no-drift")
    two.run("refresh", code=4)


def test_drop_only_when_the_rest_applies(two: House) -> None:
    two.run("drop", "a", "--reason", "x", code=5)
    planned = two.run("drop", "b", "--reason", "done", "--dry-run")["data"]["tree"]
    assert (two.stack / "b.patch").exists()
    assert two.run("drop", "b", "--reason", "done")["data"]["tree"] == planned
    assert two.run("verify")["data"]["tree"] == planned
    two.run("drop", "nothing", "--reason", "x", code=2)


def test_mails_go_out_to_git_am_and_come_back(two: House, tmp_path: Path) -> None:
    odd = HEADER.replace("{subject}", "naïve fix: --- über\n with a second line\n .\n --- and a third").replace(
        "Forwarded", "Author: Jürgen Ä <j@x.org>\nForwarded"
    )
    two.add("c.patch", {"engine/last.py": b"X = 1\nY = 3", "engine/é ü.txt": b"x\r\ny\n"}, header=odd)
    out = tmp_path / "mails"
    assert two.run("export", str(out), "--dry-run")["data"]["files"] == two.run("export", str(out))["data"]["files"]
    tree = two.run("verify")["data"]["tree"]
    clone = tmp_path / "clone"
    for name, data in {**FILES, "engine/_version.py": b"v = 0\n"}.items():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_bytes(data)
    git(clone, "init", "-q")
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "pin")
    git(clone, "am", "--keep-cr", *sorted(str(p) for p in out.iterdir()))
    assert git(clone, "rev-parse", "HEAD^{tree}").stdout.decode().strip() == tree
    assert git(clone, "log", "-1", "--format=%an <%ae>").stdout.decode().strip() == "Jürgen Ä <j@x.org>"
    # Back in, from our mails and from git's own.
    git(clone, "format-patch", "-q", "-o", str(tmp_path / "theirs"), "HEAD~3")
    for folder in (out, tmp_path / "theirs"):
        stack = two.stack
        for path in stack.glob("*.patch"):
            path.unlink()
        (stack / "series").write_text("")
        told = two.run("import", *sorted(str(p) for p in folder.iterdir()))
        assert told["data"]["tree"] == tree
        assert two.run("verify", "--no-drift", "--referee")["data"]["tree"] == tree
        last = load_stack(stack).patches[-1].header
        assert last.subject == "naïve fix: --- über"
        assert last.get("Author") == "Jürgen Ä <j@x.org>"
        assert last.get("Upstream-Status") == "Submitted [https://example.org/pull/1]"
        assert last.get("Regression-Test") == "tests/test_it.py::test_it"


def test_mailbox_and_quilt_and_single(two: House, tmp_path: Path) -> None:
    tree = two.run("verify")["data"]["tree"]
    two.run("export", str(tmp_path / "mails"))
    two.run("export", str(tmp_path / "quilt"), "--format", "quilt")
    two.run("export", str(tmp_path / "one.patch"), "--format", "single")
    assert two.run("export", str(tmp_path / "quilt"), "--format", "quilt", code=5)
    (tmp_path / "box.mbox").write_bytes(b"\n".join(p.read_bytes() for p in sorted((tmp_path / "mails").iterdir())))
    for words, names in (
        ([str(tmp_path / "box.mbox")], ["a-change.patch", "a-change-2.patch"]),
        ([str(tmp_path / "quilt")], ["a.patch", "b.patch"]),
        ([str(tmp_path / "one.patch")], ["one.patch"]),
    ):
        for path in two.stack.glob("*.patch"):
            path.unlink()
        (two.stack / "series").write_text("")
        before = two.run("import", *words, "--dry-run")["data"]
        assert (two.stack / "series").read_text() == ""
        assert two.run("import", *words)["data"]["patches"] == before["patches"] == names
        assert two.run("verify")["data"]["tree"] == before["tree"] == tree


def test_import_refuses_what_does_not_apply_and_writes_nothing(two: House, tmp_path: Path) -> None:
    bad = tmp_path / "bad.patch"
    bad.write_bytes(b"--- a/engine/core.py\n+++ b/engine/core.py\n@@ -1,1 +1,1 @@\n-nothing like it\n+x\n")
    before = sorted(p.name for p in two.stack.iterdir())
    two.run("import", str(bad), code=1)
    bad.write_bytes(b"no diff here\n")
    two.run("import", str(bad), code=3)
    assert sorted(p.name for p in two.stack.iterdir()) == before


def test_verify_stops_at_the_patch_that_fails_and_writes_the_resolved_patch(two: House, tmp_path: Path) -> None:
    resolved = tmp_path / "resolved.patch"
    tree = two.run("verify", "--resolved", str(resolved))["data"]["tree"]
    clone = tmp_path / "clone"
    for name, data in {**FILES, "engine/_version.py": b"v = 0\n"}.items():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_bytes(data)
    git(clone, "init", "-q")
    git(clone, "add", "-A")
    git(clone, "apply", "--index", str(resolved))
    assert git(clone, "write-tree").stdout.decode().strip() == tree
    path = two.stack / "b.patch"
    path.write_bytes(path.read_bytes().replace(b"-C = 3\n", b"-C = 4\n"))
    told = two.run("verify", code=1)["data"]
    assert (len(told["steps"]), told["patches"]) == (1, 2)
    assert "b.patch" in told["error"]["where"]
    assert "C = 3" in told["error"]["hint"]


def test_apply_into_a_folder(two: House, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert two.run("apply", "--output", str(out), "--dry-run")["data"]["output"]["files"] == 8
    assert not out.exists()
    two.run("apply", "--output", str(out))
    assert (out / "engine/b.py").read_bytes() == b"B = 1\n"
    two.run("apply", "--output", str(out), code=5)
    two.run("apply", code=2)


def test_empty_series_is_legal_and_an_empty_patch_is_not(house: House) -> None:
    assert house.run("verify")["data"]["tree"] == load_stack(house.stack).pin.archive.tree
    house.run("lint", code=4)
    house.run("rebase", "--to", "9", code=4)
    (house.stack / "empty.patch").write_text(HEADER.format(subject="x"))
    (house.stack / "series").write_text("empty.patch\n")
    assert "changes nothing" in house.run("verify", code=1)["data"]["error"]["title"]
    assert any(f["rule"] == "empty" for f in house.run("lint", code=1)["data"]["findings"])


def test_source_may_be_named(two: House, tmp_path: Path) -> None:
    archive = two.archive.rename(tmp_path / "elsewhere.tar.gz")
    two.run("verify", code=30)
    assert two.run("verify", "--source", str(archive))["data"]["source"] == str(archive)
    assert two.run("verify", "--offline")["data"]["source"] == "cache"
    two.run("pin", "--source", str(tmp_path / "none"), code=2)
