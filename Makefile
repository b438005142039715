# Every target makes .venv by itself. Needed on a fresh machine: Python >= 3.11 with venv and pip, git, make.
# Another interpreter: make test PYTHON=/path/to/python

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-adapters lint reformat bench findings docs screenshots clean

SUITABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3 python python3.14 python3.13 python3.12 python3.11; do \
	$$python -c "$(SUITABLE)" 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The frameworks that the recorder's adapters are for; SkyRL needs Python 3.12, and verl has none newer.
ADAPTERS := .venv-adapters
ADAPTERS_PYTHON ?= python3.12

# $(call audited,CODE,ARGUMENTS): audit a sample run and fail unless the exit code is the one that is true of it
audited = echo; echo "$$ staleness-audit audit sample_traces/$(2)"; $(BIN)/staleness-audit audit sample_traces/$(2); \
	code=$$?; echo "exit code $$code"; test $$code -eq $(1) || { echo "but $(1) is true of this run" >&2; exit 1; }

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 16

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 with venv and pip was found; name one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c "$(SUITABLE)" || { echo "$(PYTHON) is older than 3.11 or lacks venv or ensurepip." >&2; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# Dependency groups need pip 25.1, which is newer than what most interpreters bring.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[all]" --group dev
	@touch $@

demo: $(STAMP) ## Audit genuine runs (one passes, two fail, one can't be told) and print their true verdicts
	@echo "Four recorded runs. Two break their bound, and the logs of one can't tell: each exit code is compared with the true one."
	@$(call audited,0,slime/fully_async_balanced/run --bound 3)
	@$(call audited,1,slime/fully_async_killed_in_training/run --bound 3 --worst 3)
	@$(call audited,1,prime-rl/queue_unenforced_bound1/run --worst 3)
	@$(call audited,3,slime/fully_async_longtail_console_only/run --bound 3)

test: $(STAMP) ## Lint, then the whole test suite; the tests run although the linters complain
	@status=0; $(MAKE) --no-print-directory lint || status=$$?; $(BIN)/python -m pytest -n auto || status=$$?; exit $$status

test-slow: $(STAMP) ## The tests that take longer and are left out of `make test`
	$(BIN)/python -m pytest -n auto -m slow

$(ADAPTERS)/.installed: pyproject.toml
	@echo "Setting up $(ADAPTERS) with $(ADAPTERS_PYTHON); torch and what it brings are several gigabytes ..."
	@test -x $(ADAPTERS)/bin/python || $(ADAPTERS_PYTHON) -m venv $(ADAPTERS)
	@$(ADAPTERS)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(ADAPTERS)/bin/python -m pip install --quiet --disable-pip-version-check --editable . --group adapters
	@# They ask for inference engines that need a GPU, and for releases that no two of them agree on.
	@$(ADAPTERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --group frameworks
	@touch $@

test-adapters: $(ADAPTERS)/.installed ## The recorder's adapters inside the frameworks' own packages
	$(ADAPTERS)/bin/python -m pytest -m slow -rs tests/recorder/test_frameworks.py tests/recorder/test_trl_trainer.py

lint: $(STAMP) ## ruff (rules and format) and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

reformat: $(STAMP) ## Let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## Measure; writes benchmarks/RESULTS.md
	$(BIN)/python benchmarks/bench.py

findings: $(STAMP) ## Simulate what docs/findings.md says, and write its tables
	$(BIN)/python benchmarks/findings.py

docs: $(STAMP) ## Write the generated parts of README.md and docs/ anew
	$(BIN)/python docs/build_docs.py

screenshots: $(STAMP) ## Take the pictures of README.md and docs/ from the real report (needs Chromium)
	$(BIN)/python docs/screenshots.py

clean: ## Remove what the targets made
	rm -rf $(VENV) $(ADAPTERS) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .staleness-audit
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
