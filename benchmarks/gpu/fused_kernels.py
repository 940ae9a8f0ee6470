"""The trainer's kernels against their plain forms in fp64, and their speed."""

from __future__ import annotations

from typing import Any

from common import attempt, report


def relative(found: Any, wanted: Any) -> float:
    found, wanted = found.double(), wanted.double()
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-30))


def checked(dtype_name: str) -> dict[str, float]:
    """Relative errors of values and gradients of each kernel in that type."""
    import torch
    import torch.nn.functional as F

    from vime.trainer import kernels
    from vime.trainer.log_probs import Picks, vocab_log_probs

    dtype = getattr(torch, dtype_name)
    torch.manual_seed(0)
    errors: dict[str, float] = {}

    def compare(name: str, ours: Any, plain: Any, *inputs: Any) -> None:
        mine = [x.clone().requires_grad_() for x in inputs]
        exact = [x.double().requires_grad_() for x in inputs]
        a, b = ours(*mine), plain(*exact)
        grad = torch.randn_like(b)
        a.backward(grad.to(a.dtype))
        b.backward(grad.to(a.dtype).double())
        errors[name] = relative(a, b)
        for i, (x, y) in enumerate(zip(mine, exact, strict=True)):
            errors[f"{name}/grad{i}"] = relative(x.grad, y.grad)

    for width in (64, 128, 1024, 2560):
        x, w = torch.randn(777, 3, width, device="cuda", dtype=dtype), torch.randn(width, device="cuda", dtype=dtype)
        compare(
            f"norm{width}", lambda x, w: kernels._RmsNorm.apply(x, w, 1e-6),
            lambda x, w: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w, x, w,
        )  # fmt: skip
    x = torch.randn(777, 2 * 3072, device="cuda", dtype=dtype)
    compare("gate", kernels._SwiGlu.apply, lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], x)
    angles = torch.randn(777, 1, 64, device="cuda")
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def plain_turn(x: Any) -> Any:
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos.double() - b * sin.double(), b * cos.double() + a * sin.double()], -1)

    compare(
        "turn", lambda x: kernels.rotate(x, cos, sin), plain_turn, torch.randn(777, 16, 128, device="cuda", dtype=dtype)
    )
    rows, vocabulary, padded = 512, 151_936, 152_064
    logits = torch.randn(rows, padded, device="cuda", dtype=dtype) * 3
    targets = torch.randint(0, vocabulary, (rows,), device="cuda")
    picks = Picks(
        torch.arange(rows, device="cuda").repeat_interleave(4), torch.randint(0, vocabulary, (4 * rows,), device="cuda")
    )
    weights = [torch.randn(n, device="cuda") for n in (rows, rows, 4 * rows)]
    mine = logits.clone().requires_grad_()
    scores = vocab_log_probs(mine, targets, temperature=0.7, vocab=vocabulary, picks=picks)
    sum(
        (w * v).sum() for w, v in zip(weights, (scores.log_probs, scores.entropy, scores.picks), strict=True)
    ).backward()
    exact = logits.double().requires_grad_()
    table = torch.log_softmax(exact[:, :vocabulary] / 0.7, -1)
    parts = (table.gather(1, targets[:, None])[:, 0], -(table.exp() * table).sum(-1), table[picks.rows, picks.ids])
    sum((w.double() * v).sum() for w, v in zip(weights, parts, strict=True)).backward()
    for name, a, b in zip(
        ("log_probs", "entropy", "picks"), (scores.log_probs, scores.entropy, scores.picks), parts, strict=True
    ):
        errors[name] = relative(a, b)
    errors["logits/grad"] = relative(mine.grad, exact.grad)
    return {name: float(f"{value:.2e}") for name, value in errors.items()}


def attention() -> dict[str, Any]:
    """Packed attention forward and backward: error against fp32 softmax, TFLOP/s at 32 heads of 128 and 8 groups, 4096 tokens a sequence."""
    import torch
    from triton.testing import do_bench

    from vime.trainer.attention import varlen_kernel

    torch.manual_seed(0)
    lengths = [100, 300, 57]
    cu = torch.tensor([0, 100, 400, 457], device="cuda", dtype=torch.int32)
    q, k, v = (torch.randn(457, n, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for n in (8, 2, 2))
    out = varlen_kernel(q, k, v, cu, cu, 300, 300)
    pieces = []
    for start, n in zip((0, 100, 400), lengths, strict=True):
        a, b, c = (
            x[start : start + n].float().transpose(0, 1)
            for x in (q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1))
        )
        mask = torch.ones(n, n, device="cuda", dtype=torch.bool).tril()
        pieces.append(
            (torch.softmax((a @ b.transpose(1, 2) / 128**0.5).masked_fill(~mask, float("-inf")), -1) @ c).transpose(
                0, 1
            )
        )
    wanted = torch.cat(pieces)
    grad = torch.randn_like(wanted)
    mine = torch.autograd.grad(out, (q, k, v), grad.bfloat16(), retain_graph=True)
    exact = torch.autograd.grad(wanted, (q, k, v), grad)
    result: dict[str, Any] = {"error": relative(out, wanted), "grad_error": max(map(relative, mine, exact))}
    q, k, v = (torch.randn(8192, n, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for n in (32, 8, 8))
    cu = torch.tensor([0, 4096, 8192], device="cuda", dtype=torch.int32)
    flops = 2 * 2 * 2 * 4096 * 4096 / 2 * 32 * 128
    out = varlen_kernel(q, k, v, cu, cu, 4096, 4096)
    grad = torch.randn_like(out)
    forward = do_bench(lambda: varlen_kernel(q, k, v, cu, cu, 4096, 4096), return_mode="median")
    backward = do_bench(lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True), return_mode="median")
    return result | {
        "forward_tflops": round(flops / forward / 1e9, 1),
        "backward_tflops": round(2.5 * flops / backward / 1e9, 1),
    }


def vocabulary_speed() -> dict[str, float]:
    """Milliseconds and GB of the vocabulary at 8192 tokens of 151,936 columns, forward and backward from logits in bf16."""
    import torch
    from triton.testing import do_bench

    from vime.trainer.log_probs import vocab_log_probs

    logits = torch.randn(8192, 151_936, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    targets = torch.randint(0, 151_936, (8192,), device="cuda")
    forward = do_bench(lambda: vocab_log_probs(logits, targets), return_mode="median")
    base = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    scores = vocab_log_probs(logits, targets)
    torch.autograd.grad(scores.log_probs.sum() + scores.entropy.sum(), logits)
    return {"forward_ms": round(forward, 3), "extra_gb": round((torch.cuda.max_memory_allocated() - base) / 1e9, 3)}


def part() -> dict[str, Any]:
    result: dict[str, Any] = {}
    attempt(result, "fp32", lambda: checked("float32"))
    attempt(result, "bf16", lambda: checked("bfloat16"))
    attempt(result, "attention", attention)
    attempt(result, "vocabulary", vocabulary_speed)
    return result


report(part)
