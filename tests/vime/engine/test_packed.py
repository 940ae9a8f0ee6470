"""Matrices that a CPU's kernels keep packed are given back their plain form, filled and packed again. With vLLM's own layers: test_server."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

packed = pytest.importorskip("vime.engine.packed", reason="needs vLLM")

from vime.errors import EngineError  # noqa: E402

Weights = list[tuple[str, torch.Tensor]]


class Linear(torch.nn.Module):
    """Keeps its matrix where nobody finds it, as vLLM's linear layers do on a CPU; is its own `quant_method`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(0))
        self.form = [torch.nn.Parameter(torch.empty(3, 2, device="meta"), requires_grad=False)]
        self.held = torch.empty(0)

    @property
    def quant_method(self) -> Linear:
        return self

    def process_weights_after_loading(self, layer: Linear) -> None:
        self.held = layer.weight.detach().t().clone()
        layer.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = Linear(), Linear(), torch.nn.Parameter(torch.zeros(2))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        places = {"norm": self.norm, "up": self.a.weight[:1], "gate": self.a.weight[1:], "down": self.b.weight}
        for name, tensor in weights:
            places[name].data.copy_(tensor)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    monkeypatch.setattr(packed, "_packed", lambda model: [model.a, model.b])
    monkeypatch.setattr(packed, "_form", lambda layer: layer.form[0])
    return Model()


def weights(seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"up": (1, 2), "gate": (2, 2), "norm": (2,), "down": (3, 2)}
    return [(name, torch.randn(shape, generator=generator)) for name, shape in shapes.items()]


@torch.no_grad()
def test_every_version_arrives_whole(model: Model) -> None:
    loader = packed.Packed(model)
    for version in range(3):
        sent = weights(version)
        loader.load([sent[:2], sent[2:]])
        up, gate, norm, down = (tensor for _, tensor in sent)
        assert torch.equal(model.a.held, torch.cat((up, gate)).t())
        assert torch.equal(model.b.held, down.t())
        assert torch.equal(model.norm, norm)
        assert not model.a.weight.numel()


@torch.no_grad()
def test_values_that_did_not_come_are_missed(model: Model) -> None:
    loader = packed.Packed(model)
    for version in range(2):  # the first time by the model's loader, then by learnt copies
        with pytest.raises(EngineError, match=r"lacks values of a Linear of shape \(3, 2\)"):
            loader.load([[one for one in weights(version) if one[0] != "gate"]])
        loader.load([weights(version)])
    assert torch.equal(model.b.held, dict(weights(1))["down"].t())
