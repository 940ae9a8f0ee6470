"""Layouts, tags, permission, routes, recipe and bill: against real files, real ssh and real git."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synctool.errors import ConfigError, EnvironmentFailure, Refused, UsageError
from synctool.evidence.record import Outcome, Record, Source, Statement, Topic
from synctool.evidence.standing import Ledger, Target, assess
from synctool.images import oci, sbom
from synctool.images.base import from_folder
from synctool.images.builders import Overlay
from synctool.images.contents import read_contents, verify
from synctool.images.context import assemble
from synctool.images.hosts import Route, parse, refuse_host, refuse_route, resolve
from synctool.images.oci import Writer, add_file
from synctool.images.permission import refuse_order
from synctool.images.promote import promote
from synctool.images.recipe import Recipe, render
from synctool.images.tags import candidate_tag, check_tag
from synctool.images.unpack import unpack
from synctool.policy import parse_policy
from synctool.policy.model import EvidenceKind

TREE = "a" * 40
OTHER = "b" * 40
LABELS = {"io.vime.tree": TREE, "io.vime.pin": "vllm==0.32.0", "io.vime.stack": "c" * 64}


def folder(root: Path) -> Path:
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "one").write_text("1\n")
    (root / "etc" / "two").hardlink_to(root / "etc" / "one")
    (root / "link").symlink_to("etc/one")
    (root / "var" / "log").mkdir(parents=True)
    (root / "var" / "log" / "noise").write_text(str(root))
    (root / "etc" / "x.pyc").write_bytes(b"time")
    return root


def test_same_files_same_digest_whatever_their_times_and_names_of_folders(tmp_path: Path) -> None:
    one = from_folder(tmp_path / "1", folder(tmp_path / "somewhere"), architecture="amd64")
    two = from_folder(tmp_path / "2", folder(tmp_path / "elsewhere"), architecture="amd64")
    assert one.digest == two.digest
    manifest = oci.blob_path(tmp_path / "1", one.digest).read_bytes()
    assert one.digest == "sha256:" + hashlib.sha256(manifest).hexdigest()
    names = {}
    assert verify(one, lambda entry, content: names.update({entry.name: entry})) == []
    assert "etc/x.pyc" not in names
    assert "var/log/noise" not in names
    assert names["etc/two"].islnk()
    assert names["link"].linkname == "etc/one"
    (tmp_path / "elsewhere" / "etc" / "one").write_text("2\n")
    assert from_folder(tmp_path / "3", tmp_path / "elsewhere", architecture="amd64").digest != one.digest


def test_a_changed_layer_is_found_and_a_changed_manifest_is_refused(tmp_path: Path) -> None:
    image = from_folder(tmp_path / "l", folder(tmp_path / "root"), architecture="amd64")
    assert verify(oci.read_image(tmp_path / "l")) == []
    layer = oci.blob_path(tmp_path / "l", image.layers[0].digest)
    data = bytearray(layer.read_bytes())
    data[600] ^= 1
    layer.write_bytes(data)
    assert "another content" in verify(image)[0]
    oci.blob_path(tmp_path / "l", image.digest).write_bytes(b"{}")
    with pytest.raises(Refused, match="another content"):
        oci.read_image(tmp_path / "l")


@pytest.mark.parametrize("digest", ["sha256:../../etc/passwd", "md5:" + "0" * 64, "sha256:" + "A" * 64, "x"])
def test_a_digest_is_no_path(tmp_path: Path, digest: str) -> None:
    with pytest.raises(Refused, match="not a sha256 digest"):
        oci.blob_path(tmp_path, digest)


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="skopeo is not installed")
def test_skopeo_reads_the_same_digest(tmp_path: Path) -> None:
    image = from_folder(tmp_path / "l", folder(tmp_path / "root"), architecture="amd64")
    seen = subprocess.run(["skopeo", "inspect", f"oci:{tmp_path / 'l'}"], capture_output=True, check=True)
    assert json.loads(seen.stdout)["Digest"] == image.digest


@given(st.text(max_size=40))
def test_only_the_candidates_own_tag_passes(tag: str) -> None:
    own = candidate_tag("linux/amd64", TREE)
    if tag != own:
        with pytest.raises(Refused):
            check_tag(tag, "linux/amd64", TREE)


@pytest.mark.parametrize("tag", ["latest", "cand-arm64-" + TREE[:12], "cand-amd64-" + OTHER[:12], "cand-amd64-aaaa"])
def test_refused_tags(tag: str) -> None:
    with pytest.raises(Refused):
        check_tag(tag, "linux/amd64", TREE)


class Shelf:
    """A registry in memory, to move tags at chosen moments."""

    def __init__(self, tags: dict[str, str], during: dict[str, str] | None = None) -> None:
        self.tags, self.during = tags, during or {}
        self.pushes: list[str] = []

    def digest(self, tag: str) -> str | None:
        return self.tags.get(tag)

    def push(self, layout: Path, tag: str) -> None:
        self.pushes.append(tag)
        self.tags[tag] = oci.read_image(layout).digest
        self.tags |= self.during


def test_promotion_pushes_one_tag_and_proves_it(tmp_path: Path) -> None:
    image = from_folder(tmp_path / "l", folder(tmp_path / "root"), architecture="amd64")
    tag = candidate_tag("linux/amd64", TREE)
    shelf = Shelf({"latest": "sha256:old"})
    done = promote(image, shelf, tag=tag, tree=TREE)
    assert (done.pushed, done.latest, shelf.tags["latest"]) == (True, "sha256:old", "sha256:old")
    assert not promote(image, shelf, tag=tag, tree=TREE).pushed
    assert shelf.pushes == [tag]
    with pytest.raises(Refused):
        promote(image, shelf, tag="latest", tree=TREE)
    with pytest.raises(Refused, match="another digest"):
        promote(image, Shelf({tag: "sha256:else"}), tag=tag, tree=TREE)
    with pytest.raises(EnvironmentFailure, match="latest moved"):
        promote(image, Shelf({}, {"latest": "sha256:new"}), tag=tag, tree=TREE)
    with pytest.raises(EnvironmentFailure, match="answers sha256:wrong"):
        promote(image, Shelf({}, {tag: "sha256:wrong"}), tag=tag, tree=TREE)


def seen(*facts: tuple[str, str, EvidenceKind, Outcome], withdraw: bool = False) -> Ledger:
    """What is recorded, seen from a commit with ``TREE``: records by tree, platform, kind and outcome, all of one name, oldest first."""
    records = [
        Record(
            tree=tree, platform=platform, kind=kind, name="ci", outcome=outcome, source=Source.RUN, by="A <a@b.c>",
            when=datetime(2026, 1, number + 1, tzinfo=UTC),
        )
        for number, (tree, platform, kind, outcome) in enumerate(facts)
    ]  # fmt: skip
    said = [
        Statement(
            head="e" * 40, tree=TREE, when=datetime(2026, 2, 1, tzinfo=UTC), by="A <a@b.c>", topic=Topic.WITHDRAWS, target=records[-1].id,
            text="The machine had the wrong driver.", signed_off_by="A <a@b.c>",
        )
    ] if withdraw else []  # fmt: skip
    return assess(records, said, Target("e" * 40, TREE), lambda tree: ["vime/a.py"])


def test_arm64_waits_for_green_amd64_evidence_of_the_same_tree() -> None:
    amd64, arm64, ci, passed, failed = "linux/amd64", "linux/arm64", EvidenceKind.CI, Outcome.PASSED, Outcome.FAILED
    assert refuse_order(amd64, seen()) is None
    green = (TREE, amd64, ci, passed)
    for none in (
        seen(),
        seen((OTHER, amd64, ci, passed)),
        seen((TREE, arm64, ci, passed)),
        seen((TREE, amd64, EvidenceKind.LINT, passed)),
        seen(green, withdraw=True),
        seen(green, (TREE, amd64, ci, failed)),
    ):
        refusal = refuse_order(arm64, none)
        assert refusal is not None
        assert refusal.rule == "amd64-first"
        assert TREE[:12] in refusal.reason
    assert refuse_order(arm64, seen(green)) is None
    assert refuse_order(arm64, seen((TREE, amd64, ci, failed), green)) is None


@pytest.mark.skipif(shutil.which("ssh") is None, reason="ssh is not installed")
def test_a_jump_that_an_alias_hides_is_seen(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "Host arm\n HostName arm.example\nHost far\n HostName arm.example\n ProxyJump gate\nHost odd\n HostName arm.example\n ProxyCommand nc %h %p\n"
    )
    allowed = {"names": ["arm.example"], "jumps": [], "where": "p.toml:1"}
    assert refuse_route(resolve("arm", config), **allowed) is None
    jump = refuse_route(resolve("far", config), **allowed)
    assert jump is not None
    assert (jump.rule, "gate" in jump.reason) == ("jump-host", True)
    assert refuse_route(resolve("far", config), names=["arm.example"], jumps=["gate"], where="") is None
    odd = refuse_route(resolve("odd", config), **allowed)
    assert odd is not None
    assert odd.rule == "proxy-command"
    other = refuse_route(Route("arm", "elsewhere.example"), **allowed)
    assert other is not None
    assert other.rule == "host-name"
    assert parse("x", "hostname y\nport 2222\nproxyjump none\n") == Route("x", "y", port=2222)


def test_build_hosts_come_from_the_policy() -> None:
    policy = parse_policy(
        """schema = 1
[upstream]
name = "u"
[downstream]
name = "d"
[[build_host]]
host = "localhost"
platform = "linux/arm64"
names = ["arm.example"]
reason = "the only one there is"
"""
    )
    place, refusal = refuse_host(policy, "linux/arm64", None)
    assert refusal is not None
    assert (place, refusal.rule, refusal.hint) == ("localhost", "host-name", "policy: vime-sync.toml:6")
    nowhere = refuse_host(policy, "linux/amd64", None)[1]
    assert nowhere is not None
    assert nowhere.rule == "no-host"
    with pytest.raises(UsageError, match="names no build host 'elsewhere'"):
        refuse_host(policy, "linux/arm64", "elsewhere")


RECIPE = Recipe(TREE, "vllm==0.32.0", "c" * 64, "patches/vllm/0.32.0", "vllm-0.32.0.tar.gz")


def test_undefined_names_and_hostile_values_are_errors() -> None:
    assert TREE in render("FROM x\nLABEL t={{ tree }}\n", RECIPE, where="t")
    with pytest.raises(ConfigError, match="undefined"):
        render("{{ tre }}", RECIPE, where="t")
    with pytest.raises(ConfigError, match="template"):
        render("{{ tree.__class__.__mro__ }}", RECIPE, where="t")
    with pytest.raises(ConfigError, match="cannot stand"):
        render("", Recipe(TREE, "vllm==1\nRUN rm", "c", "p", "a"), where="t")
    template = Path(__file__).parents[3] / "docker" / "Dockerfile.j2"
    assert "{{" not in render(template.read_text(), RECIPE, where="t")


def test_overlay_replaces_the_tree_and_needs_the_same_stack(tmp_path: Path) -> None:
    from synctool.git.objects import ObjectStore
    from synctool.git.repo import Repo

    subprocess.run(["git", "init", "-q", str(tmp_path / "r")], check=True)
    repo = Repo.open(tmp_path / "r")
    assert isinstance(repo.objects, ObjectStore)
    tree = repo.tree(subprocess.run(
        ["git", "-C", str(tmp_path / "r"), "hash-object", "-t", "tree", "-w", "/dev/null"], capture_output=True, text=True, check=True
    ).stdout.strip())  # fmt: skip
    from synctool.git.tree import Entry

    tree.set("a.py", Entry("100755", repo.objects.write_blob(b"1\n")))
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "x-1-py3-none-any.whl").write_bytes(b"x")
    (tmp_path / "pin.tar.gz").write_bytes(b"pin")
    digests = []
    writer = Writer(tmp_path / "base")
    old = writer.layer(lambda archive: add_file(archive, "opt/vime/src/old.py", b"old"))
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Labels": LABELS},
        "rootfs": {"type": "layers", "diff_ids": [old.digest]},
    }
    base = writer.image(config, [old])
    for number in "12":
        (tmp_path / number).mkdir()
        made = assemble(
            tmp_path / number, tree=tree, tree_id=TREE, dockerfile="FROM x\n", base_digest=base.digest, wheels=tmp_path / "w",
            archive=tmp_path / "pin.tar.gz", archive_sha256=hashlib.sha256(b"pin").hexdigest(),
        )  # fmt: skip
        image = Overlay().build(made, tmp_path / "base", tmp_path / f"out{number}", LABELS)
        digests.append((made.digest, image.digest))
    assert digests[0] == digests[1]
    assert verify(image) == []
    with tarfile.open(oci.blob_path(image.layout, image.layers[1].digest)) as layer:
        assert {"opt/vime/src/a.py", "opt/vime/src/.wh..wh..opq"} <= set(layer.getnames())
        assert layer.getmember("opt/vime/src/a.py").mode == 0o755
    with pytest.raises(Refused, match=r"io\.vime\.stack"):
        Overlay().build(made, tmp_path / "base", tmp_path / "out3", LABELS | {"io.vime.stack": "d" * 64})
    with pytest.raises(Refused, match="not the one that the pin names"):
        assemble(tmp_path / "3", tree=tree, tree_id=TREE, dockerfile="", base_digest="", wheels=tmp_path / "w",
            archive=tmp_path / "pin.tar.gz", archive_sha256="0" * 64)  # fmt: skip


def test_the_bill_reads_the_layers_and_believes_whiteouts(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    packages = (
        "Package: git\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1:2\n\n"
        "Package: no\nStatus: deinstall ok config-files\nVersion: 1\n"
    )

    def fill(archive: tarfile.TarFile) -> None:
        add_file(archive, "s/Foo_Bar-1.dist-info/METADATA", b"Name: Foo_Bar\nVersion: 1+cpu\n\ntext")
        add_file(archive, "s/gone-2.dist-info/METADATA", b"Name: gone\nVersion: 2\n")
        add_file(archive, "var/lib/dpkg/status", packages.encode())

    lower = writer.layer(fill)
    upper = writer.layer(lambda archive: add_file(archive, "s/.wh.gone-2.dist-info", b""))
    image = writer.image({"rootfs": {"diff_ids": [lower.digest, upper.digest]}}, [lower, upper])
    bill = sbom.bill(image, read_contents(image), name="x")
    assert [one["purl"] for one in bill["components"]] == [
        "pkg:deb/debian/git@1%3A2?arch=amd64",
        "pkg:pypi/foo-bar@1%2Bcpu",
    ]
    assert sbom.versions(bill) == {"foo-bar": "1+cpu"}


# ---- unpacking ---------------------------------------------------------------------------------------------------------------------------


def layered(layout: Path, *layers: Callable[[tarfile.TarFile], None]) -> oci.Image:
    writer = Writer(layout)
    made = [writer.layer(fill) for fill in layers]
    return writer.image({"rootfs": {"diff_ids": [one.digest for one in made]}}, made)


def names(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_symlink() or not path.is_dir()}


def link(archive: tarfile.TarFile, name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = kind, to, 0o777
    archive.addfile(entry)


def test_whiteouts_take_away_what_lower_layers_hold_and_nothing_else(tmp_path: Path) -> None:
    def lower(archive: tarfile.TarFile) -> None:
        for name in ("a/keep", "a/gone", "b/deep/old", "b/deep/same", "c/one", "./d"):
            add_file(archive, name, name.encode(), 0o755)
        link(archive, "l", "a")

    def upper(archive: tarfile.TarFile) -> None:
        add_file(
            archive, "b/deep/new", b"new"
        )  # before the whiteout of its folder: the order within a layer says nothing
        add_file(archive, "b/deep/same", b"again")
        add_file(archive, "b/.wh..wh..opq", b"")
        add_file(archive, "a/.wh.gone", b"")
        add_file(archive, ".wh.c", b"")
        add_file(archive, ".wh.absent", b"")
        add_file(archive, "l", b"no link now")
        link(archive, "a/hard", "/b/deep/new", tarfile.LNKTYPE)

    unpack(layered(tmp_path / "l", lower, upper), root := tmp_path / "root")
    assert names(root) == {"a/keep", "a/hard", "b/deep/new", "b/deep/same", "d", "l"}
    assert not (root / "c").exists()
    assert (root / "b/deep/same").read_text() == "again"
    assert (root / "a/hard").samefile(root / "b/deep/new")
    assert (root / "l").read_text() == "no link now"
    assert (root / "a/keep").read_text() == "a/keep"
    assert (root / "a/keep").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("name", ["../out", "in/out", "in/.wh.precious", "h"])
def test_nothing_is_written_or_removed_outside(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("here")

    def upper(archive: tarfile.TarFile) -> None:
        if name == "h":
            link(archive, name, "../outside/precious", tarfile.LNKTYPE)
        else:
            add_file(archive, name, b"there")

    image = layered(tmp_path / "l", lambda archive: link(archive, "in", str(outside)), upper)
    with pytest.raises(Refused, match="outside of the folder"):
        unpack(image, tmp_path / "root")
    assert names(outside) == {"precious"}
    assert (outside / "precious").read_text() == "here"


def test_a_layer_of_another_content_is_not_used(tmp_path: Path) -> None:
    image = layered(tmp_path / "l", lambda archive: add_file(archive, "a", b"1" * 20_000))
    blob = oci.blob_path(image.layout, image.layers[0].digest)
    blob.write_bytes(blob.read_bytes().replace(b"1111", b"1112", 1))
    ended = subprocess.run(
        [sys.executable, "-m", "synctool.images.unpack", str(image.layout), str(tmp_path / "root")],
        capture_output=True, text=True, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ")
    assert "another content" in ended.stderr


def test_the_bill_keeps_what_an_opaque_layer_holds_itself(tmp_path: Path) -> None:
    def upper(archive: tarfile.TarFile) -> None:
        add_file(archive, "s/new-2.dist-info/METADATA", b"Name: new\nVersion: 2\n")
        add_file(archive, "s/.wh..wh..opq", b"")

    image = layered(tmp_path, lambda archive: add_file(archive, "s/old-1.dist-info/METADATA", b"Name: old\n"), upper)
    assert set(read_contents(image).files) == {"s/new-2.dist-info/METADATA"}
