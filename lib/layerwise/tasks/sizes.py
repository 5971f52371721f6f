"""Sizes of mteb's tasks before their data are there: texts, and the time that scoring takes.

They are counted in mteb's own statistics, as an evaluation reads the data: its splits and subsets,
each text once, and of a classification the training rows that are drawn.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

# Of a token of English; a text has about two tokens more, of its ends and broken words.
CHARACTERS = 4.5
MORE_TOKENS = 2
# Processor seconds for a layer of 1,024 dimensions (benchmarks/bench_shares.py): for each text of
# a clustering, each pair, each text that is a query, and each training row of a classification.
SECONDS = {"Clustering": 4e-5, "PairClassification": 5e-5, "Reranking": 2e-4, "STS": 3e-5}
SECONDS_OF_A_ROW = 1e-3


class Size(NamedTuple):
    """Distinct texts of a task, their tokens, and processor seconds of a layer of width 1,024."""

    texts: float
    tokens: float
    seconds: float


@cache
def size_of(name: str) -> Size | None:
    """The size of a task; None where there are no statistics of texts under its name."""
    statistics = _statistics(name)
    if not statistics:
        return None
    from layerwise.tasks.catalog import get_task

    task = get_task(name)
    texts = characters = seconds = 0.0
    for split in task.eval_splits:
        for subset in _subsets(statistics.get(split, {}), task.hf_subsets):
            for column in filter(_is_of_texts, subset.values()):
                texts += column["unique_texts"]
                characters += column["unique_texts"] * column["average_text_length"]
            queries = subset.get("queries_text_statistics") or {}
            n_scored = queries.get("unique_texts", subset["num_samples"])
            seconds += n_scored * SECONDS.get(task.metadata.type, 0.0)
    if task.metadata.type == "Classification":
        for subset in _subsets(statistics.get(task.train_split, {}), task.hf_subsets):
            labels = subset["label_statistics"]["labels"].values()
            counts = [label["count"] for label in labels]
            shares = [min(task.samples_per_label / count, 1) for count in counts]
            rows = sum(count * share for count, share in zip(counts, shares, strict=True))
            seconds += SECONDS_OF_A_ROW * task.n_experiments * rows
            missed = [(1 - share) ** task.n_experiments for share in shares]
            drawn = sum(count * (1 - miss) for count, miss in zip(counts, missed, strict=True))
            texts += drawn
            characters += drawn * subset["text_statistics"]["average_text_length"]
    return Size(texts, characters / CHARACTERS + MORE_TOKENS * texts, seconds) if texts else None


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


def _is_of_texts(statistics: Any) -> bool:
    return isinstance(statistics, dict) and bool(statistics.get("unique_texts"))
