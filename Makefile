# make run: the whole story on the bundled model. make test: the fast tests. Both set up .venv first; a second call reuses it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin/python
STAMP := $(VENV)/.complete
PIP := $(BIN) -m pip install --disable-pip-version-check --constraint constraints.txt
# lmms-eval needs older releases of what core-bench needs, and 80 packages more: it has an environment of its own.
LMMS_VENV := .venv-lmms
LMMS_BIN := $(LMMS_VENV)/bin/python
LMMS_STAMP := $(LMMS_VENV)/.complete
LMMS_PIP := $(LMMS_BIN) -m pip install --disable-pip-version-check --constraint constraints-lmms.txt
CHECK_PYTHON = $(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else "core-bench needs Python 3.11 to 3.13, and $(PYTHON) is %d.%d: make PYTHON=python3.12 ..." % v)'

.PHONY: run families test test-slow test-lmms test-all check context records report clean

run: $(STAMP)
	@scripts/demo.sh $(BIN)

# The same for every bundled family, then the claims of all in one table. About ten minutes on two cores.
families: $(STAMP)
	@scripts/families.sh $(BIN)

test: $(STAMP)
	$(BIN) -m pytest -m "not slow and not gpu and not lmms and not page"

test-slow: $(STAMP)
	$(BIN) -m pytest -m "not gpu and not lmms and (slow or page)"
	$(MAKE) test-lmms

# The variable makes a missing lmms-eval a failure; anywhere else these tests skip without it.
test-lmms: $(LMMS_STAMP)
	CORE_BENCH_REQUIRE_LMMS=1 $(LMMS_BIN) -m pytest -m lmms tests/lmms

test-all: test test-slow

check: $(STAMP)
	$(BIN) -m ruff check .
	$(BIN) -m ruff format --check .
	$(BIN) -m mypy .

# torch goes first and alone: it is most of the download, and pip then has nothing to weigh against it.
$(STAMP): pyproject.toml constraints.txt
	@$(CHECK_PYTHON)
	@echo "Setting up $(VENV) (once; torch is a large download)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) torch torchvision
	@$(PIP) --quiet --editable '.[dev]'
	@touch $(STAMP)

$(LMMS_STAMP): pyproject.toml constraints-lmms.txt
	@$(CHECK_PYTHON)
	@echo "Setting up $(LMMS_VENV) (once; torch and lmms-eval are large downloads)"
	@$(PYTHON) -m venv $(LMMS_VENV)
	@$(LMMS_PIP) torch torchvision
	@$(LMMS_PIP) --quiet --editable '.[lmms]' pytest
	@touch $(LMMS_STAMP)

# Caches and builds only: results (runs/) and the environments (.venv, .venv-lmms) cost time to make again.
clean:
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . \( -path ./$(VENV) -o -path ./$(LMMS_VENV) \) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# Accuracy and prefill speed-up from 256 to 16K tokens. One to two hours on two cores; stopped, it goes on where it was.
context: $(STAMP)
	$(BIN) -m core_bench.bundled.context --model qwen3vl --out runs/context

# The records that are committed, measured anew for every bundled family, and then `make report`. Half an hour to an hour on
# two cores; stopped, it goes on where it was. LIMIT=2 make records: a try in runs/ that changes nothing else.
records: $(STAMP)
	@scripts/records.sh $(BIN)

# From the committed records: leaderboard pages, runs/report/report.html, and the pictures and tables of claims in README.md and docs/.
# A minute, the same bytes every time.
report: $(STAMP)
	@scripts/report.sh $(BIN)
