"""init, policy, explain and translate through the command line, on a real fork."""

import json
import subprocess
from pathlib import Path

import pytest

from synctool.cli.app import main

PROSE = "Otter runs otter.\nmore\nSet OTTER_HOME to otter's place.\nsee https://x.org/a/otter/pull/4\n"


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=T", "-c", "user.email=t@x", "-c", "commit.gpgSign=false", *arguments],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


def commit(folder: Path, files: dict[str, str | None], message: str) -> str:
    for name, text in files.items():
        path = folder / name
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture(scope="module")
def fork(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A fork (folder, baseline, upstream's tip): words replaced, one file deleted, one added; upstream went on by one pull request."""
    folder = tmp_path_factory.mktemp("fork")
    git(folder, "init", "-q", "-b", "main")
    names = [f"otter/part{n}.py" for n in range(4)]
    base = commit(
        folder,
        {name: PROSE + f"# {name[-4]}\n" for name in names} | {"old/gone.txt": "x\n", "README.md": "Otter\n"},
        "begin",
    )
    tip = commit(folder, {"otter/new.py": "otter = 1\n"}, "More (#12)")
    git(folder, "update-ref", "refs/vime-sync/upstream/main", tip)
    git(folder, "reset", "-q", "--hard", base)
    text = (
        PROSE.replace("otter", "badger")
        .replace("Otter", "Badger")
        .replace("OTTER", "BADGER")
        .replace("a/badger/pull", "a/otter/pull")
    )
    commit(
        folder,
        dict.fromkeys(names)
        | {name.replace("otter", "badger"): text + f"# {name[-4]}\n" for name in names}
        | {"old/gone.txt": None, "ours.md": "ours\n"},
        "translate",
    )
    return folder, base, tip


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.fixture
def policy(fork: tuple[Path, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The policy that init learns from the fork."""
    folder, base, _ = fork
    target = tmp_path / "p.toml"
    code, _, err = call(capsys, "init", "-C", str(folder), "--baseline", base, "--output", str(target))
    assert code == 0, err
    return str(target)


def test_init_learns_a_policy_that_checks_clean(fork, policy: str, capsys) -> None:
    folder, base, _ = fork
    text = Path(policy).read_text()
    assert f'baseline = "{base}"' in text
    assert 'from = "Otter"\nto = "Badger"' in text or 'from = "otter"\nto = "badger"' in text
    assert '"/ours.md"' in text
    assert '"/old/gone.txt"' in text
    report = json.loads(call(capsys, "policy", "check", "-C", str(folder), "--policy", policy, "--json")[1])
    assert [f for f in report["data"]["findings"] if f["level"] == "error"] == []


def test_init_dry_run_writes_nothing_and_prints_the_same(fork, policy: str, tmp_path: Path, capsys) -> None:
    folder, base, _ = fork
    before = git(folder, "status", "--porcelain")
    code, out, _ = call(capsys, "init", "-C", str(folder), "--baseline", base, "--dry-run")
    assert code == 0
    assert out == Path(policy).read_text()
    assert git(folder, "status", "--porcelain") == before


def test_init_does_not_replace_a_policy_unasked(fork, policy: str, capsys) -> None:
    folder, base, _ = fork
    code, _, err = call(capsys, "init", "-C", str(folder), "--baseline", base, "--output", policy)
    assert code == 2
    assert "--force" in err


def test_init_without_the_baseline_says_how_to_get_it(fork, capsys) -> None:
    code, _, err = call(capsys, "init", "-C", str(fork[0]), "--baseline", "f" * 40)
    assert code == 5
    assert "vime-sync fetch" in err


def test_check_reports_a_dead_rule_with_its_line(fork, policy: str, capsys) -> None:
    path = Path(policy)
    line = path.read_text().count("\n") + 1
    path.write_text(path.read_text() + "[[term]]\nfrom = 'never there'\nto = 'x'\n")
    code, out, _ = call(capsys, "policy", "check", "-C", str(fork[0]), "--policy", policy)
    assert code == 1
    assert f"p.toml:{line}: warning [no-effect] term never there -> x" in out


def test_schema_is_json(fork, capsys) -> None:
    code, out, _ = call(capsys, "policy", "schema")
    assert code == 0
    assert json.loads(out)["title"] == "Policy"


@pytest.mark.parametrize(
    ("subject", "says"),
    [
        ("otter/part1.py", "otter/part1.py lands at badger/part1.py"),
        ("old/gone.txt", "old/gone.txt is exclude"),
        ("ours.md", "ours.md is native"),
        ("OTTER_HOME", "'OTTER' becomes 'BADGER'"),
        ("https://x.org/a/otter/pull/4", "is protected"),
        ("#12", "no rule leaves #12 out"),
        ("elephant", "no rule says anything"),
    ],
)
def test_explain_names_the_rule_and_its_line(fork, policy: str, capsys, subject: str, says: str) -> None:
    code, out, err = call(capsys, "explain", "-C", str(fork[0]), "--policy", policy, subject)
    assert code == 0, err
    assert says in out
    if "no rule" not in says:
        assert "p.toml:" in out


def test_explain_says_why_a_mirrored_file_is_not_here(fork, policy: str, capsys) -> None:
    path = Path(policy)
    path.write_text(
        path.read_text()
        + "[[owner]]\npaths = ['/old/']\nowner = 'mirror'\nreason = 'after all'\n[deleted]\nonce_deleted = 'comes-back'\n"
    )
    out = call(capsys, "explain", "-C", str(fork[0]), "--policy", policy, "old/gone.txt")[1]
    assert "was deleted here, by" in out
    assert "deleted.once_deleted = comes-back" in out
    out = call(capsys, "explain", "-C", str(fork[0]), "--policy", policy, "otter/new.py")[1]
    assert "badger/new.py was never here" in out
    assert "deleted.never_ported = backfill" in out


def test_explain_an_excluded_change_by_number_and_by_commit(fork, policy: str, capsys) -> None:
    folder, _, tip = fork
    path = Path(policy)
    path.write_text(path.read_text() + "[[exclude]]\npr = 12\nreason = 'not wanted'\nowner = 'me'\n")
    for subject in ("#12", tip):
        code, out, _ = call(capsys, "explain", "-C", str(folder), "--policy", policy, subject)
        assert code == 0
        assert "is left out" in out
        assert "not wanted (me)" in out


def test_translate_text_path_and_file(fork, policy: str, capsys) -> None:
    folder, _, tip = fork
    at = ("-C", str(folder), "--policy", policy)
    assert call(capsys, "translate", *at, "--text", "an Otter, OTTER")[:2] == (0, "an Badger, BADGER\n")
    assert call(capsys, "translate", *at, "--path", "otter/new.py")[:2] == (0, "badger/new.py\n")
    assert call(capsys, "translate", *at, "otter/new.py", "--at", tip)[:2] == (0, "badger = 1\n")
    code, _, err = call(capsys, "translate", *at, "--text", "oTTer")
    assert code == 0
    assert "1:1: 'oTTer' is left" in err
    code, _, err = call(capsys, "translate", *at, "no/such/file")
    assert code == 2
    assert "--at" in err
