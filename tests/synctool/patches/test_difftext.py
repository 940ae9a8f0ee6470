"""Hostile and broken patch files: each is refused with file and line, or handled as git handles it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synctool.errors import Refused, SyncError
from synctool.git import Entry, Repo, Tree
from synctool.patches.apply import DoesNotApply, apply_patch
from synctool.patches.difftext import PatchSyntaxError, parse_patch
from synctool.patches.pathpolicy import Allowed
from synctool.git.quoting import quote, unquote
from synctool.patches.referee import git_applies

A = "diff --git a/f b/f\n--- a/f\n+++ b/f\n"


def tree_of(repo: Repo, files: dict[str, bytes], mode: str = "100644") -> Tree:
    tree = Tree(repo.objects)
    for path, data in files.items():
        tree.set(path, Entry(mode, repo.objects.write_blob(data)))
    tree.write()
    return tree


def text_of(tree: Tree, path: str) -> bytes:
    entry = tree.get(path)
    assert entry is not None
    return tree.store.read(entry.oid)


def new_file(path: str, mode: str = "100644", text: str = "x") -> str:
    return f"diff --git a/{path} b/{path}\nnew file mode {mode}\nindex 0000000..1111111\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+{text}\n"


@pytest.mark.parametrize(
    ("text", "says", "line"),
    [
        (A + "@@ -1,3 +1,3 @@\n a\n-b\n+c\n", "cut short", 4),
        (A + "@@ -1,2 +1,2 @@\n a\n-b\n+c", "cut short", 4),
        (A + "@@ -1,2 +1,2 @@\n a\n-b\n+c\n d\n", "outside of a hunk", 8),
        (A + "@@ -1,1 +1,3 @@\n a\n-b\n+c\n", "wrong", 4),
        (A + "@@ -1 +1 @@\n a\n", "changes nothing", 4),
        (A + "@@ -x +1 @@\n-a\n+b\n", "malformed hunk header", 4),
        (A, "without hunks", 4),
        ("diff --git a/f b/g\n--- a/f\n+++ b/g\n@@ -1 +1 @@\n-a\n+b\n", "nothing says rename", 1),
        ("diff --git a/f b/f\n--- a/g\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n", "differs from the 'diff --git' line", 1),
        (A.replace("\n", "\r\n") + "@@ -1 +1 @@\r\n-a\r\n+b\r\n", "CRLF", 1),
        ("diff --git a/f b/f\nnew file mode 100644\nnew file mode 100644\n", "twice", 3),
        ("diff --git a/f b/f\nnew file mode 10064\n", "not a file mode", 2),
        ("diff --git a/f b/f\nindex 1111111..2222222\nBinary files a/f and b/f differ\n", "without its data", 3),
        ("diff --git a/f b/f\nindex 1111111..2222222\nGIT binary patch\nliteral 5\nzzzz\n\n", "malformed", 5),
        ("diff --git a/f b/f\nindex 1111111..2222222\nGIT binary patch\nliteral 99999999999\n", "without 'literal' or 'delta'", 4),
        ('diff --git "a/f\\9" "b/f\\9"\n--- "a/f\\9"\n+++ "b/f\\9"\n@@ -1 +1 @@\n-a\n+b\n', "quoted file name is malformed", 2),
        ("--- /tmp/f\n+++ /tmp/f\n@@ -1 +1 @@\n-a\n+b\n", "absolute", 1),
        ("--- f\n+++ f\n@@ -1 +1 @@\n-a\n+b\n", "has no 'a/' or 'b/'", 1),
        ("diff --git a/f b/f\n--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+b\n", "disagree", 1),
        (A + "@@ -1 +1 @@\n-a\n+b\nsurprise\n", "belongs to no change", 7),
    ],
)  # fmt: skip
def test_broken_patches_are_refused_with_their_line(text: str, says: str, line: int) -> None:
    with pytest.raises(PatchSyntaxError) as caught:
        parse_patch(text.encode(), "x.patch")
    assert says in caught.value.title
    assert caught.value.where == f"x.patch:{line}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (new_file("../evil"), "not allowed"),
        (new_file("x/../../evil"), "not allowed"),
        (new_file(".git/hooks/pre-commit"), "not allowed"),
        (new_file("sub/.GIT/config"), "not allowed"),
        (new_file("/etc/passwd"), "not allowed"),
        (new_file(".gitattributes"), "controls git"),
        (new_file("sub/.gitmodules"), "controls git"),
        (new_file("run.sh", "100755"), "becomes executable"),
        (new_file("link", "120000", "/etc/passwd"), "symbolic link"),
        (new_file("mod", "160000", "Subproject commit 1"), "submodule"),
        (new_file("odd", "100600"), "none of git's"),
        ("diff --git a/f b/f\nold mode 100644\nnew mode 100755\n", "becomes executable"),
        ("diff --git a/f b/f\nold mode 100755\nnew mode 100644\n", "stops being executable"),
        (new_file("twice") + new_file("twice"), "changed twice"),
        (A + "@@ -1 +1 @@\n-a\n+b\n" + A + "@@ -1 +1 @@\n-b\n+c\n", "changed twice"),
        ("diff --git a/f b/../g\nrename from f\nrename to ../g\n", "not allowed"),
        ('diff --git "a/\\056\\056/x" "b/\\056\\056/x"\nnew file mode 100644\n--- /dev/null\n+++ "b/\\056\\056/x"\n@@ -0,0 +1 @@\n+x\n', "not allowed"),
        ('diff --git "a/x\\001" "b/x\\001"\nnew file mode 100644\n--- /dev/null\n+++ "b/x\\001"\n@@ -0,0 +1 @@\n+x\n', "control character"),
    ],
)  # fmt: skip
def test_hostile_patches_are_refused_and_nothing_is_applied(bare: Repo, text: str, says: str) -> None:
    tree = tree_of(bare, {"f": b"a\n"})
    before = tree.write()
    with pytest.raises(Refused) as caught:
        apply_patch(tree, parse_patch(text.encode(), "x.patch"), "x.patch")
    assert says in caught.value.title
    assert tree.write() == before


def test_links_allowed_by_name_may_still_not_escape(bare: Repo) -> None:
    allowed = Allowed(symlinks=frozenset({"sub/link"}))
    for target in ("/etc/passwd", "../../up", "../.git/config"):
        text = new_file("sub/link", "120000", target).replace(
            f"+{target}\n", f"+{target}\n\\ No newline at end of file\n"
        )
        with pytest.raises(Refused, match=r"leaves the tree|points into"):
            apply_patch(Tree(bare.objects), parse_patch(text.encode(), "x"), "x", allowed=allowed)
    text = new_file("sub/link", "120000", "../f").replace("+../f\n", "+../f\n\\ No newline at end of file\n")
    tree, _ = apply_patch(Tree(bare.objects), parse_patch(text.encode(), "x"), "x", allowed=allowed)
    assert tree.get("sub/link") == Entry("120000", bare.objects.hash("blob", b"../f"))


def test_nothing_is_written_through_a_link_or_a_file(bare: Repo) -> None:
    tree = Tree(bare.objects)
    tree.set("link", Entry("120000", bare.objects.write_blob(b"/tmp")))
    tree.set("file", Entry("100644", bare.objects.write_blob(b"x")))
    tree.write()
    for path in ("link/evil", "file/evil"):
        with pytest.raises(Refused, match="lies below"):
            apply_patch(tree, parse_patch(new_file(path).encode(), "x"), "x")
    with pytest.raises(DoesNotApply, match="exists already"):
        apply_patch(tree, parse_patch(new_file("file").encode(), "x"), "x")


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        (b"a\r\nb\r\n", A + "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\r\n", b"a\r\nc\r\n"),
        (b"a\nb", A + "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n", b"a\nc"),
        (b"a\nb", A + "@@ -1,2 +1,2 @@\n a\n-b\n\\ Pas de fin de ligne\n+b\n", b"a\nb\n"),
        (b"a\nb\n", A + "@@ -1,2 +1,2 @@\n a\n-b\n+b\n\\ No newline at end of file\n", b"a\nb"),
        (b"\x0c\n\x85\n\xff\n", b"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n \x0c\n-\x85\n+\xa0\n \xff\n", b"\x0c\n\xa0\n\xff\n"),
        (b"a\n\nb\n", A + "@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n", b"a\n\nc\n"),
        (b"-- x\n++ y\n", A + "@@ -1,2 +1,2 @@\n--- x\n+++ z\n ++ y\n", b"++ z\n++ y\n"),
        (b"a\n", "--- f.orig/f\t2020-01-01 00:00:00\n+++ new/f\t2020-01-01 00:00:00\n@@ -1 +1 @@\n-a\n+b\n", b"b\n"),
        (b"a\n", "Index: x/f\n====================\n--- x.orig/f\n+++ x/f\n@@ -1 +1 @@\n-a\n+b\n", b"b\n"),
        (b"a\n", A + "@@ -1 +1 @@\n-a\n+b\n-- \n2.39.5\n\n", b"b\n"),
    ],
)  # fmt: skip
def test_odd_but_legal_patches_apply_as_in_git(bare: Repo, before: bytes, patch: str | bytes, after: bytes) -> None:
    data = patch.encode() if isinstance(patch, str) else patch
    tree = tree_of(bare, {"f": before})
    done, _ = apply_patch(tree, parse_patch(data, "x.patch"), "x.patch")
    assert text_of(done, "f") == after
    assert git_applies(bare, tree.write(), data).tree == done.write()


@pytest.mark.parametrize("name", ["with space", "é", "日本語.py", 'quo"te', "a b/c b/d", "tab\u00a0x", "b/b/b"])
def test_names_that_git_quotes_or_not(bare: Repo, name: str) -> None:
    quoted_a, quoted_b = quote(f"a/{name}"), quote(f"b/{name}")
    text = f"diff --git {quoted_a} {quoted_b}\nnew file mode 100644\nindex 0000000..1111111\n--- /dev/null\n+++ {quoted_b}\n@@ -0,0 +1 @@\n+x\n"
    done, _ = apply_patch(Tree(bare.objects), parse_patch(text.encode(), "x"), "x")
    assert [path for path, _ in done.items()] == [name]


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_quoting_round_trips(name: str) -> None:
    text = quote(name)
    assert text == name or unquote(text.encode()) == (name, b"")


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_refused(data: bytes) -> None:
    for text in (data, b"diff --git a/f b/f\n" + data, A.encode() + b"@@ -1,2 +1,2 @@\n" + data):
        try:
            parse_patch(text, "x")
        except SyncError as error:
            assert error.where  # noqa: PT017
