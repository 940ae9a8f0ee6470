"""What the parts share: models in real shapes with random weights, samples, trainers, servers, and how a part reports."""

from __future__ import annotations

import contextlib
import math
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("NCCL_CUMEM_ENABLE", "0")  # as a run gives it to trainers and engines

from benchmarks.marked import tell  # noqa: E402

#: Where models and runs go: a scratch folder, since they are large and random.
WORK = Path(os.environ.get("VIME_BENCH_DIR") or Path(tempfile.gettempdir(), "vime-bench"))
#: bf16 without sparsity, by the data sheet of the H100 and H200 SXM; MFU is against this.
PEAK_FLOPS = 989e12

SHAPES: dict[str, dict[str, Any]] = {
    "0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "4b": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
}
VOCABULARY = 151936
#: CUDA graphs of whole decode steps without compiling, which would take a minute of the benchmark.
GRAPHS = '{"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}'


def report(part: Callable[[], dict[str, Any]]) -> None:
    """Run a part and print its result, or why there is none. A part that fails leaves the others alone."""
    began = time.perf_counter()
    try:
        result = part()
    except BaseException as error:
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"[:600]}
    result["seconds"] = round(time.perf_counter() - began, 1)
    tell(result)


def attempt(into: dict[str, Any], name: str, work: Callable[[], Any]) -> None:
    """One figure of a part; an error in its place when it fails."""
    try:
        into[name] = work()
    except Exception as error:
        traceback.print_exc()
        into[name] = {"error": f"{type(error).__name__}: {error}"[:400]}
    print(f"{name}: {into[name]}", flush=True)


def parameters(shape: str) -> int:
    s = SHAPES[shape]
    kv = 8 * 128
    attention = s["hidden_size"] * (2 * s["num_attention_heads"] * 128 + 2 * kv)
    layer = attention + 3 * s["hidden_size"] * s["intermediate_size"]
    return int(s["num_hidden_layers"] * layer + VOCABULARY * s["hidden_size"])


def toy_flags(steps: int, evaluate: bool = True) -> list[str]:
    """The toy of 57 million parameters, which gives a GPU something to do."""
    from vime.toy.flags import default_flags
    from vime.toy.sizes import LARGE

    return default_flags(steps, 0, WORK / "toy", LARGE, evaluate=evaluate)


def model_folder(shape: str) -> Path:
    """A checkpoint of the shape of that Qwen3 with random weights and a tokenizer of one token a word; made once."""
    folder = WORK / f"qwen3-{shape}"
    if (folder / "config.json").exists() and list(folder.glob("*.safetensors")):
        return folder
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast, Qwen3Config

    from vime.convert.hf import save_hf

    template = WORK / f"template-{shape}"
    template.mkdir(parents=True, exist_ok=True)
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    config = Qwen3Config(
        vocab_size=VOCABULARY, num_key_value_heads=8, head_dim=128, max_position_embeddings=8192, rope_theta=1e6,
        rms_norm_eps=1e-6, tie_word_embeddings=True, architectures=["Qwen3ForCausalLM"], dtype=torch.bfloat16,
        **SHAPES[shape], **ids,
    )  # fmt: skip
    config.save_pretrained(template)
    GenerationConfig(**ids).save_pretrained(template)
    inner = Tokenizer(
        models.WordLevel(
            {"<pad>": 0, "<eos>": 1, "<bos>": 2} | {f"t{i}": i for i in range(3, VOCABULARY)}, unk_token="<bos>"
        )
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>")
    tokenizer.save_pretrained(template)
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)

    def weights() -> Iterator[tuple[str, Any]]:
        for name, tensor in network.state_dict().items():
            if name == "lm_head.weight":
                continue
            if tensor.dim() == 1:
                yield name, torch.ones(tensor.shape, dtype=torch.bfloat16)
            else:
                drawn = torch.randn(tensor.shape, device=device, generator=generator, dtype=torch.bfloat16)
                yield name, drawn.mul_(0.02)

    save_hf(weights(), folder, template)
    return folder


def trainer_flags(folder: Path, **flags: Any) -> list[str]:
    """A trainer without engines: samples are given to it."""
    base: dict[str, Any] = {
        "--hf-checkpoint": folder,
        "--prompt-data": folder / "config.json",
        "--rm-type": "random",
        "--device": "cuda",
        "--actor-num-gpus-per-node": 1,
        "--num-rollout": 100,
        "--rollout-batch-size": 8,
        "--n-samples-per-prompt": 2,
        "--rollout-max-response-len": 4096,
        "--lr": 1e-6,
        "--parity-threshold": 1e9,
        "--max-tokens-per-gpu": 8192,
        "--colocate": True,
        "--bf16": True,
        "--use-dynamic-batch-size": True,
        "--calculate-per-token-loss": True,
    } | {"--" + name.replace("_", "-"): value for name, value in flags.items()}
    return [
        str(part)
        for name, value in base.items()
        if value is not False
        for part in ((name,) if value is True else (name, value))
    ]


def open_trainer(folder: Path, **flags: Any) -> Any:
    from vime.arguments import parse_args
    from vime.trainer.trainer import Trainer

    trainer = Trainer(parse_args(trainer_flags(folder, **flags)), device="cuda:0")
    trainer.init()
    return trainer


def random_samples(count: int, length: int, prompt: int = 64, vocabulary: int = VOCABULARY, seed: int = 0) -> list[Any]:
    """Sequences of exactly `length` tokens, everything after `prompt` trained, rewards that differ."""
    from vime.sample import Sample, Status

    rng = random.Random(seed)
    made = []
    for index in range(count):
        tokens = [rng.randrange(3, vocabulary) for _ in range(length)]
        answer = length - prompt
        made.append(
            Sample(
                index=index, group_index=index // 2, rollout_id=index, tokens=tokens, response_length=answer,
                loss_mask=[1] * answer, reward=float(index % 2), status=Status.COMPLETED,
                rollout_log_probs=[-math.log(vocabulary)] * answer,
            )
        )  # fmt: skip
    return made


@contextlib.contextmanager
def server(folder: Path, gpu: str | None = None, **flags: Any) -> Iterator[Any]:
    """A real engine as a run starts it, and its control; ended with the context."""
    from vime.arguments import parse_args
    from vime.engine import command, net
    from vime.engine.control import EngineControl
    from vime.engine.process import EngineProcess

    args = parse_args(trainer_flags(folder, **flags))
    environment = command.server_environment(args, threads=4)
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    log = WORK / "logs" / f"engine-{os.getpid()}-{time.monotonic_ns()}.log"
    process = EngineProcess(command.server_command(args, 0), environment, net.hold_port("127.0.0.1"), log)
    try:
        seconds = process.wait_healthy(240)
        control = EngineControl(process.url, timeout=120)
        control.started = seconds  # type: ignore[attr-defined]
        control.process = process  # type: ignore[attr-defined]
        yield control
    except Exception:
        print(log.read_text(errors="replace")[-3000:], flush=True)
        raise
    finally:
        process.stop()


def ask(url: str, prompts: list[list[int]], tokens: int, temperature: float = 0.0, **sampling: Any) -> list[Any]:
    """One answer a prompt, through the runtime's own client."""
    import asyncio

    from vime.engine.client import open_client
    from vime.engine.router import local_router
    from vime.rollout.client import SamplingParams

    params = SamplingParams(max_tokens=tokens, temperature=temperature, **sampling)

    async def all_of_them() -> list[Any]:
        router = local_router("least_loaded")
        router.set_engines([url])
        async with open_client(router) as client:
            calls = [client.generate(prompt, params, session_id=None, timeout=120) for prompt in prompts]
            return list(await asyncio.gather(*calls))

    return asyncio.run(all_of_them())


def metrics_of(directory: Path, kind: str = "step") -> list[dict[str, Any]]:
    from vime.observe.metrics import read_metrics

    return list(read_metrics(directory, kind))


def run_training(
    name: str, flags: list[str], timeout: float, environment: dict[str, str] | None = None
) -> dict[str, Any]:
    """train.py as a user calls it. Its metrics by step, how it ended, seconds until the first step began."""
    directory = WORK / "runs" / name
    began = time.time()
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *flags, "--run-dir", str(directory), "--run-id", name],
        cwd=WORK, env=os.environ | (environment or {}), capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    print(done.stdout[-2500:], done.stderr[-2500:], sep="\n", flush=True)
    if done.returncode:
        logs = sorted((directory / "logs").glob("*.log")) if (directory / "logs").exists() else []
        tail = logs[0].read_text(errors="replace")[-2000:] if logs else ""
        print(tail, flush=True)
    steps = metrics_of(directory) if directory.exists() else []
    return {
        "exit_code": done.returncode,
        "error": done.stderr.strip()[-400:] if done.returncode else None,
        "wall_s": round(time.time() - began, 1),
        "steps": steps,
        "evals": metrics_of(directory, "eval") if directory.exists() else [],
    }


def median(values: list[float]) -> float:
    import statistics

    return statistics.median(values) if values else float("nan")


def gpu_used() -> int:
    """Bytes in use on the first visible GPU, all processes together."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return int(total - free)
