"""The fake engine of the rollout's tests, and sessions on it."""

from __future__ import annotations

import importlib.util
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vime.rollout import context as rollout_context
from vime.rollout.context import RolloutContext

_spec = importlib.util.spec_from_file_location("rollout_fakes", Path(__file__).parents[1] / "rollout" / "conftest.py")
assert _spec is not None
assert _spec.loader is not None
_fakes = importlib.util.module_from_spec(_spec)
sys.modules["rollout_fakes"] = _fakes
_spec.loader.exec_module(_fakes)

#: ChatML, as Qwen's models have it: a turn ends with <|im_end|> and a line break.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def engine(tokenizer: Any) -> Any:
    return _fakes.FakeEngine(tokenizer)


@pytest.fixture
def run(engine: Any, tokenizer: Any, make_args: Callable[..., Namespace]) -> Iterator[Any]:
    """run(*flags) -> args, with the fake engine behind the installed context and ChatML as the template."""

    def make(*flags: str) -> Namespace:
        args = make_args("--rollout-max-response-len", "120", "--agent-max-turns", "8", *flags)
        args.apply_chat_template_kwargs = {"chat_template": TEMPLATE}
        rollout_context.install(RolloutContext(args, engine, tokenizer))
        return args

    yield make
    rollout_context.install(None)
