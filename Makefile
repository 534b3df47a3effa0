# The thin front of narrow. `make help` lists what there is.
SHELL := /bin/bash
JOBS ?= $(shell nproc)
SECONDS_EACH ?= 30
BIN := build/release/bin
PYTHON := .venv/bin/python
# Programs run side by side here: threads that wait should not spin for long (tools/narrow/thread_waiting.h).
export GOMP_SPINCOUNT ?= 5000

.DEFAULT_GOAL := help
.PHONY: setup build demo test test-unit test-sanitizers test-python test-install test-arm edge bench docs fuzz torture same-bytes gpu-test gpu-bench format tidy rules clean help

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F'\t' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: ## install what is missing (apt as root, a .venv with pip); the second time it does nothing
	@tools/dev/setup.sh

build: setup ## build the library, the command, tests and benchmarks into build/release
	@cmake --preset release -DNARROW_BUILD_PYTHON=ON -DPython_EXECUTABLE=$(CURDIR)/$(PYTHON) > build.log 2>&1 || { cat build.log; rm -f build.log; exit 1; }
	@grep -E 'CUDA:' build.log || true; rm -f build.log
	@cmake --build --preset release -j $(JOBS)

demo: build ## quantize the bundled model to six schemes and show the result
	@tools/dev/demo.sh

test: build ## everything that CI runs
	@$(MAKE) --no-print-directory rules test-unit test-python test-install test-sanitizers test-arm

test-unit:
	@cmake --build build/release --target all_verify_interface_header_sets -j $(JOBS) > /dev/null
	@ctest --preset release -j $(JOBS)

test-python:
	@cmake --install build/release --component python --prefix build/python > /dev/null
	@OMP_WAIT_POLICY=passive PYTHONPATH=build/python $(PYTHON) -m pytest -q tests/python --bin-dir $(BIN)

test-install:
	@tools/dev/test_install.sh

edge: build ## small builds and their sizes: the minimal library, the static command for AArch64 under qemu (slow)
	@JOBS=$(JOBS) tools/dev/test_edge.sh --command

test-arm: setup ## the AArch64 kernels, cross-compiled and run under qemu
	@tools/dev/test_arm.sh $(JOBS)

# What reads files and strings that others wrote, and the operations under them.
SANITIZED := format_codec_test format_packing_test format_scheme_test ops_quantize_test io_checkpoint_test io_malformed_test io_safetensors_test \
  io_gguf_blocks_test io_gguf_file_test methods_gguf_test io_word_packing_test methods_recipe_test methods_quantize_checkpoint_test methods_convert_checkpoint_test
test-sanitizers: setup ## the readers of foreign files under the address and undefined-behaviour sanitizers
	@cmake --preset dev > /dev/null && cmake --build --preset dev -j $(JOBS) --target $(SANITIZED)
	@ctest --preset dev -j $(JOBS) -R "^($$(echo $(SANITIZED) | tr ' ' '|'))$$"

docs: build ## the site of the docs into build/site; fails on dead links and undocumented symbols
	@$(PYTHON) tools/docs/build.py --narrow $(BIN)/narrow --output build/site

bench: build ## measure the CPU operations beside this machine's own limits
	@for program in $(BIN)/bench_*; do case $$program in *cuda*) ;; *) $$program $(ARGS) || exit 1;; esac; done
	@PYTHONPATH=build/python $(PYTHON) -m pytest -q -s tests/python --bin-dir $(BIN) -k speed --speed

torture: build ## every malformed file and every fault: files, faults, violations
	@$(PYTHON) tests/torture/run_corpus.py --bin-dir $(BIN)
	@$(PYTHON) tests/torture/run_faults.py --bin-dir $(BIN)
	@$(BIN)/random_products 100000

same-bytes: setup ## the same output from g++ and clang++, -O0 and -O3 (slow: four builds)
	@tools/dev/same_bytes.sh $(JOBS)

fuzz: setup ## run every fuzzer for SECONDS_EACH seconds
	@tools/dev/fuzz.sh $(SECONDS_EACH)

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
