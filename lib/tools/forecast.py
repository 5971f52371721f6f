"""The size of a run before it starts: GPU hours, downloads and activations (`layerwise plan`).

Tokens of tasks come from mteb's own statistics, so nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from layerwise.config.models import HubSource
from layerwise.errors import LayerwiseError
from layerwise.models.source import locate
from layerwise.names import encode
from layerwise.run.plan import extraction_of
from layerwise.run.resources import BYTES, Requests
from layerwise.run.snakemake import facts_of
from layerwise.tasks import catalog

# Passes take this many times their time with the reduction of the states.
REDUCING = 3
# Prompts of a corpus whose sample has no number, and tokens of a prompt.
PROMPTS, TOKENS = 10_000, 256
# Tokens of a task that nothing is known of.
TASK_TOKENS = 2e6
# Of a token of English; a text has about two tokens more, of its ends and broken words.
CHARACTERS, MORE_TOKENS = 4.5, 2


class Size(NamedTuple):
    """Distinct texts of a task, and their tokens."""

    texts: float
    tokens: float


@cache
def task_size(name: str) -> Size | None:
    """The size of a task; None where there are no statistics of texts under its name."""
    statistics = _statistics(name)
    if not statistics:
        return None
    task = catalog.get_task(name)
    texts = characters = 0.0
    for split in task.eval_splits:
        for subset in _subsets(statistics.get(split, {}), task.hf_subsets):
            for column in subset.values():
                if isinstance(column, dict) and (unique := column.get("unique_texts")):
                    texts += unique
                    characters += unique * column["average_text_length"]
    if task.metadata.type == "Classification":
        for subset in _subsets(statistics.get(task.train_split, {}), task.hf_subsets):
            labels = subset["label_statistics"]["labels"].values()
            counts = [label["count"] for label in labels]
            shares = [min(task.samples_per_label / count, 1) for count in counts]
            missed = [(1 - share) ** task.n_experiments for share in shares]
            drawn = sum(count * (1 - miss) for count, miss in zip(counts, missed, strict=True))
            texts += drawn
            characters += drawn * subset["text_statistics"]["average_text_length"]
    return Size(texts, characters / CHARACTERS + MORE_TOKENS * texts) if texts else None


@cache
def _statistics(task: str) -> Any:
    """The statistics of a task's texts that come with mteb; nothing for another task."""
    spec = find_spec("mteb")
    for folder in spec.submodule_search_locations or () if spec else ():
        for file in Path(folder, "descriptive_stats").glob(f"*/{task}.json"):
            return json.loads(file.read_text(encoding="utf-8"))
    return {}


def _subsets(split: dict[str, Any], names: list[str]) -> list[dict[str, Any]]:
    """The statistics of some subsets of a split; of the whole where it is not divided."""
    divided = split.get("hf_subset_descriptive_stats")
    return [divided[name] for name in names if name in divided] if divided else [split]


class Forecast(Requests):
    """The size of what is due of a plan, by model."""

    def corpus_tokens(self, model: str, corpus: str) -> float:
        """Tokens of a corpus with its views."""
        entry = self.config.corpora[corpus]
        tokens = min(self.config.models[model].max_length or TOKENS, TOKENS)
        return float((entry.sample.n or PROMPTS) * (1 + entry.views.n) * tokens)

    @cache
    def task_tokens(self, task: str) -> float:
        """Tokens of a task: by mteb's statistics, or by the user's files."""
        files = [Path(file) for file in self.plan.task_files(task)]
        if not files and (size := task_size(task)):
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
