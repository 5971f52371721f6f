"""Requests of jobs and the size of a run: memory, time, disk, GPUs and downloads.

Estimates are rough, on the safe side, and made before anything is downloaded: parameters come from
the names of models (``pythia-6.9b``), lengths of tasks from mteb's own statistics.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from layerwise.config import Config
from layerwise.config.corpora import CorpusSettings
from layerwise.config.models import HubSource
from layerwise.models.source import locate
from layerwise.names import size_of
from layerwise.run.plan import Plan

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
# A model whose name has no number and that is not here.
UNKNOWN = 1e9
# Libraries, activations of a batch, and reading the file.
OVERHEAD_MB = 4000
# While weights are loaded, a part of them is in memory twice.
LOADING = 1.25
# Batches in a GPU's memory, in addition to the weights.
BATCHES = 1.2
GPU_GB = 80
"""Memory of a GPU, for the number of them that a model with device_map: auto asks for."""
LONGEST = 240
"""Minutes that a job asks for at most: the limit of many partitions."""
# Starting Python from a shared disk, in minutes, and loading weights, in gigabytes a minute.
START_MINUTES = 5
LOADED_GB = 12
# Passes take this many times their time with the reduction of the states.
REDUCING = 3
# Operations per second that a job reaches at least.
FLOPS = {"float32": 1e13, "float16": 5e13, "bfloat16": 5e13, "cpu": 5e10}
TOKENS = 256
"""Tokens of a prompt of unknown length."""
CHARACTERS = 4
"""Characters of a token."""
# A file of text or a task that nothing is known of.
UNKNOWN_TOKENS = 2e6
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
        return self.parameters(model) * BYTES[self._dtype(model)] / 1e9

    def memory_mb(self, model: str, attempt: int = 1) -> int:
        """Megabytes of memory of a job that loads a model; grows with each attempt."""
        return attempt * (OVERHEAD_MB + int(LOADING * self.weights_gb(model) * 1e3))

    def scoring_mb(self, model: str, attempt: int = 1) -> int:
        """Megabytes of memory of a job that scores a model."""
        processes = 1000 * (1 + self.config.scoring.threads)
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

    def evaluate_minutes(
        self, model: str, revision: str, attempt: int = 1, part: str = "0"
    ) -> int:
        """Minutes of scoring a part of a model's tasks; grow as those of an extraction.

        A job that is cut off at the limit goes on in the next attempt.
        """
        return min(LONGEST, attempt * self._scoring_minutes(model, revision, part))

    def extract_priority(self, model: str, corpus: str) -> float:
        """Priority of an extraction, 15 to 16: the longest first, short jobs fill the gaps."""
        return _priority(self._minutes(model, self._passed(model, corpus)))

    def evaluate_priority(self, model: str, revision: str, part: str = "") -> float:
        """As `extract_priority`, of a job that scores a part; joining their tables takes none."""
        parts = self.parts(model, revision)
        if not part and len(parts) > 1:
            return _priority(0)
        return _priority(self._scoring_minutes(model, revision, part or "0"))

    @cache
    def parts(self, model: str, revision: str) -> list[list[str]]:
        """A model's tasks in `scoring.parts` parts, with about equal numbers of tokens."""
        tasks = self.plan.tasks[model, revision]
        n_parts = min(self.config.scoring_of(model).parts, max(len(tasks), 1))
        parts: list[list[str]] = [[] for _ in range(n_parts)]
        sizes = [0.0] * n_parts
        for task in sorted(tasks, key=self.task_tokens, reverse=True):
            least = sizes.index(min(sizes))
            parts[least].append(task)
            sizes[least] += self.task_tokens(task)
        return parts

    def scratch_mb(self, model: str) -> int:
        """Megabytes of local disk for vectors that wait for scoring."""
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
    def task_tokens(self, task: str) -> float:
        """Tokens of a task's texts: of mteb's statistics, or of the user's files."""
        files = [Path(file) for file in self.plan.task_files(task)]
        length: float = sum(file.stat().st_size for file in files if file.is_file())
        if not length and self.plan.task_results(task):
            return MADE_TOKENS
        length = length or sum(_lengths(_statistics(task)))
        return length / CHARACTERS or UNKNOWN_TOKENS

    def _dtype(self, model: str) -> str:
        return self.config.models[model].dtype or self.config.extract.dtype

    def _passed(self, model: str, corpus: str) -> float:
        return REDUCING * self.corpus_tokens(model, corpus)

    def _scoring_minutes(self, model: str, revision: str, part: str) -> int:
        tasks = self.parts(model, revision)[int(part)]
        return self._minutes(model, sum(map(self.task_tokens, tasks)))

    def _minutes(self, model: str, tokens: float) -> int:
        speed = FLOPS["cpu" if not self.gpus(model) else self._dtype(model)]
        needed = 2 * self.parameters(model) * tokens / speed / 60
        loading = self.weights_gb(model) / LOADED_GB
        return START_MINUTES + math.ceil(loading + needed)

    @cache
    def _shape(self, model: str) -> tuple[int, int]:
        """Number of layers, the embeddings included, and width; guessed if not known here."""
        card: dict[str, Any] = {}
        if not self.plan.is_to_make(model):
            entry = self.config.models[model]
            model_at = locate(entry.source, entry.revisions[-1])
            card = card_of(model_at.folder or _cached(model_at.name, model_at.revision))
        card = card.get("text_config") or card.get("vision_config") or card
        layers = card.get("num_hidden_layers") or card.get("n_layer")
        width = card.get("hidden_size") or card.get("n_embd")
        if layers and width:
            return int(layers) + 1, int(width)
        # A transformer of width d has about 12 d² parameters in a block, and d is 64 per layer.
        width = (64 * self.parameters(model) / 12) ** (1 / 3)
        return int(width / 64) + 1, int(width)

    def table(self, tflops: float) -> pd.DataFrame:
        """The size of a run by model, and of all: estimates. Downloads are of half precision.

        Parameters
        ----------
        tflops : float
            Operations per second that a GPU reaches on this work, in units of 10¹².
        """
        keeps = self.config.extract.keep_activations
        points = dict.fromkeys([*self.plan.measured, *self.plan.scored])
        rows = []
        for model in dict.fromkeys(model for model, _ in points):
            revisions = [revision for name, revision in points if name == model]
            corpora = [c for r in revisions for c in self.plan.measured.get((model, r), ())]
            scored = [r for r in revisions if (model, r) in self.plan.scored]
            tokens = sum(self._passed(model, corpus) for corpus in corpora)
            tokens += sum(self.task_tokens(t) for r in scored for t in self.plan.tasks[model, r])
            operations = self.gpus(model) * 2 * self.parameters(model) * tokens
            on_hub = isinstance(self.config.models[model].source, HubSource)
            weights = self.parameters(model) * BYTES["float16"] / 1e9
            files = [self.extract_mb(model, corpus) / 1e3 for corpus in corpora]
            rows.append(
                {
                    "model": model,
                    "checkpoints": len(revisions),
                    "of": len(self.config.models[model].revisions),
                    "GPUs": self.gpus(model),
                    "GB of weights": self.weights_gb(model),
                    "GPU hours": operations / (tflops * 1e12) / 3600,
                    "GB to download": weights * len(revisions) if on_hub else 0.0,
                    "GB of activations": sum(files) if keeps else max(files, default=0.0),
                }
            )
        if not rows:
            return pd.DataFrame()
        table = pd.DataFrame(rows).set_index("model")
        table.loc["all"] = table.sum()
        # Activations that are not kept are those of the jobs that run at once.
        table.loc["all", ["GPUs", "GB of weights"]] = table[["GPUs", "GB of weights"]].max()
        return table


def card_of(folder: Path | None) -> dict[str, Any]:
    """A model's config.json; empty if there is none.

    A damaged one is empty too: jobs refuse it when they load the model.
    """
    file = folder / "config.json" if folder else None
    with contextlib.suppress(ValueError):  # no text in UTF-8, or no JSON
        card = json.loads(file.read_text(encoding="utf-8")) if file and file.is_file() else {}
        return card if isinstance(card, dict) else {}
    return {}


def _priority(minutes: float) -> float:
    return 16 - 1 / (1 + minutes)


def _cached(name: str, revision: str | None) -> Path | None:
    """The folder of a model in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(name, "config.json", revision=revision)
    return Path(file).parent if isinstance(file, str) else None


@cache
def _statistics(task: str) -> Any:
    """The statistics of a task's texts that come with mteb; nothing for another task."""
    spec = find_spec("mteb")
    for folder in spec.submodule_search_locations or () if spec else ():
        for file in Path(folder, "descriptive_stats").glob(f"*/{task}.json"):
            return json.loads(file.read_text(encoding="utf-8"))
    return {}


def _lengths(statistics: Any) -> Iterator[float]:
    """All lengths of texts in a task's statistics."""
    if isinstance(statistics, dict):
        for key, value in statistics.items():
            if key == "total_text_length":
                yield float(value or 0)
            else:
                yield from _lengths(value)
