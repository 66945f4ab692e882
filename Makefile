# The two a newcomer needs: `make demo` and `make test`. Everything sets itself up in .venv.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PEERS_VENV ?= .venv-peers
LLAMA_CPP_PYTHON ?= 0.3.36
THREADS ?= 2
TORCH ?= torch==2.13.0

SETUP_STAMP := $(VENV)/.setup
BUILD_STAMP := $(VENV)/.build
NATIVE_SOURCES := $(shell find native -name '*.cc' -o -name '*.h' -o -name CMakeLists.txt) CMakeLists.txt

.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-slow check format oracles peers bench bench-peers gate k3-tiny native-test clean

help:  ## List the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

# PyTorch goes first and by itself: an unpinned torch would bring gigabytes of CUDA.
$(SETUP_STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setup: installing into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet "$(TORCH)"
	@$(BIN)/python -m pip install --quiet "scikit-build-core>=0.10" "nanobind>=2.4" "cmake>=3.22" ninja
	@touch $@

$(BUILD_STAMP): $(SETUP_STAMP) $(NATIVE_SOURCES) pyproject.toml
	@echo "build: native core and package"
	@$(BIN)/python -m pip install --quiet --no-build-isolation -e ".[dev,train]"
	@touch $@

setup: $(SETUP_STAMP)  ## Create .venv with what the project needs
build: $(BUILD_STAMP)  ## Build the native core and install the package into .venv

demo: $(BUILD_STAMP)  ## Write text with the bundled k3-tiny, then time its decode step
	@$(BIN)/stepfuse generate k3-tiny --prompt $$'def read_lines(path):\n    """' \
	  --max-tokens 110 --temperature 0.6 --seed 2
	@$(BIN)/stepfuse bench step k3-tiny --rows 1,2,4,8

test: $(BUILD_STAMP)  ## Every test but the slow ones (10 minutes at most on 2 cores)
	@$(BIN)/python -m pytest -q -m "not slow" tests

test-slow: $(BUILD_STAMP)  ## The slow tests
	@$(BIN)/python -m pytest -q -m slow tests

check: $(BUILD_STAMP)  ## Format, lint, types, import directions
	@$(BIN)/ruff format --check src tests training
	@$(BIN)/ruff check src tests training
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/clang-format --dry-run -Werror $$(git ls-files 'native/*.cc' 'native/*.h')

format: $(BUILD_STAMP)  ## Rewrite sources in the house's format
	@$(BIN)/ruff format src tests training
	@$(BIN)/ruff check --fix src tests training
	@$(BIN)/clang-format -i $$(git ls-files 'native/*.cc' 'native/*.h')

native-test: $(SETUP_STAMP)  ## Native tests; SANITIZE=address,undefined or thread
	@$(BIN)/cmake -S . -B build/native-$(or $(SANITIZE),plain) -G Ninja -DSTEPFUSE_TESTS=ON \
	  -DSTEPFUSE_BIND=OFF -DSTEPFUSE_SANITIZE=$(SANITIZE) \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja >/dev/null
	@$(BIN)/cmake --build build/native-$(or $(SANITIZE),plain)
	@$(BIN)/ctest --test-dir build/native-$(or $(SANITIZE),plain) --output-on-failure

oracles: $(BUILD_STAMP)  ## Install the independent oracles (transformers, fla-core) for the live comparisons
	@$(BIN)/python -m pip install --quiet "transformers==5.24.*"
	@$(BIN)/python -m pip install --quiet --no-deps "fla-core==0.6.*" einops

# The source package carries llama.cpp's own converter, so it is unpacked and kept.
peers:  ## Build llama.cpp in its own environment, for `stepfuse bench peers`
	@test -x $(PEERS_VENV)/bin/python || $(PYTHON) -m venv $(PEERS_VENV)
	@$(PEERS_VENV)/bin/python -m pip install --quiet --upgrade pip scikit-build-core "$(TORCH)"
	@$(PEERS_VENV)/bin/python -m pip download --quiet --no-deps --no-binary llama-cpp-python \
	  --no-build-isolation llama-cpp-python==$(LLAMA_CPP_PYTHON) -d $(PEERS_VENV)/src
	@tar xzf $(PEERS_VENV)/src/llama_cpp_python-$(LLAMA_CPP_PYTHON).tar.gz -C $(PEERS_VENV)/src
	@echo "peers: compiling llama.cpp for this machine (about 5 minutes on 2 cores)"
	@CMAKE_ARGS="-DGGML_NATIVE=ON" $(PEERS_VENV)/bin/python -m pip install --quiet \
	  $(PEERS_VENV)/src/llama_cpp_python-$(LLAMA_CPP_PYTHON)
	@$(PEERS_VENV)/bin/python -m pip install --quiet transformers==5.24.* sentencepiece

bench: $(BUILD_STAMP)  ## Decode step of k3-tiny: standard, specialized, % of roof
	@$(BIN)/stepfuse bench step k3-tiny --rows 1,2,4,8 --threads $(THREADS)

bench-peers: $(BUILD_STAMP)  ## A 26 MB K3 beside llama.cpp and PyTorch (make peers first)
	@test -d build/k3-cache || $(BIN)/stepfuse synth k3-cache build/k3-cache
	@$(BIN)/stepfuse bench peers build/k3-cache --peer all --kinds all --prompts 64 \
	  --threads $(THREADS) --python $(PEERS_VENV)/bin/python

gate: test  ## The tests, then this run's ratios against the stored ones (ARGS=--update stores them)
	@$(BIN)/stepfuse bench gate --threads $(THREADS) $(ARGS)

k3-tiny: $(BUILD_STAMP)  ## Train the bundled k3-tiny again (up to 90 minutes on 2 cores)
	@$(BIN)/python -m training.k3_tiny.train --minutes 60 --out build/k3-tiny-train

clean:  ## Remove builds; keep .venv
	@rm -rf build dist src/stepfuse/_native*.so $(BUILD_STAMP)
