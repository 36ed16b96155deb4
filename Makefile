# Two commands do everything on a machine with Python 3.11, 3.12 or 3.13 and make: `make run`, `make test`.
PYTHON ?= python3
BIN := .venv/bin
# A BLAS thread per core and process would fight for the cores.
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
# Hundreds of child processes, and each test process, would compile all files anew.
unexport PYTHONDONTWRITEBYTECODE

# Processes for two cores, as some wait for services; a file at a time, what starts services first (tests/conftest.py).
BESIDE := -n 3 --dist loadfile --no-loadscope-reorder
TYPES := $(BIN)/lint-imports & imports=$$!; $(BIN)/mypy; types=$$?; wait $$imports && exit $$types

.PHONY: run demo test quick slow hours style check docs faults bench up down clean

run: .venv/installed ## the default sweep: table, plot, where to browse
	$(BIN)/fedcore sweep conf/sweep/hospitals.yaml

demo: .venv/installed ## relay, driver and four hospitals apart on this machine; with sudo as users and on networks of their own
	$(BIN)/python -m studies.federation_demo

test: style ## style, then the tests, three files at a time, with types and imports beside them
	@($(TYPES)) > .venv/types.log 2>&1 & types=$$!; $(BIN)/python -m pytest $(BESIDE); tests=$$?; \
		wait $$types; types=$$?; cat .venv/types.log; exit $$((tests | types))

quick: .venv/installed ## tests without services and processes, while working
	$(BIN)/python -m pytest $(BESIDE) -m 'not minutes and not slow'

slow: export FEDCORE_FUZZ_SEED ?= fresh
slow: .venv/installed ## the tests that take minutes; long searches with a fresh seed, or FEDCORE_FUZZ_SEED
	$(BIN)/python -m pytest $(BESIDE) -m 'minutes and not hours' -rP --durations=40

hours: export FEDCORE_FUZZ_SEED ?= fresh
hours: .venv/installed ## long searches and further variants, before a change lands that they are about
	$(BIN)/python -m pytest $(BESIDE) -m hours -rP

faults: .venv/installed ## kills at every step, in every process; rewrites docs/reference/fault-matrix.md
	$(BIN)/python -m pytest -m faults tests/faults --fault-table docs/reference/fault-matrix.md

docs: .venv/installed ## the documentation site, docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx -q -W --keep-going -n -b html docs docs/_build/html

style: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

check: style ## style, types and import contracts
	@$(TYPES)

bench: .venv/installed ## milliseconds per round, each as a ratio to a floor in the same run; PARTS="sweep start": CPU-seconds; PARTS=services: silo services
	$(BIN)/python -m benchmarks.rounds $(if $(PARTS),--parts $(PARTS))

up: .venv/installed ## Prefect, MLflow and Dask on this machine, until `make down`
	$(BIN)/fedcore up

down: .venv/installed
	$(BIN)/fedcore down

clean: ## removes the environment; runs stay in .fedcore
	rm -rf .venv *.egg-info docs/_build docs/generated

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
		echo "Python 3.11, 3.12 or 3.13 is needed, $(PYTHON) is $$($(PYTHON) --version 2>&1);" \
		"try make PYTHON=python3.11"; exit 1; }
	@echo "[1 of 4] environment .venv, of $$($(PYTHON) --version 2>&1)"
	@$(PYTHON) -m venv .venv
	@echo "[2 of 4] download of what pyproject.toml and constraints.txt name: once, some minutes"
	@{ $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt -e '.[dev]'; \
		echo $$? > .venv/pip-ended; } | awk '/^Installing collected packages/ { \
		print "[3 of 4] installation of " split($$0, named, ",") " packages"; fflush() }'
	@exit "$$(cat .venv/pip-ended)" # of pip, which has told on stderr what failed
	@echo "[4 of 4] empty databases of Prefect and MLflow"
	@$(BIN)/python -m flows.services.database > /dev/null || true # else made by the first run
	@touch $@
