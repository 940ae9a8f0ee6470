"""Optimizer state back in its place. The device is one that computes nothing: what matters is where tensors are put."""

from __future__ import annotations

import pytest
import torch

from vime.trainer.reshard import Run
from vime.trainer.state import Slot, load_optimizer_state


@pytest.mark.parametrize("options", [{"fused": True}, {"capturable": True}, {"fused": None, "capturable": False}])
def test_numbers_of_the_state_are_where_the_step_reads_them(options: dict[str, bool | None]) -> None:
    """A fused step takes the count of steps from the parameter's device: a run that was resumed on a GPU ended there at its first step."""
    main = torch.nn.Parameter(torch.empty(4, device="meta"))
    inner = torch.optim.AdamW([main])
    (group,) = inner.param_groups
    group |= options
    run = Run(0, {"exp_avg": torch.ones(4)}, {"step": torch.tensor(7.0)})
    load_optimizer_state({"w": Slot(inner, main, 0, False, group)}, [("w", run)])
    assert inner.state[main]["exp_avg"].device.type == "meta"
    # Where torch itself puts them when it loads a state.
    expected = torch.optim.Optimizer._process_value_according_to_param_policy(
        main, torch.tensor(7.0), 0, [group | {"params": [0]}], "step"
    )
    assert inner.state[main]["step"].device == expected.device
