"""Which accelerator a host has, from fake device files; and driver calls that must never end a run."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from vime.accelerator.driver import STACK_BYTES, reset_cuda_stack_size
from vime.accelerator.registry import ACCELERATORS, Can, by_name, detect
from vime.cli.doctor_gpu import judge

FILES = {
    "cuda": ["dev/nvidia0", "dev/nvidia1"],
    "rocm": ["dev/kfd", "dev/dri/renderD128", "dev/dri/renderD129"],
    "musa": ["dev/mtgpu.0", "dev/mtgpu.1"],
    "supa": ["dev/biren/card_0", "dev/biren/card_1"],
    "npu": ["dev/davinci0", "dev/davinci1"],
}


def host(root: Path, *files: str) -> Path:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


@pytest.mark.parametrize("name", FILES)
def test_each_kind_is_told_by_its_files_and_narrowed_by_its_variable(tmp_path: Path, name: str) -> None:
    root = host(tmp_path, *FILES[name])
    found = detect(root, {})
    assert found is not None
    assert (found.name, found.count(root, {})) == (name, 2)
    assert found.count(root, {found.visible[0]: "1"}) == 1
    assert detect(root, {found.visible[0]: ""}) is None
    assert detect(root, {found.visible[0]: "-1"}) is None


def test_no_files_and_a_plain_graphics_card_are_no_accelerator(tmp_path: Path) -> None:
    assert detect(host(tmp_path / "a", "dev/null"), {}) is None
    assert detect(host(tmp_path / "b", "dev/dri/renderD128", "dev/nvidiactl"), {}) is None


def test_flags_say_who_shares_the_device_path() -> None:
    assert {one.name for one in ACCELERATORS if Can.AS_CUDA in one.can} == {"cuda", "rocm"}
    assert [one.name for one in ACCELERATORS if one.tested] == ["cuda"]
    assert all(one.plugin for one in ACCELERATORS if Can.AS_CUDA not in one.can)
    assert Can.STACK_LIMIT not in by_name("rocm").can


class Driver:
    """libcuda with a stack limit."""

    def __init__(self, limit: int, get: int = 0, put: int = 0) -> None:
        self.limit, self._get, self._put = limit, get, put

    def cuCtxGetLimit(self, pointer: Any, _: int) -> int:
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_size_t))[0] = self.limit
        return self._get

    def cuCtxSetLimit(self, _: int, value: ctypes.c_size_t) -> int:
        if not self._put:
            self.limit = value.value
        return self._put


def test_a_grown_stack_is_given_back_and_a_small_one_left() -> None:
    driver = Driver(9000)
    assert reset_cuda_stack_size(lambda _: driver, lambda: True) == 9000 - STACK_BYTES
    assert driver.limit == STACK_BYTES
    assert reset_cuda_stack_size(lambda _: driver, lambda: True) == 0


def test_nothing_that_fails_there_is_raised() -> None:
    def missing(_: str) -> Any:
        raise OSError("libcuda.so.1: cannot open shared object file")

    def broken() -> bool:
        raise RuntimeError("driver in a bad state")

    assert reset_cuda_stack_size(missing, lambda: True) is None
    assert reset_cuda_stack_size(lambda _: object(), lambda: True) is None
    assert reset_cuda_stack_size(lambda _: Driver(9000, get=201), lambda: True) is None
    assert reset_cuda_stack_size(lambda _: Driver(9000, put=999), lambda: True) is None
    assert reset_cuda_stack_size(lambda _: Driver(9000), lambda: False) is None
    assert reset_cuda_stack_size(lambda _: Driver(9000), broken) is None
    assert reset_cuda_stack_size() is None  # this process has no CUDA


GOOD = {
    "torch": "2.11.0", "cuda": "13.0", "hip": None, "available": True, "triton": True, "packed": True, "flash_attention_3": False, "nccl": "2.28.9",
    "gpus": [["NVIDIA H200", [9, 0], 140 << 30, 141 << 30]] * 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "environ", "check", "level", "says"),
    [
        ({}, {}, "gpu 1", "ok", "NVIDIA H200, 140.0 of 141.0 GiB free"),
        ({}, {}, "nccl", "ok", "2.28.9"),
        ({"available": False}, {}, "accelerator", "bad", "does not see the cuda devices"),
        ({"available": False, "cuda": None}, {}, "accelerator", "bad", "does not see"),
        ({"gpus": [["V100", [7, 0], 30 << 30, 32 << 30]]}, {}, "gpu 0", "bad", "capability 7.0"),
        ({"gpus": [["A100", [8, 0], 30 << 30, 80 << 30]]}, {}, "gpu 0", "warn", "30.0 of 80.0"),
        ({"triton": False}, {}, "triton", "bad", "missing"),
        ({"packed": False}, {}, "attention", "bad", "missing"),
        ({"packed": False, "flash_attention_3": True}, {}, "attention", "ok", "FlashAttention 3"),
        ({"nccl": None}, {}, "nccl", "bad", "missing"),
        ({}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "allocator", "warn", "expandable_segments"),
    ],
)
def test_the_doctor_judges_what_torch_says(
    change: dict[str, Any], environ: dict[str, str], check: str, level: str, says: str
) -> None:
    findings = {one.check: one for one in judge(by_name("cuda"), GOOD | change, environ)}
    assert (findings[check].level, says in findings[check].found) == (level, True)
    assert all(one.hint for one in findings.values() if one.level != "ok")


def test_the_doctor_says_why_torch_could_not_be_asked() -> None:
    (finding,) = judge(by_name("cuda"), "ImportError: libcudart.so.13", {})
    assert (finding.level, "libcudart" in finding.found) == ("bad", True)
    assert any("never run" in one.found for one in judge(by_name("rocm"), GOOD, {}))
