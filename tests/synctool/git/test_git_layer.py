"""The git layer against git itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synctool.errors import Refused, RepositoryError
from synctool.git import Entry, ObjectStore, Repo, Tree
from synctool.git.commits import Person, first_parent_range, parse_trailers, read_commits, write_commit
from synctool.git.diff import commit_diffs, tree_diff
from synctool.git.refs import RefUpdate, list_refs, read_ref, update_refs

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=6).filter(
    lambda n: n not in (".", "..") and n.lower().rstrip(". ") != ".git" and not n.lower().startswith("git~1")
)


def git(folder: Path, *words: str, stdin: bytes | None = None) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {
        "GIT_CONFIG_GLOBAL": os.devnull, "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@x", "GIT_COMMITTER_NAME": "C",
        "GIT_COMMITTER_EMAIL": "c@x", "GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000",
    }  # fmt: skip
    done = subprocess.run(["git", *words], cwd=folder, env=environment, input=stdin, capture_output=True, check=True)
    return done.stdout.decode("utf-8", "surrogateescape").strip()


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    git(tmp_path, "init", "-q", "-b", "main")
    return Repo.open(tmp_path)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=3), st.binary(max_size=8)), max_size=8))
def test_tree_ids_equal_git(tmp_path_factory: pytest.TempPathFactory, files: list[tuple[list[str], bytes]]) -> None:
    folder = tmp_path_factory.mktemp("tree")
    git(folder, "init", "-q", "--bare")
    opened = Repo.open(folder)
    tree = Tree(opened.objects)
    expected: dict[str, str] = {}
    for parts, data in files:
        path = "/".join(parts)
        oid = opened.objects.write_blob(data)
        tree.set(path, Entry("100644", oid))
        # a file takes the place of a folder and the other way round, as in an index
        expected = {p: o for p, o in expected.items() if not p.startswith(path + "/") and not path.startswith(p + "/")}
        expected[path] = oid
    assert dict(tree.items()) == {p: Entry("100644", o) for p, o in expected.items()}
    rows = b"".join(f"100644 {oid}\t".encode() + path.encode() + b"\0" for path, oid in expected.items())
    git(folder, "update-index", "-z", "--index-info", stdin=rows)
    assert tree.write() == git(folder, "write-tree")
    again = Tree(opened.objects, tree.write())
    for path in list(expected)[::2]:
        assert again.delete(path)
    assert set(dict(again.items())) == set(list(expected)[1::2])
    opened.close()


def test_copy_is_independent_and_shares_ids(repo: Repo) -> None:
    tree = Tree(repo.objects)
    for name in ("a/b/c", "a/d", "e"):
        tree.set(name, Entry("100644", repo.objects.write_blob(name.encode())))
    before = tree.write()
    copy = tree.copy()
    copy.delete("a/b/c")
    assert "a/b/c" in tree
    assert tree.write() == before
    assert not copy.is_folder("a/b")
    assert copy.write() != before


@pytest.mark.parametrize(
    "path", ["../x", "/x", "a//b", "a/./b", ".git/hooks/pre-commit", "a/.GIT/config", ".git. /x", "", "git~1/x", "a\0b"]
)
def test_hostile_paths_are_refused(repo: Repo, path: str) -> None:
    with pytest.raises(Refused):
        Tree(repo.objects).set(path, Entry("100644", "0" * 40))


def test_objects_round_trip_and_are_seen_by_git(repo: Repo, tmp_path: Path) -> None:
    store = repo.objects
    blobs = [os.urandom(n) for n in (0, 1, 70_000)]
    oids = [store.write_blob(b) for b in blobs]
    assert [git(tmp_path, "cat-file", "-s", oid) for oid in oids] == ["0", "1", "70000"]
    assert list(store.read_many(oids).values()) == blobs
    assert store.read(oids[1], "blob") == blobs[1]
    with pytest.raises(RepositoryError, match="missing"):
        store.read("1" * 40)
    with pytest.raises(RepositoryError, match="not a tree"):
        store.read(oids[0], "tree")


def test_a_dry_store_writes_nothing(repo: Repo, tmp_path: Path) -> None:
    dry = Repo.open(tmp_path, dry=True)
    oid = dry.objects.write_blob(b"only in memory")
    assert dry.objects.read(oid) == b"only in memory"
    with pytest.raises(RepositoryError):
        repo.objects.read(oid)
    with pytest.raises(AssertionError):
        update_refs(dry, [RefUpdate("refs/heads/x", oid, None)], "never")


def test_huge_blobs_are_not_loaded(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    oid = repo.objects.write_blob(b"x" * 2048)
    monkeypatch.setattr("synctool.git.objects.MAX_OBJECT_BYTES", 1024)
    fresh = ObjectStore(repo.git_dir, repo.common_dir / "objects")
    with pytest.raises(Refused, match="2,048 bytes"):
        fresh.read(oid)
    assert fresh.read_many([oid]) == {}
    fresh.close()


def test_commit_equals_git_and_is_deterministic(repo: Repo, tmp_path: Path) -> None:
    tree = git(tmp_path, "write-tree")
    ours = write_commit(
        repo.objects,
        tree=tree,
        parents=[],
        author=Person("A", "a@x", 1_700_000_000),
        committer=Person("C", "c@x", 1_700_000_000),
        message="one\n",
    )
    assert ours == git(tmp_path, "commit-tree", tree, "-m", "one")
    (commit,) = read_commits(repo.objects, [ours])
    assert (commit.subject, commit.author.email, commit.parents) == ("one", "a@x", ())


def test_trailers() -> None:
    assert parse_trailers("s\n\nbody: not a trailer paragraph\nx y\n\nUpstream-PR: #1\nFixes: a\n  b\n") == [
        ("Upstream-PR", "#1"),
        ("Fixes", "a b"),
    ]
    assert parse_trailers("Subject: only") == []
    assert parse_trailers("s\n\nsome prose\nKey: v") == []


def test_diffs_of_many_pairs_equal_single_diffs(repo: Repo, tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / "moved").unlink(missing_ok=True)
        (tmp_path / f"file {number}\nline").write_text("same text\n" * 20 + str(number))
        if number % 2:
            (tmp_path / f"file {number - 1}\nline").unlink()
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", str(number))
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "empty")
    commits = first_parent_range(repo, None, "HEAD")
    pairs = [(c.parents[0], c.oid) for c in commits if c.parents]
    many = commit_diffs(repo, pairs, renames=60)
    assert many == {pair: tree_diff(repo, *pair, renames=60) for pair in pairs}
    assert "R" in {change.status for changes in many.values() for change in changes}
    assert many[pairs[-1]] == []


def test_refs_move_together_or_not_at_all(repo: Repo, tmp_path: Path) -> None:
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    one = git(tmp_path, "rev-parse", "HEAD")
    update_refs(repo, [RefUpdate("refs/vime-sync/a", one, None), RefUpdate("refs/vime-sync/b", one, None)], "test")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "two")
    two = git(tmp_path, "rev-parse", "HEAD")
    with pytest.raises(RepositoryError, match="refs were not updated"):
        update_refs(repo, [RefUpdate("refs/vime-sync/a", two, one), RefUpdate("refs/vime-sync/b", two, two)], "test")
    assert list_refs(repo, "refs/vime-sync/") == {"refs/vime-sync/a": one, "refs/vime-sync/b": one}
    update_refs(repo, [RefUpdate("refs/vime-sync/a", None, one)], "test")
    assert read_ref(repo, "refs/vime-sync/a") is None


def test_nothing_of_the_repository_runs(tmp_path: Path) -> None:
    """Hooks, filters, fsmonitor, external diff and textconv of a hostile repository leave no mark."""
    git(tmp_path, "init", "-q", "-b", "main")
    mark = tmp_path / "ran"
    script = tmp_path / "evil.sh"
    script.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    script.chmod(0o755)
    (tmp_path / "f").write_text("1\n")
    (tmp_path / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "one")
    (tmp_path / "f").write_text("2\n")
    git(tmp_path, "commit", "-q", "-am", "two")
    for name in ("reference-transaction", "post-update", "pre-commit", "post-index-change"):
        hook = tmp_path / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(script.read_text())
        hook.chmod(0o755)
    settings_text = f"""
[core]
\tfsmonitor = {script}
\tsshCommand = {script}
\tpager = {script}
[diff]
\texternal = {script}
[diff "evil"]
\tcommand = {script}
\ttextconv = {script}
[filter "evil"]
\tclean = {script}
\tsmudge = {script}
[merge "evil"]
\tdriver = {script}
"""
    with (tmp_path / ".git/config").open("a") as file:
        file.write(settings_text)
    repo = Repo.open(tmp_path)
    tree_diff(repo, "HEAD~1", "HEAD", renames=50)
    list(repo.tree("HEAD").items())
    head = repo.resolve("HEAD")
    update_refs(repo, [RefUpdate("refs/vime-sync/x", head, None)], "test")
    first_parent_range(repo, None, "HEAD")
    repo.close()
    assert not mark.exists()


def test_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="not a git repository"):
        Repo.open(tmp_path / "nowhere")
    git(tmp_path, "init", "-q", "-b", "main")
    repo = Repo.open(tmp_path)
    for name in ("HEAD", "nonsense", "--help", "a\nb"):
        with pytest.raises(RepositoryError):
            repo.resolve(name)
    assert repo.head_branch() == "refs/heads/main"


def test_worktrees_and_shallow_clones_are_known(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "-q", "-b", "main")
    for n in range(3):
        git(origin, "commit", "-q", "--allow-empty", "-m", str(n))
    git(origin, "worktree", "add", "-q", str(tmp_path / "linked"))
    linked = Repo.open(tmp_path / "linked")
    assert linked.common_dir == (origin / ".git")
    assert linked.work_tree == tmp_path / "linked"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{origin}", "shallow")
    shallow = Repo.open(tmp_path / "shallow")
    assert shallow.is_shallow
    with pytest.raises(RepositoryError) as caught:
        shallow.resolve("HEAD~2")
    assert "unshallow" in (caught.value.hint or "")


def test_a_missing_object_starts_no_transport_of_the_repository(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    program, proof = tmp_path / "program", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch '{proof}'\nexit 1\n")
    program.chmod(0o755)
    for name, value in {
        "core.repositoryFormatVersion": "1", "extensions.partialClone": "evil", "remote.evil.promisor": "true",
        "remote.evil.url": str(tmp_path), "remote.evil.uploadpack": str(program), "protocol.file.allow": "always",
    }.items():  # fmt: skip
        git(tmp_path, "config", name, value)
    repo = Repo.open(tmp_path)
    with pytest.raises(RepositoryError):
        repo.objects.read("1" * 40)
    with pytest.raises(RepositoryError):
        repo.text("cat-file", "-p", "1" * 40)
    repo.close()
    assert not proof.exists()


@pytest.mark.parametrize("branch", ["*", "main:refs/heads/main", "../x", "a b", ""])
def test_a_branch_that_is_a_refspec_is_refused(tmp_path: Path, branch: str) -> None:
    from synctool.git.remote import fetch_branch

    git(tmp_path, "init", "-q")
    repo = Repo.open(tmp_path)
    with pytest.raises(Refused):
        fetch_branch(repo, str(tmp_path), branch, "refs/vime-sync/upstream/x")
    assert not list_refs(repo, "refs/")


def test_a_missing_object_is_named_and_never_empty(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    repo = Repo.open(tmp_path)
    blob = repo.objects.write_blob(b"text\n")
    row = f"100644 blob {blob}\ta\n100644 blob {'1' * 40}\tb\n"
    tree = repo.run("mktree", "--missing", stdin=row.encode()).stdout.decode().strip()
    empty = repo.run("mktree", stdin=b"").stdout.decode().strip()
    with pytest.raises(RepositoryError, match="111111111111 is missing") as asked:
        repo.objects.read_many([blob, "1" * 40])
    with pytest.raises(RepositoryError) as told:
        repo.run("diff-tree", "-p", empty, tree)
    repo.close()
    for caught in (asked, told):
        assert "full history" in (caught.value.hint or "")


def test_an_unborn_head_asks_for_a_first_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    with pytest.raises(RepositoryError) as caught:
        Repo.open(tmp_path).resolve("HEAD")
    assert "first commit" in (caught.value.hint or "")
