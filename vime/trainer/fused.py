"""Triton kernels for what a GPU would otherwise do in many passes over memory: norm, activation, rotation, and the vocabulary.

Each has the numbers of its plain form in `kernels` and `log_probs`: statistics in fp32, results rounded to the tensor's type where the
plain form, and vLLM's own kernels, round. Imported only on a GPU; the tests run them in Triton's interpreter.
"""

# Triton gives the arguments of its kernels their types.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

#: Elements of one program's tile; columns of one step over a row of logits.
_TILE = 4096
_COLUMNS = 4096
#: Programs that add up a weight's gradient, each into a row of its own.
_PARTS = 512


def _tile(width: int) -> tuple[int, int]:
    """Columns rounded up to a power of two, and how many rows a program takes."""
    columns = triton.next_power_of_2(width)
    return columns, max(1, _TILE // columns)


# ---- root mean square norm ----------------------------------------------------------------------------------------------------


@triton.jit
def _norm_forward(x, weight, out, scale, rows, width, eps, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    place = row[:, None] * width + column[None, :]
    wide = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    r = 1.0 / tl.sqrt(tl.sum(wide * wide, 1) / width + eps)
    factor = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    kind = out.dtype.element_ty
    # Rounded before the weight too; the product of two rounded numbers is exact in fp32.
    normed = (wide * r[:, None]).to(kind).to(tl.float32)
    tl.store(out + place, (normed * factor[None, :]).to(kind), mask=inside)
    tl.store(scale + row, r, mask=row < rows)


@triton.jit
def _norm_backward(
    grad, x, weight, scale, grad_x, parts, rows, width, programs, COLUMNS: tl.constexpr, ROWS: tl.constexpr
):
    program = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    factor = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    total = tl.zeros([COLUMNS], dtype=tl.float32)
    for tile in range(program, tl.cdiv(rows, ROWS), programs):
        row = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        place = row[:, None] * width + column[None, :]
        r = tl.load(scale + row, mask=row < rows, other=0.0)
        normed = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) * r[:, None]
        g = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
        total += tl.sum(g * normed, 0)
        g = g * factor[None, :]
        shared = tl.sum(g * normed, 1) / width
        tl.store(grad_x + place, ((g - normed * shared[:, None]) * r[:, None]).to(grad_x.dtype.element_ty), mask=inside)
    tl.store(parts + program * width + column, total, mask=column < width)


def norm_forward(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, r): y = (x r) w of x [..., width] contiguous, r = 1 / sqrt(mean(x^2) + eps) fp32, one a row."""
    width = x.shape[-1]
    rows = x.numel() // width
    out, scale = torch.empty_like(x), torch.empty(rows, dtype=torch.float32, device=x.device)
    columns, tall = _tile(width)
    if rows:
        _norm_forward[(triton.cdiv(rows, tall),)](x, weight, out, scale, rows, width, eps, COLUMNS=columns, ROWS=tall)
    return out, scale


def norm_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(dx, dw) of `norm_forward`; dw is summed in fp32."""
    width = x.shape[-1]
    rows = x.numel() // width
    columns, tall = _tile(width)
    programs = max(1, min(_PARTS, triton.cdiv(rows, tall)))
    grad_x = torch.empty_like(x)
    parts = torch.empty(programs, width, dtype=torch.float32, device=x.device)
    _norm_backward[(programs,)](
        grad, x, weight, scale, grad_x, parts, rows, width, programs, COLUMNS=columns, ROWS=tall
    )
    return grad_x, parts.sum(0).to(weight.dtype)


# ---- gated activation -----------------------------------------------------------------------------------------------------------


@triton.jit
def _gate_forward(x, out, count, width, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    source = (place // width) * (2 * width) + place % width
    gate = tl.load(x + source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + source + width, mask=inside, other=0.0).to(tl.float32)
    kind = out.dtype.element_ty
    tl.store(out + place, ((gate * tl.sigmoid(gate)).to(kind).to(tl.float32) * up).to(kind), mask=inside)


@triton.jit
def _gate_backward(grad, x, grad_x, count, width, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    source = (place // width) * (2 * width) + place % width
    gate = tl.load(x + source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + source + width, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
    s = tl.sigmoid(gate)
    kind = grad_x.dtype.element_ty
    tl.store(grad_x + source, (g * up * s * (1.0 + gate * (1.0 - s))).to(kind), mask=inside)
    tl.store(grad_x + source + width, (g * gate * s).to(kind), mask=inside)


def gate_forward(x: torch.Tensor) -> torch.Tensor:
    """silu(a) b of x [..., 2 width] = (a, b), contiguous."""
    width = x.shape[-1] // 2
    out = torch.empty(*x.shape[:-1], width, dtype=x.dtype, device=x.device)
    if out.numel():
        _gate_forward[(triton.cdiv(out.numel(), _TILE),)](x, out, out.numel(), width, BLOCK=_TILE)
    return out


def gate_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    width = x.shape[-1] // 2
    grad_x = torch.empty_like(x)
    if grad.numel():
        _gate_backward[(triton.cdiv(grad.numel(), _TILE),)](grad, x, grad_x, grad.numel(), width, BLOCK=_TILE)
    return grad_x


# ---- rotation ---------------------------------------------------------------------------------------------------------------------


@triton.jit
def _turn(
    x, cos, sin, out, rows, heads, half, token_stride, head_stride, direction, HALF: tl.constexpr, ROWS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, HALF)
    inside = (row < rows)[:, None] & (column < half)[None, :]
    token, head = row // heads, row % heads
    source = (token * token_stride + head * head_stride)[:, None] + column[None, :]
    angle = token[:, None] * half + column[None, :]
    c = tl.load(cos + angle, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + angle, mask=inside, other=0.0).to(tl.float32) * direction
    real = tl.load(x + source, mask=inside, other=0.0).to(tl.float32)
    imaginary = tl.load(x + source + half, mask=inside, other=0.0).to(tl.float32)
    target = (row * 2 * half)[:, None] + column[None, :]
    kind = out.dtype.element_ty
    tl.store(out + target, (real * c - imaginary * s).to(kind), mask=inside)
    tl.store(out + target + half, (imaginary * c + real * s).to(kind), mask=inside)


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, direction: float) -> torch.Tensor:
    """x [tokens, heads, 2 half] (any strides but the last) rotated by the angles of cos, sin [tokens, 1, half], forth or back."""
    tokens, heads, dim = x.shape
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    columns, tall = _tile(dim // 2)
    if out.numel():
        _turn[(triton.cdiv(tokens * heads, tall),)](
            x, cos, sin, out, tokens * heads, heads, dim // 2, x.stride(0), x.stride(1), direction,
            HALF=columns, ROWS=tall,
        )  # fmt: skip
    return out


# ---- vocabulary --------------------------------------------------------------------------------------------------------------------


@triton.jit
def _vocab_forward(logits, peaks, totals, weighted, stride, width, inverse_temperature, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    peak = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    weight = tl.zeros([], tl.float32)
    for start in range(0, width, COLUMNS):
        inside = start + column < width
        logit = tl.load(logits + row * stride + start + column, mask=inside, other=float("-inf")).to(tl.float32)
        logit = logit * inverse_temperature
        higher = tl.maximum(peak, tl.max(logit, 0))
        shrink = tl.exp(peak - higher)
        e = tl.where(inside, tl.exp(logit - higher), 0.0)
        total = total * shrink + tl.sum(e, 0)
        weight = weight * shrink + tl.sum(tl.where(e > 0, e * logit, 0.0), 0)
        peak = higher
    tl.store(peaks + row, peak)
    tl.store(totals + row, total)
    tl.store(weighted + row, weight)


@triton.jit
def _vocab_backward(
    logits, targets, log_totals, entropies, by_row, at_target, by_entropy, stride, width, whole, inverse_temperature,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    target = tl.load(targets + row)
    log_total = tl.load(log_totals + row)
    entropy = tl.load(entropies + row)
    spread = tl.load(by_row + row)
    own = tl.load(at_target + row)
    slope = tl.load(by_entropy + row)
    for start in range(0, whole, COLUMNS):
        place = start + column
        inside = place < width
        logit = tl.load(logits + row * stride + place, mask=inside, other=float("-inf")).to(tl.float32)
        log_p = logit * inverse_temperature - log_total
        p = tl.where(inside, tl.exp(log_p), 0.0)
        grad = -spread * p - slope * tl.where(p > 0, p * (log_p + entropy), 0.0)
        grad += tl.where(place == target, own, 0.0)
        grad = tl.where(inside, grad * inverse_temperature, 0.0)
        tl.store(logits + row * stride + place, grad.to(logits.dtype.element_ty), mask=place < whole)


def vocab_sums(logits: torch.Tensor, width: int, temperature: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of each row of `logits` [n, columns] over temperature, its first `width` columns l: (max l, sum e^(l - max), sum e^(l - max) l), fp32."""
    peaks, totals, weighted = (torch.empty(len(logits), dtype=torch.float32, device=logits.device) for _ in range(3))
    if len(logits):
        _vocab_forward[(len(logits),)](
            logits, peaks, totals, weighted, logits.stride(0), width, 1.0 / temperature, COLUMNS=_COLUMNS, num_warps=8
        )
    return peaks, totals, weighted


def vocab_gradient(
    logits: torch.Tensor,
    targets: torch.Tensor,
    log_totals: torch.Tensor,
    entropies: torch.Tensor,
    by_row: torch.Tensor,
    at_target: torch.Tensor,
    by_entropy: torch.Tensor,
    width: int,
    temperature: float,
) -> torch.Tensor:
    """Write the gradient over `logits` [n, columns] itself, which is returned; columns past `width` get zero.

    For a row with log normaliser z and entropy H: d l_v = (-by_row p_v + at_target [v = target] - by_entropy p_v (log p_v + H)) / T.
    `targets` count from this rank's first column; one outside is nowhere.
    """
    if len(logits):
        _vocab_backward[(len(logits),)](
            logits, targets, log_totals, entropies, by_row, at_target, by_entropy, logits.stride(0), width,
            logits.shape[-1], 1.0 / temperature, COLUMNS=_COLUMNS, num_warps=8,
        )  # fmt: skip
    return logits
