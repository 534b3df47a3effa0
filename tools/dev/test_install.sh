#!/usr/bin/env bash
# Installs the release build into a clean prefix and builds a tiny consumer with find_package(narrow) against it.
set -euo pipefail
cd "$(dirname "$0")/../.."
place=build/install-test
rm -rf "$place"
cmake --install build/release --prefix "$place/prefix" > /dev/null
cmake -S tests/install -B "$place/build" -G Ninja -DCMAKE_PREFIX_PATH="$PWD/$place/prefix" -DCMAKE_BUILD_TYPE=Release > /dev/null
cmake --build "$place/build" > /dev/null
"$place/build/consumer"
"$place/build/c_consumer"
"$place/prefix/bin/narrow" formats > /dev/null
echo "install: find_package(narrow) works"

# The wheel, from the objects of the release build: imported from a clean place without torch, its command run.
rm -rf "$place/wheel" "$place/site"
.venv/bin/python -m pip wheel . --quiet --no-deps --no-build-isolation --wheel-dir "$place/wheel" -C build-dir=build/release
.venv/bin/python -m pip install --quiet --no-deps --target "$place/site" "$place"/wheel/narrow-*.whl
PYTHONPATH="$place/site" .venv/bin/python -c "import narrow, sys; assert 'torch' not in sys.modules; print(len(narrow.quantize([[1.0, 2.0]], 'int8:row').codes))" > /dev/null
PYTHONPATH="$place/site" "$place/site/bin/narrow" formats > /dev/null
echo "install: the wheel works"
