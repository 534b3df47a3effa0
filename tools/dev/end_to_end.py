#!/usr/bin/env python3
"""Tables and a plot of `narrow bench --model ... --json`.

end_to_end.py RESULTS.json ... --svg PLOT.svg prints the tables in Markdown and writes the plot: tokens per second of one sequence by scheme,
in front of what the memory's bandwidth would allow if a step did nothing but read its weights.
"""
import argparse
import json
import pathlib

WIDTH, ROW, LEFT, TOP = 860, 30, 130, 46
INK, PALE, BAR = "#24292f", "#d0d7de", "#2f6f9f"


def load(paths):
    """The results of all files, those of one (scheme, batch, prompt) once: the last."""
    found = {}
    for path in paths:
        for result in json.loads(pathlib.Path(path).read_text())["results"]:
            found[result["scheme"], result["batch"], result["prompt"]] = result
    return list(found.values())


def ordered(values):
    return list(dict.fromkeys(values))


def decode_table(results):
    batches = sorted({r["batch"] for r in results})
    lines = ["| scheme | GB a step reads | " + " | ".join(f"batch {b}" for b in batches) + " | of read bandwidth, batch 1 |",
             "|---" * (len(batches) + 3) + "|"]
    for scheme in ordered(r["scheme"] for r in results):
        own = {r["batch"]: r for r in results if r["scheme"] == scheme}
        first = next(iter(own.values()))
        cells = [f"{own[b]['tokens_per_second']:,.0f}" if b in own else "" for b in batches]
        share = f"{100 * own[1]['bandwidth_share']:.1f} %" if 1 in own else ""
        lines.append(f"| `{scheme}` | {first['weight_bytes'] / 1e9:.2f} | " + " | ".join(cells) + f" | {share} |")
    return "\n".join(lines)


def plot(results):
    rows = [r for r in results if r["batch"] == 1]
    floors = [r["read_bandwidth"] / r["weight_bytes"] for r in rows]
    scale = (WIDTH - LEFT - 110) / max(floors)
    height = TOP + ROW * len(rows) + 16
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="13" fill="{INK}">',
             f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
             f'<text x="{LEFT}" y="20" font-weight="bold">Tokens per second, one sequence</text>',
             f'<text x="{LEFT}" y="37" font-size="11">pale: what the measured read bandwidth allows for the weights alone</text>']
    for i, (r, floor) in enumerate(zip(rows, floors)):
        y = TOP + i * ROW
        length, limit = r["tokens_per_second"] * scale, floor * scale
        parts += [f'<text x="{LEFT - 8}" y="{y + 17}" text-anchor="end">{r["scheme"]}</text>',
                  f'<rect x="{LEFT}" y="{y + 3}" width="{limit:.1f}" height="20" fill="{PALE}"/>',
                  f'<rect x="{LEFT}" y="{y + 3}" width="{length:.1f}" height="20" fill="{BAR}"/>',
                  f'<text x="{LEFT + limit + 6:.1f}" y="{y + 17}">{r["tokens_per_second"]:,.0f} ({100 * r["bandwidth_share"]:.0f} %)</text>']
    return "\n".join(parts + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+")
    parser.add_argument("--svg")
    options = parser.parse_args()
    results = load(options.results)
    print(decode_table(results))
    if options.svg:
        pathlib.Path(options.svg).write_text(plot(results))


if __name__ == "__main__":
    main()
