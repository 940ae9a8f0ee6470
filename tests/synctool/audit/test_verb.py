"""The verb as a process; baseline, SARIF, memory and fix."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from synctool.audit import remember
from synctool.audit.baseline import Baseline, load_baseline, with_accepted
from synctool.audit.context import Audit
from synctool.audit.finding import Edit
from synctool.audit.fix import fix_work_tree
from synctool.audit.run import CHECKS, load_check, run
from synctool.audit.sarif import sarif
from synctool.errors import ConfigError, Refused, UsageError
from tests import preloaded

from .conftest import POLICY, Auditor, places

TREE = {"a.sh": "pkill -9 vllm\n", "b.sh": "run --vllm-mem-fraction-static 1\n", "docs/é a.md": "`--vllm-page-size`\n"}


def test_the_baseline_accepts_by_rule_subject_path_message_and_date(audit: Auditor, tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text(
        'schema = 1\n[[accept]]\nrule = "engine-flag"\npaths = ["/b.sh"]\nreason = "known"\nowner = "x"\nexpires = 2030-01-01\n'
        '[[accept]]\nrule = "kill-pattern"\nmatch = "never"\nreason = "known"\nowner = "x"\n'
    )
    loaded = load_baseline(file)
    early = Baseline(loaded.accepted, today=datetime.date(2029, 12, 31))
    assert places(audit("flags", TREE, baseline=early)) == ["engine-flag docs/é a.md:1"]
    late = Baseline(loaded.accepted, today=datetime.date(2030, 1, 1))
    assert len(places(audit("flags", TREE, baseline=late))) == 2
    assert len(audit("kills", TREE, baseline=early)) == 1


def test_unused_entries_are_told_only_when_their_check_ran(build: Callable[..., Audit], tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text('schema = 1\n[[accept]]\nrule = "kill-pattern"\nsubject = "none"\nreason = "known"\nowner = "x"\n')
    assert run(build(TREE), baseline=load_baseline(file), only=["kills"]).unused == ("kill-pattern: none",)
    assert run(build(TREE), baseline=load_baseline(file), only=["flags"]).unused == ()


def test_what_is_accepted_is_found_no_more_and_hand_edits_stay(build: Callable[..., Audit], tmp_path: Path) -> None:
    result = run(build(TREE), only=["flags", "kills"])
    text = with_accepted("# mine\nschema = 1\n", result.findings, reason="so it is", owner="me")
    assert text.startswith("# mine\n")
    file = tmp_path / "b.toml"
    file.write_text(text)
    again = run(build(TREE), baseline=load_baseline(file), only=["flags", "kills"])
    assert again.findings == ()
    assert again.accepted == result.findings


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ('schema = 1\n\n[[accept]]\nrule = "x"\nowner = "y"\n', 3, "reason"),
        ('schema = 1\n[[accept]]\nrule = "x"\nreason = "why"\nowner = "y"\n[[accept]]\nrule = "a"\nreason = "why"\nowner = "y"\nmatch = "("\n', 6, "regex"),
        ("schema = 2\n", 1, "schema 2"),
        ("schema = \n", 1, "not TOML"),
    ],
)  # fmt: skip
def test_a_wrong_baseline_is_told_with_its_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    file = tmp_path / "b.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_baseline(file)
    assert caught.value.where == f"{file}:{line}"
    assert says in caught.value.title


def test_sarif_has_what_code_hosts_ask_for(build: Callable[..., Audit]) -> None:
    result = run(build(TREE), only=["flags", "kills"])
    told = json.loads(json.dumps(sarif(result)))
    assert told["version"] == "2.1.0"
    (one,) = told["runs"]
    rules = one["tool"]["driver"]["rules"]
    assert len(one["results"]) == len(result.findings) == 3
    for found in one["results"]:
        assert rules[found["ruleIndex"]]["id"] == found["ruleId"]
        assert found["message"]["text"]
        assert all(place["physicalLocation"]["region"]["startLine"] >= 1 for place in found["locations"])
    uris = {
        place["physicalLocation"]["artifactLocation"]["uri"] for found in one["results"] for place in found["locations"]
    }
    assert "docs/%C3%A9%20a.md" in uris


def test_fingerprints_outlive_moved_lines(audit: Auditor) -> None:
    (before,) = audit("kills", {"a.sh": "pkill -9 vllm\n"})
    (after,) = audit("kills", {"a.sh": "#!/bin/sh\n\npkill -9 vllm\n"})
    assert before.fingerprint == after.fingerprint
    assert before.hits[0].line != after.hits[0].line


def test_a_second_run_reads_results_and_damage_is_repaired(
    build: Callable[..., Audit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = remember.remembered_run(build(TREE), baseline=Baseline(), key=["k"], folder=tmp_path)
    called: list[str] = []
    for name in CHECKS:
        module = load_check(name)
        monkeypatch.setattr(
            module, "check", lambda audit, name=name, old=module.check: (called.append(name), old(audit))[1]
        )
    assert remember.remembered_run(build(TREE), baseline=Baseline(), key=["k"], folder=tmp_path) == first
    assert called == []
    assert remember.remembered_run(build(TREE), baseline=Baseline(), key=["other"], folder=tmp_path) == first
    assert called == list(CHECKS)
    for file in tmp_path.glob("*.json"):
        file.write_text('{"flags": [["no-such-rule", 1]], "kills": 7}')
    assert remember.remembered_run(build(TREE), baseline=Baseline(), key=["k"], folder=tmp_path) == first


def test_fix_leaves_other_files_and_refuses_to_leave_the_work_tree(tmp_path: Path) -> None:
    work = tmp_path / "w"
    work.mkdir()
    (work / "a.sh").write_text("old\n")
    (work / "b.sh").write_text("changed since\n")
    cures = {name: [Edit(name, 1, "old", "new")] for name in ("a.sh", "b.sh")}
    assert fix_work_tree(work, cures, lambda path: b"old\n", dry=True) == ({"a.sh": 1}, ["b.sh"])
    assert (work / "a.sh").read_text() == "old\n"
    assert fix_work_tree(work, cures, lambda path: b"old\n") == ({"a.sh": 1}, ["b.sh"])
    assert (work / "a.sh").read_text() == "new\n"
    assert (work / "b.sh").read_text() == "changed since\n"
    (tmp_path / "out.sh").write_text("old\n")
    (work / "link.sh").symlink_to(tmp_path / "out.sh")
    for path in ("link.sh", "../out.sh"):
        with pytest.raises(Refused):
            fix_work_tree(work, {path: [Edit(path, 1, "old", "new")]}, lambda path: b"old\n")
    assert (tmp_path / "out.sh").read_text() == "old\n"


def test_no_such_check(build: Callable[..., Audit]) -> None:
    with pytest.raises(UsageError, match="no check 'flag'"):
        run(build(TREE), only=["flag"])


# ---------------------------------------------------------------- the process


def _git(folder: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=A", "-c", "user.email=a@x", *words], cwd=folder, check=True, capture_output=True
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with faults and a policy."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    _git(folder, "init", "-q", "-b", "main")
    for path, text in {**TREE, "vime-sync.toml": POLICY}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    _git(folder, "add", ".")
    _git(folder, "commit", "-qsm", "first")
    return folder


@pytest.fixture
def verb(checkout: Path, engine_folder: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``vime-sync audit`` on that repository, with a cache of its own."""

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        return preloaded.call("audit", "-C", str(checkout), "--pin", str(engine_folder), *words, env=environment)

    return call


def test_the_verb_finds_accepts_and_mends(
    verb: Callable[..., subprocess.CompletedProcess[str]], checkout: Path, tmp_path: Path
) -> None:
    told = verb()
    assert told.returncode == 1, told.stderr
    assert "a.sh:1: kill-pattern:" in told.stdout
    assert "3 findings against vllm 9.9.0" in told.stdout
    assert "no range of upstream" in told.stderr
    data = json.loads(verb("--json", "--sarif", str(tmp_path / "s.json")).stdout)
    assert data["exit_code"] == 1
    assert {finding["rule"] for finding in data["data"]["findings"]} == {"kill-pattern", "engine-flag"}
    assert json.loads((tmp_path / "s.json").read_text())["runs"]
    dry = verb("--fix", "--dry-run")
    assert "would mend 2 places in 2 files" in dry.stdout
    assert (checkout / "a.sh").read_text() == TREE["a.sh"]
    assert "mended 2 places in 2 files" in verb("--fix").stdout
    assert (checkout / "b.sh").read_text() == "run --vllm-gpu-memory-utilization 1\n"
    _git(checkout, "commit", "-qasm", "mended")
    baseline = tmp_path / "b.toml"
    assert verb("--baseline", str(baseline), "--accept", "documented for another engine").returncode == 0
    last = verb("--baseline", str(baseline))
    assert (last.returncode, last.stdout.strip()) == (0, "0 findings against vllm 9.9.0, 1 accepted by the baseline")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--accept", "why not"], 2, "--accept needs --baseline"),
        (["--dry-run"], 2, "--dry-run needs"),
        (["--only", "flag"], 2, "there is no check 'flag'"),
        (["--tree", "nowhere"], 5, "nowhere"),
        (["--baseline", "/nowhere/b.toml"], 3, "can't read the baseline"),
        (["--through", "HEAD"], 2, "--through needs --from"),
    ],
)
def test_a_users_mistake_is_one_line(
    verb: Callable[..., subprocess.CompletedProcess[str]], words: list[str], code: int, says: str
) -> None:
    told = verb(*words)
    assert told.returncode == code
    assert says in told.stderr
    assert "Traceback" not in told.stderr
