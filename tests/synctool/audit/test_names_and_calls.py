"""Faults 1, 2, 5 and 8 of the recorded sync, planted in several spellings: names, calls, imports, options."""

from __future__ import annotations

import pytest

from .conftest import Auditor, places

BASE = {
    "upproj/types.py": "class Sample:\n    def update_from_meta_info(self, args, meta):\n        self.meta = meta\n        self.tokens = args.tokens\n",
    "upproj/cli.py": "def add(parser):\n    parser.add_argument('--old-knob')\n    parser.add_argument('--kept')\n",
}
THROUGH = {
    "upproj/types.py": "class Sample:\n    def append_response_tokens(self, args, meta=None):\n        self.meta = meta\n        self.tokens = args.tokens\n",
    "upproj/cli.py": "def add(parser):\n    parser.add_argument('--new-knob')\n    parser.add_argument('--kept')\n",
}
MERGED = {path.replace("up", "down", 1): text for path, text in THROUGH.items()}


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        ("downproj/streaming.py", "def f(sample, args):\n    sample.update_from_meta_info(args, {})\n", 2),
        ("downproj/a.py", "from downproj.types import Sample\nupdate = Sample.update_from_meta_info\n", 2),
        ("tests/test_a.py", "def test(monkeypatch):\n    monkeypatch.setattr('downproj.types.Sample.update_from_meta_info', None)\n", 2),
        ("scripts/run.sh", "python -c 'from x import s; s.update_from_meta_info(1, 2)'\n", 1),
        ("docs/en/a.md", "# A\n\nCall `update_from_meta_info`.\n", 3),
    ],
)  # fmt: skip
def test_a_renamed_method_still_used_is_told_with_its_heir(audit: Auditor, path: str, text: str, line: int) -> None:
    found = audit("removed", {**MERGED, path: text}, base=BASE, through=THROUGH)
    assert places(found) == [f"removed-name {path}:{line}"]
    assert "append_response_tokens" in found[0].mend


def test_a_name_that_downstream_defines_itself_or_upstream_kept_is_silent(audit: Auditor) -> None:
    own = {**MERGED, "downproj/own.py": "def update_from_meta_info(s):\n    return s\n\nupdate_from_meta_info(1)\n"}
    assert audit("removed", own, base=BASE, through=THROUGH) == []
    moved = {**THROUGH, "upproj/other.py": "def update_from_meta_info():\n    pass\n"}
    user = {**MERGED, "downproj/a.py": "import x\nx.update_from_meta_info()\n"}
    assert audit("removed", user, base=BASE, through=moved) == []


def test_a_line_that_upstream_still_has_is_upstreams_own(audit: Auditor) -> None:
    readme = "See `update_from_meta_info`.\n"
    found = audit("removed", {**MERGED, "README.md": readme}, base=BASE, through={**THROUGH, "README.md": readme})
    assert found == []


def test_a_removed_option_and_a_removed_file_still_used(audit: Auditor) -> None:
    base = {**BASE, "tests/test_gone_case.py": "x = 1\n"}
    tree = {**MERGED, "run.sh": "python train.py --old-knob 1 --kept\n", "docs/a.md": "Run tests/test_gone_case.py.\n"}
    found = audit("removed", tree, base=base, through=THROUGH)
    assert places(found) == ["removed-file docs/a.md:1", "removed-option run.sh:1"]
    assert found[1].hits[0].edit is not None
    assert found[1].hits[0].edit.new == "--new-knob"


PARSER = "def parse(text, *, tokenizer, schema=None):\n    return text\n\ndef pair(a, b=1):\n    return a\n"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("from downproj.parsing import parse\nparse('x', schema=None)\n", "needs tokenizer"),
        ("from downproj import parsing\nparsing.parse('x')\n", "needs tokenizer"),
        ("import downproj.parsing as p\np.parse(text='x')\n", "needs tokenizer"),
        ("from downproj.parsing import parse as q\nq('x', tokenizer=1, name=2)\n", "no parameter name"),
        ("from downproj.parsing import pair\npair(1, 2, 3)\n", "takes 2 positional arguments, 3 given"),
        ("def f(a, *, k):\n    return a\n\nf(1)\n", "needs k"),
        ("class C:\n    def m(self, a, b):\n        return a\n    def n(self):\n        return self.m(1)\n", "needs b"),
        ("from vllm.utils import cdiv\ncdiv(1)\n", "needs b"),
        ("from vllm.entrypoints.llm import LLM\nLLM('m', device='cpu')\n", "no parameter device"),
        ("from dataclasses import dataclass\n@dataclass\nclass D:\n    a: int\n    b: int = 1\nD()\n", "needs a"),
    ],
)
def test_a_call_that_does_not_fit_is_told(audit: Auditor, call: str, says: str) -> None:
    found = audit("signatures", {"downproj/__init__.py": "", "downproj/parsing.py": PARSER, "downproj/user.py": call})
    assert len(found) == 1
    assert says in found[0].message


@pytest.mark.parametrize(
    "call",
    [
        "from downproj.parsing import parse\nparse('x', tokenizer=None)\n",
        "from downproj.parsing import parse\nparse(*args, **more)\n",
        "from downproj.parsing import parse\nparse = wrap(parse)\nparse('x')\n",
        "import functools\n@functools.wraps(x)\ndef f(a):\n    return a\nf()\n",
        "import pytest\nfrom downproj.parsing import parse\nwith pytest.raises(TypeError):\n    parse()\n",
        "if x:\n    def f(a):\n        return a\nelse:\n    def f(a, b):\n        return a\nf(1, 2)\n",
        "from dataclasses import dataclass, field\n@dataclass\nclass D:\n    a: list = field(default_factory=list)\nD()\n",
    ],
)
def test_a_call_that_fits_or_cannot_be_told_is_silent(audit: Auditor, call: str) -> None:
    assert (
        audit("signatures", {"downproj/__init__.py": "", "downproj/parsing.py": PARSER, "downproj/user.py": call}) == []
    )


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("from vllm.srt.utils import kill_process_tree", "engine-import"),
        ("import vllm.srt.server_args", "engine-import"),
        ("from vllm.utils import no_such_thing", "engine-import"),
        ("try:\n    from vllm.srt.constants import X\nexcept ImportError:\n    X = 1", "engine-import"),
        ("from downproj.a import gone", "own-import"),
        ("from downproj.gone import a", "own-import"),
        ("from .gone import a", "own-import"),
    ],
)
def test_an_import_of_nothing_is_told(audit: Auditor, line: str, rule: str) -> None:
    tree = {"downproj/__init__.py": "", "downproj/a.py": "here = 1\n", "downproj/b.py": line + "\n"}
    found = audit("imports", tree)
    assert [finding.rule.id for finding in found] == [rule]


@pytest.mark.parametrize(
    "line",
    [
        "from vllm import LLM, engine",
        "from vllm.engine.arg_utils import AsyncEngineArgs",
        "import vllm._C",
        "from downproj.a import here",
        "from . import a",
        "try:\n    from vllm.utils import newer\nexcept ImportError:\n    newer = None",
        "import numpy.gone",
    ],
)
def test_an_import_that_resolves_or_expects_its_failure_is_silent(audit: Auditor, line: str) -> None:
    tree = {"downproj/__init__.py": "", "downproj/a.py": "here = 1\n", "downproj/b.py": line + "\n"}
    assert audit("imports", tree) == []


def test_one_option_twice_on_one_parser_through_two_functions_and_files(audit: Auditor) -> None:
    tree = {
        "downproj/__init__.py": "",
        "downproj/router.py": "def add_router(parser):\n    parser.add_argument('--router-ip')\n",
        "downproj/args.py": (
            "import argparse\nfrom downproj.router import add_router\n\ndef parse():\n    parser = argparse.ArgumentParser()\n"
            "    add_router(parser)\n    group = parser.add_argument_group('g')\n    group.add_argument('--router-ip')\n    return parser\n"
        ),
    }
    assert places(audit("options", tree)) == ["duplicate-option downproj/args.py:8"]


def test_an_option_that_another_packages_registration_owns(audit: Auditor) -> None:
    text = (
        "from other import RouterArgs\n\ndef add(parser):\n    parser.add_argument('--router-timeout')\n"
        "    RouterArgs.add_cli_args(parser, use_router_prefix=True)\n    return parser\n"
    )
    assert places(audit("options", {"downproj/args.py": text})) == ["duplicate-option downproj/args.py:4"]


def test_options_of_two_parsers_or_two_branches_are_silent(audit: Auditor) -> None:
    text = (
        "import argparse\n\ndef one():\n    parser = argparse.ArgumentParser()\n    parser.add_argument('--x')\n\n"
        "def two():\n    parser = argparse.ArgumentParser()\n    parser.add_argument('--x')\n\n"
        "def three(parser, new):\n    if new:\n        parser.add_argument('--y', type=int)\n    else:\n        parser.add_argument('--y')\n"
    )
    assert audit("options", {"a.py": text}) == []
