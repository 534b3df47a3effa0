#!/bin/bash
# measure_methods.sh MODEL TOKENS OUT.md SCHEME=METHOD[,OPTION...] ...: quantizes by each method, evaluates, and appends rows of a Markdown table.
#   tools/dev/measure_methods.sh examples/docs-llama-13m examples/docs_tokens.safetensors table.md int4:row=gptq int4:row=gptq+clip,--act-order
# One at a time, one thread, in the background's priority. With STATS=FILE (narrow calibrate --second-moments) methods are calibrated from it.
set -euo pipefail
model=$1 tokens=$2 table=$3
shift 3
narrow="nice -n 15 ${NARROW:-build/release/bin/narrow} --threads 1 --quiet --json"
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
field() { python3 -c 'import json, sys; print("%.4g" % json.load(sys.stdin)[sys.argv[1]])' "$1"; }
[ -s "$table" ] || printf '| scheme | method | bits/weight | perplexity | seconds |\n|---|---|---|---|---|\n' >> "$table"
for item in "$@"; do
  scheme=${item%%=*} rest=${item#*=}
  while [[ $rest == fp* || $rest == bf* ]] && [[ $scheme == *:scale ]]; do scheme=$scheme=${rest%%=*} rest=${rest#*=}; done
  method=${rest%%,*} options=()
  [[ $rest == *,* ]] && IFS=, read -ra options <<< "${rest#*,}"
  calibration=(--tokens "$tokens")
  [ -z "${STATS:-}" ] || calibration=(--stats "$STATS")
  [ "$method" != rtn ] || calibration=()
  rm -rf "$place/out"
  $narrow quantize "$model" "$place/out" "$scheme" --method "$method" "${calibration[@]}" "${options[@]}" > "$place/quantize.json"
  $narrow eval "$place/out" --tokens "$tokens" > "$place/eval.json"
  printf '| `%s` | %s | %s | %s | %s |\n' "$scheme" "${rest//,/ }" "$(field bits_per_weight < "$place/eval.json")" \
    "$(field perplexity < "$place/eval.json")" "$(field fit_seconds < "$place/quantize.json")" | tee -a "$table"
done
