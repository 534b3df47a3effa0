# The thin front of narrow. `make help` lists what there is.
SHELL := /bin/bash
JOBS ?= $(shell nproc)
SECONDS_EACH ?= $(or $(SECONDS),30)
BIN := build/release/bin
PYTHON := .venv/bin/python
# Programs run side by side here: threads that wait should not spin for long (tools/narrow/thread_waiting.h).
export GOMP_SPINCOUNT ?= 5000

.DEFAULT_GOAL := help
.PHONY: setup command build demo test test-unit test-sweep test-sweep-arm test-sanitizers test-sanitizers-all test-threads test-memory test-offline test-python test-install \
  test-arm edge bench docs fuzz fuzz-many parser-coverage torture same-bytes reproducible gpu-test gpu-bench format tidy rules clean help

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F'\t' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: ## install what is missing (apt as root, a .venv with pip); the second time it does nothing
	@tools/dev/setup.sh

# Says what it found of CUDA, and everything where it fails.
define configure
cmake --preset release $(1) > build.log 2>&1 || { cat build.log; rm -f build.log; exit 1; }; grep -E 'CUDA:' build.log; rm -f build.log
endef

command: ## build the command alone: what the first five minutes need
	@tools/dev/setup.sh command
	@$(call configure,-DNARROW_BUILD_TESTS=OFF -DNARROW_BUILD_BENCHMARKS=OFF -DNARROW_BUILD_PYTHON=OFF)
	@cmake --build --preset release -j $(JOBS) --target narrow_command

build: setup ## build the library, the command, tests and benchmarks into build/release
	@$(call configure,-DNARROW_BUILD_TESTS=ON -DNARROW_BUILD_BENCHMARKS=ON -DNARROW_BUILD_PYTHON=ON -DPython_EXECUTABLE=$(CURDIR)/$(PYTHON))
	@cmake --build --preset release -j $(JOBS)

demo: build ## quantize the bundled model to six schemes, and a page about eight: build/report.html
	@tools/dev/demo.sh

test: build ## everything that CI runs
	@$(MAKE) --no-print-directory rules test-unit test-python
	@$(MAKE) --no-print-directory -j 2 --output-sync=line test-install test-sanitizers test-arm  # three builds apart from one another; the first keeps one core busy

test-unit:
	@cmake --build build/release --target all_verify_interface_header_sets -j $(JOBS) > /dev/null
	@NARROW_SWEEP_STEP=8 ctest --preset release -j $(JOBS)

test-sweep: build ## all 2^32 inputs through every format in every instruction set (test takes one run of 65,536 in 8)
	@$(BIN)/format_sweep_test

test-sweep-arm: setup ## the same in the AArch64 kernels, under qemu (test-arm takes one run in 256; slow)
	@SWEEP=all tools/dev/test_arm.sh $(JOBS)

test-python:
	@cmake --install build/release --component python --prefix build/python > /dev/null
	@OMP_WAIT_POLICY=passive PYTHONPATH=build/python $(PYTHON) -m pytest -q -n $(JOBS) --dist worksteal tests/python --bin-dir $(BIN)

test-install:
	@tools/dev/test_install.sh

edge: build ## small builds and their sizes: the minimal library, the static command for AArch64 under qemu (slow)
	@JOBS=$(JOBS) tools/dev/test_edge.sh --command

test-arm: setup ## the AArch64 kernels, cross-compiled and run under qemu
	@tools/dev/test_arm.sh $(JOBS)

# What reads files and strings that others wrote, and the operations under them; none of them calls the fused neighbours.
SANITIZED := format_codec_test format_packing_test format_scheme_test ops_quantize_test io_checkpoint_test io_malformed_test io_safetensors_test \
  io_gguf_blocks_test io_gguf_file_test methods_gguf_test io_word_packing_test methods_recipe_test methods_quantize_checkpoint_test methods_convert_checkpoint_test
SMOKED := $(addprefix smoke_,config gguf interop manifest recipe safetensors_header scheme shard_index tokenizer)
test-sanitizers: setup ## the readers of foreign files and their fuzz targets under the address and undefined-behaviour sanitizers
	@cmake --preset dev -DNARROW_SANITIZE_KERNELS=OFF > /dev/null && cmake --build --preset dev -j $(JOBS) --target $(SANITIZED) $(SMOKED)
	@ctest --preset dev -j $(JOBS) -R "^($$(echo $(SANITIZED) $(SMOKED) | tr ' ' '|'))$$"

test-sanitizers-all: setup ## every test program under the address and undefined-behaviour sanitizers (slow)
	@cmake --preset dev -DNARROW_SANITIZE_KERNELS=ON > /dev/null && cmake --build --preset dev -j $(JOBS)
	@ctest --preset dev -j $(JOBS)

# LLVM's OpenMP tells the thread sanitizer what its barriers order, through libarcher.
THREADED := ops_quantize_test ops_matmul_test ops_fused_test calibrate_calibrate_test io_checkpoint_test methods_quantize_checkpoint_test \
  methods_gptq_test model_model_test
test-threads: setup ## the programs that share work among threads, under the thread sanitizer (slow)
	@cmake --preset tsan > /dev/null && cmake --build --preset tsan -j $(JOBS) --target $(THREADED)
	@TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1 OMP_TOOL_LIBRARIES=libarcher.so \
	  LD_LIBRARY_PATH=$$(llvm-config --libdir 2> /dev/null || echo /usr/lib/llvm-14/lib) \
	  ctest --preset tsan -R "^($$(echo $(THREADED) | tr ' ' '|'))$$"

test-memory: setup ## the fuzz targets under the memory sanitizer, their seeds under valgrind (slow)
	@tools/dev/memory_check.sh

test-offline: build ## the tests in a network namespace of their own, where there is nobody to talk to
	@unshare --user --map-root-user --net ctest --preset release -j $(JOBS)

docs: build ## the site of the docs into build/site; fails on dead links and undocumented symbols
	@$(PYTHON) tools/docs/build.py --narrow $(BIN)/narrow --output build/site

bench: build ## measure the CPU operations beside this machine's own limits
	@for program in $(BIN)/bench_*; do case $$program in *cuda*) ;; *) $$program $(ARGS) || exit 1;; esac; done
	@PYTHONPATH=build/python $(PYTHON) -m pytest -q -s tests/python --bin-dir $(BIN) -k speed --speed

torture: build ## every malformed file and every fault: files, faults, violations
	@$(PYTHON) tests/torture/run_corpus.py --bin-dir $(BIN)
	@$(PYTHON) tests/torture/run_faults.py --bin-dir $(BIN)
	@$(BIN)/random_products 100000

reproducible: setup ## two builds in two places give the same bytes
	@tools/dev/check_reproducible.sh $(JOBS)

same-bytes: setup ## the same output from g++ and clang++, -O0 and -O3 (slow: four builds)
	@tools/dev/same_bytes.sh $(JOBS)

fuzz: setup ## run every fuzzer for SECONDS seconds (30)
	@tools/dev/fuzz.sh $(SECONDS_EACH)

fuzz-many: setup ## EXECUTIONS inputs (50 million) for every fuzz target: hours
	@tools/dev/fuzz.sh --many $(or $(EXECUTIONS),50000000)

parser-coverage: setup ## the lines of every parser that the fuzzers' seeds and finds reach
	@tools/dev/parser_coverage.sh

gpu-test: ## the tests labelled gpu, on a machine with a CUDA device
	@tools/dev/gpu_run.sh test

gpu-bench: ## the GPU benchmarks, on a machine with a CUDA device
	@tools/dev/gpu_run.sh bench

format: ## clang-format over every source
	@git ls-files '*.h' '*.cc' '*.cu' '*.cuh' '*.inl' | xargs clang-format -i

tidy: setup ## clang-tidy over every source
	@cmake --preset tidy > /dev/null && cmake --build --preset tidy -j $(JOBS)

rules: ## the rules of docs/architecture.md, checked by script
	@python3 tools/dev/check_rules.py

clean: ## remove what was built
	@rm -rf build
