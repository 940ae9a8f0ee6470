"""An upstream whose trees and messages were made by an attacker: nothing hostile comes in, nothing is lost in silence, nothing crashes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from synctool.git.repo import Repo
from tests.e2e.sync.conftest import Fork

TIP = "refs/vime-sync/upstream/main"
Row = tuple[bytes, bytes, str]


class Attacker:
    """Writes raw trees and commits on top of the fetched upstream, which git itself would refuse to make."""

    def __init__(self, fork: Fork) -> None:
        self.repo = Repo.open(fork.folder)
        self.tip = self.repo.resolve(TIP)
        self.number = 200

    def blob(self, data: bytes = b"evil Kerosene\n") -> str:
        return self.repo.objects.write_blob(data)

    def tree(self, rows: list[Row]) -> str:
        ordered = sorted(rows, key=lambda row: row[1] + (b"/" if row[0] == b"40000" else b""))
        return self.repo.objects.write("tree", b"".join(m + b" " + n + b"\0" + bytes.fromhex(o) for m, n, o in ordered))

    def add(self, message: bytes, *rows: Row) -> None:
        listed = self.repo.run("ls-tree", "-z", self.tip).stdout.split(b"\0")[:-1]
        old = [(line.split(b"\t", 1)[1], *line.split(b"\t", 1)[0].split()) for line in listed]
        new = {name for _, name, _ in rows}
        kept = [(mode.removeprefix(b"0"), name, oid.decode()) for name, mode, _, oid in old if name not in new]
        self.number += 1
        head = f"tree {self.tree([*kept, *rows])}\nparent {self.tip}\nauthor M <m@e> 17 +0000\ncommitter M <m@e> 17 +0000\n\n"
        self.tip = self.repo.objects.write("commit", head.encode() + message + b" (#%d)\n" % self.number)

    def folder(self, name: bytes, inner: bytes) -> Row:
        return b"40000", name, self.tree([(b"100755", inner, self.blob())])

    def done(self) -> None:
        self.repo.run("update-ref", TIP, self.tip)
        self.repo.close()


REFUSED = ["'../escape'", "'.git/hooks'", "'.GIT/config'", "'git~1/config'", "config'", "'/etc/x'", "'..\\\\x'", "'etc'", "'up'", "'module'"]  # fmt: skip


@pytest.fixture
def hostile(fork: Fork) -> Fork:
    made = Attacker(fork)
    blob = made.blob()
    made.add(b"up", made.folder(b"..", b"escape"))
    made.add(b"git", made.folder(b".git", b"hooks"))
    made.add(b"case", made.folder(b".GIT", b"config"))
    made.add(b"short name", made.folder(b"git~1", b"config"))
    made.add(b"ignored character", made.folder(b".g\xe2\x80\x8cit", b"config"))
    made.add(b"absolute", (b"100644", b"/etc/x", blob))
    made.add(b"backslash", (b"100644", b"..\\x", blob))
    made.add(b"link", (b"120000", b"etc", made.blob(b"/etc")))
    made.add(b"relative link", (b"120000", b"up", made.blob(b"../../x")))
    made.add(b"module", (b"160000", b"module", "1" * 40))
    made.add(b"through the link", made.folder(b"etc", b"passwd"))
    made.add(b"case collision", (b"100644", b"readme.md", blob))
    made.add(b"name \xff", (b"100644", b"caf\xe9 Kerosene", blob), (b"100644", b"[/b]\x1b[31m\nred", blob))
    made.add(b"big", (b"100644", b"big.bin", made.blob(bytes((64 << 20) + 1))))
    made.add(b"\x1b[2J[/x] \xff\xfe", (b"100644", b"latin.txt", made.blob(b"caf\xe9 Kerosene\n")))
    made.done()
    return fork


def test_hostile_trees_through_the_whole_sync(hostile: Fork, tmp_path: Path) -> None:
    plan = hostile.sync("plan")
    assert "\x1b" not in plan.stdout
    assert hostile.data("plan")["changes"][-1]["subject"].encode("utf-8", "surrogateescape").startswith(b"\x1b[2J[/x] ")
    done = hostile.sync("mirror", expect=1)
    assert "\x1b" not in done.stdout + done.stderr
    refused = [line for line in done.stderr.splitlines() if "was refused" in line]
    assert len(refused) == len(REFUSED)
    for line, path in zip(refused, REFUSED, strict=True):
        assert path in line
    session = hostile.data("status", expect=1)["session"]
    assert len(session["warnings"]) == len(REFUSED)

    folder = tmp_path / "out"
    hostile.sync("conflicts", "--write", str(folder), expect=1)
    assert [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()] == ["beacon/runner.py"]
    hostile.sync("conflicts", expect=1)
    hostile.sync("take", "ours", "readme.md", expect=1)
    hostile.sync("take", "ours", "beacon/runner.py")
    hostile.sync("continue")
    names = hostile.git("ls-tree", "-r", "-z", "--name-only", session["branch"]).split("\0")
    for name in names:
        parts = name.split("/")
        assert not {"", "..", ".git"} & set(parts) or name == ""
        assert "git~1" not in name
        assert "\u200c" not in name
    assert "caf\udce9 Photon" in names
    assert "etc/passwd" in names  # a plain folder: the link of that name never came in
    assert os.fsencode(hostile.git("show", f"{session['branch']}:latin.txt")) == b"caf\xe9 Kerosene"
    raw = hostile.git("log", "--format=%s", "-1", f"{session['branch']}~1")
    assert "[2J[/x]" in raw

    found = hostile.data("verify", "--ours", session["branch"], expect=None)
    causes = {item["path"]: item["cause"] for item in found["differences"]}
    assert causes["../escape"] == "refused"
    assert found["causes"]["refused"] >= 5


def test_verify_cures_nothing_hostile(hostile: Fork, tmp_path: Path) -> None:
    hostile.sync("verify", "--fixup", str(tmp_path / "fix"), expect=1)
    patch = (tmp_path / "fix").read_bytes()
    assert b"escape" not in patch
    assert b"hooks" not in patch


NO_STATE = {"schema": 1, "depth": 0, "branch": "refs/heads/x", "tip": "1", "phase": "conflicts", "branch_before": None}


@pytest.mark.parametrize("value", [b"{", b"[]", b'{"schema": 1}', json.dumps(NO_STATE).encode()])
def test_a_damaged_session_is_named_and_can_be_removed(fork: Fork, value: bytes) -> None:
    repo = Repo.open(fork.folder)
    made = Attacker(fork)
    tree = made.tree([(b"100644", b"session.json", repo.objects.write_blob(value))])
    fork.git("update-ref", "refs/vime-sync/session", fork.git("commit-tree", tree, "-m", "x"))
    made.repo.close()
    repo.close()
    for verb in ("status", "continue", "conflicts", "mirror", "undo"):
        done = fork.sync(verb, expect=None)
        assert done.returncode in (4, 5), (verb, done.stderr)
    assert "damaged" in fork.sync("status", expect=5).stderr
    assert json.loads(fork.sync("status", "--json", expect=5).stdout)["error"]["hint"]
    fork.sync("abort", "--force")
    fork.sync("mirror", "--dry-run")


def test_a_branch_deleted_midway_is_named_with_its_remedy(fork: Fork) -> None:
    session = fork.data("mirror", expect=1)
    branch = session["branch"].removeprefix("refs/heads/")
    fork.git("branch", "-m", branch, "elsewhere")
    for words in (("take", "ours", "beacon/runner.py"), ("undo",)):
        told = fork.sync(*words, expect=5).stderr
        assert f"git branch {branch} {session['tip']}" in told
    fork.git("branch", branch, session["tip"])
    fork.sync("take", "ours", "beacon/runner.py")
    fork.git("branch", "-D", branch)
    assert "was deleted" in fork.sync("continue", expect=5).stderr
    fork.sync("abort")
    assert fork.git("rev-parse", "elsewhere") == session["tip"]


def test_a_reader_that_leaves_early_is_no_failure(fork: Fork) -> None:
    for words in ("plan", "plan --json"):
        script = f"'{sys.executable}' -m synctool {words} -C '{fork.folder}' | head -c 1; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
        assert done.stdout.endswith("0\n"), done.stdout
        assert not done.stderr


def test_a_manifest_with_a_byte_order_mark_is_read_and_a_folder_is_named(fork: Fork) -> None:
    fork.sync("plan", "--write")
    (place,) = (fork.folder / "sync_manifests").glob("*.toml")
    place.write_bytes(b"\xef\xbb\xbf" + place.read_bytes().replace(b'decision = "take"', b'decision = "maybe"', 1))
    assert "'maybe'" in fork.sync("plan", expect=3).stderr
    place.unlink()
    place.mkdir()
    for words in (("plan",), ("plan", "--write"), ("mirror",)):
        assert "the manifest is no plain file" in fork.sync(*words, expect=3).stderr


def test_a_session_ref_that_names_no_state(fork: Fork) -> None:
    place = fork.folder / ".git/refs/vime-sync/session"
    blob = fork.git("hash-object", "-w", "vime-sync.toml")
    for oid in (blob, "1" * 40, fork.git("rev-parse", "HEAD")):
        place.write_text(f"{oid}\n")
        assert "abort --force" in fork.sync("status", expect=5).stderr
        fork.sync("abort", "--force")
        assert not place.exists()


@pytest.mark.parametrize("name", ["session", "redo"])
def test_a_session_ref_that_holds_no_id(fork: Fork, name: str) -> None:
    place = fork.folder / ".git" / "refs" / "vime-sync"
    place.mkdir(parents=True, exist_ok=True)
    (place / name).write_text("no id\n")
    for words in (("status",), ("mirror",), ("abort",)):
        assert "abort --force" in fork.sync(*words, expect=5).stderr
    fork.sync("abort", "--force", "--dry-run")
    assert (place / name).exists()
    fork.sync("abort", "--force")
    assert not (place / name).exists()
    fork.sync("abort", expect=4)
