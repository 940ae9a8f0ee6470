"""Faults 6, 7, 9 and 10: flags, overrides, routes, payloads, kill patterns, engine patches; and the index itself."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from synctool.audit.build import build_audit
from synctool.audit.context import Audit
from synctool.audit.engine.cache import keep_index, open_index
from synctool.audit.engine.source import FolderSource
from synctool.audit.fix import cure, edits
from synctool.audit.run import run
from synctool.errors import UsageError
from synctool.git.repo import Repo
from synctool.policy.loading import parse_policy
from synctool.translate.translator import Translator

from .conftest import POLICY, Auditor, commit, places


@pytest.mark.parametrize(
    ("flag", "near"),
    [
        ("--vllm-mem-fraction-static 0.7", "--vllm-gpu-memory-utilization"),
        ("--vllm-enable-expert-paralel", "--vllm-enable-expert-parallel"),
        ("--vllm-ep-size 8", None),
        ("--vllm-max-modle-len=4096", "--vllm-max-model-len"),
        ("--no-vllm-enforce-eagr", "--vllm-enforce-eager"),
    ],
)
@pytest.mark.parametrize("path", ["scripts/run.sh", "downproj/launch.py", "docs/en/a.md", "conf/a.yaml"])
def test_a_flag_that_no_argument_accepts(audit: Auditor, path: str, flag: str, near: str | None) -> None:
    text = f'ARGS = "{flag}"\n' if path.endswith(".py") else f"key: |\n   {flag} \\\n"
    found = audit("flags", {path: text})
    assert [finding.rule.id for finding in found] == ["engine-flag"]
    assert (near or "nothing near") in found[0].message


def test_flags_that_are_accepted(audit: Auditor) -> None:
    good = "--vllm-max-model-len 1 --vllm-enforce-eager --no-vllm-enforce-eager --vllm-max-num-seqs 2 --vllm-compilation-config.mode 3"
    family = "see --vllm-* and --vllm-<name>, `--vllm-{x}`; --vllm-router-ip\n"
    own = "def add(parser):\n    parser.add_argument('--vllm-router-ip')\n"
    assert audit("flags", {"run.sh": good + "\n", "a.md": family, "downproj/args.py": own}) == []


def test_options_in_a_table_of_the_trees_own(audit: Auditor) -> None:
    table = "T = (text('--vllm-router-ip', None), number('--vllm-wait', 3), number('--other', 1))\n"
    user = {"run.sh": "x --vllm-router-ip a --vllm-wait 4 --vllm-typo 1\n"}
    assert places(audit("flags", {"downproj/table.py": table, **user})) == ["engine-flag run.sh:1"]


def test_overrides_of_engine_groups_only(audit: Auditor) -> None:
    text = (
        "server_groups:\n  - worker_type: prefill\n    num_gpus: 4\n    overrides:\n      mem_fraction_static: 0.8\n"
        "      max_model_len: 9\n      # note: x\n      chunked_prefill: 2\n\nroles:\n  - role: actor\n    overrides:\n      lr: 1\n"
    )
    found = audit("flags", {"conf.yaml": text})
    assert places(found) == ["engine-override conf.yaml:5", "engine-override conf.yaml:8"]
    data, done = cure(text.encode(), edits(found)["conf.yaml"])
    assert done == 1
    assert b"      gpu_memory_utilization: 0.8\n" in data


@pytest.mark.parametrize(
    "text",
    [
        "async def f(args, body):\n    return await post(f'http://{args.ip}:{args.port}/generate', body)\n",
        "def f(base_url):\n    return post(base_url + '/generate', {})\n",
        "def f(base_url):\n    return post(f'{base_url}/generate', {})\n",
        "def f(args):\n    return get_model_url(args, 'ref', '/generate')\n",
        "def f(args, endpoint='/generate'):\n    return endpoint\n",
        "import requests\nrequests.post('http://localhost:8000/generate')\n",
    ],
)
def test_a_request_to_a_path_that_is_not_served(audit: Auditor, text: str) -> None:
    server = "def make(app):\n    app.router.add_post('/generate', handler)\n"
    found = audit("routes", {"downproj/rollout/a.py": text, "downproj/server/s.py": server})
    assert [finding.subject for finding in found] == ["/generate"]
    assert "/inference/v1/generate" in found[0].mend


def test_documents_scripts_and_stand_ins_of_the_engine(audit: Auditor) -> None:
    fake = "class FakeVLLMServer:\n    def start(self, app):\n        app.router.add_post('/generate', self.handle)\n"
    tree = {
        "docs/a.md": "curl http://localhost:30000/generate -d x\n",
        "run.sh": "curl http://${IP}:8000/abort_request\n",
        "tests/fakes.py": fake,
    }
    found = audit("routes", tree)
    assert places(found) == ["engine-route docs/a.md:1", "engine-route tests/fakes.py:3", "engine-route run.sh:1"]


def test_requests_that_someone_answers_and_paths_that_are_files(audit: Auditor) -> None:
    text = (
        "def f(base_url, folder, d):\n    post(f'{base_url}/inference/v1/generate')\n    get(f'{base_url}/v1/responses/{d}')\n"
        "    open(f'{folder}/generate')\n    post(f'{base_url}/chat/completions')\n    d.get('/generate', None)\n"
        "    post('http://localhost/buffer/write')\n    get(f'{base_url}/health')\n"
    )
    own = "@app.post('/buffer/write')\ndef write(): ...\n"
    assert audit("routes", {"downproj/a.py": text, "downproj/plugin/buffer.py": own}) == []


@pytest.mark.parametrize(
    "text",
    [
        "def f(url):\n    payload = {'token_ids': [1], 'return_logprob': True}\n    post(f'{url}/inference/v1/generate', payload)\n",
        "def f(url):\n    payload = {'token_ids': [1]}\n    payload['return_logprob'] = 1\n    post(f'{url}/inference/v1/generate', json=payload)\n",
        "def f(base_url):\n    url = f'{base_url}/inference/v1/generate'\n    post(url, {'model': 'm', 'return_logprob': True})\n",
    ],
)
def test_a_payload_key_that_the_model_lacks(audit: Auditor, text: str) -> None:
    found = audit("routes", {"downproj/a.py": text})
    assert [(finding.rule.id, finding.subject) for finding in found] == [
        ("engine-payload", "/inference/v1/generate return_logprob")
    ]


def test_inherited_fields_and_aliases_are_fields(audit: Auditor) -> None:
    text = "def f(url):\n    post(f'{url}/inference/v1/generate', {'model': 1, 'do_stream': 1, 'sampling_params': {'any': 1}})\n"
    assert audit("routes", {"a.py": text}) == []


RIGHT = "pkill -9 -f '[v]llm serve|VLL[M]::'"


@pytest.mark.parametrize(
    "kill", ["pkill -9 vllm", "pkill -f vllm", "pkill -9 -f 'vllm serve'", "killall vllm", "pkill -9 sglang"]
)
def test_another_kill_pattern_than_the_policys(audit: Auditor, kill: str) -> None:
    tree = {
        "a.sh": f"{RIGHT}\n",
        "b.sh": f"sleep 3\n{kill}; pkill -9 ray\n",
        "c.py": f'run("{RIGHT}; pkill -9 python")\n',
    }
    found = audit("kills", tree)
    assert places(found) == ["kill-pattern b.sh:2"]
    data, _ = cure(tree["b.sh"].encode(), edits(found)["b.sh"])
    assert data.decode() == f"sleep 3\n{RIGHT}; pkill -9 ray\n"
    assert audit("kills", {**tree, "b.sh": data.decode()}) == []


PATCH = (
    "diff --git a/vllm/v1/core.py b/vllm/v1/core.py\n--- a/vllm/v1/core.py\n+++ b/vllm/v1/core.py\n@@ -1,4 +1,5 @@\n def step(self):\n"
    "     self.begin()\n-    self.resume()\n+    if not self.asleep:\n+        self.resume()\n     return self.end()\n"
)


def test_a_dropped_hunk_that_has_not_landed(audit: Auditor, engine_folder: Path) -> None:
    other = PATCH.replace("if not self.asleep", "if not self.other")
    assert places(audit("patches", {"a.patch": other}, before={"a.patch": PATCH})) == []  # half of it is there still
    gone = audit("patches", {"x": ""}, before={"a.patch": PATCH})
    assert places(gone) == ["dropped-hunk a.patch:0"]
    assert "if not self.asleep" in gone[0].message
    reworded = PATCH.replace("@@ -1,4 +1,5 @@", "@@ -1,4 +1,6 @@").replace(
        "+    if not", "+    # asleep: nothing to do\n+    if not"
    )
    assert audit("patches", {"a.patch": reworded}, before={"a.patch": PATCH}) == []


def test_a_hunk_that_the_pin_has_may_go(audit: Auditor) -> None:
    landed = PATCH.replace(
        "-    self.resume()\n+    if not self.asleep:\n+        self.resume()\n", "+    self.resume()\n"
    ).replace("-1,4 +1,5", "-1,3 +1,4")
    assert audit("patches", {"x": ""}, before={"a.patch": landed}) == []


def test_a_patch_that_fits_nowhere(audit: Auditor) -> None:
    assert audit("patches", {"a.patch": PATCH}) == []
    stale = PATCH.replace("     self.begin()", "     self.start()")
    assert places(audit("patches", {"a.patch": stale})) == ["patch-unfit a.patch:4"]
    assert places(audit("patches", {"a.patch": PATCH.replace("core.py", "gone.py")})) == ["patch-unfit a.patch:1"]


def test_a_patch_that_is_in_the_source_already_need_not_fit(build: Callable[..., Audit]) -> None:
    made = build({"a.patch": PATCH.replace("     self.begin()", "     self.start()")})
    assert made.engine is not None
    assert len(run(made, only=["patches"]).findings) == 1
    made.engine.patched_with = frozenset({hashlib.sha256(made.tree.data("a.patch")).hexdigest()})
    assert run(made, only=["patches"]).findings == ()


def test_a_hunk_dropped_in_an_earlier_commit_is_found_in_history(repo: Repo, engine: object) -> None:
    header = PATCH.replace("core.py", "core2.py")
    first = commit(repo, {"p/a.patch": PATCH + header})
    second = commit(repo, {"p/a.patch": header}, first)
    policy = parse_policy(POLICY)
    made = build_audit(repo, policy, Translator.from_policy(policy), tree=second, since=second, engine=engine)  # type: ignore[arg-type]
    dropped = [f for f in run(made, only=["patches"]).findings if f.rule.id == "dropped-hunk"]
    assert len(dropped) == 1
    assert second[:9] in dropped[0].message


def test_the_index_comes_back_from_the_cache_and_grows(engine_folder: Path, tmp_path: Path) -> None:
    first = open_index(FolderSource(engine_folder), "vllm", folder=tmp_path)
    assert first.module("vllm.utils") is not None
    keep_index(first, tmp_path)
    again = open_index(FolderSource(engine_folder), "vllm", folder=tmp_path)
    assert not again.grown
    assert (again.label, again.arguments, again.routes, again.models) == (
        "vllm 9.9.0",
        first.arguments,
        first.routes,
        first.models,
    )
    assert again.names == first.names
    assert "/generate" not in again.served()  # a program of its own
    (file,) = tmp_path.glob("*.json")
    file.write_text("{")
    assert open_index(FolderSource(engine_folder), "vllm", folder=tmp_path).arguments == first.arguments


def test_a_source_without_the_engine_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no package 'vllm'"):
        open_index(FolderSource(tmp_path), "vllm")
    with pytest.raises(UsageError, match="no such folder"):
        FolderSource(tmp_path / "gone")


@pytest.mark.engine
def test_the_index_of_the_installed_engine_knows_what_its_parser_knows(tmp_path: Path) -> None:
    """Truth: the parser that vLLM itself builds, and the dataclass fields as Python sees them."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    folder = tmp_path / "source"
    folder.mkdir()
    shutil.copytree(
        Path(spec.origin).parent,
        folder / "vllm",
        ignore=lambda _, names: [n for n in names if "." in n and not n.endswith(".py")],
    )
    index = open_index(FolderSource(folder), "vllm", folder=tmp_path / "cache")
    code = (
        "import dataclasses, json\nfrom vllm.engine.arg_utils import AsyncEngineArgs\nfrom vllm.entrypoints.launchers.cli_args import FrontendArgs\n"
        "from vllm.utils.argparse_utils import FlexibleArgumentParser\np = FlexibleArgumentParser(add_help=False)\n"
        "AsyncEngineArgs.add_cli_args(p); FrontendArgs.add_cli_args(p)\n"
        "fields = [f.name for c in (AsyncEngineArgs, FrontendArgs) for f in dataclasses.fields(c)]\n"
        "print('\\n' + json.dumps([[o for a in p._actions for o in a.option_strings], fields]))\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=280
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    options, fields = json.loads(finished.stdout.splitlines()[-1])
    assert len(options) > 200
    assert set(fields) <= index.fields
    known = {option.removeprefix("no-") for option in index.arguments} | index.arguments
    long = {
        option.removeprefix("--").removeprefix("no-").replace("_", "-") for option in options if option.startswith("--")
    }
    assert {option for option in long if option.replace("_", "-") not in known} == set()
    assert {"/inference/v1/generate", "/v1/chat/completions", "/health"} <= index.served()
    assert {"token_ids", "sampling_params"} <= (index.fields_of("GenerateRequest") or set())
