"""Requests of jobs and the size of a run: memory, time, disk, GPUs and downloads.

Estimates are rough, on the safe side, and made before anything is downloaded: parameters come from
the names of models (``pythia-6.9b``), texts of tasks from mteb's own statistics. Only what is due
counts: files without their key, and of scores the tasks without theirs.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from layerwise.config import Config
from layerwise.config.corpora import CorpusSettings
from layerwise.config.models import HubSource
from layerwise.errors import LayerwiseError
from layerwise.models.source import locate
from layerwise.names import encode, size_of
from layerwise.run.plan import Plan
from layerwise.run.snakemake import facts_of
from layerwise.tasks import catalog
from layerwise.tasks.catalog import CHARACTERS, Size

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
# A model whose name has no number and that is not here.
UNKNOWN = 1e9
# Libraries (a GPU's, too), activations of a batch, two windows of results, and reading the file.
OVERHEAD_MB = 5000
# While weights are loaded, a part of them is in memory twice.
LOADING = 1.25
# Batches in a GPU's memory, in addition to the weights.
BATCHES = 1.2
# Memory of a GPU, for the number of them that a model with device_map: auto asks for.
GPU_GB = 80
# Minutes that a job asks for at most: the limit of many partitions.
LONGEST = 240
# Starting Python from a shared disk, in minutes, and loading weights, in gigabytes a minute.
START_MINUTES = 5
LOADED_GB = 12
# Passes take this many times their time with the reduction of the states.
REDUCING = 3
# Operations per second that a job reaches at least.
FLOPS = {"float32": 1e13, "float16": 5e13, "bfloat16": 5e13, "cpu": 5e10}
# Tokens of a prompt of unknown length.
TOKENS = 256
TOKENS_OF_A_TEXT = 30
# With all of mteb's scores.
SUB_SCORES = 1.5
# A file of text or a task that nothing is known of.
UNKNOWN_TOKENS = 2e6
# Processor seconds for the probe of a row at a layer of 1,024 dimensions.
PROBED = 3e-4
# Joining the tables of tasks takes no model.
JOINING_MB, JOINING_MINUTES = 4000, 10
# What a recipe makes on this machine is small: tokens of a task, parameters of a model.
MADE_TOKENS = 1e4
MADE_PARAMETERS = 1e6


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
            return MADE_PARAMETERS
        folder = locate(source, self.config.models[model].revisions[-1]).folder
        files = folder.glob("*.safetensors") if folder else ()
        return sum(file.stat().st_size for file in files) / BYTES["float32"] or UNKNOWN

    def weights_gb(self, model: str) -> float:
        """Gigabytes of a model's weights in memory."""
        return self.parameters(model) * BYTES[self.config.extraction(model).dtype] / 1e9

    def memory_mb(self, model: str, attempt: int = 1) -> int:
        """Megabytes of memory of a job that loads a model; grows with each attempt."""
        return attempt * (OVERHEAD_MB + int(LOADING * self.weights_gb(model) * 1e3))

    @property
    def scoring_threads(self) -> int:
        """Threads of a job that scores, unless a profile sets others."""
        return max(self.config.extract.threads, self.config.scoring.threads)

    def scorers(self, threads: int) -> int:
        """Processes that score in a job of so many threads: all where a profile set more."""
        raised = threads > self.scoring_threads
        return threads if raised else min(threads, self.config.scoring.threads)

    def scoring_mb(self, model: str, revision: str, attempt: int = 1, threads: int = 1) -> int:
        """Megabytes of memory of a job that scores a model."""
        if not self.due(model, revision):
            return JOINING_MB
        processes = 1000 * (1 + self.scorers(threads))
        return self.memory_mb(model, attempt) + attempt * processes

    def gpus(self, model: str) -> int:
        """GPUs of a job that runs a model; several where `device_map: auto` spreads it."""
        if self.config.extract.device == "cpu":
            return 0
        if self.config.models[model].device_map is None:
            return 1
        return max(1, math.ceil(BATCHES * self.weights_gb(model) / GPU_GB))

    def extract_minutes(self, model: str, corpus: str, attempt: int = 1) -> int:
        """Minutes of an extraction; grow with each attempt, up to `LONGEST`."""
        return min(LONGEST, attempt * self._minutes(model, self._passed(model, corpus)))

    def extract_mb(self, model: str, corpus: str) -> int:
        """Megabytes of a file of activations, with states of tokens if they are kept."""
        shape = self._shape(model)
        entry, settings = self.config.corpora[corpus], self.config.extraction(model, corpus)
        variants = len(settings.tokens) * len(settings.protocols) * (1 + len(settings.sublayers))
        rows = (entry.sample.n or 10_000) * (1 + entry.views.n)
        numbers = shape[0] * rows * variants * BYTES["float32"]
        if settings.token_states:
            width = BYTES["float16" if settings.token_states == "float16" else "float32"]
            layers = len(settings.layers or range(shape[0]))
            numbers += layers * (entry.sample.n or 10_000) * TOKENS * width
        return 1 + int(numbers * shape[1] / 1e6)

    def evaluate_minutes(self, model: str, revision: str, attempt: int = 1) -> int:
        """Minutes of scoring a model's tasks; grow as those of an extraction.

        A job that is cut off at the limit goes on in the next attempt.
        """
        return min(LONGEST, attempt * self._scoring_minutes(model, revision))

    def evaluate_gpus(self, model: str, revision: str) -> int:
        """GPUs of a job that scores a model; none if no task is due."""
        return self.gpus(model) if self.due(model, revision) else 0

    def extract_priority(self, model: str, corpus: str) -> float:
        """Priority of an extraction, 15 to 16: the longest first, short jobs fill the gaps."""
        return _priority(self._minutes(model, self._passed(model, corpus)))

    def evaluate_priority(self, model: str, revision: str) -> float:
        """As `extract_priority`, of a job that scores."""
        return _priority(self._scoring_minutes(model, revision))

    @cache
    def due(self, model: str, revision: str) -> list[str]:
        """The tasks of a checkpoint that are not scored yet."""
        tasks = self.plan.tasks[model, revision]
        keys = self.plan.keys.scores(model, revision)
        folder = Path(self.plan.path("scores", model=model, revision=revision)).with_suffix("")
        paths = {task: folder / f"{encode(task)}.parquet" for task in tasks}
        return [task for task, path in paths.items() if facts_of(path).get("key") != keys[task]]

    def scratch_mb(self, model: str, revision: str) -> int:
        """Megabytes of local disk for vectors that wait for scoring."""
        if not self.due(model, revision):
            return 0
        waiting = self.config.scoring_of(model).waiting_gb
        return int(1000 * max(waiting, 3e-4 * self._shape(model)[0] * self._shape(model)[1]))

    @cache
    def corpus_tokens(self, model: str, corpus: str) -> float:
        """Tokens of a corpus with its views."""
        entry = self.config.corpora[corpus]
        longest = self.config.models[model].max_length or 2 * TOKENS
        cut = entry.filters.max_tokens if isinstance(entry, CorpusSettings) else None
        tokens = min(longest, cut or TOKENS, TOKENS)
        return (entry.sample.n or 10_000) * (1 + entry.views.n) * tokens

    @cache
    def task_size(self, task: str) -> Size:
        """The size of a task: by mteb's statistics, or by the user's files."""
        entry = self.config.tasks.get(task)
        folder = Path(getattr(entry, "folder", None) or "")
        files = [Path(file) for file in self.plan.task_files(task)]
        known = None if files else catalog.size_of(task)
        if known:
            return known
        if folder.name and folder.is_dir():
            files = list(folder.rglob("*.*"))
        tokens = sum(file.stat().st_size for file in files if file.is_file()) / CHARACTERS
        tokens = tokens or (MADE_TOKENS if self.plan.task_results(task) else UNKNOWN_TOKENS)
        return Size(tokens / TOKENS_OF_A_TEXT, tokens, PROBED * tokens / TOKENS_OF_A_TEXT)

    @cache
    def scoring_seconds(self, model: str, task: str) -> float:
        """Processor seconds of scoring all layers of a model on a task."""
        settings, (n_layers, width) = self.config.scoring_of(model), self._shape(model)
        n = len(self.config.extraction(model).tokens) * len(settings.poolings)
        n *= len(settings.readouts) * n_layers
        more = SUB_SCORES if settings.sub_scores else 1
        return more * n * width / 1024 * self.task_size(task).seconds

    def too_long(self) -> list[str]:
        """Tasks that a job does not finish within `LONGEST`, each with its model and hours."""
        points = dict(reversed(self.plan.scored))
        minutes = {
            f"{task} of {model}": self._task_minutes(model)[task]
            for model, revision in points.items()
            for task in self.plan.tasks[model, revision]
        }
        return [f"{name} ({m / 60:.0f} hours)" for name, m in minutes.items() if m > LONGEST]

    def _passed(self, model: str, corpus: str) -> float:
        return REDUCING * self.corpus_tokens(model, corpus)

    def _scoring_minutes(self, model: str, revision: str) -> int:
        tasks = self.due(model, revision)
        if not tasks:
            return JOINING_MINUTES
        minutes = sum(self._task_minutes(model)[task] for task in tasks)
        return self._minutes(model, 0) + math.ceil(minutes)

    @cache
    def _task_minutes(self, model: str) -> dict[str, float]:
        """Minutes of embedding and scoring by task; on a GPU, one goes on during the other."""
        n_processes = self.config.scoring_of(model).threads
        minutes = {}
        for task in self.config.tasks:
            embedding = self._pass_minutes(model, self.task_size(task).tokens)
            scoring = self.scoring_seconds(model, task) / n_processes / 60
            both = max(embedding, scoring) if self.gpus(model) else embedding + scoring
            minutes[task] = both
        return minutes

    def _minutes(self, model: str, tokens: float) -> int:
        loading = self.weights_gb(model) / LOADED_GB
        return START_MINUTES + math.ceil(loading + self._pass_minutes(model, tokens))

    def _pass_minutes(self, model: str, tokens: float) -> float:
        speed = FLOPS["cpu" if not self.gpus(model) else self.config.extraction(model).dtype]
        return 2 * self.parameters(model) * tokens / speed / 60

    @cache
    def _shape(self, model: str) -> tuple[int, int]:
        """Number of layers, the embeddings included, and width; guessed of a model on the hub.

        Requests do not change when a model is downloaded.
        """
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
            corpora, tasks = self._due_corpora(model, revision), self._due_tasks(model, revision)
            if not corpora and not tasks:
                continue
            tokens = sum(self._passed(model, corpus) for corpus in corpora)
            tokens += sum(self.task_size(task).tokens for task in tasks)
            operations = self.gpus(model) * 2 * self.parameters(model) * tokens
            on_hub = isinstance(self.config.models[model].source, HubSource)
            files = [self.extract_mb(model, corpus) / 1e3 for corpus in corpora]
            row = rows[model]
            row["checkpoints"] += 1
            row["of"] = len(self.config.models[model].revisions)
            row["GPUs"], row["GB of weights"] = self.gpus(model), self.weights_gb(model)
            row["GPU hours"] += operations / (tflops * 1e12) / 3600
            seconds = sum(self.scoring_seconds(model, task) for task in tasks)
            row["core hours of scoring"] += seconds / 3600
            row["GB to download"] += self.parameters(model) * BYTES["float16"] / 1e9 * on_hub
            written = row["GB of activations"]
            row["GB of activations"] = written + sum(files) if keeps else max([written, *files])
        table = pd.DataFrame.from_dict(rows, orient="index")
        if rows:
            most = table[["GPUs", "GB of weights"]].max()  # of a job: models do not run at once
            table.loc["all"] = table.sum()
            table.loc["all", most.index] = most
        return table

    def _due_corpora(self, model: str, revision: str) -> list[str]:
        """The corpora whose activations are due: neither they nor their metrics have the key."""
        keys, names = self.plan.keys, {"model": model, "revision": revision}
        return [
            corpus
            for corpus in self.plan.measured.get((model, revision), ())
            if not self._is_there("metrics", keys.metrics, **names, corpus=corpus)
            and not self._is_there("activations", keys.extract, **names, corpus=corpus)
        ]

    def _due_tasks(self, model: str, revision: str) -> list[str]:
        names = {"model": model, "revision": revision}
        is_read = (model, revision) in self.plan.scored
        if not is_read or self._is_there("scores", self.plan.keys.evaluate, **names):
            return []
        return self.due(model, revision)

    def _is_there(self, table: str, key: Callable[..., str], **names: str) -> bool:
        return facts_of(Path(self.plan.path(table, **names))).get("key") == key(**names)


def _priority(minutes: float) -> float:
    return 16 - 1 / (1 + minutes)
