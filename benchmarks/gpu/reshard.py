"""A checkpoint of two GPUs goes on in another layout: the same weights to the bit, and then the same step, within the tolerance of `parallel`.

Saved with --ckpt-format torch_dist in tensor, pipeline, data and expert parallel 2, loaded in every other layout; and Megatron's own part of the
checkpoint alone, as another program would read it.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import WORK, attempt, report
from parallel import EXPERTS, STEPS, run, write_models

#: By family: the layouts that save. Each is loaded by all others, and by one GPU.
SAVED = {
    "": ("tensor", "pipeline", "data_sharded_optimizer"),
    EXPERTS: ("experts_expert", "experts_sequence", "experts_pipeline"),
}
ALONE = {"": "sequence", EXPERTS: "experts_sequence"}
_SECONDS = 90
#: Layouts that run beside each other. More do not end sooner: two ranks of each must have their GPUs at the same time.
_AT_ONCE = 8


def folder(cut: str) -> Path:
    return WORK / "reshard" / cut


def megatrons_part(cut: str) -> Path:
    """The checkpoint of `cut` without what is ours in it."""
    alone = WORK / "reshard" / f"{cut}-alone"
    source = folder(cut) / f"iter_{STEPS - 1:07d}"
    shutil.copytree(
        source,
        alone,
        ignore=shutil.ignore_patterns("manifest.json", "*.pt"),
        dirs_exist_ok=True,
        copy_function=shutil.copy,
    )
    return alone


def compare(before: dict[str, Any], after: dict[str, Any], start: int) -> dict[str, Any]:
    """The step after the checkpoint, beside the step that the saving layout did."""
    (loss, norm, _), (other, other_norm, _) = before["steps"][STEPS], after["steps"][0]
    return {
        "same_weights": after["digest"] == before["digest"],
        "starts_at": after["start"],
        "as_expected": after["start"] == start,
        "loss_gap": abs(loss - other),
        "norm_gap": abs(norm - other_norm) / norm,
    }


def part() -> dict[str, Any]:
    write_models()
    result: dict[str, Any] = {"steps_before": STEPS}
    savers = [cut for cuts in SAVED.values() for cut in cuts]
    saved: dict[str, Any] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        running = {cut: pool.submit(run, cut, folder(cut), None, _SECONDS) for cut in savers}
        for cut, one in running.items():
            attempt(saved, cut, one.result)
        loads: dict[str, Any] = {}
        for family, cuts in SAVED.items():
            for cut in (cut for cut in cuts if "error" not in saved[cut]):
                for other in (f"{family}one", *(name for name in cuts if name != cut)):
                    loads[f"{cut} > {other}"] = (cut, STEPS, pool.submit(run, other, None, folder(cut), _SECONDS))
                alone = pool.submit(run, ALONE[family], None, megatrons_part(cut), _SECONDS)
                loads[f"{cut}, Megatron's part > {ALONE[family]}"] = (cut, 0, alone)
        for name, (cut, start, one) in loads.items():
            attempt(
                result,
                name,
                lambda cut=cut, start=start, one=one: compare(saved[cut], one.result(), start),
            )
    result["saved"] = {cut: one.get("digest", one.get("error")) for cut, one in saved.items()}
    return result


if __name__ == "__main__":
    report(part)
