"""Grouped bars as SVG, by hand: no plotting package is worth one chart."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

COLOURS = ("#b8b8b8", "#d9a066", "#8fb3d9", "#4878a8", "#c0392b", "#7f9f7f", "#9b7fb5", "#555555")
_WIDTH, _BAR, _GAP, _LEFT = 860, 11, 14, 170


def bars(title: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """Horizontal bars: a group for each key, a bar for each entry; values in [0, 1]."""
    arms = list(dict.fromkeys(arm for group in groups.values() for arm in group))
    top = 40 + 16 * len(arms)
    largest = max((v for group in groups.values() for v in group.values()), default=1) or 1
    parts = [_text(10, 20, title, size=14)]
    for i, arm in enumerate(arms):
        y = 40 + 16 * i
        parts += [_box(_LEFT, y - 9, 12, 10, COLOURS[i % len(COLOURS)]), _text(_LEFT + 18, y, arm)]
    y = top
    for name, group in groups.items():
        parts.append(_text(10, y + _BAR * len(group) / 2 + 4, name))
        for arm, value in group.items():
            width = (_WIDTH - _LEFT - 60) * value / largest
            parts.append(_box(_LEFT, y, max(width, 0.5), _BAR - 1, COLOURS[arms.index(arm) % len(COLOURS)]))
            parts.append(_text(_LEFT + width + 4, y + _BAR - 2, f"{value:.3f}", size=9))
            y += _BAR
        y += _GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{_WIDTH}" height="{y}" fill="white"/>', *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, size: int = 11) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}">{escape(text)}</text>'


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.1f}" height="{height:.0f}" fill="{colour}"/>'
