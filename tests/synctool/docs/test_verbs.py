"""The two verbs on a real repository, and the findings of the check."""

import json
import subprocess
from pathlib import Path

import pytest

from synctool.cli.app import main

POLICY = (
    'schema = 1\n[upstream]\nname = "otter"\n[downstream]\nname = "badger"\n[[family]]\nfrom = "otter"\nto = "badger"\n'
)


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=T", "-c", "user.email=t@x", "-c", "commit.gpgSign=false", *words],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "main")
    return tmp_path


def run(folder: Path, *words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["docs", *words, "-C", str(folder)])
    return int(ended.value.code or 0)


def ask(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> tuple[int, dict]:
    code = run(folder, *words, "--json")
    return code, json.loads(capsys.readouterr().out)


def rules(value: dict) -> list[tuple[str, int, str]]:
    return [(one["path"], one["line"], one["rule"]) for one in value["data"]["findings"]]


GOOD = {
    "docs/en/index.md": "# Top\n\n[two](two.md#part-b)\n\n```{toctree}\ntwo\n```\n",
    "docs/en/two.md": "# Two\n\n## Part b\n\ntext\n",
    "docs/zh/index.md": "# 顶\n\n[二](two.md#乙部)\n\n```{toctree}\ntwo\n```\n",
    "docs/zh/two.md": "# 二\n\n## 乙部\n\n文\n",
}


def test_check_accepts_and_sees_staleness(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, GOOD)
    code, value = ask(capsys, folder, "check")
    assert code == 1
    assert {rule for _, _, rule in rules(value)} == {"unrecorded"}
    assert ask(capsys, folder, "check", "--accept", "--dry-run")[0] == 0
    assert not (folder / "sync_manifests").exists()
    assert ask(capsys, folder, "check", "--accept")[0] == 0
    assert ask(capsys, folder, "check")[0] == 0
    write(folder, {"docs/en/two.md": "# Two\n\n## Part b\n\nother text\n"})
    code, value = ask(capsys, folder, "check")
    assert code == 1
    assert rules(value) == [("docs/zh/two.md", 3, "stale")]


def test_check_finds_each_planted_fault(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = {
        "docs/en/index.md": "# Top\n\n[x](tow.md) [y](two.md#part-c) [z](../../LICENSE) <https://x.org/none>\n\n```{toctree}\ntwo\nthree\n```\n",
        "docs/zh/two.md": "# 二\n",
        "docs/en/alone.md": "# Alone\n",
    }
    write(folder, GOOD | faults)
    ask(capsys, folder, "check", "--accept")
    _, value = ask(capsys, folder, "check")
    assert rules(value) == [
        ("docs/en/alone.md", 1, "orphan"), ("docs/en/alone.md", 1, "page"),
        ("docs/en/index.md", 3, "anchor"), ("docs/en/index.md", 3, "link"), ("docs/en/index.md", 3, "link"),
        ("docs/en/index.md", 7, "toctree"), ("docs/en/two.md", 3, "section"), ("docs/zh/index.md", 3, "anchor"),
    ]  # fmt: skip


def test_translate_writes_reports_and_rests(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, {"docs/otter.md": "# Otter\n\notter\n\n## End\n\nend\n", "vime-sync.toml": POLICY})
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "upstream")
    git(folder, "update-ref", "refs/vime-sync/upstream/main", "HEAD")
    page = folder / "docs/badger.md"
    code, value = ask(capsys, folder, "translate", "--dry-run")
    assert code == 0
    assert value["data"]["written"] == ["docs/badger.md"]
    assert not page.exists()
    assert ask(capsys, folder, "translate")[0] == 0
    assert page.read_text() == "# Badger\n\nbadger\n\n## End\n\nend\n"
    assert ask(capsys, folder, "translate")[0] == 4
    write(folder, {"docs/otter.md": "# Otter\n\notter runs\n\n## End\n\nend\n"})
    git(folder, "commit", "-qam", "change")
    git(folder, "update-ref", "refs/vime-sync/upstream/main", "HEAD")
    page.write_text("# Badger\n\nmine\n\n## End\n\nend\n")
    code, value = ask(capsys, folder, "translate")
    assert code == 1
    assert value["data"]["sections"][0]["translated"] == "# Badger\n\nbadger runs\n\n"
    assert "mine" in page.read_text()
    assert ask(capsys, folder, "translate", "--accept")[0] == 0
    assert ask(capsys, folder, "translate")[0] == 4


def test_translate_refuses_to_write_through_a_link(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, {"docs/otter.md": "# Otter\n", "vime-sync.toml": POLICY, "outside.txt": "safe\n"})
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "upstream")
    git(folder, "update-ref", "refs/vime-sync/upstream/main", "HEAD")
    (folder / "docs/badger.md").symlink_to(folder / "outside.txt")
    assert run(folder, "translate") == 6
    assert "through a link" in capsys.readouterr().err
    assert (folder / "outside.txt").read_text() == "safe\n"


def test_a_record_that_is_no_record_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, GOOD | {"sync_manifests/docs.json": "[]"})
    assert run(folder, "check") == 3
    assert "sync_manifests/docs.json" in capsys.readouterr().err
