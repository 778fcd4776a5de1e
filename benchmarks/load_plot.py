"""A plot of distributions as an SVG, without a plotting library."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDTH, HEIGHT, MARGIN = 760, 420, 60
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")


@dataclass(frozen=True, slots=True)
class Curve:
    """A name and its measurements."""

    name: str
    values: Sequence[float]


def write_plot(path: Path, curves: Sequence[Curve], label: str) -> None:
    """For each curve, the share of its values up to each value."""
    most = max((value for curve in curves for value in curve.values), default=1.0) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for tenth in range(0, 11, 2):
        x, y = _point(most * tenth / 10, tenth / 10, most)
        left, bottom = _point(0, 0, most)
        parts += [
            f'<text x="{x:.0f}" y="{bottom + 18:.0f}" text-anchor="middle">'
            f"{most * tenth / 10:.2g}</text>",
            f'<text x="{left - 8:.0f}" y="{y + 4:.0f}" text-anchor="end">{10 * tenth} %</text>',
            f'<path d="M{left:.0f},{y:.1f}H{WIDTH - MARGIN}" stroke="#ddd"/>',
        ]
    for number, curve in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        ordered = sorted(curve.values)
        points = [
            _point(v, (rank + 1) / len(ordered), most) for rank, v in enumerate(ordered)
        ]  # fmt: skip
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts += [
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
            f'<text x="{WIDTH - MARGIN}" y="{HEIGHT - MARGIN - 12 - 16 * number}" '
            f'text-anchor="end" fill="{colour}">{escape(curve.name)}</text>',
        ]
    parts += [
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(label)}</text>',
        "</svg>",
    ]
    path.write_text("\n".join(parts) + "\n", "utf-8")


def _point(value: float, share: float, most: float) -> tuple[float, float]:
    x = MARGIN + (WIDTH - 2 * MARGIN) * value / most
    return x, HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * share
