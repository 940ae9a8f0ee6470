"""The GPU kernels in Triton's interpreter, against autograd through the plain formulas in fp64."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TRITON = Path(sys.prefix) / "share" / "triton"


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    """Largest absolute error of each value and gradient; computed in a process that the interpreter has for itself."""
    if not (TRITON / "triton").is_dir():
        pytest.fail(f"no Triton in {TRITON}: run 'make .venv/.triton'", pytrace=False)
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(TRITON), str(ROOT)])}
    script = Path(__file__).with_name("fused_in_interpreter.py")
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_norm_activation_and_rotation(errors: dict[str, float]) -> None:
    names = ("norm", "norm/x", "norm/weight", "gate", "gate/x", "turn", "turn/back")
    assert {name: errors[name] for name in names if not errors[name] < 3e-5} == {}


def test_log_probs_entropy_and_their_gradient_over_the_logits(errors: dict[str, float]) -> None:
    names = [name for name in errors if name.startswith("vocab")]
    assert len(names) == 10
    assert {name: errors[name] for name in names if not errors[name] < 3e-5} == {}


def test_padding_of_the_vocabulary_gets_no_gradient(errors: dict[str, float]) -> None:
    assert errors["padding"] == 0.0


def test_two_halves_of_the_vocabulary_are_the_whole(errors: dict[str, float]) -> None:
    assert errors["halves"] < 3e-5
