"""Weights in blocks of FP8 (e4m3), each block with the factor that undoes its scaling: as DeepSeek-V3 is published, and as
engines serve models whose configuration says so (arXiv 2412.19437, 3.3).

    scale = max |w| over the block / 448        stored = e4m3(w / scale)        w ~ stored * scale

e4m3 keeps 3 bits after the leading one, so a stored value is off by at most 1/16 of itself, or by scale / 1024 near zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime.errors import VimeError

if TYPE_CHECKING:
    import torch

#: What a scale is called beside its weight.
SUFFIX = "_scale_inv"
LARGEST = 448.0


@dataclass(frozen=True)
class Blocks:
    """Blocks of `rows` x `columns`; weights whose name has one of `kept` in it stay as they are."""

    rows: int = 128
    columns: int = 128
    kept: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: Any, where: str) -> Blocks | None:
        """What the `quantization_config` of a Hugging Face configuration asks for; None without one.

        Raises VimeError for anything but blocks of e4m3. A missing `fmt` is e4m3.
        """
        found = getattr(config, "quantization_config", None)
        if not found:
            return None
        values = found if isinstance(found, dict) else found.to_dict()
        size, kind = values.get("weight_block_size"), values.get("quant_method")
        if kind != "fp8" or not size or values.get("fmt", "e4m3") != "e4m3":
            raise VimeError(
                f"weights quantised by {kind!r} with {values.get('fmt', 'no fmt')} in blocks of {size} cannot be written",
                where=where,
                hint="blocks of fp8 e4m3 can; or give the unquantised checkpoint with --hf-checkpoint",
            )
        return cls(int(size[0]), int(size[1]), tuple(values.get("modules_to_not_convert") or ()))

    def covers(self, name: str) -> bool:
        """Whether the tensor of that name is stored in FP8: projections of layers are, routers, norms and embeddings are not."""
        return name.endswith(("_proj.weight", "_proj_with_mqa.weight")) and not self._keeps(name)

    def _keeps(self, name: str) -> bool:
        module = name.removesuffix(".weight")
        return any(module == kept or f".{kept}." in f".{module}." for kept in self.kept)


def quantise(weight: torch.Tensor, blocks: Blocks) -> tuple[torch.Tensor, torch.Tensor]:
    """weight [rows, columns] -> e4m3 of that shape, and factors fp32 [row blocks, column blocks]. Edge blocks may be smaller;
    a block of zeros has the factor 1. Raises VimeError when a value is not finite."""
    import torch
    import torch.nn.functional as F

    rows, columns = weight.shape
    down, across = -(-rows // blocks.rows), -(-columns // blocks.columns)
    padded = F.pad(weight.float(), (0, across * blocks.columns - columns, 0, down * blocks.rows - rows))
    tiles = padded.view(down, blocks.rows, across, blocks.columns)
    peak = tiles.abs().amax((1, 3))
    if not bool(peak.isfinite().all()):
        raise VimeError("a weight is not finite: it cannot be stored in FP8")
    scale = torch.where(peak > 0, peak / LARGEST, torch.ones_like(peak))
    # Rounding of the quotient may leave the range by its last bit.
    stored = (tiles / scale[:, None, :, None]).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return stored.view(down * blocks.rows, across * blocks.columns)[:rows, :columns].contiguous(), scale


def dequantise(stored: torch.Tensor, scale: torch.Tensor, blocks: Blocks) -> torch.Tensor:
    """Undo `quantise`, fp32."""
    rows, columns = stored.shape
    factors = scale.float().repeat_interleave(blocks.rows, 0)[:rows]
    return stored.float() * factors.repeat_interleave(blocks.columns, 1)[:, :columns]


def quantised(weights: Iterable[tuple[str, torch.Tensor]], blocks: Blocks | None) -> Iterator[tuple[str, torch.Tensor]]:
    """`weights`, those that `blocks` covers followed by their factors."""
    for name, tensor in weights:
        if blocks is None or not blocks.covers(name):
            yield name, tensor
            continue
        stored, scale = quantise(tensor, blocks)
        yield name, stored
        yield name + SUFFIX, scale
