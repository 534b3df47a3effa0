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
