"""How large the toy is: one for a CPU, one that gives a GPU something to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """`shape`: fields of the model's configuration. `letters` of a word. `warmup_rate`, `warmup_batch`, `check_every`: of the supervised
    steps that make the starting checkpoint, on `device` ("auto": a GPU where there is one), in bf16 with `bf16`. `rate` of reinforcement learning,
    `prompts` of one of its steps, `micro_batch` tokens of a micro-batch. `folder`: how names of its work folders begin."""

    name: str
    shape: dict[str, int]
    letters: int
    warmup_rate: float
    warmup_batch: int
    check_every: int
    rate: float
    prompts: int
    micro_batch: int
    device: str
    bf16: bool
    folder: str

    @property
    def answer_tokens(self) -> int:
        """Room for the word, the end, and some too many."""
        return self.letters + 3


#: 0.8 million parameters. Heads of 32: the smallest that vLLM has a CPU kernel for. Qwen3 normalises queries and keys, which matters at this
#: size: from the same start Qwen2 and Llama came to 0.50 greedy after 30 steps, Qwen3 to 0.85.
SMALL = Size(
    "small",
    {
        "hidden_size": 128,
        "intermediate_size": 336,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "max_position_embeddings": 64,
    },
    letters=5,
    warmup_rate=2e-3,
    warmup_batch=128,
    check_every=2,
    rate=3e-4,
    prompts=32,
    micro_batch=4096,
    device="cpu",
    bf16=False,
    folder="seed",
)

#: 57 million parameters and longer words, trained in bf16 on a GPU.
LARGE = Size(
    "large",
    {
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 8,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "max_position_embeddings": 64,
    },
    letters=10,
    warmup_rate=5e-4,
    warmup_batch=512,
    check_every=5,
    rate=1e-4,
    prompts=64,
    micro_batch=32768,
    device="auto",
    bf16=True,
    folder="large-seed",
)

SIZES = {size.name: size for size in (SMALL, LARGE)}
