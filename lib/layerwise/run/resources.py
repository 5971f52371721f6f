"""Requests of jobs, and the size of a run.

Parameters come from the names of models (``pythia-6.9b``), tokens of tasks from mteb's statistics,
so nothing is downloaded. The time of jobs is the profile's.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from layerwise.config import Config
from layerwise.config.models import HubSource
from layerwise.errors import LayerwiseError
from layerwise.models.source import locate
from layerwise.names import encode, size_of
from layerwise.run.plan import Plan, extraction_of
from layerwise.run.snakemake import facts_of
from layerwise.tasks import catalog

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
# Parameters of a model whose name has no number and whose weights are not here.
UNKNOWN = 1e9
# Parameters of a model that a recipe makes; until it is there, its size is not known.
MADE = 1e6
# Libraries (a GPU's, too), activations of a batch, two windows of results, and reading the file.
OVERHEAD_MB = 5000
# While weights are loaded, a part of them is in memory twice.
LOADING = 1.25
# Batches in a GPU's memory, in addition to the weights.
BATCHES = 1.2
# Memory of a GPU, for the number of them that a model with device_map: auto asks for.
GPU_GB = 80
# Passes take this many times their time with the reduction of the states.
REDUCING = 3
# Prompts of a corpus whose sample has no number, and tokens of a prompt.
PROMPTS, TOKENS = 10_000, 256
# Tokens of a task that nothing is known of, and characters of a token in the user's files.
TASK_TOKENS, CHARACTERS = 2e6, 4.5


class Requests:
    """Requests of a plan's jobs, and the size of the whole.

    Parameters
    ----------
    plan : Plan
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.config: Config = plan.config

    @cache
    def parameters(self, model: str) -> float:
        """Number of a model's parameters: by its name, or by the size of its local weights."""
        source = self.config.models[model].source
        named = size_of(getattr(source, "hub", "").rpartition("/")[2]) or size_of(model)
        if named:
            return named
        if self.plan.is_to_make(model):
            return MADE
        folder = locate(source, self.config.models[model].revisions[-1]).folder
        files = folder.glob("*.safetensors") if folder else ()
        return sum(file.stat().st_size for file in files) / BYTES["float32"] or UNKNOWN

    def weights_gb(self, model: str) -> float:
        """Gigabytes of a model's weights in memory."""
        return self.parameters(model) * BYTES[self.config.extraction(model).dtype] / 1e9

    def memory_mb(self, model: str, attempt: int = 1) -> int:
        """Megabytes of memory of a job that loads a model; grows with each attempt."""
        return attempt * (OVERHEAD_MB + int(LOADING * self.weights_gb(model) * 1e3))

    def scoring_mb(self, model: str, attempt: int = 1, threads: int = 1) -> int:
        """Megabytes of memory of a job that scores a model: a gigabyte for each process."""
        return self.memory_mb(model, attempt) + attempt * 1000 * (1 + self.scorers(threads))

    @property
    def scoring_threads(self) -> int:
        """Threads of a job that scores, unless a profile sets others."""
        return max(self.config.extract.threads, self.config.scoring.threads)

    def scorers(self, threads: int) -> int:
        """Processes that score in a job of so many threads: all where a profile set more."""
        raised = threads > self.scoring_threads
        return threads if raised else min(threads, self.config.scoring.threads)

    def gpus(self, model: str) -> int:
        """GPUs of a job that runs a model; several where `device_map: auto` spreads it."""
        if self.config.extract.device == "cpu":
            return 0
        if self.config.models[model].device_map is None:
            return 1
        return max(1, math.ceil(BATCHES * self.weights_gb(model) / GPU_GB))

    def priority(self, model: str) -> float:
        """Priority of a job that runs a model, 15 to 16: the largest first, small jobs fill in."""
        return 16 - 1 / (1 + self.parameters(model) / 1e9)

    def corpus_tokens(self, model: str, corpus: str) -> float:
        """Tokens of a corpus with its views."""
        entry = self.config.corpora[corpus]
        tokens = min(self.config.models[model].max_length or TOKENS, TOKENS)
        return float((entry.sample.n or PROMPTS) * (1 + entry.views.n) * tokens)

    @cache
    def task_tokens(self, task: str) -> float:
        """Tokens of a task: by mteb's statistics, or by the user's files."""
        files = [Path(file) for file in self.plan.task_files(task)]
        if not files and (size := catalog.size_of(task)):
            return size.tokens
        folder = Path(getattr(self.config.tasks.get(task), "folder", None) or "")
        if folder.name and folder.is_dir():
            files = list(folder.rglob("*.*"))
        n_bytes = sum(file.stat().st_size for file in files if file.is_file())
        return n_bytes / CHARACTERS or TASK_TOKENS

    def activations_gb(self, model: str, corpus: str) -> float:
        """Gigabytes of a file of activations, with states of tokens if they are kept."""
        n_layers, width = self._shape(model)
        entry, settings = self.config.corpora[corpus], extraction_of(self.config, model, corpus)
        n = entry.sample.n or PROMPTS
        variants = len(settings.tokens) * len(settings.protocols) * (1 + len(settings.sublayers))
        numbers = n_layers * n * (1 + entry.views.n) * variants * BYTES["float32"]
        if settings.token_states:
            bytes_each = BYTES["float16" if settings.token_states == "float16" else "float32"]
            numbers += len(settings.layers or range(n_layers)) * n * TOKENS * bytes_each
        return float(numbers * width / 1e9)

    @cache
    def _shape(self, model: str) -> tuple[int, int]:
        """Number of layers, the embeddings included, and width; guessed of a model on the hub."""
        card: dict[str, Any] = {}
        entry = self.config.models[model]
        # A model that is not there is made by the run. Jobs refuse a damaged one.
        with contextlib.suppress(OSError, ValueError, TypeError, LayerwiseError):
            folder = locate(entry.source, entry.revisions[-1]).folder
            card = dict(json.loads((folder / "config.json").read_text("utf-8"))) if folder else {}
        card = card.get("text_config") or card.get("vision_config") or card
        layers = card.get("num_hidden_layers") or card.get("n_layer")
        width = card.get("hidden_size") or card.get("n_embd")
        if layers and width:
            return int(layers) + 1, int(width)
        # A transformer of width d has about 12 d² parameters in a block, and d is 64 per layer.
        width = (64 * self.parameters(model) / 12) ** (1 / 3)
        return int(width / 64) + 1, int(width)

    def table(self, tflops: float) -> pd.DataFrame:
        """The size of what is due by model, and of all. Downloads are of half precision.

        Parameters
        ----------
        tflops : float
            Operations per second that a GPU reaches on this work, in units of 10¹².
        """
        keeps = self.config.extract.keep_activations
        rows: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for model, revision in dict.fromkeys([*self.plan.measured, *self.plan.scored]):
            corpora, tasks = self._due_corpora(model, revision), self.due(model, revision)
            if not corpora and not tasks:
                continue
            tokens = REDUCING * sum(self.corpus_tokens(model, corpus) for corpus in corpora)
            tokens += sum(map(self.task_tokens, tasks))
            operations = self.gpus(model) * 2 * self.parameters(model) * tokens
            on_hub = isinstance(self.config.models[model].source, HubSource)
            files = [self.activations_gb(model, corpus) for corpus in corpora]
            row = rows[model]
            row["checkpoints"] += 1
            row["of"] = len(self.config.models[model].revisions)
            row["GPUs"], row["GB of weights"] = self.gpus(model), self.weights_gb(model)
            row["GPU hours"] += operations / (tflops * 1e12) / 3600
            row["GB to download"] += self.parameters(model) * BYTES["float16"] / 1e9 * on_hub
            written = row["GB of activations"]
            row["GB of activations"] = written + sum(files) if keeps else max([written, *files])
        table = pd.DataFrame.from_dict(rows, orient="index")
        if rows:
            most = table[["GPUs", "GB of weights"]].max()  # of a job: models do not run at once
            table.loc["all"] = table.sum()
            table.loc["all", most.index] = most
        return table

    def due(self, model: str, revision: str) -> list[str]:
        """The tasks of a checkpoint that are to be scored."""
        names = {"model": model, "revision": revision}
        if (model, revision) not in self.plan.scored_points or self._is_there("scores", **names):
            return []
        folder = Path(self.plan.path("scores", **names)).with_suffix("")
        keys = self.plan.score_keys(**names)
        stored = {task: facts_of(folder / f"{encode(task)}.parquet").get("key") for task in keys}
        return [task for task, key in keys.items() if stored[task] != key]

    def _due_corpora(self, model: str, revision: str) -> list[str]:
        """The corpora whose activations are due: neither they nor their metrics have the key."""
        names = {"model": model, "revision": revision}
        return [
            corpus
            for corpus in self.plan.measured.get((model, revision), ())
            if not self._is_there("metrics", **names, corpus=corpus)
            and not self._is_there("activations", **names, corpus=corpus)
        ]

    def _is_there(self, table: str, **names: str) -> bool:
        stored = facts_of(Path(self.plan.path(table, **names))).get("key")
        return stored is not None and stored == self.plan.table_key(table, **names)
