"""Record 2: a range sync of fourteen changes with one exclusion and six patches, a CI run that failed, one that waits, a lost agent, no ARM64."""

from __future__ import annotations

import sys

from tests.e2e.records import checker
from tests.e2e.records.conftest import TOKEN
from tests.e2e.records.world import LATEST, PATCHES, World, job, through
from tests.synctool.report.hub import Hub

PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junit-xml", "build/junit.xml")
CANDIDATE = "sha256:" + "5" * 64


def mirrored(fork: World) -> tuple[str, str]:
    """The range sync on its branch, checked out; returns branch and where it started."""
    base = fork.git("rev-parse", "main")
    fork.sync("mirror", "--through", through(fork, 2437))
    branch = fork.git("for-each-ref", "--format=%(refname:short)", "refs/heads/sync/")
    fork.git("checkout", "-q", branch)
    return branch, base


def section(lines: list[checker.Line], title: str) -> list[str]:
    return [line.text for line in lines if line.section.startswith(title)]


def test_record_2(fork: World, hub: Hub) -> None:
    branch, base = mirrored(fork)
    first = fork.git("rev-parse", "HEAD")
    fork.sync(
        "evidence", "import", "--name", "ci", "--platform", "linux/amd64",
        str(fork.build(1429, "passed", first, [job(f"job {n}") for n in range(50)])),
    )  # fmt: skip

    # the audit's fixes move the tree: run #1429 no longer speaks for the head
    fork.commit("Fix coalesced mask ids", vime__engine_ids="IDS = 1\n")
    second = fork.git("rev-parse", "HEAD")
    jobs = [job(f"job {n}") for n in range(49)] + [job("Straw end to end", "failed")]
    fork.sync(
        "evidence", "import", "--name", "ci", "--platform", "linux/amd64",
        str(fork.build(1445, "failed", second, jobs)),
    )  # fmt: skip
    failed = fork.sync("evidence", "check", expect=1).stdout
    assert "failed " in failed
    assert "#1445" in failed
    fork.sync(
        "evidence", "run", "--name", "cpu-regressions", "--junit", "build/junit.xml", "--",
        *PYTEST, "tests/test_regressions.py",
    )  # fmt: skip
    fork.sync(
        "evidence", "run", "--name", "patch-stack", "--kind", "patches", "--stack", "--",
        sys.executable, "-m", "synctool", "patch", "verify", "--json", "--source", str(fork.archive),
    )  # fmt: skip
    fork.sync(
        "evidence", "attest", "-s", "--name", "image-amd64", "--kind", "image", "--outcome", "passed", "--platform", "linux/amd64", "--stack",
        "--figure", "checks=175", "--artifact", f"candidate={CANDIDATE}", "--detail", f"latest=unchanged, {LATEST} before and after",
    )  # fmt: skip
    fork.sync(
        "evidence", "attest", "-s", "--name", "gpu-pipelinerl", "--kind", "e2e", "--outcome", "passed", "--figure", "complete runs=2",
        "--figure", "GPUs a run=4", "--detail", "layout=1 trainer, 3 engines, NCCL, flush interval 2",
    )  # fmt: skip
    # what the tool itself says when it is asked for the second platform: the alias hides a jump, and policy allows none
    fork.ssh("Host arm-builder\n HostName arm.example\n ProxyJump gate.example\n")
    fork.sync(
        "evidence", "run", "--name", "image-arm64", "--kind", "image", "--platform", "linux/arm64", "--",
        sys.executable, "-m", "synctool", "image", "build", "--json", "--platform", "linux/arm64", "--base", ".", "--wheels", ".",
        "--output", "build/arm64", expect=1,
    )  # fmt: skip
    assert not (fork.folder / "build" / "arm64").exists()
    fork.sync(
        "evidence",
        "state",
        "review",
        "--text",
        "All changed paths reviewed against the slime tip and the pre-sync baseline.",
    )

    # two CI start-up lines raise the descriptor limit: neutral for code, not for CI itself
    fork.commit(
        "Raise the soft limit to the hard limit",
        **{".buildkite__pipeline.yml": "steps:\n  - command: ulimit -n hard\n"},
    )
    third = fork.git("rev-parse", "HEAD")
    fork.sync(
        "evidence",
        "run",
        "--name",
        "audit",
        "--kind",
        "audit",
        "--",
        sys.executable,
        "-m",
        "synctool",
        "audit",
        "--json",
    )
    lost = job("GPU suite", "failed", exit_status=-1, retried=True, retried_in_job_id="GPU suite 2")
    running = [lost, job("GPU suite 2", "running", exit_status=None)]
    fork.sync(
        "evidence", "import", "--name", "ci", "--platform", "linux/amd64",
        str(fork.build(1454, "running", third, running)),
    )  # fmt: skip

    hub.branches[branch] = third
    hub.put(400, head="9" * 40, branch="other")
    assert "the records stay in this clone" in fork.sync("publish").stderr
    fork.git("init", "-q", "--bare", str(fork.folder.parent / "hub.git"))
    fork.git("remote", "add", "origin", "https://github.com/lamps/vime")
    fork.git("config", f"url.{fork.folder.parent / 'hub.git'}.insteadOf", "https://github.com/lamps/vime")
    hub.pulls.pop(max(hub.pulls))
    done = fork.sync("publish")
    assert "sent to origin" in done.stderr
    shared = fork.git("ls-remote", "origin", "refs/vime-sync/evidence").split()[0]
    assert shared == fork.git("rev-parse", "refs/vime-sync/evidence")
    number = max(hub.pulls)
    assert f"create: #{number}" in done.stdout
    assert "requests left" in done.stderr
    body = hub.pulls[number]["body"]
    generated = body.split("-->", 1)[1].rpartition("<!-- vime-sync:end")[0]
    assert generated.strip() == fork.sync("report").stdout.strip()
    lines = checker.check(fork, generated, base)

    # every fact of the record is told
    summary = " ".join(section(lines, "Range"))
    assert through(fork, 2437)[:12] in summary
    assert "15 upstream changes: 14 taken, 1 excluded" in summary
    assert len(section(lines, "Taken")) == 14
    (excluded,) = section(lines, "Left out")
    assert "THUDM/slime#2424" in excluded
    assert "Ascend is not a platform" in excluded
    assert "Owner: Bea Lichtmann" in excluded
    table = section(lines, "Engine patches")
    assert [next(p for p in PATCHES if f"`{p}`" in row) for row in table[1:]] == list(PATCHES)
    assert all(purpose in row for row, (purpose, *_) in zip(table[1:], PATCHES.values(), strict=True))
    narrowed = " ".join(section(lines, "Validation narrowed"))
    assert "292 tests" in narrowed
    assert "complete runs" in narrowed
    assert ".buildkite/pipeline.yml" in narrowed
    assert "model and runtime code are elsewhere" in narrowed
    assert "seen elsewhere, not run by vime-sync; signed off by Bea Lichtmann" in narrowed
    (audit,) = section(lines, "Audit")
    assert "**audit** passed: 0 findings" in audit
    assert "All changed paths reviewed" in " ".join(section(lines, "Stated by people"))
    (image,) = section(lines, "Images")
    assert "175 checks" in image
    assert CANDIDATE in image
    assert f"latest: unchanged, {LATEST} before and after" in image
    (refused,) = section(lines, "Not done")
    assert "arm-builder is arm.example:22 through jump host gate.example, which policy does not allow" in refused
    assert "linux/arm64" in refused
    (retry,) = section(lines, "Retries")
    assert "#<!-- -->1454" in retry
    assert "exit status -1" in retry
    assert "no test failed" in retry
    pending = " ".join(section(lines, "Pending"))
    assert "#<!-- -->1454" in pending
    assert "**ci** is required" in pending
    assert "**image-arm64** is required" in pending
    not_evidence = section(lines, "Not evidence")
    old = next(row for row in not_evidence if "#<!-- -->1429" in row)
    assert "50 jobs passed" in old
    assert "does not speak for this head" in old
    bad = next(row for row in not_evidence if "#<!-- -->1445" in row)
    assert "1 jobs failed, 49 jobs passed" in bad
    assert "2,533 gate files" in narrowed, "every patched file parsed"

    # run again on the new head it is current; people's words around the body stay, and the same pull request is updated
    fork.sync(
        "evidence", "run", "--name", "patch-stack", "--kind", "patches", "--stack", "--",
        sys.executable, "-m", "synctool", "patch", "verify", "--json", "--source", str(fork.archive),
    )  # fmt: skip
    hub.pulls[number]["body"] = "Please look at the queue.\r\n\r\n" + body.replace("\n", "\r\n") + "\r\nThanks, Bea\r\n"
    hub.pulls[number]["title"] = "Weekly sync, as people call it"
    published = fork.data("publish")
    assert (published["do"], published["number"], published["verified"]) == ("update", number, True)
    now = hub.pulls[number]["body"]
    assert now.startswith("Please look at the queue.\r\n\r\n<!-- vime-sync:begin")
    assert now.endswith("-->\r\n\r\nThanks, Bea\r\n")
    assert hub.pulls[number]["title"] == "Weekly sync, as people call it"
    again = checker.check(fork, now.split("-->", 1)[1].rpartition("<!-- vime-sync:end")[0].replace("\r\n", "\n"), base)
    assert "2,533 gate files" in " ".join(section(again, "Validation on this head"))
    assert fork.data("publish")["do"] == "unchanged"
    assert len(hub.pulls) == 2
    assert hub.authorizations == {f"token {TOKEN}"}
    assert TOKEN not in done.stdout + done.stderr + now


def test_what_ran_is_green_only_while_it_holds(fork: World) -> None:
    mirrored(fork)
    fork.sync(
        "evidence", "run", "--name", "unit", "--junit", "build/junit.xml", "--", *PYTEST, "tests/test_recovery.py"
    )
    fork.sync("evidence", "check", "--require", "unit", expect=1)  # the policy requires more than that
    assert fork.data("evidence", "check", "--require", "unit", expect=1)["missing"] == [
        "cpu-regressions",
        "ci",
        "image-arm64",
    ]
    fork.commit("Touch the runtime", vime__more="X = 1\n")
    missing = fork.data("evidence", "check", "--require", "unit", expect=1)["missing"]
    assert "unit" in missing
    fork.git("revert", "--no-edit", "HEAD")
    assert "unit" not in fork.data("evidence", "check", "--require", "unit", expect=1)["missing"], (
        "the tree is equal again"
    )


def test_the_manifest_takes_what_counts(fork: World) -> None:
    mirrored(fork)
    fork.sync(
        "evidence", "run", "--name", "unit", "--junit", "build/junit.xml", "--", *PYTEST, "tests/test_recovery.py"
    )
    manifest = next((fork.folder / "sync_manifests").glob("*.toml"))
    before = manifest.read_text()
    manifest.write_text(before + '\n[[evidence]]\nname = "by hand" # mine\n')
    fork.sync("evidence", "check", "--manifest", str(manifest), expect=1)
    text = manifest.read_text()
    assert text.startswith(before)
    assert '[[evidence]]\nname = "by hand" # mine\n' in text
    assert 'name = "unit"' in text
    fork.sync("evidence", "check", "--manifest", str(manifest), expect=1)
    assert manifest.read_text() == text
    fork.git("commit", "-q", "-am", "Record the evidence")
    rows = {row["name"]: row for row in fork.data("evidence", "list")["records"]}
    assert rows["unit"]["standing"] == "narrowed", "a manifest is neutral: recording evidence in it does not void it"
