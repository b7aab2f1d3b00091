PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CHECK_PYTHON = $(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "equidp needs Python 3.11 or newer; say make PYTHON=...")'

# Two test processes on two cores; also what CI runs with.
test soak: export OMP_NUM_THREADS ?= 1

.PHONY: install demo test soak lint docs benchmark clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(CHECK_PYTHON)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade -c constraints.txt pip setuptools
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[all,dev,docs]'
# For cross-checks of audits. Its auditing module needs no JAX, so what it depends on stays out.
	$(BIN)/python -m pip install --quiet --no-deps -c constraints.txt jax-privacy
	touch $@

# What the demo needs and no more: the core, with tables and pages.
$(VENV)/.demo: pyproject.toml constraints.txt
	$(CHECK_PYTHON)
	test -e $(VENV)/.installed || $(PYTHON) -m venv $(VENV)
	test -e $(VENV)/.installed || $(BIN)/python -m pip install --quiet -c constraints.txt -e '.[report]'
	touch $@

# Trains on scikit-learn's digits, with eights made rare, and writes a report. By the settings of its own that the
# dataset has: with them methods differ by group, and "auto" shows what the recommended ones change.
demo: $(VENV)/.demo
	$(BIN)/equidp compare --settings published --report equidp-report.html

# The linters, which .pre-commit-config.yaml lists too.
lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

# Linters, short doctests and every test that is not marked soak: about three minutes on two idle cores.
test: lint
	$(BIN)/python -m pytest -n 2 -m "not soak"

# Tests of more than half a second each, then the wheel in a clean environment: the core alone, and the demo.
soak: install
	$(BIN)/python -m pytest -n 2 -m soak
	$(BIN)/python tests/support/wheel.py

# The site, in docs/_build/html; it builds without the internet.
docs: install
	$(BIN)/python -m sphinx -W -q -b html docs docs/_build/html

# Beside plain SGD and Opacus; prints a table and saves it as benchmarks/results.md.
benchmark: install
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) docs/_build docs/generated equidp-runs equidp-results equidp-report.html
