"""RMSNorm, SwiGLU and rotation with hand-written gradients, as modules that Megatron's layer spec takes.

Megatron's unfused forms leave each elementary operation to autograd, which doubles the memory traffic of a layer; its
fused ones need Apex or Transformer Engine. These run anywhere and are checked against autograd in the tests.
"""

from __future__ import annotations

from typing import Any

import torch


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        return _turn(x, cos, sin, 1.0, interleaved)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:  # type: ignore[override]
        cos, sin = ctx.saved_tensors
        return _turn(grad, cos, sin, -1.0, ctx.interleaved), None, None, None


def _turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, direction: float, interleaved: bool) -> torch.Tensor:
    if x.is_cuda and not interleaved and 2 * cos.shape[-1] == x.shape[-1]:
        from vime.trainer import fused

        return fused.turn(x, cos, sin, direction)
    width = 2 * cos.shape[-1]
    if not interleaved and width == x.shape[-1]:
        # Whole rows at a time: half as long as half rows.
        swapped = torch.cat(x.chunk(2, -1)[::-1], -1)
        return (x * torch.cat((cos, cos), -1)).addcmul_(swapped, torch.cat((-sin, sin), -1), value=direction)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if width < x.shape[-1]:
        out[..., width:] = x[..., width:]
    real, imaginary = _parts(x[..., :width], interleaved)
    out_real, out_imaginary = _parts(out[..., :width], interleaved)
    torch.mul(real, cos, out=out_real).addcmul_(imaginary, sin, value=-direction)
    torch.mul(imaginary, cos, out=out_imaginary).addcmul_(real, sin, value=direction)
    return out


def _parts(x: torch.Tensor, interleaved: bool) -> tuple[torch.Tensor, ...]:
    return (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    """Rotary embedding of x [tokens, heads, dim]: the halves (or, `interleaved`, even and odd elements) are real and
    imaginary part.

    cos, sin [tokens, 1, rotated / 2] in the dtype of x; they get no gradient. What of `dim` is past `rotated` stays as it is.
    """
    return _Rotate.apply(x, cos, sin, interleaved)


class _RmsNorm(torch.autograd.Function):
    """y = x r w, r = 1 / sqrt(mean(x^2) + eps). With g = dy w: dx = r (g - x r^2 mean(g x)), dw = sum dy x r."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if x.is_cuda:
            from vime.trainer import fused

            x = x.contiguous()
            out, scale = fused.norm_forward(x, weight, eps)
            ctx.save_for_backward(x, scale, weight)
            return out
        wide = x.float()
        scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        normed = wide * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed.to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:  # type: ignore[override]
        normed, scale, weight = ctx.saved_tensors
        if grad.is_cuda:
            from vime.trainer import fused

            return *fused.norm_backward(grad.contiguous(), normed, weight, scale), None  # `normed` is x itself
        product = grad.float() * normed
        width = normed.shape[-1]
        grad_weight = product.reshape(-1, width).sum(0)
        shared = (product @ weight.float()).unsqueeze_(-1).div_(width)
        grad_x = (grad.float() * weight.float()).addcmul_(normed, shared, value=-1.0).mul_(scale)
        return grad_x.to(grad.dtype), grad_weight.to(weight.dtype), None


class RmsNorm(torch.nn.Module):
    """Root mean square norm (arXiv 1910.07467), statistics in fp32 whatever the dtype."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        # Ranks that share a sequence each have the gradient of their tokens: Megatron adds up those of marked weights.
        self.weight.sequence_parallel = config.sequence_parallel
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _RmsNorm.apply(x, self.weight, self.eps)


class _SwiGlu(torch.autograd.Function):
    """y = a s(a) b, s the logistic function. dy/da = b s (1 + a (1 - s)), dy/db = a s."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        if x.is_cuda:
            from vime.trainer import fused

            x = x.contiguous()
            ctx.save_for_backward(x)
            return fused.gate_forward(x)
        gate, up = x.chunk(2, -1)
        logistic = torch.sigmoid(gate.float())
        silu = (logistic * gate).to(x.dtype)
        # Both are kept: making them again takes two exponentials, most of the time of the way back.
        ctx.save_for_backward(x, logistic, silu)
        return silu * up

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        x, *kept = ctx.saved_tensors
        if grad.is_cuda:
            from vime.trainer import fused

            return fused.gate_backward(grad.contiguous(), x)
        (logistic, silu), up = kept, x.chunk(2, -1)[1]
        out = torch.empty_like(x)
        out_gate, out_up = out.chunk(2, -1)
        torch.mul(silu, grad, out=out_up)
        # a s (1 - s) + s, where a s is known.
        slope = torch.addcmul(logistic, logistic, silu, value=-1.0).add_(silu)
        torch.mul(slope.mul_(up), grad, out=out_gate)
        return out


class SwiGlu(torch.nn.Module):
    """silu(gate) * up of x [..., 2 * width], the gate being the first half (arXiv 2002.05202)."""

    def __init__(self, config: Any) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _SwiGlu.apply(x)

    def sharded_state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Nothing to save; Megatron's MLP asks each of its parts."""
        return {}
