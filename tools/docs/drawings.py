"""Pictures of the site: where a format's values lie, and plots of the committed benchmarks. Plain SVG in the colours of the page."""

import html
import math

WIDTH, HEIGHT = 760, 46


def value_line(form):
    """form: what `narrow formats NAME --json` says. All its values on a line; of wide ranges the positive ones by their logarithm."""
    values = sorted({code["value"] for code in form["codes"] if code["value"] is not None})
    largest = max(values)
    positive = [value for value in values if value > 0]
    logarithmic = len(positive) > 2 and largest / positive[0] > 2000
    if logarithmic:
        low, high = math.log2(positive[0]), math.log2(largest)
        place = lambda value: (math.log2(value) - low) / (high - low)
        shown = positive
        labels = [2.0 ** round(low + (high - low) * i / 4) for i in range(5)]
    else:
        low, high = min(values), largest
        place = lambda value: (value - low) / (high - low)
        shown = values
        labels = sorted({low, 0.0, high} if low < 0 else {low, high})
    x = lambda value: 12 + (WIDTH - 24) * place(value)
    marks = "".join(f'<line x1="{x(value):.1f}" x2="{x(value):.1f}" y1="6" y2="24"/>' for value in shown)
    texts = "".join(f'<text x="{x(value):.1f}" y="40" text-anchor="middle">{number(value)}</text>' for value in labels)
    kind = "positive values, logarithmic" if logarithmic else "all values"
    title = html.escape(f"{form['name']}: {len(shown)} {kind}")
    return (
        f'<svg class="values" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}"><title>{title}</title>'
        f'<line class="axis" x1="12" x2="{WIDTH - 12}" y1="24" y2="24"/><g class="marks">{marks}</g>{texts}</svg>'
    )


def number(value):
    if value != 0 and (abs(value) < 1e-3 or abs(value) >= 1e5):
        exponent = math.log2(abs(value))
        return f"2^{exponent:.0f}" if exponent == int(exponent) else f"{value:.2g}"
    return f"{value:g}"


def bars(title, unit, rows, reference=None):
    """rows: (label, value); a dashed line at `reference`."""
    left, top, step = 330, 26, 20
    most = max([value for _, value in rows] + [reference or 0]) * 1.08
    scale = (WIDTH - left - 60) / most
    height = top + step * len(rows) + 8
    parts = [f'<text x="0" y="14" class="title">{html.escape(title)} ({html.escape(unit)})</text>']
    values = []  # above the line
    for i, (label, value) in enumerate(rows):
        y = top + i * step
        parts.append(
            f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{html.escape(label)}</text><rect class="bar" x="{left}" y="{y + 2}" '
            f'width="{value * scale:.1f}" height="{step - 6}"/>'
        )
        values.append(f'<text x="{left + value * scale + 6:.1f}" y="{y + 12}">{value:.2f}</text>')
    if reference:
        at = left + reference * scale
        parts.append(f'<line class="reference" x1="{at:.1f}" x2="{at:.1f}" y1="{top - 4}" y2="{height}"/>')
    parts += values
    return f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(title)}">{"".join(parts)}</svg>'


def benchmark_plots(rows):
    """The plots of one committed JSON file, by the fields that its rows have; none where they are others."""
    first = rows[0] if isinstance(rows, list) and rows else {}
    if "cublaslt_tflops" in first or "cublaslt_tops" in first:
        ours, theirs = ("tflops", "cublaslt_tflops") if "tflops" in first else ("tops", "cublaslt_tops")
        label = lambda row: f"{row['product']}, {row['shape']}"
        plots = [
            bars(
                "Speed relative to cuBLASLt", "1 = as fast", [(label(row), row[ours] / row[theirs]) for row in rows if row.get(theirs)], 1.0
            )
        ]
        others = [(label(row), row["ratio_to_deepgemm"]) for row in rows if row.get("ratio_to_deepgemm")]
        return plots + ([bars("Speed relative to DeepGEMM", "1 = as fast", others, 1.0)] if others else [])
    if "share_of_copy" in first:
        return [
            bars(
                "Share of the copy bandwidth",
                "1 = as fast as copying",
                [(f"{row['kernel']}, {row['shape']}", row["share_of_copy"]) for row in rows if row["kernel"] != "copy"],
                1.0,
            )
        ]
    if "speedup" in first:
        plots = []
        for m in (1, 16, 64, 1024):
            chosen = [row for row in rows if row["m"] == m and (row["n"], row["k"]) == (8192, 8192) and row["activations"] == "fp16"]
            if chosen:
                plots.append(
                    bars(
                        f"{m} row{'s' if m > 1 else ''} of x, weights 8192 x 8192: speed relative to cuBLASLt's fp16",
                        "1 = as fast",
                        [(row["scheme"], row["speedup"]) for row in chosen],
                        1.0,
                    )
                )
        return plots
    return []
