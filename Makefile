# make finding   set up .venv and run: snakemake --cores 1
# make failed    list the cells that failed or did not end, with cause and log
# make doctor    check what every counter reads of processes whose memory is known
# make faults    inject every fault, cut the power 30 times, and print what was lost: nothing
# make sanitize  run the buffer pools' policies and a live cell under the compilers' sanitizers
# make slurm     add what profiles/slurm needs (docs/cluster.md)
# make setup     set up .venv, with what the tests and the linters need
# make test      the fast tests: no root, no network, at most 5 minutes on 2 cores
# make test-all  all of them: SLURM, a browser, power cuts, builds, real models
# make lint, lint-workflows, audit   the code; .github/workflows; known holes in packages, and secrets
# make mutants  change the modules that make numbers, one place at a time, and count what the tests notice
# make wheels    collect in wheels/ what an installation without a network needs (docs/offline.md)
# make publish   make the finding and copy it to docs/findings/NAME (default: the system and the date)
# V=1 shows all that Snakemake and the steps print, instead of a line for each cell.
# ACCEL=cpu|cuda12|cuda13 chooses MLX's Linux build (default cpu); on macOS MLX brings Metal.
# MATRIX=config/cuda/matrix.yaml runs another matrix; GPUS=2 measures on two NVIDIA GPUs side by side, one cell on each.

ACCEL ?= cpu
ifeq ($(filter $(ACCEL),cpu cuda12 cuda13),)
$(error ACCEL=$(ACCEL): expected cpu, cuda12 or cuda13)
endif
PYTHON ?= python3
CONFIG := $(if $(MATRIX)$(GPUS), --config)$(if $(MATRIX), 'matrix=$(MATRIX)')$(if $(GPUS), gpus=$(GPUS))
VENV := .venv
# With a folder wheels/ everything is installed from it, without a network (docs/offline.md).
ifneq ($(if $(filter wheels,$(MAKECMDGOALS)),,$(wildcard wheels)),)
# As a URL, because pip and uv split what the variable holds at spaces.
EMPTY :=
WHEELS := file://$(subst $(EMPTY) ,%20,$(subst %,%25,$(CURDIR)))/wheels
export PIP_NO_INDEX := 1
export PIP_FIND_LINKS := $(WHEELS)
export UV_OFFLINE := 1
export UV_NO_INDEX := 1
export UV_FIND_LINKS := $(WHEELS)
endif
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed-$(ACCEL)
# Each cell starts three small programs: what the project's own modules compile to is made once.
COMPILED = $(BIN)/python -m compileall -q workflow/scripts || true
# uv installs in seconds what takes pip minutes; behind a mirror that only pip.conf names: make INSTALL="$(BIN)/python -P -m pip install"
# Like pip it is to compile what it installs: else each first process does so, in its own time and memory, and where
# PYTHONDONTWRITEBYTECODE is set every one.
# uv reads uv.toml and pyproject.toml of every folder above its project, whoever put them there; above / there is none.
UV := $(BIN)/uv --project /
INSTALL ?= $(UV) pip install --compile-bytecode --python $(BIN)/python
DEV := $(VENV)/.installed-dev

.PHONY: finding wheels failed faults sanitize setup test test-all audit actionlint lint-workflows lint format publish columns bench pins clean doctor

finding: $(INSTALLED)
	@$(COMPILED)
	$(BIN)/snakemake --cores $(or $(GPUS),1)$(CONFIG)

failed: $(INSTALLED)
	$(BIN)/kvpeak failed

doctor: $(INSTALLED)
	$(BIN)/kvpeak doctor

faults: $(DEV)
	$(BIN)/python -m pytest -m fault
	PYTHONPATH=tests $(BIN)/python tests/faults/power_cut.py --times 30 --seed 0

sanitize: $(DEV)
	$(BIN)/python tests/native/sanitize.py

wheels: $(INSTALLED)
	$(BIN)/python workflow/scripts/collect_wheels.py --accel $(ACCEL) $(addprefix --matrix ,$(MATRIX))

setup: $(DEV)

# Side by side in four processes, because tests also wait; a file's tests stay together, the longest files first
# (tests/conftest.py).
# PYTEST_ARGS="-n 0" runs one after the other.
PYTEST := $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

test: $(DEV)
	@$(COMPILED)
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-all: $(DEV)
	@$(COMPILED)
	$(PYTEST) $(PYTEST_ARGS)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow/rules

actionlint: $(DEV)
	$(INSTALL) --quiet -r requirements/workflows.txt

lint-workflows: actionlint
	$(BIN)/actionlint

# detect-secrets leaves out what every hash looks like.
audit: $(DEV)
	$(INSTALL) --quiet -r requirements/audit.txt
	git ls-files -z | xargs -0 $(BIN)/detect-secrets-hook \
		--disable-plugin HexHighEntropyString --disable-plugin Base64HighEntropyString
	for f in runtime cpu dev uv; do \
		$(BIN)/pip-audit --disable-pip --require-hashes --progress-spinner off -r requirements/$$f.txt || exit 1; done

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow/rules

publish: finding
	$(BIN)/kvpeak publish$(if $(MATRIX), --matrix '$(MATRIX)') '$(or $(NAME),$(shell uname -s)-$(shell date +%F))'

columns: $(INSTALLED)
	$(BIN)/python workflow/scripts/columns.py

bench: $(DEV)
	$(BIN)/python tests/bench/blas_speed.py
	$(BIN)/python tests/bench/engine_speed.py
	$(BIN)/python tests/bench/replay_speed.py
	$(BIN)/python tests/bench/pools_speed.py
	PYTHONPATH=tests $(BIN)/python tests/bench/many_cells.py 1000 10000 50000

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON): not found. Try: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "kvpeak needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -P -m pip install --quiet --disable-pip-version-check -r requirements/uv.txt

$(INSTALLED): requirements/runtime.txt requirements/$(ACCEL).txt pyproject.toml | $(VENV)/bin/python
	$(INSTALL) --quiet -r requirements/runtime.txt -r requirements/$(ACCEL).txt
	$(INSTALL) --quiet --no-deps --no-build-isolation --editable .
	rm -f $(VENV)/.installed-cpu $(VENV)/.installed-cuda*
	touch $@

$(DEV): requirements/dev.txt $(INSTALLED)
	$(INSTALL) --quiet -r requirements/dev.txt
	touch $@

slurm: $(INSTALLED)
	$(INSTALL) --quiet -r requirements/slurm.txt

mutants: $(DEV)
	$(INSTALL) --quiet -r requirements/mutants.txt
	$(BIN)/python tests/mutation/mutants.py $(MODULES)

pins: $(VENV)/bin/python
	cd requirements && for f in uv runtime cpu cuda12 cuda13 dev slurm mutants audit workflows; do \
		../$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
			--custom-compile-command "make pins" $$f.in -o $$f.txt; done

clean:
	rm -rf $(VENV) .snakemake
