#!/usr/bin/env bash
# Every package of the release build, installed into a clean place and used by a tiny consumer: find_package, pkg-config, the Debian package, add_subdirectory, the wheel.
set -euo pipefail
cd "$(dirname "$0")/../.."
place=build/install-test
rm -rf "$place"
mkdir -p "$place"

# What an installation must hold beside the library: $1 is its prefix.
check_prefix() {
  local prefix=$1
  "$prefix/bin/narrow" --version | grep -q '^narrow [0-9]'
  for file in share/man/man1/narrow.1 share/man/man1/narrow-quantize.1 share/bash-completion/completions/narrow share/zsh/site-functions/_narrow \
    share/fish/vendor_completions.d/narrow.fish include/narrow/narrow.h; do
    [ -s "$prefix/$file" ] || { echo "install: $prefix has no $file" >&2; exit 1; }
  done
}

cmake --install build/release --prefix "$place/prefix" > /dev/null
check_prefix "$place/prefix"
cmake -S tests/install -B "$place/build" -G Ninja -DCMAKE_PREFIX_PATH="$PWD/$place/prefix" -DCMAKE_BUILD_TYPE=Release > /dev/null
cmake --build "$place/build" > /dev/null
"$place/build/consumer"
"$place/build/c_consumer"
echo "install: find_package(narrow) works"
cmake -S examples/cpp -B "$place/examples" -G Ninja -DCMAKE_PREFIX_PATH="$PWD/$place/prefix" -DCMAKE_BUILD_TYPE=Release > /dev/null
cmake --build "$place/examples" > /dev/null
"$place/examples/one_layer" | grep -q nvfp4
"$place/examples/small_model" examples/docs-llama-13m "$place/small" int8:row examples/docs_tokens.safetensors | grep -q 'perplexity'
"$place/examples/headers" examples/docs-llama-13m examples/docs_tokens.safetensors "$place/headers" | grep -q '^generate.h'
"$place/examples/cuda_headers" > /dev/null
for header in include/narrow/*.h; do  # every header is shown by one of them
  grep -q "narrow/$(basename "$header")" examples/cpp/*.cc tests/install/consumer.c || { echo "install: no example shows $header" >&2; exit 1; }
done
echo "install: examples/cpp works"

# The compilers alone, as any build system would call them.
build_with_pkg_config() {
  local flags libraries
  flags=$(PKG_CONFIG_PATH=$1/lib/pkgconfig pkg-config --cflags narrow)
  libraries=$(PKG_CONFIG_PATH=$1/lib/pkgconfig pkg-config --libs narrow)
  g++ -std=c++20 $flags tests/install/consumer.cc $libraries -o "$2"
  gcc -std=c11 $flags -c tests/install/consumer.c -o "$2.o" && g++ "$2.o" $libraries -o "$2_c"
  "$2" && "$2_c"
}
if grep -q recipe_yaml <(ar t build/release/src/libnarrow.a); then grep -q -- '-lyaml-cpp' "$place/prefix/lib/pkgconfig/narrow.pc"; fi
build_with_pkg_config "$PWD/$place/prefix" "$place/pkg_config_consumer"
echo "install: pkg-config works"

cpack --config build/release/CPackConfig.cmake -B "$place/debian" > "$place/cpack.log" || { cat "$place/cpack.log"; exit 1; }
package=$(ls "$place"/debian/*.deb)
dpkg-deb --field "$package" Package Version Depends | grep -q '^Depends: .*libc6'
dpkg-deb --extract "$package" "$place/debian-root"
check_prefix "$place/debian-root/usr"
build_with_pkg_config "$PWD/$place/debian-root/usr" "$place/debian_consumer"
echo "install: the Debian package works ($(stat -c %s "$package") bytes)"

tools/dev/test_edge.sh

# The wheel, from the objects of the release build: imported from a clean place without torch, its command run.
rm -rf "$place/wheel" "$place/site"
.venv/bin/python -m pip wheel . --quiet --no-deps --no-build-isolation --wheel-dir "$place/wheel" -C build-dir=build/release
.venv/bin/python -m pip install --quiet --no-deps --target "$place/site" "$place"/wheel/narrow-*.whl
PYTHONPATH="$place/site" .venv/bin/python -c "import narrow, sys; assert 'torch' not in sys.modules; print(len(narrow.quantize([[1.0, 2.0]], 'int8:row').codes))" > /dev/null
PYTHONPATH="$place/site" "$place/site/bin/narrow" formats > /dev/null
echo "install: the wheel works"
