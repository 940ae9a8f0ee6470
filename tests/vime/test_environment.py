"""Threads and limits are set before torch loads; what the user exported wins."""

from __future__ import annotations

import resource
import subprocess
import sys

from vime import environment


def in_process(code: str, **variables: str) -> str:
    import os

    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "MKL_"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean | variables, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_prepare_sets_passive_waiting_and_threads_before_torch() -> None:
    shown = in_process(
        "import os; from vime import environment; p = environment.prepare(1); import torch;"
        "print(os.environ['OMP_WAIT_POLICY'], os.environ['GOMP_SPINCOUNT'], torch.get_num_threads(), p.late)"
    )
    assert shown == "PASSIVE 0 1 False"


def test_what_the_user_exported_wins() -> None:
    shown = in_process(
        "from vime import environment; p = environment.prepare(1); print(p.threads, p.wait_policy, p.spin_count)",
        OMP_NUM_THREADS="3",
        OMP_WAIT_POLICY="ACTIVE",
        GOMP_SPINCOUNT="7",
    )
    assert shown == "3 ACTIVE 7"


def test_the_start_line_says_so_and_admits_when_it_came_too_late() -> None:
    line = in_process("from vime import environment; print(environment.prepare(2))")
    assert line.startswith("threads: 2 a process, OMP_WAIT_POLICY=PASSIVE, GOMP_SPINCOUNT=0; open files")
    late = in_process("import torch; from vime import environment; print(environment.prepare(2))")
    assert "torch was loaded first" in late


def test_the_driver_needs_no_torch() -> None:
    code = "import sys; import train; print('torch' in sys.modules, 'ray' in sys.modules, 'vllm' in sys.modules)"
    assert in_process(code) == "False False False"


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = max(64, min(soft, hard) // 2)
    shown = in_process(
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({lower}, {hard}));"
        "from vime import environment; print(environment.raise_file_limit())"
    )
    assert shown == f"open files {lower} -> {hard}"


def test_children_get_the_same_settings() -> None:
    variables = environment.thread_environment(1)
    assert variables["OMP_WAIT_POLICY"]
    assert variables["GOMP_SPINCOUNT"]
    assert variables["OMP_NUM_THREADS"]


def test_what_a_process_holds_when_it_is_up_is_not_looked_at_again() -> None:
    line = in_process(
        "import gc; from vime import environment; gc.collect(); held = len(gc.get_objects()); environment.freeze_heap();"
        "print(held <= gc.get_freeze_count() + 100, len(gc.get_objects()) < held / 10)"
    )
    assert line == "True True"
