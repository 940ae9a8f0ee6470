"""The command line's promises that hold for every verb."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from synctool.cli import log
from synctool.cli.app import VERBS, cli
from synctool.redact import redact


def run(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "synctool", *words], capture_output=True, text=True, cwd=cwd)


def test_help_imports_no_heavy_library() -> None:
    code = (
        "import sys; from synctool.cli.app import cli\n"
        "try: cli.main(['--help'], standalone_mode=False)\nexcept SystemExit: pass\n"
        "bad = {'git', 'github', 'rich', 'pydantic', 'tomlkit', 'unidiff', 'jinja2', 'torch'} & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def verbs_of(group: click.Group, *above: str) -> Iterator[tuple[str, ...]]:
    """Every verb, also those of groups, as the words that call it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from verbs_of(command, *above, name)
        else:
            yield (*above, name)


@pytest.mark.parametrize("words", verbs_of(cli), ids=" ".join)
def test_every_verb_has_help_and_json(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, [*words, "--help"])
    assert done.exit_code == 0, done.output
    assert "--json" in done.output


def test_every_verb_of_the_help_is_there() -> None:
    assert {words[0] for words in verbs_of(cli)} == set(VERBS)


def test_misspelt_verb_and_option_are_usage_errors() -> None:
    done = run("mirorr")
    assert (done.returncode, "Did you mean 'mirror'" in done.stderr) == (2, True)
    done = run("status", "--jsn")
    assert (done.returncode, "--json" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_errors_are_one_line_or_json(tmp_path: Path) -> None:
    done = run("status", cwd=tmp_path)
    assert done.returncode == 5
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    told = json.loads(run("status", "--json", cwd=tmp_path).stdout)
    assert told["schema"] == "vime-sync/1"
    assert told["error"]["hint"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str) -> None:
    done = run("completion", shell)
    assert done.returncode == 0
    assert "_VIME_SYNC_COMPLETE" in done.stdout


def test_rage_bundle_holds_no_secret(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "vime-sync.toml").write_text(
        'url = "https://user:hunter2@example.org/x"\ntoken = "ghp_abcdefghijklmnop"\n'
    )
    done = run("rage", "-o", "bundle.tar.gz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
        text = "".join((archive.extractfile(m) or sys.exit(1)).read().decode() for m in archive.getmembers())
    assert "python" in text
    assert "hunter2" not in text
    assert "abcdefghijklmnop" not in text


def test_crashes_of_one_second_leave_a_log_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    logs = [log.write_crash_log(ValueError(f"fault {n}")) for n in range(7)]
    assert {path.parent for path in logs} == {log.state_folder()}
    for n, path in enumerate(logs):
        assert f"ValueError: fault {n}" in path.read_text()
    assert run("rage", "-o", "bundle.tar.gz", cwd=tmp_path).returncode == 0
    with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
        bundled = [name for name in archive.getnames() if name.startswith("logs/")]
    assert bundled == [f"logs/{path.name}" for path in reversed(logs[-5:])], "the newest, newest first"


def test_a_crash_log_is_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(log, "moment", lambda: "now")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    logs = [log.write_crash_log(ValueError(f"fault {n}")) for n in range(3)]
    assert logs == [log.state_folder() / "crash-now.log", tmp_path / "temporary/crash-now.log", Path("(not written)")]
    for n in range(2):
        assert f"ValueError: fault {n}" in logs[n].read_text()


def test_bundles_made_at_once_do_not_meet(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "synctool", "rage"]
    same = [subprocess.Popen([*words, "-o", "bundle.tar.gz"], cwd=tmp_path, stdout=subprocess.DEVNULL) for _ in "ab"]
    assert [process.wait() for process in same] == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["bundle.tar.gz"], "nothing partial is left"
    with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
        assert "versions.json" in archive.getnames()
    for _ in range(2):
        assert run("rage", cwd=tmp_path).returncode == 0
    assert len(list(tmp_path.glob("vime-sync-rage-*.tar.gz"))) == 2


def test_redact_keeps_what_is_not_secret() -> None:
    text = "Authorization: Bearer abc123\npassword = hunter2\nhttps://example.org/path token-level merge"
    clean = redact(text)
    assert "abc123" not in clean
    assert "hunter2" not in clean
    assert "https://example.org/path token-level merge" in clean


@pytest.mark.parametrize(
    "words", [("skip",), ("init",), ("policy", "nonsense"), ("nonsense",), ("mirror", "--pr", "x")]
)
def test_json_also_for_a_wrong_command_line(words: tuple[str, ...]) -> None:
    done = run(*words, "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "UsageError"
    assert not done.stderr


def test_a_failure_of_the_machine_is_no_bug_of_ours(tmp_path: Path) -> None:
    code = "from synctool.cli import app\ndef full(*a, **k): raise OSError(28, 'No space left on device', 'x')\n"
    code += "app.cli.main = full\napp.main(['status', '--json'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 30
    assert json.loads(done.stdout)["error"]["where"] == "x"
    assert not done.stderr


def test_another_os_error_is_a_bug_with_a_log(tmp_path: Path) -> None:
    code = "from synctool.cli import app\ndef odd(*a, **k): raise OSError(20, 'Not a directory', 'x')\n"
    code += "app.cli.main = odd\napp.main(['status'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 31
    assert "the log is" in done.stderr


@pytest.mark.parametrize(
    "words",
    [("plan", "--through", ""), ("plan", "--from", ""), ("mirror", "--onto", ""), ("mirror", "--pick", "")],
)
def test_an_empty_option_is_not_an_option_left_out(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert f"{words[1]} is empty" in done.stderr


def test_an_option_whose_value_may_be_left_out_is_not_taken_for_empty() -> None:
    done = run("patch", "revert", "--site-packages", "--dry-run", "--offline")
    assert "is empty" not in done.stderr
    assert done.returncode != 2, done.stderr
