"""Record 1: one change stacked on an open sync; an amend with an equal tree, a change of CI alone, runs that are no evidence, superseded in the end."""

from __future__ import annotations

import sys

from tests.e2e.records import checker
from tests.e2e.records.test_range_sync import CANDIDATE, PYTEST, mirrored, section
from tests.e2e.records.world import STACKED, World, job
from tests.synctool.report.hub import Hub


def test_record_1(fork: World, hub: Hub) -> None:
    parent, _ = mirrored(fork)
    base = fork.git("rev-parse", "HEAD")
    fork.sync("mirror", "--pr", str(STACKED), "--branch", "sync/replay", "--onto", parent)
    fork.git("checkout", "-q", "sync/replay")
    assert "tests/test_binary_response.py" not in fork.git("ls-tree", "-r", "--name-only", "HEAD")
    fork.sync(
        "evidence", "state", "depends-on", "--target", "#456", "--text", "It brings the queue that this one replays."
    )
    fork.sync("evidence", "state", "review-against", "--target", "bea/vime#6", "--text", "The incremental difference.")

    run = ("evidence", "run", "--junit", "build/junit.xml")
    fork.sync(*run, "--name", "cpu-targeted", "--", *PYTEST, "tests/test_replay.py")
    fork.sync(*run, "--name", "recovery", "--kind", "e2e", "--", *PYTEST, "tests/test_recovery.py")
    fork.sync(
        "evidence",
        "run",
        "--name",
        "compileall",
        "--kind",
        "lint",
        "--",
        sys.executable,
        "-m",
        "compileall",
        "-q",
        "vime",
    )
    fork.sync(
        "evidence", "attest", "-s", "--name", "image-amd64", "--kind", "image", "--outcome", "passed", "--figure", "tests=86",
        "--artifact", f"candidate={CANDIDATE}", "--platform", "linux/amd64", "--detail", "tag=candidate, not latest",
    )  # fmt: skip
    fork.sync(
        "evidence", "attest", "-s", "--name", "gpu-replay", "--kind", "e2e", "--outcome", "passed", "--figure", "modes=3", "--figure", "exit status=0",
        "--detail", "covers=rollout-only export, .straw.json replay, legacy .pt replay",
    )  # fmt: skip
    tested = fork.git("rev-parse", "HEAD")
    fork.sync("evidence", "import", "--name", "ci", str(fork.build(1376, "passed", base, [job("parent")])))
    fork.sync("evidence", "import", "--name", "ci", *(str(fork.build(n, "canceled", tested)) for n in (1378, 1379)))

    # amend: the reviewer's line moves the head, not the tree
    tree = fork.git("rev-parse", "HEAD^{tree}")
    fork.git("commit", "-q", "--amend", "--no-edit", "--trailer", "Reviewed-by: Ada Lampwright <ada@example.org>")
    amended = fork.git("rev-parse", "HEAD")
    assert amended != tested
    assert fork.git("rev-parse", "HEAD^{tree}") == tree
    rows = {row["name"]: row for row in fork.data("evidence", "list")["records"] if row["name"] != "ci"}
    assert {row["standing"] for row in rows.values()} == {"carried"}
    assert all(row["green"] for row in rows.values())
    fork.sync(
        "evidence", "import", "--name", "ci", *(str(fork.build(n, "canceled", amended)) for n in (1380, 1381, 1382))
    )
    carried = checker.check(fork, fork.sync("report", "--since", base).stdout, base)
    assert all(tested[:12] in row for row in section(carried, "Validation carried over"))
    assert len(section(carried, "Validation carried over")) == 4

    # a commit that changes only CI: quoting of two installs
    fork.commit("Quote the extras", **{".buildkite__pipeline.yml": "steps:\n  - command: pip install 'x[y]'\n"})
    final = fork.git("rev-parse", "HEAD")
    jobs = [job(f"job {n}") for n in range(50)]
    fork.sync(
        "evidence", "import", "--name", "ci", "--platform", "linux/amd64", str(fork.build(1383, "passed", final, jobs))
    )

    # the forge: our own branch, and another open pull request with the same head
    hub.branches["sync/replay"] = final
    hub.put(456, head=base, branch=parent)
    hub.put(441, head=base, branch="sync/all")
    done = fork.sync("publish", "--since", base)
    assert "depends on #456, which is open" in done.stderr
    number = max(hub.pulls)
    hub.pulls[441]["head"]["sha"] = final
    twin = fork.sync("publish", "--since", base, expect=1)
    assert "#441 has the same head" in twin.stderr

    body = hub.pulls[number]["body"]
    generated = body.split("-->", 1)[1].rpartition("<!-- vime-sync:end")[0]
    lines = checker.check(fork, generated, base)
    before = " ".join(section(lines, "Before you merge"))
    assert "Depends on #456: do not merge before it." in before
    assert "bea/vime#6" in before
    assert "test_binary_response.py" in " ".join(section(lines, "Left out"))
    assert "binary responses exist in SGLang only" in " ".join(section(lines, "Left out")), "the policy's reason"
    assert str(STACKED) in " ".join(section(lines, "Taken"))
    narrowed = " ".join(section(lines, "Validation narrowed"))
    for fact in (
        "126 tests",
        "2 tests",
        "3 modes",
        "legacy .pt replay",
        f"head `{tested[:12]}`",
        "`.buildkite/pipeline.yml` changed",
    ):
        assert fact in narrowed, fact
    (image,) = section(lines, "Images")
    assert "86 tests" in image
    assert CANDIDATE in image
    assert "candidate, not latest" in image
    (current,) = section(lines, "Validation on this head")
    assert "#<!-- -->1383" in current
    assert "50 jobs passed" in current
    not_evidence = section(lines, "Not evidence")
    for run_number in (1378, 1379, 1380, 1381, 1382):
        assert "cancelled" in next(row for row in not_evidence if f"#<!-- -->{run_number}" in row)
    assert "belongs to the parent" in next(row for row in not_evidence if "#<!-- -->1376" in row)
    assert "compileall" in " ".join(not_evidence), (
        "lint is about all files, CI's too: it is not carried over a change of them"
    )

    # superseded: the head was fast-forwarded into #441, and its evidence goes with it
    hub.pulls[441]["head"]["sha"] = "1" * 40
    assert "does not contain" in fork.sync("publish", "--since", base, "--replaced-by", "441", expect=6).stderr
    assert hub.pulls[number]["state"] == "open"
    hub.pulls[441]["head"]["sha"] = final
    dry = fork.data("publish", "--since", base, "--replaced-by", "441", "--dry-run")
    assert (dry["do"], hub.pulls[number]["state"]) == ("close", "open")
    closed = fork.data("publish", "--since", base, "--replaced-by", "441")
    assert (closed["do"], closed["number"], closed["state"]) == ("close", number, "closed")
    assert hub.pulls[number]["state"] == "closed"
    assert "Replaced by #441" in hub.pulls[number]["body"]
    fork.git("checkout", "-q", "-b", "sync/all")
    there = fork.sync("report", "--since", base).stdout
    assert "#<!-- -->1383" in there
    assert "50 jobs passed" in there
    assert "Replaced by" not in there
    assert "#<!-- -->1378" not in there
