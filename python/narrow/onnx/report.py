"""The errors of a quantized graph, node by node, as one HTML page without scripts or other files."""

from __future__ import annotations

import html
import math
import os
import pathlib
import tempfile
from collections.abc import Sequence

from .compare import NodeError

_STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --text: #1c2430; --dim: #5d6878; --line: #d5dbe3; --bar: #0b66c3; --low: #c2410c; }
@media (prefers-color-scheme: dark) {
  :root { --back: #12161c; --text: #e4e9f0; --dim: #98a4b3; --line: #333c48; --bar: #60a5fa; --low: #fb923c; }
}
body { margin: 0 auto; max-width: 1080px; padding: 1rem; background: var(--back); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; }
p { color: var(--dim); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
.left { text-align: left; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--dim); font-size: 11px; }
line { stroke: var(--line); }
rect { fill: var(--bar); }
rect.low { fill: var(--low); }
"""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 1000, 240, 44, 20
_HIGHEST, _LOW = 80.0, 20.0  # dB: the top of the chart; below this a bar stands out


def write_report(path: str | os.PathLike[str], errors: Sequence[NodeError], title: str = "Errors of the quantized graph") -> None:
    """Writes the page under a temporary name beside `path` and renames it when it is complete."""
    target = pathlib.Path(path)
    descriptor, place = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(report_html(errors, title))
        os.replace(place, target)
    except BaseException:
        os.unlink(place)
        raise


def report_html(errors: Sequence[NodeError], title: str = "Errors of the quantized graph") -> str:
    """A chart in the graph's order, and every tensor in a table, worst first."""
    worst_first = sorted(errors, key=lambda error: error.sqnr_db)
    rows = "".join(
        f'<tr><td class="left">{html.escape(error.tensor)}</td><td class="left">{html.escape(error.operator)}</td><td>{error.position}</td>'
        f"<td>{decibel_text(error.sqnr_db)}</td><td>{error.max_absolute:.4g}</td></tr>"
        for error in worst_first
    )
    exact = sum(math.isinf(error.sqnr_db) and error.sqnr_db > 0 for error in errors)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body><h1>{html.escape(title)}</h1>"
        f"<p>Signal-to-noise ratio of every tensor that both graphs have, over the example inputs: {len(errors)} tensors, {exact} of them "
        f"the same in both. Each graph ran as a whole, so that errors add up along it.</p><h2>Along the graph</h2>{_chart(errors)}"
        f'<h2>Worst first</h2><div class="scroll"><table><thead><tr><th class="left">tensor</th><th class="left">operator</th><th>node</th>'
        f"<th>SQNR</th><th>largest difference</th></tr></thead><tbody>{rows}</tbody></table></div></body></html>\n"
    )


def decibel_text(value: float) -> str:
    if math.isinf(value):
        return "equal" if value > 0 else "noise alone"
    return f"{value:.2f} dB"


def _chart(errors: Sequence[NodeError]) -> str:
    in_order = sorted(errors, key=lambda error: error.position)
    if not in_order:
        return ""
    step = (_WIDTH - _LEFT) / len(in_order)
    height = _HEIGHT - _BOTTOM
    grid = "".join(
        f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{height * (1 - value / _HIGHEST):.1f}" y2="{height * (1 - value / _HIGHEST):.1f}"/>'
        f'<text x="4" y="{height * (1 - value / _HIGHEST) + 4:.1f}">{value:.0f} dB</text>'
        for value in (0.0, 20.0, 40.0, 60.0, 80.0)
    )
    bars = "".join(
        f'<rect{" class=low" if error.sqnr_db < _LOW else ""} x="{_LEFT + i * step:.2f}" width="{max(step * 0.8, 0.5):.2f}" '
        f'y="{height * (1 - _share(error.sqnr_db)):.1f}" height="{max(height * _share(error.sqnr_db), 1.0):.1f}">'
        f"<title>{html.escape(error.tensor)} ({html.escape(error.operator)}): {decibel_text(error.sqnr_db)}</title></rect>"
        for i, error in enumerate(in_order)
    )
    label = "SQNR of every tensor, in the order of the graph"
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{grid}{bars}</svg>'


def _share(decibel: float) -> float:
    return min(max(decibel / _HIGHEST, 0.0), 1.0)
