#!/usr/bin/env bash
# The share of every parser's lines that the fuzzers' committed seeds, and what they found here (build/fuzz/corpus), reach. Exits 1 below 90 %.
set -euo pipefail
cd "$(dirname "$0")/../.."
place=build/coverage
cmake -S . -B "$place" -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="-O0 -fprofile-instr-generate -fcoverage-mapping" \
  -DCMAKE_CXX_COMPILER=clang++ -DNARROW_CUDA=OFF -DNARROW_CPU_KERNELS=OFF -DNARROW_BUILD_TESTS=OFF -DNARROW_BUILD_TOOLS=OFF \
  -DNARROW_BUILD_BENCHMARKS=OFF -DNARROW_BUILD_FUZZERS=ON > /dev/null
cmake --build "$place" --target fuzzers > "$place/build.log" || { cat "$place/build.log"; exit 1; }

# parser: the files that read its language
declare -A sources=(
  [safetensors_header]="io/safetensors_header.cc"
  [shard_index]="io/shard_index.cc"
  [manifest]="io/manifest.cc"
  [config]="model/config.cc"
  [interop]="io/json.cc io/interop.cc io/gptq.cc io/awq.cc io/compressed_tensors.cc io/deepseek_fp8.cc io/modelopt.cc io/bitsandbytes.cc io/word_packing.cc"
  [gguf]="io/gguf_file.cc io/gguf_codes.cc"
  [tokenizer]="model/tokenizer/read_tokenizer.cc model/tokenizer/bpe.cc model/tokenizer/split.cc model/tokenizer/tokenizer.cc"
  [recipe]="methods/recipe_yaml.cc methods/recipe_json.cc methods/recipe.cc io/bounded_regex.cc"
  [scheme]="format/scheme.cc")
worst=100
for name in $(printf '%s\n' "${!sources[@]}" | sort); do
  target=$place/bin/fuzz_$name
  found=build/fuzz/corpus/fuzz_$name
  mkdir -p "$found"
  LLVM_PROFILE_FILE=$place/$name.profraw "$target" -runs=0 "fuzz/corpus/fuzz_$name" "$found" > "$place/$name.log" 2>&1
  llvm-profdata merge -o "$place/$name.profdata" "$place/$name.profraw"
  llvm-cov export -summary-only "$target" -instr-profile="$place/$name.profdata" > "$place/$name.json"
  for file in ${sources[$name]}; do  # by the end of its name: a compiler cache makes the rest relative
    share=$(python3 -c '
import json, sys
files = json.load(open(sys.argv[1]))["data"][0]["files"]
found = [file["summary"]["lines"]["percent"] for file in files if file["filename"].endswith("src/" + sys.argv[2])]
print(round(found[0], 2))' "$place/$name.json" "$file")
    printf '%-20s %-36s %6s %% of lines\n' "$name" "$file" "$share"
    worst=$(awk -v a="$worst" -v b="$share" 'BEGIN {print a < b ? a : b}')
  done
done
awk -v worst="$worst" 'BEGIN {exit worst < 90}' || { echo "below 90 %"; exit 1; }
