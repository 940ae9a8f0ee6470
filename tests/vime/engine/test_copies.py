"""Tensors go where the model's own loader puts them, without it, and through it where it does more than copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch

from vime.engine.copies import Copies


class Model(torch.nn.Module):
    """Stacks q, k and v, keeps one rank's rows of `down`, doubles `scale`, leaves `head` out. Counts what it is asked to load."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm = (torch.nn.Parameter(torch.zeros(shape)) for shape in ((8, 3), (3,)))
        self.down, self.scale = (torch.nn.Parameter(torch.zeros(shape)) for shape in ((2, 3), (1,)))
        self.asked: list[str] = []

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            self.asked.append(name)
            match name:
                case "q" | "k" | "v":
                    rows = {"q": slice(0, 4), "k": slice(4, 6), "v": slice(6, 8)}[name]
                    self.qkv.data[rows].copy_(tensor)
                case "norm":
                    self.norm.data.copy_(tensor)
                case "down":
                    self.down.data.copy_(tensor.t()[2:4])
                case "scale":
                    self.scale.data.copy_(tensor * 2)


SHAPES = {"q": (4, 3), "k": (2, 3), "v": (2, 3), "norm": (3,), "down": (3, 6), "scale": (1,), "head": (5, 3)}


def version(seed: int, split: int) -> tuple[dict[str, torch.Tensor], list[list[tuple[str, torch.Tensor]]]]:
    """Tensors in one piece of memory, as in a bucket, and the same in buckets of `split`."""
    torch.manual_seed(seed)
    memory, tensors, start = torch.randn(200), {}, 0
    for name, shape in SHAPES.items():
        count = torch.Size(shape).numel()
        tensors[name] = memory[start : start + count].view(shape)
        start += count + 2
    named = list(tensors.items())
    return tensors, [named[i : i + split] for i in range(0, len(named), split)]


@pytest.mark.parametrize("split", [1, 3, 100])
def test_the_loader_is_asked_once_for_what_it_merely_copies(split: int) -> None:
    model = Model()
    copies = Copies(model)
    with torch.no_grad():
        for seed in range(3):
            model.asked.clear()
            tensors, buckets = version(seed, split)
            copies.load(buckets)
            assert model.asked == (list(SHAPES) if seed == 0 else ["scale", "head"])
            assert torch.equal(model.qkv, torch.cat([tensors[name] for name in "qkv"]))
            assert torch.equal(model.norm, tensors["norm"])
            assert torch.equal(model.down, tensors["down"].t()[2:4])
            assert torch.equal(model.scale, tensors["scale"] * 2)


def test_a_model_whose_memory_moved_is_learnt_anew() -> None:
    model = Model()
    copies = Copies(model)
    with torch.no_grad():
        copies.load(version(0, 3)[1])
        model.qkv.data = torch.zeros(8, 3)
        tensors, buckets = version(1, 3)
        copies.load(buckets)
    assert torch.equal(model.qkv, torch.cat([tensors[name] for name in "qkv"]))


def test_a_loader_that_reads_ahead_is_left_to_itself() -> None:
    class Ahead(Model):
        def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
            super().load_weights(list(weights))

    model = Ahead()
    copies = Copies(model)
    with torch.no_grad():
        for seed in range(2):
            tensors, buckets = version(seed, 3)
            copies.load(buckets)
            assert torch.equal(model.norm, tensors["norm"])
    assert model.asked == 2 * list(SHAPES)


def test_a_failure_while_learning_teaches_nothing() -> None:
    model = Model()
    copies = Copies(model)

    def broken() -> Iterator[list[tuple[str, torch.Tensor]]]:
        yield version(0, 3)[1][0]
        raise RuntimeError("the trainer died")

    with torch.no_grad():
        with pytest.raises(RuntimeError, match="the trainer died"):
            copies.load(broken())
        tensors, buckets = version(1, 3)
        copies.load(buckets)
    assert torch.equal(model.norm, tensors["norm"])
