"""Faults 3, 4, 11, 12 and 13, and what a sync leaves behind: CI, shell, lint, documentation, requirements, paths, comments, markers, sign-off."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from synctool.audit.build import build_audit
from synctool.audit.checks.requirements import compatible
from synctool.audit.fix import cure, edits
from synctool.audit.run import run
from synctool.audit.shelltext import commands
from synctool.errors import ConfigError
from synctool.git.repo import Repo
from synctool.policy.loading import parse_policy
from synctool.translate.translator import Translator

from .conftest import POLICY, Auditor, commit, places

PIPELINE = "steps:\n  - label: unit\n    command: |\n      set -e\n      python tests/test_a.py\n      python -m pytest tests/utils\n"
TESTS = {"tests/test_a.py": "x = 1\n", "tests/utils/test_u.py": "x = 1\n"}


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        (".buildkite/pipeline.yml", PIPELINE + "      python tests/test_gone.py\n", 7),
        (".buildkite/suites.py", 'SUITES = {\n    "short": [("test_gone.py", 4)],\n}\n', 2),
        (".github/workflows/ci.yml", "jobs:\n  a:\n    steps:\n      - run: bash scripts/gone.sh --x\n", 4),
        (
            ".github/workflows/ci.yml",
            "jobs:\n  a:\n    steps:\n      - run: pytest tests/test_a.py tests/test_gone.py\n",
            4,
        ),
    ],
)
def test_ci_names_a_file_that_is_gone(audit: Auditor, path: str, text: str, line: int) -> None:
    assert places(audit("ci", {**TESTS, path: text})) == [f"ci-missing-file {path}:{line}"]


def test_ci_that_names_what_is_there(audit: Auditor) -> None:
    others = {
        ".buildkite/suites.py": 'SUITES = ["test_a.py"]\n"""Emitted by suites.py at upload."""\nRUN = f"tests/{name}.py"\n# test_old.py is gone\n',
        ".github/workflows/x.yml": "on: push\njobs:\n  a:\n    steps:\n      - run: curl https://x.org/get/install.sh\n",
    }
    assert audit("ci", {**TESTS, ".buildkite/pipeline.yml": PIPELINE, **others}) == []


def test_a_new_test_that_no_step_runs(audit: Auditor) -> None:
    tree = {**TESTS, ".buildkite/pipeline.yml": PIPELINE, "tests/test_new.py": "", "tests/utils/test_new_too.py": ""}
    assert places(audit("ci", tree, before=TESTS)) == ["ci-unlisted-test tests/test_new.py:0"]


def test_a_step_with_a_queue_raises_the_limit_of_open_files(audit: Auditor) -> None:
    tests = {"tests/test_a.py": "from straw import Queue\n", "tests/utils/test_u.py": "x = 1\n"}
    assert places(audit("ci", {**tests, ".buildkite/pipeline.yml": PIPELINE})) == [
        "ci-fd-limit .buildkite/pipeline.yml:5"
    ]


STEPS = "steps:\n  - label: unit\n    commands:\n      - {}\n      - python tests/test_a.py\n"
RAISES = (
    "ulimit -Sn $(ulimit -Hn)", 'ulimit -Sn "$$(ulimit -Hn)"', "ulimit -S -n hard", "ulimit -n 65536", "ulimit -c 0 -n 4096", "set -e; ulimit -n unlimited",
    "prlimit --pid $$$$ --nofile=65536", "prlimit -n65536:65536 -p 1", "bash -c 'ulimit -n 8192'",
    "python -c 'import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (9999, 9999))'",
)  # fmt: skip
KEEPS = (
    "ulimit -n", "ulimit -S -n", "ulimit -H -n 65536", "ulimit -n 1024", "ulimit -u 65536", "echo ulimit -n 9999", "# ulimit -n 9999", "prlimit --nproc=65536",
)  # fmt: skip


@pytest.mark.parametrize("command", RAISES)
def test_every_spelling_that_raises_the_limit_is_known(audit: Auditor, command: str) -> None:
    tests = {"tests/test_a.py": "from straw import Queue\n"}
    block = PIPELINE.replace("set -e\n", f"set -e\n      {command}\n").replace(
        "      python -m pytest tests/utils\n", ""
    )
    assert audit("ci", {**tests, ".buildkite/pipeline.yml": block}) == []
    assert audit("ci", {**tests, ".buildkite/pipeline.yml": STEPS.format(json.dumps(command))}) == []


@pytest.mark.parametrize("command", KEEPS)
def test_what_leaves_the_limit_as_it_is(audit: Auditor, command: str) -> None:
    pipeline = STEPS.format(json.dumps(command))
    found = audit("ci", {"tests/test_a.py": "from straw import Queue\n", ".buildkite/pipeline.yml": pipeline})
    assert places(found) == ["ci-fd-limit .buildkite/pipeline.yml:5"]


def test_the_limit_holds_for_the_step_that_raises_it_from_there_on(audit: Auditor) -> None:
    tests = {"tests/test_a.py": "from straw import Queue\n", "run.sh": "ulimit -n 65536\npython -m straw_queue.serve\n"}
    late = "steps:\n  - commands:\n      - python tests/test_a.py\n      - ulimit -S -n hard\n"
    other = "  - commands:\n      - python tests/test_a.py\n      - bash run.sh\n"
    step = "  - commands:\n      - docker run --ulimit nofile=65536:65536 img python tests/test_a.py\n"
    found = audit("ci", {**tests, ".buildkite/pipeline.yml": late + other + step})
    assert places(found) == ["ci-fd-limit .buildkite/pipeline.yml:3", "ci-fd-limit .buildkite/pipeline.yml:6"]


NESTED = "steps:\n  - command: |\n      docker run img bash -c '\n        set -e\n        {}\n      '\n"


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        ("a.sh", "pip install straw-queue>=0.1.2\n", 1),
        ("a.sh", "set -e\nuv pip install -q numpy<2 pytest\n", 2),
        ("Dockerfile", "FROM x\nRUN apt update && \\\n    pip install modelopt[torch]>=0.37.0 --no-deps\n", 3),
        (".buildkite/p.yml", NESTED.format("pip install -q straw-queue>=0.1.2"), 5),
        (
            ".buildkite/p.yml",
            NESTED.format("pip install -q 'straw-queue>=0.1.2'"),
            5,
        ),  # the inner quotes end the outer ones
        (".github/workflows/a.yml", "jobs:\n  a:\n    steps:\n      - run: pip3 install a==1 b>=2\n", 4),
    ],
)
def test_a_requirement_that_the_shell_takes_for_a_redirection(audit: Auditor, path: str, text: str, line: int) -> None:
    found = audit("shell", {path: text})
    assert places(found) == [f"shell-quoting {path}:{line}"]


def test_the_cure_of_a_redirection_is_what_bash_then_reads(audit: Auditor) -> None:
    text = "pip install a modelopt[torch]>=0.37.0 --no-deps\n"
    data, done = cure(text.encode(), edits(audit("shell", {"a.sh": text}))["a.sh"])
    assert done == 1
    assert audit("shell", {"a.sh": data.decode()}) == []
    told = subprocess.run(
        ["bash", "-c", f"pip() {{ printf '%s\\n' \"$@\"; }}; {data.decode()}"], capture_output=True, text=True
    )
    assert told.stdout.splitlines() == ["install", "a", "modelopt[torch]>=0.37.0", "--no-deps"]


@pytest.mark.parametrize(
    "text",
    [
        "pip install 'a>=1' \"b<2\" c==3 > log.txt 2>&1\n",
        "cat <<EOF > out\npip install a>=1\nEOF\necho done\n",
        "(( a>=1 && b<2 )) && echo y; if (( a>=1 )); then echo x; fi\n[[ $a > 1 ]]\n",
        "# pip install a>=1\n",
    ],
)
def test_redirections_that_are_meant(audit: Auditor, text: str) -> None:
    assert audit("shell", {"a.sh": text}) == []


def test_broken_quoting_is_told_where_bash_says(audit: Auditor) -> None:
    assert places(audit("shell", {"a.sh": "echo 'a\nif true; then\n"}))[0].startswith("shell-syntax a.sh:")
    nested = NESTED.format("if [ -f x ]; then echo y")
    assert [f.rule.id for f in audit("shell", {".buildkite/p.yml": nested})] == ["shell-syntax"]
    assert audit("shell", {".buildkite/p.yml": NESTED.format('echo "a $$HOME (b)"')}) == []


@given(
    st.lists(st.text(st.characters(codec="ascii", exclude_characters="\0\n\r"), max_size=12), min_size=1, max_size=6)
)
def test_words_survive_quoting_as_in_bash(words: list[str]) -> None:
    import shlex

    (command,) = commands("cmd " + " ".join(map(shlex.quote, words)))
    assert command.texts() == ["cmd", *words]


def test_lint_of_what_the_sync_touched(audit: Auditor) -> None:
    old = "import json\n\n\ndef f():\n    unused = 1\n    return 2\n"
    new = "import os\n\n\ndef g(x):\n    left = 1\n    return RouterArgs(x)\n"
    tree = {"old.py": old, "new.py": new, "broken.py": "def f(:\n", "fine.py": "def f():\n    return 1\n"}
    found = audit("lint", tree, before={"old.py": old})
    told = {hit.path: hit.message.split(":")[0] for finding in found for hit in finding.hits}
    assert set(told) == {"new.py", "broken.py"}
    codes = {hit.message.split(":")[0] for finding in found for hit in finding.hits if hit.path == "new.py"}
    assert codes == {"F401", "F841", "F821"}


EN = "# Title\n\n## One\n\ntext\n\n## INT4 checkpoints\n\nA long enough line about quantised checkpoints.\n\n## Three\n\nend\n"
ZH = "# 标题\n\n## 一\n\n文\n\n## INT4 检查点\n\n关于量化检查点的一个足够长的句子，一个足够长的句子。\n\n## 三\n\n完\n"


def _without(text: str, title: str) -> str:
    parts = text.split("\n## ")
    return "\n## ".join(part for part in parts if not part.startswith(title))


def test_a_section_that_one_language_lacks(audit: Auditor) -> None:
    found = audit("parity", {"docs/en/a.md": EN, "docs/zh/a.md": _without(ZH, "INT4")})
    assert len(found) == 1
    assert "section" in found[0].message
    assert "docs/zh/a.md" in found[0].message
    assert audit("parity", {"docs/en/a.md": EN, "docs/zh/a.md": ZH}) == []
    code = EN.replace("text\n", "```bash\n# no heading\n## none\n```\n")
    assert audit("parity", {"docs/en/a.md": code, "docs/zh/a.md": ZH}) == []


def test_a_page_without_counterpart_unless_upstream_has_none_either(audit: Auditor) -> None:
    tree = {"docs/en/a.md": EN, "docs/zh/a.md": ZH, "docs/zh/b.md": ZH}
    assert places(audit("parity", tree)) == ["docs-parity docs/zh/b.md:0"]
    assert audit("parity", tree, base=tree, through=tree) == []
    assert len(audit("parity", tree, base=tree, through={**tree, "docs/en/b.md": EN})) == 1


def test_a_section_lost_in_both_languages_long_ago(audit: Auditor) -> None:
    upstream = {"docs/en/a.md": EN, "docs/zh/a.md": ZH}
    tree = {"docs/en/a.md": _without(EN, "INT4"), "docs/zh/a.md": _without(ZH, "INT4")}
    found = audit("parity", tree, before=tree, base=upstream, through=upstream)
    assert places(found) == ["docs-lost-section docs/en/a.md:3", "docs-lost-section docs/zh/a.md:3"]
    renamed = {"docs/en/a.md": EN.replace("INT4 checkpoints", "Quantisation"), "docs/zh/a.md": ZH}
    assert audit("parity", renamed, base=upstream, through=upstream) == []


def test_requirements_that_no_version_meets(audit: Auditor, tmp_path: Path) -> None:
    docker = 'FROM x\nRUN pip install "numba<0.60" "numpy<2" -i https://x/simple\n'
    found = audit(
        "requirements", {"docker/Dockerfile": docker, "requirements.txt": "numpy>=2.1  # new\ntransformers\n"}
    )
    assert places(found) == ["requirement-conflict docker/Dockerfile:2"] * 2
    assert [finding.subject for finding in found] == ["numba", "numpy"]
    assert "vllm 9.9.0 requirements/common.txt:1" in found[0].message


def test_a_requirement_that_the_image_contradicts(audit: Auditor, tmp_path: Path) -> None:
    report = tmp_path / "image.json"
    cv = {
        "metadata": {
            "name": "opencv-python-headless",
            "version": "4.13",
            "requires_dist": ['numpy>=2; python_version >= "3.9"'],
        }
    }
    report.write_text(json.dumps({"installed": [cv, {"metadata": {"name": "six", "version": "1"}}]}))
    docker = {"docker/Dockerfile": 'FROM x\nRUN pip install "numpy<2"\n'}
    found = audit("requirements", docker, image=report)
    assert places(found) == ["requirement-image docker/Dockerfile:2"]
    assert "opencv-python-headless 4.13" in found[0].message
    pinned = {"docker/Dockerfile": 'FROM x\nRUN pip install "numpy<2" "opencv-python-headless<4.12"\n'}
    assert audit("requirements", pinned, image=report) == []
    report.write_text("[]")
    with pytest.raises(ConfigError, match="not a report of pip"):
        audit("requirements", docker, image=report)


_VERSIONS = [Version(f"{a}.{b}") for a in range(4) for b in range(4)]
_SPECIFIER = st.tuples(st.sampled_from([">=", "<", "<=", ">", "==", "!="]), st.integers(0, 3), st.integers(0, 3)).map(
    lambda t: f"{t[0]}{t[1]}.{t[2]}"
)


@given(st.lists(_SPECIFIER, min_size=1, max_size=3), st.lists(_SPECIFIER, min_size=1, max_size=3))
def test_compatible_never_denies_what_some_version_meets(left: list[str], right: list[str]) -> None:
    one, two = SpecifierSet(",".join(left)), SpecifierSet(",".join(right))
    if any(one.contains(version) and two.contains(version) for version in _VERSIONS):
        assert compatible(one, two)


def test_markers_and_leftovers_but_not_underlines(audit: Auditor) -> None:
    text = "a\n<<<<<<< ours\nb\n=======\nc\n>>>>>>> theirs\n"
    tree = {"a.py": text, "b.rst": "Heading\n=======\n", "c.py.rej": "x\n", "d.md": "  <<<<<<< shown in prose\n"}
    assert places(audit("markers", tree)) == [
        "conflict-marker a.py:2",
        "conflict-marker a.py:6",
        "merge-leftover c.py.rej:0",
    ]


def test_every_path_of_the_range_is_accounted_for(audit: Auditor) -> None:
    base = {"upproj/a.py": "1\n", "upproj/gone.py": "x\n", "docs/en/blogs/p.md": "1\n", "old/b.py": "1\n"}
    through = {"upproj/a.py": "2\n", "upproj/new.py": "n\n", "docs/en/blogs/p.md": "2\n", "old/b.py": "2\n"}
    before = {"downproj/a.py": "1\n", "downproj/gone.py": "x\n"}
    found = audit("paths", {"downproj/gone.py": "x\n", "downproj/z.py": ""}, before=before, base=base, through=through)
    assert places(found) == [
        "unaccounted-path downproj/a.py:0",
        "unaccounted-path downproj/new.py:0",
        "undeleted-path downproj/gone.py:0",
    ]
    assert (
        audit("paths", {"downproj/a.py": "2\n", "downproj/new.py": "n\n"}, before=before, base=base, through=through)
        == []
    )


def test_words_of_upstream_in_lines_that_the_sync_brought(audit: Auditor) -> None:
    through = {"downproj/a.py": "# SGLang does x here\nimport sglang\n", "upproj/b.py": "b = 1\n"}
    tree = {"downproj/a.py": "import sglang\nold = 'upproj'\n", "downproj/b.py": "# unlike SGLang, we do y\nb = 1\n"}
    before = {"downproj/a.py": "old = 'upproj'\n"}
    found = audit("vocabulary", tree, before=before, base={"x": ""}, through=through)
    assert places(found) == ["leftover-word downproj/a.py:1"]
    data, _ = cure(tree["downproj/a.py"].encode(), edits(found)["downproj/a.py"])
    assert data.decode().startswith("import vllm\n")


def test_comments_and_docstrings_that_were_lost(audit: Auditor) -> None:
    code = "def step(state, batch):\n    loss = state.forward(batch)\n    return loss.backward()\n"
    commented = (
        'def step(state, batch):\n    """Advance the model by one batch of samples."""\n    # The order matters: sglang frees its cache first.\n'
        "    loss = state.forward(batch)\n    return loss.backward()\n"
    )
    found = audit("comments", {"a.py": code}, before={}, base={"a.py": code}, through={"a.py": commented})
    assert places(found) == ["lost-comment a.py:1", "lost-comment a.py:2"]
    assert "vllm frees its cache" in found[0].message
    reworded = commented.replace("sglang frees its cache first", "the engine frees its cache first").replace(
        "Advance", "Move"
    )
    assert audit("comments", {"a.py": reworded}, before={}, base={"a.py": code}, through={"a.py": commented}) == []


def test_sign_off(repo: Repo) -> None:
    first = commit(repo, {"a": "1"})
    good = commit(repo, {"a": "2"}, first, message="A\n\nSigned-off-by: Ann <ANN@x.org>\n")
    bare = commit(repo, {"a": "3"}, good, message="B\n")
    other = commit(repo, {"a": "4"}, bare, message="C\n\nSigned-off-by: Bob <bob@x.org>\n")
    policy = parse_policy(POLICY)
    made = build_audit(repo, policy, Translator.from_policy(policy), tree=other, since=first)
    assert {finding.subject for finding in run(made, only=["dco"]).findings} == {bare, other}
