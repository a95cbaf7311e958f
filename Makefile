# Two commands set everything up on a machine with python3, make and pip:  make demo,  make test.
# Each target has an environment of its own; it is built once, and again when what it is made from changes.

PYTHON      ?= python3
DEMO        ?= .venv-demo
TEST        ?= .venv-test
BENCH       ?= .venv-bench
MOSAIC      ?= .venv-bench-mosaic
TORCH       ?= torch==2.13.0
PYTEST_ARGS ?= -n 2 --dist loadgroup
SEED        ?= $(shell printf '%d' 0x$$(git rev-parse --short=8 HEAD 2>/dev/null || echo 0))

SOURCES := $(shell find src -name '*.py' -o -name '*.css' -o -name '*.js' -o -name '*.j2')
PIP     := -m pip install -q --disable-pip-version-check
TIDY    := src tests examples benchmarks docs/site.py

.PHONY: help demo test property check site bench bench-quick soak clean
.DELETE_ON_ERROR:

help:
	@echo "make demo    see it work: prepare, load, stop, resume on other ranks"
	@echo "make test    make check, then all tests"
	@echo "make property SEED=N   the property tests, with examples drawn from a seed"
	@echo "make check   lint, format, types, import rules"
	@echo "make site    build docs/ as a site, in site/"
	@echo "make bench   run every script in benchmarks/ and write its page; make bench-quick: the most telling ones, against floors"
	@echo "make soak    the tests again, with the long runs in full and in every variant"
	@echo "make clean   remove the environments and caches"

demo: $(DEMO)/.ready
	$(DEMO)/bin/python examples/demo.py

# No test is retried.  Tests with the mark `soak` run in `make soak`: they repeat a promise for longer or in more variants.
test: check
	$(TEST)/bin/python -m pytest $(PYTEST_ARGS) -rs

# The property tests with other examples.  The seed comes from the commit, so that a failure can be repeated.
property: $(TEST)/.ready
	PENSTOCK_SEED=$(SEED) $(TEST)/bin/python -m pytest $(PYTEST_ARGS) -q -rs -m hypothesis --hypothesis-seed=$(SEED)

check: $(TEST)/.ready
	$(TEST)/bin/ruff check $(TIDY)
	$(TEST)/bin/ruff format --check $(TIDY)
	$(TEST)/bin/mypy
	$(TEST)/bin/lint-imports --no-logo
	$(TEST)/bin/python -m tests.house.measures

site: $(TEST)/.ready
	NO_MKDOCS_2_WARNING=1 $(TEST)/bin/python -m mkdocs build --strict --site-dir site

# In full: what was measured from the same code already is left out, so a run that was stopped goes on.
bench: $(BENCH)/.ready $(MOSAIC)/.ready
	$(BENCH)/bin/python benchmarks/all.py $(BENCH_ARGS)

bench-quick: $(BENCH)/.ready
	$(BENCH)/bin/python benchmarks/all.py --quick

soak: $(TEST)/.ready
	PENSTOCK_SOAK=1 $(TEST)/bin/python -m pytest $(PYTEST_ARGS) -rs -o timeout=3600

clean:
	rm -rf $(DEMO) $(TEST) $(BENCH) $(MOSAIC) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

# The demo runs the package as a user gets it, not the working tree: a changed source means a new install.
$(DEMO)/.ready: pyproject.toml README.md LICENSE $(SOURCES)
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python $(PIP) .
	@touch $@

# torch comes first and alone: it is most of the download, and a change of our own requirements must not fetch it again.
$(TEST)/.torch:
	$(PYTHON) -m venv $(TEST)
	$(TEST)/bin/python $(PIP) $(TORCH)
	@touch $@

$(TEST)/.ready: $(TEST)/.torch pyproject.toml tests/requirements-no-deps.txt tests/requirements-miles.txt
	$(TEST)/bin/python $(PIP) -e '.[dev]'
	$(TEST)/bin/python $(PIP) --no-deps -r tests/requirements-no-deps.txt
	$(TEST)/bin/python $(PIP) --no-deps --upgrade --target $(TEST)/miles -r tests/requirements-miles.txt
	@touch $@

$(BENCH)/.ready: pyproject.toml benchmarks/requirements.txt benchmarks/requirements-litdata.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python $(PIP) $(TORCH)
	$(BENCH)/bin/python $(PIP) -e '.[view,vlm,s3]' -r benchmarks/requirements.txt
	$(BENCH)/bin/python $(PIP) --no-deps -r benchmarks/requirements-litdata.txt
	@touch $@

$(MOSAIC)/.ready: benchmarks/requirements-mosaic.txt benchmarks/requirements-mosaic-alone.txt
	$(PYTHON) -m venv $(MOSAIC)
	$(MOSAIC)/bin/python $(PIP) $(TORCH)
	$(MOSAIC)/bin/python $(PIP) -r benchmarks/requirements-mosaic.txt
	$(MOSAIC)/bin/python $(PIP) --no-deps -r benchmarks/requirements-mosaic-alone.txt
	@touch $@
