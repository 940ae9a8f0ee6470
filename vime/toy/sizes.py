"""How large the toy is: one for a CPU, one that gives a GPU something to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """`shape`: fields of the model's configuration. `letters` of a word. `warmup_rate`, `warmup_batch`, `check_every`: of the supervised
    steps that make the starting checkpoint. `rate` of reinforcement learning, `prompts` of one of its steps."""

    name: str
    shape: dict[str, int]
    letters: int
    warmup_rate: float
    warmup_batch: int
    check_every: int
    rate: float
    prompts: int

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
)

SIZES = {size.name: size for size in (SMALL, LARGE)}
