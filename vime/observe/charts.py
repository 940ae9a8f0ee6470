"""Line charts and stacked bars as SVG text. Pure, and without a library, so that a page is one small file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

#: Distinguishable also for the colour-blind (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_WIDTH, _HEIGHT = 460, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 10, 10, 24

Series = tuple[str, Sequence[tuple[float, float]]]


def lines(series: Sequence[Series], *, log: bool = False, unit: str = "") -> str:
    """Named curves over one axis. Points without a finite value (or not over 0 on a logarithmic axis) are gaps. "" when nothing can be drawn."""
    kept = [(name, [(x, y) for x, y in points if math.isfinite(y) and (y > 0 or not log)]) for name, points in series]
    kept = [(name, points) for name, points in kept if points]
    if not kept:
        return ""
    xs = [x for _, points in kept for x, _ in points]
    ys = [math.log10(y) if log else y for _, points in kept for _, y in points]
    x_scale, y_scale = _scale(xs, _LEFT, _WIDTH - _RIGHT), _scale(ys, _HEIGHT - _BOTTOM, _TOP)
    parts = [_axes(x_scale, y_scale, log, unit)]
    for number, (name, points) in enumerate(kept):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x_scale.at(x):.1f},{y_scale.at(math.log10(y) if log else y):.1f}" for x, y in points)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"><title>{escape(name)}</title></polyline>'
        )
        if len(points) == 1:
            x, y = path.split(",")
            parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')
    legend = "".join(
        f'<span><i style="background:{COLOURS[number % len(COLOURS)]}"></i>{escape(name)}</span>'
        for number, (name, _) in enumerate(kept)
    )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg><div class="legend">{legend}</div>'


def stacked(parts: Sequence[tuple[str, float]]) -> str:
    """One bar of shares, widths in proportion."""
    total = sum(value for _, value in parts)
    if total <= 0:
        return ""
    at, drawn, legend = 0.0, [], []
    for number, (name, value) in enumerate(parts):
        width, colour = value / total * _WIDTH, COLOURS[number % len(COLOURS)]
        drawn.append(
            f'<rect x="{at:.1f}" y="0" width="{width:.1f}" height="22" fill="{colour}"><title>{escape(name)}</title></rect>'
        )
        legend.append(f'<span><i style="background:{colour}"></i>{escape(name)} {value / total:.0%}</span>')
        at += width
    return f'<svg viewBox="0 0 {_WIDTH} 22" class="bar" role="img">{"".join(drawn)}</svg><div class="legend">{"".join(legend)}</div>'


class _Scale:
    """Values to places between two ends."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self._start, self._end = low, high, start, end

    def at(self, value: float) -> float:
        return self._start + (value - self.low) / (self.high - self.low) * (self._end - self._start)


def _scale(values: Sequence[float], start: float, end: float) -> _Scale:
    low, high = min(values), max(values)
    if high - low < 1e-12 * max(1.0, abs(high)):
        margin = abs(high) * 0.1 or 1.0
        # What never is negative does not look as if it could be; a logarithm may be.
        low, high = (0.0 if 0 <= low <= margin else low - margin), high + margin
    return _Scale(low, high, start, end)


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers between `low` and `high`, about `count` of them (steps of 1, 2 or 5 times a power of ten)."""
    step = 10 ** math.floor(math.log10((high - low) / count))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= count)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _axes(x: _Scale, y: _Scale, log: bool, unit: str) -> str:
    parts = []
    for value in ticks(y.low, y.high):
        label = f"{10**value:.1e}" if log else f"{value:.4g}"
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y.at(value):.1f}" y2="{y.at(value):.1f}" class="grid"/>'
        )
        parts.append(f'<text x="{_LEFT - 6}" y="{y.at(value) + 4:.1f}" text-anchor="end">{label}{escape(unit)}</text>')
    for value in ticks(x.low, x.high, 6):
        parts.append(f'<text x="{x.at(value):.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{value:.4g}</text>')
    return "".join(parts)
