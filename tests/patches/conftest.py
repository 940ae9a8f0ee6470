"""Engines under test: the installed vLLM as it is (``--stock``) or with our patch stack, as servers or for scripts.

The patched one is a folder of links to the installed files in which the patched ones are written by ``synctool.patches``; the environment is
not touched. With ``--stock`` every test here is expected to fail, and one that passes is an error: it does not test its patch.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from synctool.git.objects import ObjectStore
from synctool.git.tree import FILE, Entry, Tree
from synctool.patches.stack import apply_stack, find_stack, load_stack

ROOT = Path(__file__).parents[2]
INSIDE = Path(__file__).parent / "inside"
START_SECONDS = 240


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stock", action="store_true", help="run the patches' regressions on the vLLM without patches")


def is_stock(config: pytest.Config) -> bool:
    # The option does not exist when pytest was started above this folder.
    return bool(config.getoption("--stock", default=False))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tests of a server stand together, so that each starts once."""
    places = [place for place, item in enumerate(items) if Path(__file__).parent in item.path.parents]
    servers = {place: getattr(items[place], "fixturenames", ()) for place in places}
    order = sorted(places, key=lambda place: ("masks" in servers[place], "dense" not in servers[place]))
    for place, item in zip(places, [items[place] for place in order], strict=True):
        items[place] = item
        if is_stock(config):
            item.add_marker(pytest.mark.xfail(strict=True, reason="vLLM without the patch"))


# ---- the patched files ---------------------------------------------------------------------------------------------------------------


def installed_package() -> Path:
    found = importlib.util.find_spec("vllm")
    assert found is not None, "vLLM is not installed; run make .venv/.cpu"
    assert found.origin is not None
    return Path(found.origin).parent


def write_patched(site: Path, scratch: Path) -> None:
    """``site/vllm``: the installed package with the stack applied."""
    package = installed_package()
    stack = load_stack(find_stack(ROOT))
    shutil.copytree(package, site / "vllm", copy_function=os.symlink)
    subprocess.run(["git", "init", "-q", "--bare", str(scratch)], check=True)
    with ObjectStore(scratch, scratch / "objects") as store:
        tree = Tree(store)
        for path in {change.path for patch in stack.patches for change in patch.text.files}:
            source = package.parent / path
            if source.exists():
                tree.set(path, Entry(FILE, store.write_blob(source.read_bytes())))
        before = dict(tree.items())
        for step in apply_stack(tree, stack.patches, stack.pin.allowed):
            tree = Tree(store, step.after)
        for path, entry in tree.items():
            if before.get(path) != entry:
                target = site / path
                target.unlink(missing_ok=True)
                target.write_bytes(store.read(entry.oid))


@pytest.fixture(scope="session")
def python_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What goes before the installed packages in the engine's search path."""
    if is_stock(request.config):
        return [str(INSIDE)]
    site = tmp_path_factory.mktemp("site")
    write_patched(site, tmp_path_factory.mktemp("objects"))
    return [str(INSIDE), str(site)]


@pytest.fixture(scope="session")
def triton_path() -> list[str]:
    """Where Triton is, for its interpreter. Not among the installed packages: vLLM and others would take it for usable."""
    folder = Path(sys.prefix) / "share" / "triton"
    if not (folder / "triton").is_dir():
        pytest.fail(f"no Triton in {folder}: run 'make .venv/.triton'", pytrace=False)
    return [str(folder)]


# ---- models --------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of 320 tokens and two layers: ``a`` and ``b`` (Qwen2, different weights), ``moe`` (Qwen3-MoE)."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        PreTrainedTokenizerFast,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
    )

    folder = tmp_path_factory.mktemp("models")
    words = ["<pad>", "<bos>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    plain = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", model_max_length=256
    )
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    sizes: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "initializer_range": 0.15,
        "tie_word_embeddings": False,
    }
    moe = {"head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    found = {}
    for name, seed in (("a", 0), ("b", 1), ("moe", 0)):
        torch.manual_seed(seed)
        model = (
            Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **moe))
            if name == "moe"
            else Qwen2ForCausalLM(Qwen2Config(**sizes))
        )
        found[name] = folder / name
        model.save_pretrained(found[name])
        tokenizer.save_pretrained(found[name])
    return found


# ---- engines -------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def scratch() -> Iterator[str]:
    """Temporary files of the engines, which leave sockets when they are killed. A short path: sockets' names have a limit."""
    with tempfile.TemporaryDirectory(prefix="patches-") as folder:
        yield folder


def environment(paths: list[str], scratch: str) -> dict[str, str]:
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith(("VLLM_", "TRITON_"))},
        "PYTHONPATH": os.pathsep.join(paths),
        "TMPDIR": scratch,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "TORCH_COMPILE_DISABLE": "1",
    }


class Server:
    """An OpenAI-compatible server, with ``/inference/v1/generate`` and the control routes of reinforcement learning."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path) -> None:
        import httpx

        # Bound for as long as the server lives: a port that was let go is soon somebody else's. With this option, which the server sets too, it
        # may bind and listen beside a socket that does not listen.
        self.port = socket.socket()
        self.port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.port.bind(("127.0.0.1", 0))
        port = self.port.getsockname()[1]
        self.log = log
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(port)],
                env=env,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                if self.http.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                pytest.fail("the server did not start:\n" + log.read_text(errors="replace")[-4000:], pytrace=False)
            time.sleep(0.2)

    def post(self, path: str, body: dict[str, Any] | None = None, expect: int = 200, **params: Any) -> dict[str, Any]:
        answer = self.http.post(path, json=body, params=params)
        assert answer.status_code == expect, f"{path}: {answer.status_code} {answer.text[:500]}"
        return dict(answer.json()) if answer.content else {}

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        answer = self.http.get(path, params=params)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:500]}"
        return dict(answer.json())

    def generate(self, token_ids: list[int], **parts: Any) -> dict[str, Any]:
        """One request for tokens; what is not named goes into the sampling parameters."""
        return self.post("/inference/v1/generate", self.request(token_ids, **parts))

    @staticmethod
    def request(token_ids: list[int], **parts: Any) -> dict[str, Any]:
        outer = {key: parts.pop(key) for key in ("kv_transfer_params", "stream", "stream_options") if key in parts}
        return {"token_ids": token_ids, "sampling_params": {"ignore_eos": True, **parts}, **outer}

    def events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of a stream, without the closing mark."""
        with self.http.stream("POST", path, json=body) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield json.loads(line.removeprefix("data: "))

    def settle(self) -> None:
        """Leave nothing running and nothing paused for the next test, however this one ended."""
        if self.process.poll() is None:
            self.http.post("/abort_requests", json={})
            self.http.post("/resume")

    def stop(self) -> None:
        self.http.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.port.close()


class Engines:
    """At most one server at a time; asking for the other kind ends the one that runs."""

    def __init__(self, commands: dict[str, tuple[list[str], dict[str, str]]], logs: Path) -> None:
        self.commands = commands
        self.logs = logs
        self.running: tuple[str, Server] | None = None

    def __call__(self, kind: str) -> Server:
        if self.running is None or self.running[0] != kind or self.running[1].process.poll() is not None:
            self.stop()
            command, env = self.commands[kind]
            self.running = kind, Server(command, env, self.logs / f"{kind}.log")
        return self.running[1]

    def stop(self) -> None:
        if self.running is not None:
            self.running[1].stop()
            self.running = None


@pytest.fixture(scope="session")
def local_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's ``--update-weight-local-checkpoint-dir``."""
    return tmp_path_factory.mktemp("local")


@pytest.fixture(scope="session")
def engines(
    request: pytest.FixtureRequest,
    python_path: list[str],
    triton_path: list[str],
    models: dict[str, Path],
    local_copy: Path,
    scratch: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Engines]:
    patched = not is_stock(request.config)
    common = ["vllm.entrypoints.openai.api_server", "--model", str(models["a"]), "--served-model-name", "m"]
    common += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "2"]
    common += ["--enable-scale-out", "--distributed-executor-backend", "uni"]
    common += ["--logprobs-mode", "processed_logprobs"]
    draft = {"method": "draft_model", "model": str(models["a"]), "num_speculative_tokens": 3}
    connector = {"kv_connector": "LateKV", "kv_connector_module_path": "late_kv", "kv_role": "kv_both"}
    dense = ["--enable-per-request-metrics", "--per-request-spec-decode-metrics", "detailed"]
    dense += ["--speculative-config", json.dumps(draft), "--kv-transfer-config", json.dumps(connector)]
    masks = ["--return-sampling-mask"]
    if patched:
        dense += ["--update-weight-local-checkpoint-dir", str(local_copy)]
        masks += ["--return-sampling-mask-logprobs"]
    engines = Engines(
        {
            "dense": ([sys.executable, "-m", *common, *dense], environment(python_path, scratch)),
            "masks": (
                [sys.executable, str(INSIDE / "interpreted.py"), "-m", *common, *masks],
                environment(python_path + triton_path, scratch),
            ),
        },
        tmp_path_factory.mktemp("logs"),
    )
    yield engines
    engines.stop()


@pytest.fixture
def dense(engines: Engines) -> Iterator[Server]:
    """The first model runner, with a draft model (its own weights), a late KV connector and weight pulling."""
    server = engines("dense")
    yield server
    server.settle()


@pytest.fixture
def masks(engines: Engines) -> Server:
    """The second model runner through Triton's interpreter, returning sampling masks."""
    return engines("masks")


class Inside:
    """Runs scripts of ``inside/`` with the engine under test."""

    def __init__(self, python_path: list[str], triton_path: list[str], scratch: str) -> None:
        self.python_path = python_path
        self.triton_path = triton_path
        self.scratch = scratch

    def run(self, script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(INSIDE / script), *arguments]
        return self._run(command, {**environment(self.python_path, self.scratch), **env})

    def interpreted(self, script: str, *arguments: str, **env: str) -> dict[str, Any]:
        """The JSON that the script prints last."""
        command = [sys.executable, str(INSIDE / "interpreted.py"), str(INSIDE / script), *arguments]
        done = self._run(command, {**environment(self.python_path + self.triton_path, self.scratch), **env})
        assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-3000:]
        return dict(json.loads(done.stdout.splitlines()[-1]))

    @staticmethod
    def _run(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=START_SECONDS)


@pytest.fixture
def inside(python_path: list[str], triton_path: list[str], scratch: str) -> Inside:
    return Inside(python_path, triton_path, scratch)
