#!/usr/bin/env bash
# Quantizes the bundled model to six schemes on the CPU, prints one table, and ends with a page that compares what they do to the model.
set -euo pipefail
cd "$(dirname "$0")/../.."
narrow=build/release/bin/narrow
model=examples/docs-llama-13m
schemes=(int8:row fp8_e4m3:row fp6_e3m2:row int4:block128 nvfp4 msfp12)

mkdir -p build
folder=$(mktemp -d build/demo.XXXXXX)
trap 'rm -rf "$folder"' EXIT

for scheme in "${schemes[@]}"; do
  [ -t 2 ] && printf '\rquantizing %s to %-16s' "$model" "$scheme" >&2
  "$narrow" quantize "$model" "$folder/$scheme" "$scheme" --json --quiet > "$folder/$scheme.json"
  "$narrow" verify "$folder/$scheme" --quiet
done
[ -t 2 ] && printf '\r%60s\r' '' >&2

python3 - "$model" "${schemes[@]/#/$folder/}" << 'PYTHON'
import json
import sys

model, *results = sys.argv[1:]
rows = [("scheme", "bits/weight", "size", "ratio", "SQNR", "seconds", "worst tensor")]
for result in results:
    r = json.load(open(result + ".json"))
    worst = r["worst_tensor"].removeprefix("model.").removesuffix(".weight")
    rows.append((r["scheme"], f"{r['bits_per_weight']:.2f}", f"{r['size'] / 2**20:.2f} MiB", f"{r['bytes_before'] / r['size']:.2f}x",
                 f"{r['sqnr_db']:.1f} dB", f"{r['seconds']:.2f}", f"{worst}, {r['worst_sqnr_db']:.1f} dB"))
widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
left = {0, len(widths) - 1}
before = r["bytes_before"] / 2**20
print(f"{model} ({before:.1f} MiB in bf16), Linear weights quantized; lm_head, embeddings and norms as they are\n")
for number, row in enumerate(rows):
    line = "  ".join(cell.ljust(width) if i in left else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths)))
    print("\033[1m" + line.rstrip() + "\033[0m" if number == 0 and sys.stdout.isatty() else line.rstrip())
    if number == 0:
        print("  ".join("-" * width for width in widths))
PYTHON

report=build/report.html
echo
"$narrow" compare "$model" "${schemes[@]}" W8A8 FP8_DYNAMIC --tokens examples/docs_tokens.safetensors --windows 8 --report "$report"

cat << TEXT

Every result was read back, its hashes checked and its values compared with the source. Next, with narrow=$narrow:
  \$narrow formats fp6_e3m2                                       the values of a format
  \$narrow plan $model nvfp4                     what becomes of every tensor
  \$narrow quantize $model build/small nvfp4     do it
  \$narrow compare $model build/small            the error, tensor by tensor
  \$narrow generate build/small -p "To install the package, run"                the small model still talks
TEXT
