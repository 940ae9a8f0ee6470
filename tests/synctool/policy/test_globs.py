"""Globs against git's own ignore rules, and the syntax that is refused."""

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from synctool.policy.globs import Glob, matches

ADAPTER = TypeAdapter(Glob)
GLOBS = [
    "docs/", "docs", "/docs", "*.md", "/*.md", "docs/*.md", "docs/*", "docs/**", "docs/**/*.md", "**/a.md", "a/**/b", "a/b", "/a", "a?b",
    "[ab].md", "[!a].md", "[a-c]/x", "**/docs/", "x*y", "docs/**/b/", "[]a].md", "a.md", "?", "*", "/*/b", "**/b/**",
]  # fmt: skip
PATHS = [
    "docs", "docs/a.md", "docs/b/a.md", "docs/b/c/a.md", "a.md", "b.md", "c.md", "x/docs/a.md", "x/a.md", "a/b", "a/c/b", "a/c/d/b", "a/b/c",
    "axb", "a/x", "b/x", "d/x", "x", "xy", "xay", "x/y", "].md", "x/docs", "a\nb", "b/a",
]  # fmt: skip


@pytest.fixture(scope="module")
def git_says(tmp_path_factory: pytest.TempPathFactory):
    """Whether git ignores a path by a glob: the truth that ours must equal."""
    folder = tmp_path_factory.mktemp("ignore")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)

    def ask(glob: str, paths: list[str]) -> set[str]:
        (folder / ".git/info").mkdir(exist_ok=True)
        (folder / ".git/info/exclude").write_text(glob + "\n")
        out = subprocess.run(
            ["git", "-C", str(folder), "-c", "core.excludesFile=/dev/null", "check-ignore", "--no-index", "-z", "--stdin"],
            input="\0".join(paths).encode(), capture_output=True,
        )  # fmt: skip
        assert out.returncode in (0, 1), out.stderr
        return {name.decode() for name in out.stdout.split(b"\0") if name}

    return ask


@pytest.mark.parametrize("glob", GLOBS)
def test_matches_what_git_ignores(glob: str, git_says) -> None:
    assert {path for path in PATHS if matches(glob, path)} == git_says(glob, PATHS)


def test_a_question_mark_is_one_character_not_one_byte_as_in_git() -> None:
    assert matches("?.md", "é.md")
    assert matches("[!a].md", "é.md")


PARTS = st.text("ab.", min_size=1, max_size=3).filter(lambda part: set(part) != {"."})


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text("ab*?", min_size=1, max_size=3).filter(lambda p: "**" not in p), min_size=1, max_size=3), st.booleans(), st.booleans(),
       st.lists(st.lists(PARTS, min_size=1, max_size=4).map("/".join), min_size=1, max_size=6, unique=True))  # fmt: skip
def test_equals_a_second_reading_of_the_rules(parts, anchored, folder, paths) -> None:
    glob = "/" * anchored + "/".join(parts) + "/" * folder
    assert {path for path in paths if matches(glob, path)} == _by_hand(glob, paths)


def _by_hand(glob: str, paths: list[str]) -> set[str]:
    """A second, slow reading of the rules: try the pattern on the path and on each folder above it."""
    from fnmatch import fnmatchcase

    body = glob.strip("/")
    want = body.split("/")
    free = "/" not in body and not glob.startswith("/")
    found = set()
    for path in paths:
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            if glob.endswith("/") and end == len(parts):
                continue
            head = parts[:end]
            if free:
                head = head[-1:]
            if len(head) == len(want) and all(fnmatchcase(a, b) for a, b in zip(head, want, strict=True)):
                found.add(path)
    return found


@pytest.mark.parametrize(
    ("glob", "why"),
    [
        ("!docs", "negation"), ("*.{md,rst}", "braces"), ("!(x)", "negation"), ("@(a|b)", "extended"), ("a\\b", "backslash"), ("a**b", "inside the part"),
        ("a/../b", "'..'"), ("./a", "'.'"), ("a//b", "part"), ("", "empty"), ("/", "empty"), (" a", "spaces"), ("[ab", "bracket"), ("[]", "bracket"),
    ],
)  # fmt: skip
def test_refuses_what_would_silently_match_nothing(glob: str, why: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ADAPTER.validate_python(glob)
    [error] = caught.value.errors()
    assert error["type"] == "glob"
    assert why in error["msg"]
    assert error["ctx"]["hint"]
