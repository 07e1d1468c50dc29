# Needs Python 3.11 or later, pip or uv, and make; everything else is put into .venv.

VENV := .venv
BENCH_VENV := .venv-bench
PY := $(VENV)/bin/python
BENCH_PY := $(BENCH_VENV)/bin/python
STAMP := $(VENV)/.requirements
LINT_STAMP := $(VENV)/.requirements-lint
DEV_STAMP := $(VENV)/.requirements-dev
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

# Installs requirements for an interpreter: $(call install,INTERPRETER,FILE). uv is quicker than pip.
UV := $(shell command -v uv 2>/dev/null)
install = $(if $(UV),$(UV) pip install --quiet --python $(1),$(1) -m pip install --quiet --disable-pip-version-check) -r $(2)

# Packages that need full coverage of lines and branches.
DECIDING := limits_app/engine/*,limits_app/acquiring/*,limits_app/stores/*,limits_app/services/*,limits_app/policies/*

# A test that hangs ends its worker with the stacks of all threads, and the run fails instead of waiting for ever.
HANGING := --timeout 240 --timeout-method thread

# Each process begins with a part of the tests as it was collected, so that few start the same servers.
SHARED := --dist worksteal --no-cov

# Where the rules are, and what serves requests.
QUICK := tests/acquiring tests/engine tests/integrations tests/policies tests/services \
	tests/stores/test_conformance.py::TestMemoryStore tests/stores/test_memory_store.py

ARGS ?=
AUDIT ?=

# Tests and the demo start many processes: what one of them has compiled, the others need not compile again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
# Its signals may raise while the tracer of coverage holds its lock, which would then stay locked.
RANDOM_SIGNALS := tests/stores/test_interruptions.py::test_signals_that_raise_at_random_points_leave_the_store_usable
# The tracer of coverage makes pages twice as slow, and their bar is in seconds.
LARGE_LISTS := tests/admin/pages/test_large.py

.PHONY: help demo run quick test test-products test-all coverage check lint format types imports migrations mutants fuzz ray bench growth docs pictures newcomer matrix wheels test-compiled release-check clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(STAMP)  ## show limits at work under real traffic, and check every figure
	$(PY) -m project.demo

run: $(STAMP)  ## serve the demo site with seeded data; on another port as ARGS="--port 8001"
	$(PY) -m project.demo --serve $(ARGS)

quick: $(DEV_STAMP)  ## run the tests of what decides, in memory and on SQLite, in a minute; the loop while you work
	LIMITS_TESTS_WITHOUT_SERVERS=1 $(PY) -m pytest -n 2 $(SHARED) $(HANGING) \
		--hypothesis-profile=quick -m "not (alone or product or release or server or slow)" $(QUICK) $(ARGS)

test: $(DEV_STAMP)  ## run the tests, three at a time; without those that only a release or another product needs
	$(PY) -m pytest -n 3 $(SHARED) $(HANGING) -m "not (release or product)" $(ARGS)

test-products: $(DEV_STAMP)  ## run the tests on other products: Redis Cluster and 6.2, MariaDB, Celery workers, gevent, a browser
	$(PY) -m pytest -n 3 $(SHARED) $(HANGING) -m "product and not release" $(ARGS)

test-all: $(DEV_STAMP)  ## run all tests, including fuzzing, endurance, installation and every page in a browser
	$(PY) -m pytest -n 3 $(SHARED) --hypothesis-profile=thorough $(ARGS)

coverage: $(DEV_STAMP)  ## run all tests and say which lines and branches they leave out; all of what decides is tested
	$(PY) -m coverage erase
	$(PY) -m pytest -n 3 --dist worksteal --hypothesis-profile=thorough --cov --cov-report=term --cov-fail-under=95 --deselect $(RANDOM_SIGNALS) --deselect $(LARGE_LISTS)
	$(PY) -m coverage report --include='$(DECIDING)' --fail-under=100

check: lint types imports migrations  ## everything that can be known without running the tests

lint: $(LINT_STAMP)  ## style and likely mistakes
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

format: $(LINT_STAMP)  ## put the code into shape
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

types: $(DEV_STAMP)  ## static types
	$(PY) -m mypy

imports: $(DEV_STAMP)  ## who may import whom
	$(VENV)/bin/lint-imports --no-logo

migrations: $(DEV_STAMP)  ## models and migrations agree, and Django's own checks
	$(MANAGE) makemigrations --check --dry-run
	$(MANAGE) check --fail-level WARNING

mutants: $(DEV_STAMP)  ## change what decides in thousands of ways, and list what no test notices; a module as ARGS="limits_app.engine.prices"
	ulimit -v 6000000 && LIMITS_TESTS_WITHOUT_SERVERS=1 $(PY) -m tests.packaging.mutants $(ARGS)

fuzz: $(FUZZ_STAMP)  ## send parsers and identities what atheris makes up, guided by what it covers; seconds for each as ARGS=60
	$(FUZZ_PY) -m tests.fuzz.guided $(ARGS)

ray: $(RAY_STAMP)  ## check the workers' mode for Ray on a Ray of this machine
	$(RAY_PY) -m tests.ray.check

bench: $(BENCH_STAMP)  ## measure beside the peers; pass options as ARGS="--only name --rounds 5"
	$(BENCH_PY) -m benchmarks $(ARGS)

growth: $(BENCH_STAMP)  ## measure a site with a million clients, in at most ten minutes; the tables of docs/operations.md
	$(BENCH_PY) -m benchmarks --rounds 1 --only "growth: " "bytes per idle" $(ARGS)

docs: $(DEV_STAMP)  ## build the documentation into build/site, and run its code
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict
	$(PY) -m pytest tests/docs

pictures: $(DEV_STAMP)  ## take the pictures of the docs in a browser
	LIMITS_PICTURES=1 $(PY) -m pytest --no-cov tests/browser $(ARGS)

newcomer: $(DEV_STAMP)  ## follow the README and the tutorial in an empty folder, and time it
	$(PY) -m pytest --no-cov --durations=1 tests/packaging/test_newcomer.py

matrix: $(DEV_STAMP)  ## run tests with each Python that is here and each supported Django; pass options as ARGS="--python ..."
	$(PY) -m tests.packaging.matrix $(ARGS)

wheels: $(RELEASE_STAMP)  ## build the package and two wheels into dist/: a pure one, and one compiled for this machine; needs a C compiler
	$(RELEASE_BIN)/python -m build --no-isolation --outdir dist .
	HATCH_BUILD_HOOK_ENABLE_MYPYC=1 $(RELEASE_BIN)/python -m build --no-isolation --outdir dist .

test-compiled: wheels $(DEV_STAMP)  ## run the tests of the engine and of its stores with the compiled wheel
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
	rm -rf build dist htmlcov .coverage .coverage.* .hypothesis
	rm -rf .import_linter_cache .mypy_cache .pytest_cache .ruff_cache mutants
	rm -f db.sqlite3 db.sqlite3-shm db.sqlite3-wal
	find limits_app project tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(PY) $(BENCH_PY) $(FUZZ_PY) $(RAY_PY) $(RELEASE_BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python was found: install Python 3.11 or later." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or later is needed, and $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Install it, or name it: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(@:/bin/python=) || { rm -rf $(@:/bin/python=); exit 1; }

$(STAMP): requirements.txt | $(PY)
	$(call install,$(PY),requirements.txt)
	@touch $@

$(LINT_STAMP): requirements-lint.txt | $(PY)
	$(call install,$(PY),requirements-lint.txt)
	@touch $@

$(DEV_STAMP): requirements.txt requirements-lint.txt requirements-dev.txt | $(PY)
	$(call install,$(PY),requirements-dev.txt)
	@touch $(STAMP) $(LINT_STAMP) $@

$(BENCH_STAMP): requirements.txt requirements-lint.txt requirements-dev.txt requirements-bench.txt | $(BENCH_PY)
	$(call install,$(BENCH_PY),requirements-bench.txt)
	@touch $@

$(FUZZ_STAMP): requirements.txt requirements-lint.txt requirements-dev.txt requirements-fuzz.txt | $(FUZZ_PY)
	$(call install,$(FUZZ_PY),requirements-fuzz.txt)
	@touch $@

$(RAY_STAMP): requirements.txt requirements-lint.txt requirements-dev.txt requirements-ray.txt | $(RAY_PY)
	$(call install,$(RAY_PY),requirements-ray.txt)
	@touch $@

$(RELEASE_STAMP): requirements-release.txt | $(RELEASE_BIN)/python
	$(call install,$(RELEASE_BIN)/python,requirements-release.txt)
	@touch $@
