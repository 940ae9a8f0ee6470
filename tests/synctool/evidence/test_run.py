"""Running commands: real processes on real clones, result files, lost agents, secrets."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from synctool.errors import ConfigError, EnvironmentFailure, Refused, RepositoryError
from synctool.evidence.junit import read_junit
from synctool.evidence.record import Outcome
from synctool.evidence.run import LOST, place_of, run
from synctool.evidence.surroundings import redact_command, surroundings
from synctool.git.repo import Repo
from synctool.policy.model import EvidenceKind

TOKEN = "ghp_thisIsTheSecretOfTheTest0123456789"


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    folder = tmp_path / "r"
    folder.mkdir()
    for words in (("init", "-q"), ("config", "user.name", "B"), ("config", "user.email", "b@e")):
        subprocess.run(["git", *words], cwd=folder, check=True)
    (folder / "a.txt").write_text("a\n")
    (folder / ".gitignore").write_text("build/\n")
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    subprocess.run(["git", "commit", "-q", "-m", "x"], cwd=folder, check=True)
    return Repo.open(folder)


def go(repo: Repo, code: str, **more):
    said: list[str] = []
    options = {"name": "unit", "kind": EvidenceKind.TEST, "who": "B <b@e>", "echo": said.append, **more}
    return run(repo, [sys.executable, "-c", code], **options), "".join(said)


def test_what_ran_is_bound_to_head_and_tree(repo):
    record, said = go(repo, "import os; print('hello', os.getcwd())")
    assert record.outcome is Outcome.PASSED
    assert (record.head, record.tree) == (repo.resolve("HEAD"), repo.resolve("HEAD", "tree"))
    assert f"hello {repo.work_tree}" in said
    assert record.tail == ""
    assert record.environment["python"].startswith("3.")


def test_a_dirty_tree_is_refused(repo):
    (repo.work_tree / "a.txt").write_text("b\n")
    with pytest.raises(RepositoryError, match=r"1 tracked file\(s\) differ from the head: a.txt"):
        go(repo, "raise SystemExit('must not run')")


def test_untracked_files_are_told(repo):
    (repo.work_tree / "loose.py").write_text("x\n")
    assert place_of(repo).untracked == ("loose.py",)
    assert go(repo, "")[0].details["untracked files"] == "1: loose.py"


def test_failure_keeps_the_end_of_what_was_printed(repo):
    record, _ = go(repo, f"print('x\\n' * 90); print('token={TOKEN}'); raise SystemExit(3)")
    assert (record.outcome, record.exit_status) == (Outcome.FAILED, 3)
    assert record.tail.endswith("token=***")
    assert len(record.tail.splitlines()) <= 20
    assert TOKEN not in record.encode().decode()


def test_a_command_that_changes_the_tree_did_not_pass(repo):
    record, _ = go(repo, "open('a.txt', 'w').write('z')")
    assert record.outcome is Outcome.FAILED
    assert "changed 1 tracked file" in record.note


JUNIT = "<testsuites><testsuite tests='99'>{}</testsuite></testsuites>"
WRITE = "import os; os.makedirs('build', exist_ok=True); open('build/j.xml', 'w').write({!r})"


def cases(passed: int, *bad: str) -> str:
    return JUNIT.format("<testcase/>" * passed + "".join(f"<testcase><{tag}/></testcase>" for tag in bad))


def test_figures_are_counted(repo):
    record, _ = go(repo, WRITE.format(cases(5, "skipped")), junit=repo.work_tree / "build/j.xml")
    assert record.figures == {"tests": 6, "passed": 5, "failures": 0, "errors": 0, "skipped": 1}
    assert record.artifacts[0].name == "j.xml"


def test_failures_in_the_file_beat_the_exit_status(repo):
    record, _ = go(repo, WRITE.format(cases(5, "failure")), junit=repo.work_tree / "build/j.xml")
    assert record.exit_status == 0
    assert record.outcome is Outcome.FAILED


def test_an_old_result_file_does_not_speak(repo):
    path = repo.work_tree / "build/j.xml"
    path.parent.mkdir()
    path.write_text(cases(5))
    record, _ = go(repo, "print('forgot to test')", junit=path)
    assert record.outcome is Outcome.FAILED
    assert "no JUnit file" in record.note


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<a", ConfigError),
        ("<testsuite/>", ConfigError),
        ("<!DOCTYPE x [<!ENTITY a 'b'>]><testsuite><testcase/></testsuite>", Refused),
    ],
)
def test_bad_result_files(tmp_path, text, error):
    (tmp_path / "j.xml").write_text(text)
    with pytest.raises(error) as caught:
        read_junit(tmp_path / "j.xml")
    assert str(tmp_path / "j.xml") in caught.value.where


DIE_ONCE = "import os, signal; n = len(os.listdir('build')) if os.path.isdir('build') else 0; os.makedirs('build', exist_ok=True); open(f'build/{n}', 'w'); "


def test_a_lost_agent_is_retried_and_told(repo):
    record, said = go(repo, DIE_ONCE + "n or os.kill(os.getpid(), signal.SIGKILL)", retries=2)
    assert record.outcome is Outcome.PASSED
    (retry,) = record.retries
    assert retry.exit_status == -9
    assert "no test failed" in retry.reason
    assert "again (1 of 2)" in said


def test_lost_for_good(repo):
    record, _ = go(repo, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", retries=1)
    assert record.outcome is Outcome.LOST
    assert len(record.retries) == 1


def test_a_failure_is_never_retried(repo):
    record, _ = go(repo, DIE_ONCE + "raise SystemExit(1)", retries=3)
    assert record.outcome is Outcome.FAILED
    assert record.retries == ()
    assert [path.name for path in (repo.work_tree / "build").iterdir()] == ["0"]
    # nor one whose result file shows it, whatever became of the process afterwards
    code = WRITE.format(cases(1, "error")) + "; import signal; os.kill(os.getpid(), signal.SIGKILL)"
    record, _ = go(repo, code, retries=3, junit=repo.work_tree / "build/j.xml")
    assert (record.outcome, record.retries) == (Outcome.FAILED, ())


def test_an_exit_status_that_means_lost(repo):
    record, _ = go(repo, DIE_ONCE + "raise SystemExit(0 if n else 255)", retries=1, lost=(*LOST, 255))
    assert record.outcome is Outcome.PASSED
    assert record.retries[0].exit_status == 255


def test_the_time_ends_the_whole_group(repo, monkeypatch):
    code = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); print(p.pid, flush=True); p.wait()"
    said: list[str] = []

    class Limit(threading.Timer):
        """Its time begins when the child was named: on a stalled machine the start alone may take longer than any limit."""

        begin = threading.Timer.start

        def start(self) -> None:
            limits.append(self)

    limits: list[Limit] = []

    def echo(line: str) -> None:
        said.append(line)
        limits[0].begin()

    monkeypatch.setattr(threading, "Timer", Limit)
    record, _ = go(repo, code, timeout=0.1, echo=echo)
    assert record.outcome is Outcome.FAILED
    assert "ended after its 0.1 s" in record.note
    child = int(said[0])
    for _ in range(6000):  # the child is reaped by whoever adopts it
        try:
            status = Path(f"/proc/{child}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return
        if "\nState:\tZ" in status:
            return
        threading.Event().wait(0.01)
    raise AssertionError("the child outlived its group")


def test_what_can_not_start(repo):
    with pytest.raises(EnvironmentFailure, match="can't start 'no-such-program'"):
        run(repo, ["no-such-program"], name="x", kind=EvidenceKind.TEST, who="B <b@e>")


def test_figures_of_our_own_verbs(repo):
    code = 'print(\'noise {\'); print(\'{"schema": "vime-sync/1", "data": {"patches": 6, "gate": {"files": 2533, "findings": []}, "ok": true}}\')'
    assert go(repo, code)[0].figures == {"patches": 6, "gate files": 2533, "gate findings": 0}


def test_secrets_stay_out():
    shown = redact_command(
        ["run", "--api-key", TOKEN, f"--token={TOKEN}", f"https://me:{TOKEN}@host/x", str(Path("~/x").expanduser())]
    )
    assert TOKEN not in " ".join(shown)
    assert shown[-1] == "~/x"
    found = surroundings(["MY_TOKEN", "PLAIN"], environ={"MY_TOKEN": "hunter2", "PLAIN": "x", "OTHER": "y", "CI": "1"})
    assert "hunter2" not in str(found)
    assert (found["PLAIN"], found["CI"]) == ("x", "1")
    assert "OTHER" not in found
