"""One sync from plan to finish, and every way back, as a person would run it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.sync.conftest import Fork

RUNNER = "beacon/runner.py"


def branch(fork: Fork) -> str:
    return str(fork.data("status", expect=None)["session"]["branch"]).removeprefix("refs/heads/")


def test_plan_decides_each_change(fork: Fork) -> None:
    plan = fork.data("plan")
    assert plan["counts"] == {"take": 16, "exclude": 2, "present": 1, "defer": 0, "collapsed": 2}
    rows = {row["pr"]["number"] if row["pr"] else None: row for row in plan["changes"]}
    assert rows[102]["pr"]["source"] == "merge"
    assert rows[None]["subject"] == "Guide: light the flame"
    assert rows[103]["decision"] == rows[104]["decision"] == "collapsed"
    assert rows[116]["decision"] == "present"
    assert rows[118]["depends_on"][0]["label"] == "#112"


def test_a_dry_run_predicts_the_tree_and_keeps_nothing(fork: Fork) -> None:
    before = fork.snapshot()
    objects = fork.git("count-objects", "-v")
    predicted = fork.data("mirror", "--dry-run")
    assert fork.snapshot() == before
    assert fork.git("count-objects", "-v") == objects
    real = fork.data("mirror", expect=1)
    assert real["tree"] == predicted["tree"] == fork.git("rev-parse", f"{branch(fork)}^{{tree}}")


def test_every_case_lands(fork: Fork) -> None:
    fork.sync("mirror", expect=1)
    name = branch(fork)

    def show(path: str) -> str:
        return fork.git("show", f"{name}:{path}")

    assert "self.limit = 64" in show(RUNNER)
    assert "然后点火" in show("docs/zh/guide.md")
    assert fork.git("cat-file", "-t", f"{name}:beacon/job_queue.py") == "blob"
    assert "beacon/jobs.py" not in fork.git("ls-tree", "-r", "--name-only", name)
    modes = {
        row.split("\t")[1]: row.split()[0]
        for row in fork.git("-c", "core.quotePath=false", "ls-tree", "-r", name).splitlines()
    }
    assert modes["scripts/start.sh"] == "100755"
    assert modes["docs/latest"] == "120000"
    assert "docs/en/größe.md" in modes
    assert "tools/legacy_report.py" not in modes, "once deleted stays deleted"
    assert "beacon/compat.py" not in modes
    assert "beacon/photon_health.py" in modes, "native files stay"
    assert fork.git("rev-parse", f"{name}:assets/flame.bin") == fork.git(
        "rev-parse", "refs/vime-sync/upstream/main:assets/flame.bin"
    )
    launch = subprocess.run(
        ["git", "show", f"{name}:windows/launch.bat"], cwd=fork.folder, capture_output=True, check=True
    ).stdout
    assert launch.endswith(b"python -m beacon --photon-wick round\r\n")
    assert "our own" in show("README.md")
    assert "lantern/lantern/pull/1" in show("docs/en/guide.md"), "links to upstream's history stay"
    # one commit a change, author kept, trailers there
    log = fork.git(
        "log", "--format=%an|%cn|%(trailers:key=Upstream-PR,valueonly,separator=%x2C)|%s", f"main..{name}"
    ).splitlines()
    limit = next(row for row in log if "Limit the queue" in row)
    assert limit.split("|")[:3] == ["Ada Lampwright", "Bea Lichtmann", "#101"]
    assert not any("Poll faster" in row for row in log)


def test_resolve_by_hunk_and_finish(fork: Fork) -> None:
    fork.sync("mirror", expect=1)
    shown = fork.data("show", RUNNER, "--all-proposals")
    kinds = {hunk["number"]: [p["kind"] for p in hunk["proposals"]] for hunk in shown["hunk_texts"]}
    number = next(n for n, found in kinds.items() if "token" in found)
    fork.sync("take", "proposal", RUNNER, "--hunk", str(number), "--kind", "token", expect=None)
    rest = [n for n in kinds if n != number]
    for n in rest:
        fork.sync("take", "theirs", RUNNER, "--hunk", str(n), expect=None)
    fork.sync("continue")
    name = branch(fork)
    text = fork.git("show", f"{name}:{RUNNER}")
    assert "def submit(self, job, timeout=30.0, priority=1):" in text
    assert "<<<<<<<" not in text
    files = fork.git("ls-tree", "-r", "--name-only", name, "sync_manifests/").splitlines()
    assert sum("memory" in path for path in files) == len(kinds)
    assert sum(path.endswith(".toml") for path in files) == 1
    # every change that was taken has a commit here, those that waited for the conflict too
    taken = fork.sync("report", name).stdout.partition("### Taken")[2].partition("\n### ")[0].splitlines()
    rows = [row for row in taken if row.startswith("| ") and not row.startswith(("| ---", "| upstream"))]
    assert len(rows) > 10
    assert [row for row in rows if not re.search(r"\| `[0-9a-f]{12}` ", row)] == []
    assert fork.sync("mirror", expect=4).stderr.startswith("nothing to do")
    # what is remembered is proposed when the same conflict comes again
    fork.git("branch", "-q", "again", "main")
    fork.git("checkout", "-q", "again")
    fork.git("checkout", "-q", name, "--", "sync_manifests/memory")
    fork.git("commit", "-q", "-m", "memory alone")
    fork.git("checkout", "-q", "main")
    again = fork.data(
        "mirror",
        "--from",
        str(fork.data("status")["session"]["base"]),
        "--onto",
        "again",
        "--branch",
        "second",
        expect=1,
    )
    assert all("memory" in kinds for row in again["conflicts"] for kinds in row["proposals"].values())
    fork.sync("take", "proposal", "--all")
    fork.sync("continue")
    assert fork.git("show", f"second:{RUNNER}") == text


def test_the_next_sync_starts_where_this_one_ended(fork: Fork) -> None:
    fork.sync("mirror", expect=1)
    fork.sync("take", "ours", "--all")
    fork.sync("continue")
    fork.git("merge", "-q", "--ff-only", branch(fork))
    assert fork.sync("mirror", expect=4).stderr.startswith("nothing to do")
    assert fork.sync("plan", expect=4).stderr.startswith("nothing to do")


def test_edits_committed_on_the_branch_are_taken_in(fork: Fork) -> None:
    fork.sync("mirror", expect=1)
    name = branch(fork)
    fork.git("checkout", "-q", name)
    path = fork.folder / RUNNER
    lines, keep = [], True
    for line in path.read_text().splitlines(keepends=True):
        if line.startswith("<<<<<<<"):
            continue
        if line.startswith("|||||||"):
            keep = False
        elif line.startswith(">>>>>>>"):
            keep = True
        elif keep:
            lines.append(line)
    path.write_text("".join(lines))
    assert "checked out" in fork.sync("take", "ours", RUNNER, expect=5).stderr
    fork.git("commit", "-q", "-am", "resolved in an editor")
    theirs = fork.git("rev-parse", "HEAD")
    fork.git("checkout", "-q", "main")
    fork.sync("continue")
    assert fork.git("rev-parse", f"{name}^") == theirs
    assert fork.git("show", f"{name}:{RUNNER}") == "".join(lines).strip()
    fork.sync("undo")
    assert fork.git("rev-parse", name) == theirs, "undo takes back our commit, not theirs"


def test_files_written_out_edited_and_taken_back(fork: Fork, tmp_path: Path) -> None:
    fork.sync("mirror", expect=1)
    out = tmp_path / "out"
    fork.sync("conflicts", "--write", str(out), expect=1)
    assert "<<<<<<< " in (out / RUNNER).read_text()
    assert "markers" in fork.sync("take", "edited", RUNNER, "--from", str(out), expect=2).stderr
    (out / RUNNER).write_text("# resolved\n")
    assert "other content" in fork.sync("conflicts", "--write", str(out), expect=2).stderr, "an edit is not overwritten"
    fork.sync("take", "edited", "--from", str(out))
    fork.sync("continue")
    assert fork.git("show", f"{branch(fork)}:{RUNNER}") == "# resolved"


def test_skip_leaves_a_change_out_and_says_why(fork: Fork) -> None:
    fork.sync("mirror", expect=1)
    fork.sync("skip", "#113", "--reason", "light has no timeout", expect=None)
    fork.sync("take", "theirs", "--all", expect=None)
    fork.sync("continue", expect=None)
    name = branch(fork)
    assert "timeout" not in fork.git("show", f"{name}:{RUNNER}")
    manifest = fork.git("ls-tree", "-r", "--name-only", name, "sync_manifests/").splitlines()
    text = fork.git("show", f"{name}:{next(p for p in manifest if p.endswith('.toml'))}")
    assert "light has no timeout" in text


def test_abort_restores_everything_to_the_byte(fork: Fork) -> None:
    (fork.folder / "untracked.txt").write_text("mine")
    (fork.folder / "README.md").write_text("dirty")
    fork.git("add", "README.md")
    before = fork.snapshot()
    fork.sync("mirror", expect=1)
    fork.sync("take", "ours", "--all")
    fork.sync("abort")
    assert fork.snapshot() == before
    assert fork.sync("abort", expect=4).stderr.startswith("nothing to do")


def test_undo_all_the_way_and_redo_all_the_way(fork: Fork) -> None:
    marks = [fork.refs()]
    fork.sync("mirror", expect=1)
    marks.append(fork.refs())
    fork.sync("take", "ours", "--all")
    marks.append(fork.refs())
    fork.sync("continue")
    marks.append(fork.refs())

    def real(refs: str) -> str:
        return "\n".join(row for row in refs.splitlines() if "refs/vime-sync/redo" not in row)

    for mark in reversed(marks[:-1]):
        fork.sync("undo")
        assert real(fork.refs()) == mark
    fork.sync("undo", expect=4)
    for mark in marks[1:]:
        fork.sync("redo")
        assert real(fork.refs()) == mark
    fork.sync("redo", expect=4)


def test_single_changes_and_stacks(fork: Fork) -> None:
    one = fork.data("mirror", "--pr", "110", "--branch", "one")
    assert one["commits"] == 1
    assert fork.git("diff", "--name-only", "main", "one", "--", "docs") != ""
    two = fork.data("mirror", "--pr", "108", "--onto", "one", "--branch", "two")
    assert two["onto"] == fork.git("rev-parse", "one")
    assert fork.git("merge-base", "one", "two") == fork.git("rev-parse", "one")
    sha = fork.git("rev-parse", "refs/vime-sync/upstream/main")
    picked = fork.data("mirror", "--pick", sha, "--branch", "three")
    assert picked["commits"] == 1


def test_squash_is_the_two_commit_form(fork: Fork) -> None:
    plain = fork.data("mirror", "--dry-run")
    squashed = fork.data("mirror", "--squash", expect=1)
    assert squashed["tree"] == plain["tree"]
    name = branch(fork)
    assert fork.git("rev-list", "--count", f"main..{name}") == "1"
    fork.sync("take", "theirs", "--all")
    fork.sync("continue")
    assert fork.git("rev-list", "--count", f"main..{name}") == "2"


def test_two_runs_give_the_same_tree(fork: Fork) -> None:
    assert fork.data("mirror", "--dry-run")["tree"] == fork.data("mirror", "--dry-run")["tree"]


def test_verify_explains_every_difference_after_a_finished_sync(fork: Fork) -> None:
    before = fork.git("rev-parse", "main")
    with (fork.folder / "vime-sync.toml").open("a") as file:
        file.write('\n[[owner]]\npaths = ["/README.md"]\nowner = "native"\nreason = "our own page"\n')
    fork.git("commit", "-q", "-am", "README is ours")
    fork.sync("mirror", expect=1)
    fork.sync("take", "proposal", RUNNER, "--hunk", "1", "--kind", "imports", expect=None)
    fork.sync("take", "proposal", RUNNER, "--hunk", "2", "--kind", "token", expect=None)
    fork.sync("continue")
    fork.git("merge", "-q", "--ff-only", branch(fork))
    found = fork.data("verify", "--since", before)
    causes = {row["path"]: row["cause"] for row in found["differences"]}
    assert causes[RUNNER] == "resolved conflict"
    # a line that nothing explains is found, and the patch cures it
    path = fork.folder / "beacon/options.py"
    path.write_text(path.read_text().replace("All options", "Most options"))
    fork.git("commit", "-q", "-am", "drift")
    fork.sync("verify", "--since", before, "--fixup", str(fork.folder / "fix.patch"), expect=1)
    fork.git("apply", "fix.patch")
    fork.git("commit", "-q", "-am", "cured")
    fork.sync("verify", "--since", before)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("mirror", "--through", "f" * 40), 5, "no commit is named"),
        (("mirror", "--onto", "nowhere"), 5, "no commit is named"),
        (("continue",), 5, "no sync is running"),
        (("take", "ours", "x"), 5, "no sync is running"),
        (("take", "ours"), 2, "name files"),
        (("take", "edited", "x"), 2, "one of --file"),
        (("show", "x"), 5, "no sync is running"),
        (("skip", "1", "--reason", " "), 2, "must say something"),
        (("undo",), 4, "no step to undo"),
        (("mirror", "--policy", "nope.toml"), 3, "no policy file"),
    ],
)
def test_mistakes_get_one_line(fork: Fork, words: tuple[str, ...], code: int, says: str) -> None:
    before = fork.refs()
    done = fork.sync(*words, expect=code)
    assert says in done.stderr
    assert done.stderr.startswith(("error: ", "nothing to do: "))
    assert fork.refs() == before


def test_a_second_sync_is_refused_while_one_runs(fork: Fork) -> None:
    fork.sync("mirror", expect=1)
    assert "a sync is running" in fork.sync("mirror", "--branch", "other", expect=5).stderr


def test_detached_head_and_unborn_branch(fork: Fork) -> None:
    fork.git("checkout", "-q", "--detach")
    fork.sync("mirror", expect=1)
    fork.sync("abort")
    fork.git("checkout", "-q", "--orphan", "empty")
    assert "no commit is named" in fork.sync("mirror", expect=5).stderr


def test_rewritten_upstream_is_told(fork: Fork) -> None:
    fork.sync("mirror", expect=1)
    fork.sync("take", "ours", "--all")
    fork.sync("continue")
    fork.git("merge", "-q", "--ff-only", branch(fork))
    fork.git("update-ref", "refs/vime-sync/upstream/main", fork.git("commit-tree", "-m", "new root", "main^{tree}"))
    assert "rewr" in fork.sync("plan", expect=5).stderr


def test_edits_to_ported_paths_are_filed_as_translated_work(fork: Fork, tmp_path: Path) -> None:
    with (fork.folder / "vime-sync.toml").open("a") as file:
        file.write('\n[[owner]]\npaths = ["/beacon/runner.py"]\nowner = "port"\nreason = "rewritten here"\n')
    fork.git("commit", "-q", "-am", "The runner is a port")
    done = fork.data("mirror")
    assert done["conflicts"] == []
    assert {item["label"] for item in fork.data("work")["items"]} == {"#101", "#105", "#113", "#119"}
    fork.sync("work", "--write", str(tmp_path / "work"))
    texts = [path.read_text() for path in sorted((tmp_path / "work").iterdir())]
    assert len(texts) == 4
    assert any("+        self.limit = 64" in text for text in texts)
    assert not any("kerosene" in text.lower() for text in texts), "the diffs speak downstream's words"
