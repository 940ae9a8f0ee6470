"""Scripts followed by text alone, against what bash itself makes of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vime.migrate.commands import read_script
from vime.migrate.expand import Scope, arithmetic, fields

#: In place of the program: says its words and ends.
_STUB = (
    'python3() { shift; printf \'%s\\0\' "$@"; exit; }\nray() { while [ "$1" != -- ]; do shift; done; shift; "$@"; }\n'
)

_MODEL = """
NLAYERS="${MODEL_ARGS_NUM_LAYERS:-6}"
DENSE=2
arr=()
for ((i=0; i<NLAYERS; i++)); do
  if (( i < DENSE )); then
    arr+=(0)
  else
    arr+=(1)
  fi
done
printf -v FREQ "[%s]" "$(IFS=','; echo "${arr[*]}")"
MODEL_ARGS=(
    --num-layers $((NLAYERS + 1))   # a comment
    --moe-layer-freq "$FREQ"
    --pattern [0]*$DENSE+[1]*$NLAYERS
)
"""

_SCRIPT = """#!/bin/bash
set -ex
export HERE=${HERE:-"127.0.0.1"}
SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${SCRIPT_DIR}/models/tiny.sh"
WORDS=(one "two three" four)
ARGS=(
   --path ${BASE:-/data}/x
   # --off 1
   --sizes 1 2 $(seq 8 8 32)
   --name "a b"'c'
   --json '{"k": 1}'
   --host $HERE
)
if [ "$HERE" = "127.0.0.1" ] && [[ $DENSE -gt 1 ]]; then
  EXTRA=(--local)
else
  EXTRA=(--remote)
fi
EXTRA+=("${WORDS[@]}")
launch() {
  ray job submit --address=x -- python3 train.py \\
     --first $(( 1024 * 2 )) \\
     ${MODEL_ARGS[@]} "${ARGS[@]}" \\
     ${EXTRA[@]}
}
launch
"""


def _bash(script: Path) -> list[str]:
    done = subprocess.run(
        ["bash", "-c", f"{_STUB}source {script}"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    return done.stdout.split("\0")[:-1]


def _followed(script: Path) -> list[list[str]]:
    def read(path: str) -> str | None:
        return Path(path).read_text() if Path(path).is_file() else None

    return read_script(script.read_text(), str(script), read).commands


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny.sh").write_text(_MODEL)
    (tmp_path / "run.sh").write_text(_SCRIPT)
    return tmp_path / "run.sh"


def test_a_launch_script_gives_the_words_that_bash_gives(script: Path) -> None:
    words = _bash(script)
    assert "[0,0,1,1,1,1]" in words
    assert "32" in words
    assert _followed(script) == [words]


def test_a_variable_before_source_is_seen_in_the_sourced_file(script: Path) -> None:
    script.write_text(_SCRIPT.replace('source "$', 'MODEL_ARGS_NUM_LAYERS=3 source "$'))
    assert _followed(script) == [_bash(script)]


def test_sourced_files_share_functions_and_the_name_of_the_script(script: Path) -> None:
    (script.parent / "models" / "tiny.sh").write_text(
        'adds() { MORE+=("$0"); }\nbefore\nif [ 1 = 1 ]; then return; fi\nMORE+=(never)\n'
    )
    script.write_text(
        "MORE=()\nbefore() { MORE+=(before); return 0; MORE+=(never); }\n"
        f"source {script.parent}/models/tiny.sh\nadds\n"
        'python3 train.py "${MORE[@]}" "$(basename "$0")" "$(basename "${BASH_SOURCE[0]}")"'
    )
    (found,) = _followed(script)
    assert found == ["before", str(script), "run.sh", "run.sh"]


def test_what_only_a_run_can_tell_stays_as_written() -> None:
    found = read_script('A=(--x $UNSET/a --y "$(date)")\npython train.py "${A[@]}"', "run.sh", lambda _: None)
    assert found.commands == [["--x", "$UNSET/a", "--y", "$(date)"]]


def test_a_branch_that_ends_the_script_is_not_taken_for_a_missing_variable() -> None:
    found = read_script(
        'if [ -z "${NEEDED:-}" ]; then\n  echo missing\n  exit 1\nfi\npython train.py --a 1', "run.sh", lambda _: None
    )
    assert found.commands == [["--a", "1"]]


def test_commands_are_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    source = f'touch {mark}\nX="$(touch {mark})"\nY=`touch {mark}`\nseq 1 $(touch {mark})\npython train.py --a "$X"'
    assert len(read_script(source, "run.sh", lambda _: None).commands) == 1
    assert not mark.exists()


def test_a_missing_backslash_ends_the_command_as_in_bash(script: Path) -> None:
    script.write_text(_SCRIPT.replace("1024 * 2 )) \\", "1024 * 2 ))"))
    assert _followed(script) == [["--first", "2048"]]


_PLAIN = st.text("abcXYZ019-_./[]*+,:=", min_size=0, max_size=6)
_PART = st.one_of(
    _PLAIN,
    _PLAIN.map(lambda t: f"'{t} {{\"q\"}}'"),
    st.tuples(
        _PLAIN, st.sampled_from(["$A", "${A}", "${B}", "${EMPTY}", "${L[@]}", "${L[*]}", "${L[1]}", "${#L[@]}"])
    ).map(lambda t: f'"{t[0]} {t[1]}"'),
    st.sampled_from(
        [
            *(
                "$A",
                "${B}",
                "${EMPTY}",
                "${L[@]}",
                "${L[0]}",
                "$((N * 3 - 1))",
                "$((N<4 && 1))",
                "\\$",
                "\\ ",
                "$(seq 3)",
                "$(echo $B)",
            ),
            *(
                "${NONE:-d}",
                '${NONE:-"d e"}',
                "${EMPTY:-x}",
                "${EMPTY-x}",
                "${A:+y}",
                "${NONE+y}",
                "$(basename /a/b.c)",
            ),
        ]
    ),
)
_SETUP = "A=plain B='two words' EMPTY= N=3 L=(p 'q r' s); set -f; "


@settings(max_examples=25)
@given(st.lists(st.lists(_PART, min_size=1, max_size=4).map("".join).filter(bool), min_size=20, max_size=40))
def test_words_expand_as_in_bash(words: list[str]) -> None:
    lines = [f"printf '%s\\0' {word}; printf '\\1\\0'" for word in words]
    said = subprocess.run(["bash", "-c", _SETUP + "\n".join(lines)], capture_output=True, text=True, check=True).stdout
    scope = Scope({"A": "plain", "B": "two words", "EMPTY": "", "N": "3", "L": ["p", "q r", "s"]})
    scope.run = {"seq 3": "1\n2\n3\n", "echo $B": "two words\n", "basename /a/b.c": "b.c\n"}.get
    expected = said.split("\0\1\0")[:-1]
    # printf with no word prints one empty one.
    assert [fields(word, scope) or [""] for word in words] == [one.split("\0") for one in expected]


@given(st.integers(-50, 50), st.integers(1, 50), st.sampled_from(["+", "-", "*", "/", "%", "<", ">=", "==", "<<"]))
def test_arithmetic_of_positive_numbers_is_bash_arithmetic(a: int, b: int, sign: str) -> None:
    a = abs(a)
    expected = {
        "+": a + b, "-": a - b, "*": a * b, "/": a // b, "%": a % b, "<": int(a < b), ">=": int(a >= b), "==": int(a == b), "<<": a << b,
    }[sign]  # fmt: skip
    assert arithmetic(f" A {sign} {b} ", Scope({"A": str(a)})) == expected
