"""Kernels, packed attention and log-probabilities against plain formulas in fp64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vime.trainer.kernels import RmsNorm, SwiGlu, rotate
from vime.trainer.log_probs import Picks, chunked_log_probs, vocab_log_probs

CPU = torch.device("cpu")


class Fp32:
    params_dtype = torch.float32
    sequence_parallel = False


def gradients(outputs: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of a fixed random projection of the outputs."""
    weights = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).reshape(outputs.shape)
    return list(torch.autograd.grad((outputs * weights).sum(), inputs))


def assert_same(own: torch.Tensor, own_inputs: list, expected: torch.Tensor, expected_inputs: list) -> None:
    torch.testing.assert_close(own.double(), expected, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(gradients(own, own_inputs), gradients(expected, expected_inputs), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-5)


def test_rms_norm_and_its_gradient() -> None:
    x = torch.randn(11, 1, 24, requires_grad=True)
    norm = RmsNorm(Fp32, 24, eps=1e-5)
    norm.weight.data.normal_()
    wide, weight = x.detach().double().requires_grad_(), norm.weight.detach().double().requires_grad_()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    assert_same(norm(x), [x, norm.weight], expected, [wide, weight])


def test_swiglu_and_its_gradient() -> None:
    x = torch.randn(9, 1, 20, requires_grad=True)
    wide = x.detach().double().requires_grad_()
    assert_same(SwiGlu(Fp32)(x), [x], F.silu(wide[..., :10]) * wide[..., 10:], [wide])


def test_rotation_and_its_gradient() -> None:
    x = torch.randn(7, 3, 8, requires_grad=True)
    wide = x.detach().double().requires_grad_()
    angle = torch.rand(7, 1, 4, dtype=torch.float64) * 6
    turned = torch.view_as_complex(torch.stack((wide[..., :4], wide[..., 4:]), -1)) * torch.polar(
        torch.ones_like(angle), angle
    )
    expected = torch.cat((turned.real, turned.imag), -1)
    assert_same(rotate(x, angle.cos().float(), angle.sin().float()), [x], expected, [wide])


def ragged_picks(tokens: int, vocab: int) -> Picks:
    """From no pick to many at each position, all distinct within it."""
    counts = torch.randint(0, 6, (tokens,))
    ids = [torch.randperm(vocab)[:n] for n in counts.tolist()]
    return Picks(torch.arange(tokens).repeat_interleave(counts), torch.cat(ids))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_prob_entropy_and_picks_with_gradients(dtype: torch.dtype, temperature: float) -> None:
    logits = (torch.randn(13, 50) * 4).to(dtype).requires_grad_()
    targets = torch.randint(0, 47, (13,))
    picks = ragged_picks(13, 47)
    wide = logits.detach().double().requires_grad_()
    reference = (wide[:, :47] / temperature).log_softmax(-1)
    expected = (
        reference.gather(-1, targets[:, None])[:, 0],
        -(reference.exp() * reference).sum(-1),
        reference[picks.rows, picks.ids],
    )
    scores = vocab_log_probs(logits, targets, temperature=temperature, vocab=47, picks=picks)
    own = (scores.log_probs, scores.entropy, scores.picks)
    for mine, theirs in zip(own, expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5)
    weights = torch.linspace(-1, 1, len(picks.ids))
    mixed = [
        (lp * 0.3 + h * torch.linspace(0, 1, 13)).sum() + (more * weights).sum() for lp, h, more in (own, expected)
    ]
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    mine, theirs = (torch.autograd.grad(m, x)[0] for m, x in zip(mixed, (logits, wide), strict=True))
    torch.testing.assert_close(mine.double(), theirs, rtol=tolerance, atol=tolerance)


def test_a_certain_token_has_no_nan() -> None:
    logits = torch.tensor([[0.0, 200.0, -300.0]], requires_grad=True)
    scores = vocab_log_probs(logits, torch.tensor([1]))
    (scores.log_probs + scores.entropy).sum().backward()
    assert scores.log_probs.item() == 0.0
    assert scores.entropy.item() == 0.0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_chunks_bound_the_logits_that_exist_at_once() -> None:
    """THUDM/slime#1767: whole logits in fp32 ran out of memory."""
    hidden, head = torch.randn(100, 8, requires_grad=True), torch.randn(8, 30, requires_grad=True)
    targets = torch.randint(0, 30, (100,))
    picks = ragged_picks(100, 30)
    seen: list[int] = []

    def logits_of(part: torch.Tensor) -> torch.Tensor:
        seen.append(part.shape[0])
        return part @ head

    kept: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        chunked = chunked_log_probs(hidden, targets, logits_of, chunk=16, picks=picks)
    assert max(seen) <= 16
    assert not [shape for shape in kept if shape[-1:] == (30,) and shape[0] > 8]  # no logits wait for the backward pass
    whole = chunked_log_probs(hidden, targets, lambda part: part @ head, picks=picks)
    gradients = []
    for scores in (chunked, whole):
        total = scores.log_probs.sum() + scores.entropy.sum() + (scores.picks * torch.arange(len(picks.ids))).sum()
        gradients.append(torch.autograd.grad(total, [hidden, head]))
    for name in ("log_probs", "entropy", "picks"):
        torch.testing.assert_close(getattr(chunked, name), getattr(whole, name))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert max(seen) <= 16  # also when recomputed for the backward pass
