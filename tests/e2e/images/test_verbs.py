"""The image verbs as people call them: against real git, ssh and skopeo, and a real registry where one is installed. Needs no root."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.images.conftest import Project, git

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="ssh is not installed")


def test_build_fetches_the_archive_and_gives_one_digest(project: Project, tmp_path: Path) -> None:
    first = project.build(tmp_path / "one", "--builder", "overlay")["data"]
    project.house.archive.unlink()  # the second finds it in the cache
    second = project.build(tmp_path / "two", "--builder", "overlay")["data"]
    tree = git(project.root, "rev-parse", "HEAD^{tree}").stdout.decode().strip()
    assert first == second
    assert (first["tag"], first["tree"]) == (f"cand-amd64-{tree[:12]}", tree)
    statement = json.loads((tmp_path / "one" / "statement.json").read_text())
    inputs = {one["name"]: one["digest"] for one in statement["predicate"]["buildDefinition"]["resolvedDependencies"]}
    assert set(inputs) == {"source", "base", "engine-1.0.tar.gz", "tool-1-py3-none-any.whl"}
    bill = json.loads((tmp_path / "one" / "sbom.cdx.json").read_text())
    assert [one["purl"] for one in bill["components"]] == ["pkg:pypi/tool@1"]
    assert project.run("image", "check", str(tmp_path / "one"))["data"]["wrong"] == []
    assert project.run("image", "inspect", str(tmp_path / "two"))["data"]["digest"] == first["digest"]
    again = project.build(tmp_path / "two", "--builder", "overlay", code=2)
    assert "not empty" in again["error"]["title"]


def test_what_a_candidate_says_of_itself_is_checked(project: Project, tmp_path: Path) -> None:
    project.build(tmp_path / "one", "--builder", "overlay")
    summary = tmp_path / "one" / "candidate.json"
    told = json.loads(summary.read_text())
    summary.write_text(json.dumps(told | {"stack": "d" * 64}))
    assert (
        "stack: candidate.json says" in project.run("image", "check", str(tmp_path / "one"), code=1)["data"]["wrong"][0]
    )
    summary.write_text(json.dumps(told))
    (tmp_path / "one" / "sbom.cdx.json").write_text("{}")
    wrong = project.run("image", "check", str(tmp_path / "one"), code=1)["data"]["wrong"]
    assert wrong == ["sbom.cdx.json is not what the layers hold"]


def test_a_stack_that_the_base_does_not_hold_is_refused(project: Project, tmp_path: Path) -> None:
    project.house.add("two.patch", {"engine/last.py": b"X = 2\n"})
    project.commit("Another patch")
    refused = project.build(tmp_path / "one", "--builder", "overlay", code=6)
    assert "io.vime.stack" in refused["error"]["title"]
    assert not (tmp_path / "one" / "candidate.json").exists()


@needs_ssh
def test_arm64_is_refused_because_of_a_jump_host_and_the_refusal_is_recorded(project: Project, tmp_path: Path) -> None:
    project.ssh_config("Host arm\n HostName arm.example\n ProxyJump gate.example\n")
    refused = project.build(tmp_path / "arm", "--platform", "linux/arm64", "--builder", "buildah", code=1)["data"]
    assert refused["refusal"]["rule"] == "jump-host"
    assert "gate.example" in refused["refusal"]["reason"]
    assert not (tmp_path / "arm").exists()
    told = project.run(
        "evidence", "run", "--name", "image-arm64", "--kind", "image", "--platform", "linux/arm64", "--",
        sys.executable, "-m", "synctool", "image", "build", "--json", "--platform", "linux/arm64", "--base", str(project.base), "--wheels", str(project.wheels),
        "--output", str(tmp_path / "arm"), code=1,
    )["data"]["record"]  # fmt: skip
    assert told["outcome"] == "refused"
    assert "gate.example" in told["note"]


@needs_ssh
def test_arm64_waits_for_amd64_and_then_for_its_host(project: Project, tmp_path: Path) -> None:
    project.ssh_config("Host arm\n HostName arm.example\n")
    arm64 = ("--platform", "linux/arm64", "--builder", "buildah")
    assert project.build(tmp_path / "arm", *arm64, code=1)["data"]["refusal"]["rule"] == "amd64-first"
    attest = ("--name", "ci", "--kind", "ci", "--platform", "linux/amd64", "-s", "--outcome")
    project.run("evidence", "attest", *attest, "passed")
    allowed = project.build(tmp_path / "arm", *arm64, code=2)["error"]
    assert "not started from here" in allowed["title"]
    assert "the route to arm is allowed" in allowed["hint"]
    # a later run of that name that failed takes its place
    project.run("evidence", "attest", *attest, "failed")
    assert project.build(tmp_path / "arm", *arm64, code=1)["data"]["refusal"]["rule"] == "amd64-first"


def test_pushed_read_back_and_latest_untouched(project: Project, registry: str, tmp_path: Path) -> None:
    repository = f"{registry}/team/vime"
    old = f"docker://{repository}:latest"
    subprocess.run(["skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{project.base}", old], check=True)

    def latest() -> str:
        told = subprocess.run(["skopeo", "inspect", "--tls-verify=false", old], check=True, capture_output=True)
        return str(json.loads(told.stdout)["Digest"])

    before = latest()
    built = project.build(tmp_path / "one", "--builder", "overlay")["data"]
    for tag in ("latest", "cand-amd64-000000000000"):
        refused = project.run(
            "image", "promote", str(tmp_path / "one"), "--repository", repository, "--tag", tag, code=6
        )
        assert tag in refused["error"]["title"]
    dry = project.run("image", "promote", str(tmp_path / "one"), "--repository", repository, "--dry-run")["data"]
    assert not dry["pushed"]
    pushed = project.run("image", "promote", str(tmp_path / "one"), "--repository", repository)["data"]
    assert (pushed["pushed"], pushed["digest"], pushed["latest"]) == (True, built["digest"], before)
    assert not project.run("image", "promote", str(tmp_path / "one"), "--repository", repository)["data"]["pushed"]
    assert latest() == before
