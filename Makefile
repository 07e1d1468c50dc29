# Needs Python 3.11 or later, pip and make; everything else is put into .venv.

VENV := .venv
BENCH_VENV := .venv-bench
PY := $(VENV)/bin/python
BENCH_PY := $(BENCH_VENV)/bin/python
STAMP := $(VENV)/.requirements-dev
BENCH_STAMP := $(BENCH_VENV)/.requirements-bench
RELEASE_VENV := .venv-release
RELEASE_BIN := $(RELEASE_VENV)/bin
RELEASE_STAMP := $(RELEASE_VENV)/.requirements-release
FUZZ_VENV := .venv-fuzz
FUZZ_PY := $(FUZZ_VENV)/bin/python
FUZZ_STAMP := $(FUZZ_VENV)/.requirements-fuzz
RAY_VENV := .venv-ray
RAY_PY := $(RAY_VENV)/bin/python
RAY_STAMP := $(RAY_VENV)/.requirements-ray

# The first Python found, and only if it runs: a version manager may offer a name that leads nowhere.
PYTHON ?= $(shell for python in python3.11 python3; do \
	$$python --version >/dev/null 2>&1 && { echo $$python; break; }; done)

# A database in memory: a check must leave nothing behind.
MANAGE := LIMITS_DEMO_DATABASE=:memory: $(PY) manage.py

# Packages that need full coverage of lines and branches.
DECIDING := limits_app/engine/*,limits_app/acquiring/*,limits_app/stores/*,limits_app/services/*,limits_app/policies/*

# A test that hangs ends its worker with the stacks of all threads, and the run fails instead of waiting for ever.
HANGING := --timeout 240 --timeout-method thread

ARGS ?=
AUDIT ?=

# Tests and the demo start many processes: what one of them has compiled, the others need not compile again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
# Its signals may raise while the tracer of coverage holds its lock, which would then stay locked.
RANDOM_SIGNALS := tests/stores/test_interruptions.py::test_signals_that_raise_at_random_points_leave_the_store_usable
# The tracer of coverage makes pages twice as slow, and their bar is in seconds.
LARGE_LISTS := tests/admin/pages/test_large.py

.PHONY: help demo run test test-all coverage check lint format types imports migrations mutants fuzz ray bench docs pictures newcomer matrix wheels test-compiled release-check clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(STAMP)  ## show limits at work under real traffic, and check every figure
	$(PY) -m project.demo

run: $(STAMP)  ## serve the demo site with seeded data; on another port as ARGS="--port 8001"
	$(PY) -m project.demo --serve $(ARGS)

test: $(STAMP)  ## run the tests, three at a time; without those that only a release needs
	$(PY) -m pytest -n 3 --dist load --no-cov -m "not release" $(HANGING) $(ARGS)

test-all: $(STAMP)  ## run all tests, including fuzzing, endurance, installation and every page in a browser
	$(PY) -m pytest -n 3 --dist load --no-cov $(ARGS)

coverage: $(STAMP)  ## run all tests and say which lines and branches they leave out; all of what decides is tested
	$(PY) -m coverage erase
	$(PY) -m pytest -n 3 --dist load --cov --cov-report=term --cov-fail-under=95 --deselect $(RANDOM_SIGNALS) --deselect $(LARGE_LISTS)
	$(PY) -m coverage report --include='$(DECIDING)' --fail-under=100

check: lint types imports migrations  ## everything that can be known without running the tests

lint: $(STAMP)  ## style and likely mistakes
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

format: $(STAMP)  ## put the code into shape
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

types: $(STAMP)  ## static types
	$(PY) -m mypy

imports: $(STAMP)  ## who may import whom
	$(VENV)/bin/lint-imports --no-logo

migrations: $(STAMP)  ## models and migrations agree, and Django's own checks
	$(MANAGE) makemigrations --check --dry-run
	$(MANAGE) check --fail-level WARNING

mutants: $(STAMP)  ## change the algorithms in a thousand ways, and list what no test notices; up to 90 minutes
	ulimit -v 4000000 && timeout 5400 $(PY) -m mutmut run --max-children 2
	$(PY) -m mutmut results

fuzz: $(FUZZ_STAMP)  ## send parsers and identities what atheris makes up, guided by what it covers; seconds for each as ARGS=60
	$(FUZZ_PY) -m tests.fuzz.guided $(ARGS)

ray: $(RAY_STAMP)  ## check the workers' mode for Ray on a Ray of this machine
	$(RAY_PY) -m tests.ray.check

bench: $(BENCH_STAMP)  ## measure beside the peers; pass options as ARGS="--only name --rounds 5"
	$(BENCH_PY) -m benchmarks $(ARGS)

docs: $(STAMP)  ## build the documentation into build/site, and run its code
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict
	$(PY) -m pytest tests/docs

pictures: $(STAMP)  ## take the pictures of the docs in a browser
	LIMITS_PICTURES=1 $(PY) -m pytest --no-cov tests/browser $(ARGS)

newcomer: $(STAMP)  ## follow the README and the tutorial in an empty folder, and time it
	$(PY) -m pytest --no-cov --durations=1 tests/packaging/test_newcomer.py

matrix: $(STAMP)  ## run tests with each Python that is here and each supported Django; pass options as ARGS="--python ..."
	$(PY) -m tests.packaging.matrix $(ARGS)

wheels: $(RELEASE_STAMP)  ## build the package and two wheels into dist/: a pure one, and one compiled for this machine; needs a C compiler
	$(RELEASE_BIN)/python -m build --no-isolation --outdir dist .
	HATCH_BUILD_HOOK_ENABLE_MYPYC=1 $(RELEASE_BIN)/python -m build --no-isolation --outdir dist .

test-compiled: wheels $(STAMP)  ## run the tests of the engine and of its stores with the compiled wheel
	$(PY) -m tests.packaging.compiled $(ARGS)

release-check: test-all $(RELEASE_STAMP)  ## run all tests, build the package into dist/ and check it, its code and its dependencies; packages that cannot be audited are an error with AUDIT=--strict
	rm -rf dist
	$(RELEASE_BIN)/python -m build --no-isolation --outdir dist .
	$(RELEASE_BIN)/twine check --strict dist/*.whl dist/*.tar.gz
	$(RELEASE_BIN)/bandit --quiet --recursive --configfile pyproject.toml limits_app
	$(RELEASE_BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
		--output-file dist/sbom.cdx.json requirements.txt
	$(PY) -m tests.packaging.audit $(RELEASE_BIN)/pip-audit $(AUDIT)

clean:  ## remove what was built, measured and cached; the virtual environments stay
	rm -rf build dist htmlcov .coverage .coverage.* .hypothesis .benchmarks
	rm -rf .import_linter_cache .mypy_cache .pytest_cache .ruff_cache mutants
	rm -f db.sqlite3 db.sqlite3-shm db.sqlite3-wal
	find limits_app project tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(PY) $(BENCH_PY) $(FUZZ_PY) $(RAY_PY) $(RELEASE_BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python was found: install Python 3.11 or later." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or later is needed, and $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Install it, or name it: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(@:/bin/python=) || { rm -rf $(@:/bin/python=); exit 1; }

$(STAMP): requirements.txt requirements-dev.txt | $(PY)
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

$(BENCH_STAMP): requirements.txt requirements-dev.txt requirements-bench.txt | $(BENCH_PY)
	$(BENCH_PY) -m pip install --quiet --disable-pip-version-check -r requirements-bench.txt
	@touch $@

$(FUZZ_STAMP): requirements.txt requirements-dev.txt requirements-fuzz.txt | $(FUZZ_PY)
	$(FUZZ_PY) -m pip install --quiet --disable-pip-version-check -r requirements-fuzz.txt
	@touch $@

$(RAY_STAMP): requirements.txt requirements-dev.txt requirements-ray.txt | $(RAY_PY)
	$(RAY_PY) -m pip install --quiet --disable-pip-version-check -r requirements-ray.txt
	@touch $@

$(RELEASE_STAMP): requirements-release.txt | $(RELEASE_BIN)/python
	$(RELEASE_BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-release.txt
	@touch $@
