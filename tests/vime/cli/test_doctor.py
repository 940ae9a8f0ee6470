"""`vime doctor`, and how the command line fails."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest
from click.testing import CliRunner

from vime.cli import doctor
from vime.cli.app import VERBS, cli


def test_findings_are_json_with_the_exit_code() -> None:
    result = CliRunner().invoke(cli, ["doctor", "--fast", "--json"])
    report = json.loads(result.output)
    assert report["exit_code"] == result.exit_code
    assert (report["schema"], report["verb"]) == ("vime/1", "doctor")
    assert {"python", "torch", "vllm", "open files", "shared memory", "ports"} <= {
        one["check"] for one in report["data"]
    }
    assert all(one["hint"] for one in report["data"] if one["level"] != "ok")


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "installed", lambda name: None if name == "ray" else "0.0.1")
    found = {one.check: one for one in doctor.versions(True)}
    assert (found["ray"].level, "requirements/cpu.txt" in found["ray"].hint) == ("bad", True)
    assert found["vllm"].level == "warn"
    assert "tested with 0.32.0" in found["vllm"].found


def test_a_low_limit_of_open_files_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    (finding,) = doctor.open_files(True)
    assert finding.level == "bad"
    assert "ulimit -Hn" in finding.hint
    assert CliRunner().invoke(cli, ["doctor", "--fast"]).exit_code == 30


def test_spinning_threads_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    (finding,) = doctor.threads(True)
    assert finding.level == "warn"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str) -> None:
    result = CliRunner().invoke(cli, [verb, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_a_users_mistake_is_two_lines_and_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from vime.cli.app import main; main(['stop', 'no-such-run'])"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["error: no run 'no-such-run' on this host", "  hint: `vime ps` lists them"]


def test_an_unknown_verb_is_answered_with_the_nearest() -> None:
    result = CliRunner().invoke(cli, ["docter"])
    assert result.exit_code == 2
    assert "Did you mean 'doctor'?" in result.output
