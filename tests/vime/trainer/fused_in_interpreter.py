"""Run by test_fused in Triton's interpreter. Prints errors as JSON."""

from __future__ import annotations

import json

import torch
import torch.nn.functional as F

from vime.trainer import fused

torch.manual_seed(0)
errors: dict[str, float] = {}


def note(name: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    errors[name] = float((found.double() - wanted.double()).abs().max())


x, weight, grad = torch.randn(7, 3, 48), torch.randn(48), torch.randn(7, 3, 48)
exact, exact_weight = x.double().requires_grad_(), weight.double().requires_grad_()
wanted = exact * (exact.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * exact_weight
wanted.backward(grad.double())
out, scale = fused.norm_forward(x, weight, 1e-6)
grad_x, grad_weight = fused.norm_backward(grad, x, weight, scale)
note("norm", out, wanted)
note("norm/x", grad_x, exact.grad)
note("norm/weight", grad_weight, exact_weight.grad)

x, grad = torch.randn(5, 60), torch.randn(5, 30)
exact = x.double().requires_grad_()
wanted = F.silu(exact[:, :30]) * exact[:, 30:]
wanted.backward(grad.double())
note("gate", fused.gate_forward(x), wanted)
note("gate/x", fused.gate_backward(grad, x), exact.grad)

query = torch.randn(6, 101)[:, :96].view(6, 4, 24)[:, :, :16]  # strided, as a part of a joint projection is
angles = torch.randn(6, 1, 8)
real, imaginary = query.double().chunk(2, -1)
cos, sin = angles.double().cos(), angles.double().sin()
turned = fused.turn(query, angles.cos(), angles.sin(), 1.0)
note("turn", turned, torch.cat([real * cos - imaginary * sin, imaginary * cos + real * sin], -1))
note("turn/back", fused.turn(turned, angles.cos(), angles.sin(), -1.0), query)

rows, vocabulary, padded = 6, 5000, 5008
for temperature in (1.0, 0.7):
    logits, targets = torch.randn(rows, padded) * 3, torch.randint(0, vocabulary, (rows,))
    by_log_prob, by_entropy = torch.randn(rows), torch.randn(rows)
    exact = logits.double().requires_grad_()
    table = torch.log_softmax(exact[:, :vocabulary] / temperature, -1)
    wanted_log_probs, wanted_entropy = table[torch.arange(rows), targets], -(table.exp() * table).sum(-1)
    ((wanted_log_probs * by_log_prob) + (wanted_entropy * by_entropy)).sum().backward()
    peaks, totals, weighted = fused.vocab_sums(logits, vocabulary, temperature)
    log_totals = peaks + totals.log()
    entropy = log_totals - weighted / totals
    name = f"vocab {temperature}"
    note(f"{name}/log_probs", logits[torch.arange(rows), targets] / temperature - log_totals, wanted_log_probs)
    note(f"{name}/entropy", entropy, wanted_entropy)
    note(f"{name}/peak", peaks, (logits[:, :vocabulary] / temperature).max(-1).values)
    given = logits.clone()
    grad = fused.vocab_gradient(
        given, targets, log_totals, entropy, by_log_prob, by_log_prob, by_entropy, vocabulary, temperature
    )
    assert grad.data_ptr() == given.data_ptr()
    note(f"{name}/logits", grad, exact.grad)
    note(f"{name}/sum", grad[:, :vocabulary].sum(-1), torch.zeros(rows))
    errors["padding"] = float(grad[:, vocabulary:].abs().max())
    halves = [fused.vocab_sums(logits[:, a:b], b - a, temperature) for a, b in ((0, 2504), (2504, vocabulary))]
    top = torch.maximum(halves[0][0], halves[1][0])
    joint = sum(total * (peak - top).exp() for peak, total, _ in halves)
    note("halves", top + joint.log(), log_totals)

print(json.dumps(errors))
