"""The evidence and report verbs as a person calls them, in a small repository with a policy."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from synctool.cli.app import main
from synctool.evidence.store import REF

POLICY = """schema = 1
[upstream]
name = "lantern"
[downstream]
name = "beacon"
[[neutral]]
paths = ["/.ci/"]
reason = "not in the runtime"
[[require]]
name = "unit"
reason = "the unit tests"
"""
JUNIT = "<testsuite><testcase/><testcase/></testsuite>"


class Clone:
    """A clone and the verbs in it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def git(self, *words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=self.folder, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self, path: str, text: str) -> str:
        (self.folder / path).parent.mkdir(exist_ok=True)
        (self.folder / path).write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", path)
        return self.git("rev-parse", "HEAD")

    def __call__(self, *words: str, expect: int = 0) -> tuple[str, str]:
        group = 2 if words[0] == "evidence" else 1
        with pytest.raises(SystemExit) as ended:
            main([*words[:group], "-C", str(self.folder), *words[group:]])
        told = self.capsys.readouterr()
        assert ended.value.code == expect, told
        assert "Traceback" not in told.err
        return told.out, told.err

    def data(self, *words: str, expect: int = 0) -> dict:
        group = 2 if words[0] == "evidence" else 1
        return json.loads(self(*words[:group], "--json", *words[group:], expect=expect)[0])["data"]

    def has_ref(self) -> bool:
        return self.git("for-each-ref", REF) != ""


@pytest.fixture
def clone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Clone:
    made = Clone(tmp_path / "c", capsys)
    made.folder.mkdir()
    made.git("init", "-q", "-b", "sync/one")
    made.git("config", "user.name", "Bea Lichtmann")
    made.git("config", "user.email", "bea@example.org")
    made.commit("vime-sync.toml", POLICY)
    made.commit("src/a.py", "A = 1\n")
    return made


PASS = ("--", sys.executable, "-c", "print('fine')")


def test_from_nothing_to_green_to_stale(clone):
    assert "missing  unit: no record of it" in clone("evidence", "check", expect=1)[0]
    out, _ = clone("evidence", "run", "--name", "unit", *PASS)
    assert "unit: passed on tree" in out
    assert "green    " in clone("evidence", "check")[0]
    clone.commit(".ci/x.yml", "steps: []\n")
    assert "narrowed (1 path(s) differ)" in clone("evidence", "check")[0]
    clone.commit("src/a.py", "A = 2\n")
    out, _ = clone("evidence", "check", expect=1)
    assert "stale" in out
    assert clone.git("status", "--porcelain") == ""


def test_dry_runs_write_nothing(clone):
    out, _ = clone("evidence", "run", "--name", "unit", "--dry-run", "--", "false")
    assert "would run on tree" in out
    clone("evidence", "attest", "-s", "--name", "x", "--outcome", "passed", "--dry-run")
    clone("evidence", "state", "note", "--text", "x", "--dry-run")
    (clone.folder.parent / "j.xml").write_text(JUNIT)
    clone("evidence", "import", "--name", "x", "--head", "HEAD", str(clone.folder.parent / "j.xml"), "--dry-run")
    assert not clone.has_ref()


def test_a_failed_command_is_recorded_and_exit_code_1(clone):
    clone("evidence", "run", "--name", "unit", "--", sys.executable, "-c", "raise SystemExit(9)", expect=1)
    (row,) = clone.data("evidence", "list")["records"]
    assert (row["outcome"], row["exit_status"], row["green"]) == ("failed", 9, False)
    assert "failed   " in clone("evidence", "check", expect=1)[0]


def test_json_stays_whole_while_the_command_talks(clone):
    assert clone.data("evidence", "run", "--name", "unit", *PASS)["record"]["outcome"] == "passed"


def test_interrupting_records_a_cancelled_run(clone):
    code = "import sys, time; print('ready', flush=True); time.sleep(600)"
    process = subprocess.Popen(
        [sys.executable, "-m", "synctool", "evidence", "run", "-C", str(clone.folder), "--name", "unit", "--", sys.executable, "-c", code],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=Path.cwd(),
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 1
    (row,) = clone.data("evidence", "list")["records"]
    assert row["outcome"] == "cancelled"


def test_import_of_files_and_of_another_clone(clone, tmp_path):
    (tmp_path / "j.xml").write_text(JUNIT)
    clone("evidence", "import", "--name", "unit", "--head", "HEAD", "--run", "#12", str(tmp_path / "j.xml"))
    assert clone.data("evidence", "check")["green"][0]["figures"]["passed"] == 2
    exported = tmp_path / "records.json"
    exported.write_text(clone("evidence", "list", "--json")[0])
    clone.git("update-ref", "refs/kept", REF)
    clone.git("update-ref", "-d", REF)
    assert clone.data("evidence", "import", str(exported))["new"][0]["run"] == "#12"
    assert clone.data("evidence", "import", "--ref", "refs/kept")["new"] == []
    exported.write_text(exported.read_text().replace('"passed": 2', '"passed": 3'))
    assert "was changed" in clone("evidence", "import", str(exported), expect=3)[1]


def test_attest_and_state(clone):
    head = clone.git("rev-parse", "HEAD")
    clone(
        "evidence",
        "attest",
        "-s",
        "--name",
        "unit",
        "--outcome",
        "passed",
        "--figure",
        "tests=1,200",
        "--detail",
        "host=gpu-1",
        "--url",
        "https://ci/1",
    )
    (row,) = clone.data("evidence", "list")["records"]
    assert (row["source"], row["figures"], row["signed_off_by"]) == (
        "attested",
        {"tests": 1200},
        "Bea Lichtmann <bea@example.org>",
    )
    body = clone("report")[0]
    assert "1,200 tests" in body
    assert "seen elsewhere, not run by vime-sync; signed off by Bea Lichtmann" in body
    clone("evidence", "state", "withdraws", "--target", "unit", "--text", "It was the wrong machine.")
    assert "withdraws" in clone("evidence", "list")[0]
    clone("evidence", "check", expect=1)
    assert "replaced by" in clone("report")[0]
    assert head[:12] in clone("report")[0]


def test_a_refusal_needs_its_reason(clone):
    words = ("evidence", "attest", "-s", "--name", "image-arm64", "--kind", "image", "--outcome", "refused")
    assert "a refusal needs its reason" in clone(*words, expect=2)[1]
    clone(*words, "--note", "the host is behind a jump host")
    assert "jump host" in clone("report")[0]


def test_report_to_a_file(clone, tmp_path):
    clone("evidence", "run", "--name", "unit", *PASS)
    clone("report", "-o", str(tmp_path / "body.md"), "--dry-run")
    assert not (tmp_path / "body.md").exists()
    out, _ = clone("report", "-o", str(tmp_path / "body.md"))
    assert "claims" in out
    data = clone.data("report")
    assert (tmp_path / "body.md").read_text() == data["body"]
    assert all(source in data["sources"] for claim in data["claims"] for source in claim["sources"])


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("run", "--name", "unit"), 2, "COMMAND"),
        (("run", "--name", "unit", "--", "no-such-program"), 30, "can't start"),
        (("run", "--name", "a\tb", "--", "true"), 2, "name"),
        (("run", "--name", "x", "--artifact", "latest", "--", "true"), 2, "no artifact"),
        (("run", "--name", "x", "--stack", "--", "true"), 2, "no patch stack"),
        (("attest", "--name", "x", "--outcome", "passed"), 2, "--signoff"),
        (("attest", "-s", "--name", "x", "--outcome", "passed", "--figure", "n=many"), 2, "whole number"),
        (("attest", "-s", "--name", "x", "--outcome", "passed", "--figure", "n"), 2, "no pair"),
        (("attest", "-s", "--name", "x", "--outcome", "passed", "--head", "nowhere"), 5, "no commit is named"),
        (("state", "depends-on", "--text", "x"), 2, "needs target"),
        (("state", "withdraws", "--target", "nothing", "--text", "x"), 2, "no record is named"),
        (("import",), 2, "name files"),
        (("import", "missing.json"), 3, "can't read"),
        (("import", "vime-sync.toml"), 3, "neither JSON nor XML"),
    ],
)
def test_mistakes_get_one_line(clone, words, code, says, monkeypatch):
    monkeypatch.chdir(clone.folder)
    _, err = clone("evidence", *words, expect=code)
    assert says in err
    assert err.startswith("error: ")
    assert not clone.has_ref()


def test_nothing_to_check_is_no_success(clone):
    clone.commit("vime-sync.toml", POLICY.partition("[[require]]")[0])
    assert "nothing to check" in clone("evidence", "check", expect=2)[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [(("publish",), "downstream.url names no GitHub project"), (("report", "nowhere"), "no commit is named")],
)
def test_publish_and_report_mistakes(clone, words, says):
    _, err = clone(*words, expect=2 if words[0] == "publish" else 5)
    assert says in err
