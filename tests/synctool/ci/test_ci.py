"""Generation, quoting (against a real shell), registration, and our own pipeline."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from synctool.ci.check import check
from synctool.ci.generate import GPU_BLOCK, PREAMBLE, pipeline, quote, render, unquote, validate
from synctool.ci.model import Description, load
from synctool.ci.register import in_description, in_pipeline
from synctool.errors import ConfigError, NothingToDo, UsageError

ROOT = Path(__file__).parents[3]


def description(**changes: Any) -> Description:
    step = {"key": "t", "label": "T", "run": [["pytest", "tests/a"]], "minutes": 5, "tests": ["tests/a"]}
    return Description.model_validate(
        {
            "schema": 1,
            "step": [step | changes, {"key": "g", "label": "G", "run": [["nvidia-smi"]], "minutes": 1, "gpus": 2}],
        }
    )


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0\r\n", exclude_categories=("Cs",)), min_size=1),
        min_size=1,
        max_size=5,
    )
)
@settings(max_examples=25, deadline=None)
def test_a_real_shell_sees_the_arguments_that_were_written(arguments: list[str]) -> None:
    text = quote(tuple(arguments))
    assert unquote(text) == tuple(arguments)
    script = "printf '%s\\0' " + text.replace("$$", "$")
    seen = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    assert seen.decode().split("\0")[:-1] == arguments


def test_gpu_steps_wait_limits_are_raised_and_only_a_lost_agent_is_tried_again() -> None:
    steps = yaml.safe_load(render(pipeline(description()), "x"))["steps"]
    assert [step.get("key") for step in steps] == ["t", GPU_BLOCK, "g"]
    assert steps[1]["block"]
    assert GPU_BLOCK in steps[2]["depends_on"]
    for step in (steps[0], steps[2]):
        assert tuple(step["commands"][:2]) == PREAMBLE
        assert step["retry"]["automatic"] == [{"exit_status": -1, "limit": 1}]


def test_the_preamble_raises_and_prints_the_limit() -> None:
    script = "ulimit -S -n 64\n" + "\n".join(PREAMBLE) + "\nulimit -H -n"
    soft, hard = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, check=True).stdout.split()
    assert soft == hard != "64"


def test_what_buildkite_would_refuse_is_refused() -> None:
    with pytest.raises(ConfigError):
        validate({"steps": [{"label": "x", "command": "true", "timeout_in_minutes": "soon"}]})


def test_missing_twice_and_gone() -> None:
    files = ["tests/a/test_x.py", "tests/a/conftest.py", "tests/b/test_y.py"]
    assert [(one.rule, one.path) for one in check(description(), files)] == [("missing", "tests/b/test_y.py")]
    twice = check(description(tests=["tests/a", "tests/a/test_x.py", "tests/b", "tests/c"]), files)
    assert [(one.rule, one.path) for one in twice] == [("twice", "tests/a/test_x.py"), ("gone", "tests/c")]
    gone = check(description(run=[["python", "scripts/run.py"]], tests=["tests/a", "tests/b"]), files)
    assert [(one.rule, one.path) for one in gone] == [("gone", "scripts/run.py")]


@pytest.mark.parametrize(
    "change", [{"depends_on": ["no"]}, {"key": "g"}, {"run": []}, {"colour": "red"}, {"run": [["a\nb"]]}]
)
def test_a_wrong_description_is_one_error(tmp_path: Path, change: dict[str, Any]) -> None:
    import tomlkit

    step = {"key": "t", "label": "T", "run": [["true"]], "minutes": 5}
    other = {"key": "g", "label": "G", "run": [["true"]], "minutes": 5}
    (tmp_path / "s.toml").write_text(tomlkit.dumps({"schema": 1, "step": [step | change, other]}))
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "s.toml")
    assert "s.toml" in str(caught.value)


HAND_WRITTEN = """# by hand
steps:
  - group: "CPU"
    steps:
      - label: "Unit"   # the small ones
        key: unit
        commands:
          - python -m pytest -q 'tests/a/test_x.py'
  - wait
"""


def test_registering_in_a_hand_written_pipeline_adds_one_line() -> None:
    new = ("python", "-m", "pytest", "-q", "tests/a b/test_y.py")
    result = in_pipeline(HAND_WRITTEN, "unit", new, "p")
    before, after = HAND_WRITTEN.splitlines(), result.splitlines()
    assert [line for line in after if line not in before] == ["          - python -m pytest -q 'tests/a b/test_y.py'"]
    assert [line for line in after if line in before] == before
    for again in (new, ("python", "-m", "pytest", "-q", "tests/a/test_x.py")):
        with pytest.raises(NothingToDo):
            in_pipeline(result, "unit", again, "p")
    with pytest.raises(UsageError):
        in_pipeline(HAND_WRITTEN, "none", new, "p")


def test_registering_in_the_description_keeps_comments() -> None:
    text = '# top\n[[step]]\nkey = "t" # the key\ntests = ["tests/a"]\n'
    result = in_description(text, "t", "tests/b/test_y.py", "s")
    assert "# top" in result
    assert "# the key" in result
    assert "tests/b/test_y.py" in result
    with pytest.raises(NothingToDo):
        in_description(result, "t", "tests/a/test_z.py", "s")


def test_our_own_pipeline_is_the_generated_one() -> None:
    own = load(ROOT / ".buildkite" / "steps.toml")
    assert (ROOT / ".buildkite" / "pipeline.yml").read_text() == render(pipeline(own), ".buildkite/steps.toml")
