"""Small real git repositories and a small engine, for planting faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from synctool.audit.baseline import Baseline
from synctool.audit.build import build_audit
from synctool.audit.context import Audit
from synctool.audit.engine.cache import open_index
from synctool.audit.engine.index import EngineIndex
from synctool.audit.engine.source import FolderSource
from synctool.audit.finding import Finding
from synctool.audit.run import run
from synctool.git.commits import Person, write_commit
from synctool.git.repo import Repo
from synctool.git.runner import run_git
from synctool.git.tree import FILE, Entry, Tree
from synctool.policy.loading import parse_policy
from synctool.translate.translator import Translator

POLICY = """
schema = 1
[upstream]
name = "up"
[downstream]
name = "down"
[translate]
unmapped_flags = "family"
[[family]]
from = "upproj"
to = "downproj"
[[family]]
from = "SGLang"
to = "vLLM"
[[term]]
regex = '''\\bpkill -9 sglang\\b'''
to = "pkill -9 -f '[v]llm serve|VLL[M]::'"
[[flag]]
from = "--sglang-mem-fraction-static"
to = "--vllm-gpu-memory-utilization"
[[owner]]
paths = ["/docs/*/blogs/"]
owner = "exclude"
reason = "posts of upstream"
"""

ENGINE = {
    "PKG-INFO": "Name: vllm\nVersion: 9.9.0\n",
    "requirements/common.txt": "numba == 0.65.0\ntransformers >= 4.56.0\nnumpy\n",
    "vllm/__init__.py": "from vllm.entrypoints.llm import LLM\n__version__ = '9.9.0'\n",
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/llm.py": "class LLM:\n    def __init__(self, model, *, dtype='auto'):\n        pass\n",
    "vllm/utils.py": "def get_open_port(host='x'):\n    return 1\n\ndef cdiv(a, b):\n    return -(a // -b)\n",
    "vllm/engine/__init__.py": "",
    "vllm/engine/arg_utils.py": (
        "from dataclasses import dataclass\n@dataclass\nclass EngineArgs:\n    gpu_memory_utilization: float = 0.9\n"
        "    max_model_len: int = 0\n    enforce_eager: bool = False\n    data_parallel_size: int = 1\n"
        "    enable_expert_parallel: bool = False\n    kv_cache_dtype: str = 'auto'\n    compilation_config: dict = None\n"
        "@dataclass\nclass AsyncEngineArgs(EngineArgs):\n    enable_log_requests: bool = False\n"
        "def add(parser):\n    parser.add_argument('--max-num-seqs', '-mns')\n"
    ),
    "vllm/entrypoints/api_server.py": "app = FastAPI()\n@app.post('/generate')\ndef generate(): ...\n",
    "vllm/entrypoints/serve/routes.py": (
        "router = APIRouter()\n@router.post('/inference/v1/generate')\nasync def generate(request: GenerateRequest, raw: Request): ...\n"
        "@router.get('/health')\ndef health(): ...\n@router.post('/v1/chat/completions')\ndef chat(r: ChatRequest): ...\n"
        "def attach(app):\n    app.add_api_route('/abort_requests', abort)\n@router.get('/v1/responses/{response_id}')\ndef get(response_id: str): ...\n"
    ),
    "vllm/entrypoints/serve/protocol.py": (
        "class Base(BaseModel):\n    model: str | None = None\nclass GenerateRequest(Base):\n    token_ids: list[int]\n"
        "    sampling_params: SamplingParams\n    stream: bool = Field(default=False, alias='do_stream')\n"
        "class ChatRequest(Base):\n    messages: list\n"
    ),
    "vllm/v1/core.py": "def step(self):\n    self.begin()\n    self.resume()\n    return self.end()\n",
}  # fmt: skip

Texts = dict[str, str]
Auditor = Callable[..., list[Finding]]


@pytest.fixture(scope="session")
def engine_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small engine's unpacked source."""
    folder = tmp_path_factory.mktemp("engine") / "vllm-9.9.0"
    for path, text in ENGINE.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.fixture
def engine(engine_folder: Path, tmp_path: Path) -> EngineIndex:
    """The index of that engine."""
    return open_index(FolderSource(engine_folder), "vllm", folder=tmp_path / "engines")


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repo]:
    """An empty bare repository."""
    folder = tmp_path / "repo.git"
    folder.mkdir()
    run_git(folder, "init", "--quiet", "--bare", ".")
    opened = Repo.open(folder)
    yield opened
    opened.close()


def write_tree(repo: Repo, texts: Texts) -> str:
    """A tree of text files."""
    tree = Tree(repo.objects)
    for path, text in texts.items():
        tree.set(path, Entry(FILE, repo.objects.write_blob(text.encode())))
    return tree.write()


def commit(repo: Repo, texts: Texts, *parents: str, message: str = "x", name: str = "Ann <ann@x.org>") -> str:
    """A commit of text files."""
    who = Person(name.partition(" <")[0], name.partition("<")[2].rstrip(">"), 1)
    return write_commit(
        repo.objects, tree=write_tree(repo, texts), parents=parents, author=who, committer=who, message=message
    )


@pytest.fixture
def build(repo: Repo, engine: EngineIndex) -> Callable[..., Audit]:
    """``build(tree, before=..., base=..., through=...)``: an audit of texts. ``base`` and ``through`` are upstream's, untranslated."""

    def make(
        tree: Texts,
        *,
        before: Texts | None = None,
        base: Texts | None = None,
        through: Texts | None = None,
        image: Path | None = None,
        with_engine: bool = True,
    ) -> Audit:
        policy = parse_policy(POLICY)
        return build_audit(
            repo,
            policy,
            Translator.from_policy(policy),
            tree=write_tree(repo, tree),
            since=write_tree(repo, before) if before is not None else None,
            base=write_tree(repo, base) if base is not None else None,
            through=write_tree(repo, through) if through is not None else None,
            engine=engine if with_engine else None,
            image=image,
        )

    return make


@pytest.fixture
def audit(build: Callable[..., Audit]) -> Auditor:
    """``audit(check, tree, ...)``: the findings of one check."""

    def find(check: str, tree: Texts, *, baseline: Baseline | None = None, **others: object) -> list[Finding]:
        return list(run(build(tree, **others), baseline=baseline, only=[check]).findings)

    return find


def places(findings: list[Finding]) -> list[str]:
    """``rule path:line`` of every hit."""
    return [f"{hit.rule.id} {hit.path}:{hit.line}" for finding in findings for hit in finding.hits]
