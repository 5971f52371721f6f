"""A task with embeddings to be scored, and mteb's own run on the same embeddings."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from encoding import store
from mteb.models.abs_encoder import AbsEncoder

from layerwise.config.scoring import ScoringSettings
from layerwise.tasks import catalog, texts
from layerwise.tasks.encoders import model_meta
from layerwise.tasks.layout import Reading
from layerwise.tasks.score import normalized, score_task

LAYERS = 3


class Plain(AbsEncoder):
    """What anyone would write for mteb: go through the batches, look each text up."""

    mteb_model_meta = model_meta("plain", "main")

    def __init__(self, texts: list[str], embeddings: np.ndarray) -> None:
        self.rows = {text: row for row, text in enumerate(texts)}
        self.embeddings = normalized(embeddings)

    def encode(self, inputs: Any, **_: Any) -> np.ndarray:
        asked = [text for batch in inputs for text in batch["text"]]
        return self.embeddings[[self.rows[text] for text in asked]]


def plain(task: Any, listed: list[str], embeddings: np.ndarray) -> list[dict[str, Any]]:
    """Scores of mteb's own run, rounded as its JSON is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = mteb.evaluate(
            Plain(listed, embeddings), task, cache=None, co2_tracker=False, show_progress_bar=False
        )
    result = run.task_results[0]
    return [entry for split in result.scores.values() for entry in split]


class Case:
    """A task with embeddings made of random vectors of words, so that scores mean something."""

    def __init__(self, root: Path, name: str, given: dict[str, str], readings: int = 1) -> None:
        self.root, self.name, self.folders = root, name, given
        listed = texts.distinct_texts(catalog.load(catalog.get_task(name, given)))
        self.texts = list(dict.fromkeys(listed.texts))
        vocabulary: dict[str, int] = {}
        for text in self.texts:
            for word in text.split():
                vocabulary.setdefault(word, len(vocabulary))
        rng = np.random.default_rng(1)
        words = rng.normal(size=(readings, LAYERS, len(vocabulary), 12))
        sums = [[vocabulary[w] for w in t.split()] for t in self.texts]
        self.values = np.stack([words[:, :, rows].mean(axis=2) for rows in sums], axis=2)
        self.values = self.values.astype(np.float32)
        self.embeddings = self.write(self.values)

    def write(
        self,
        values: np.ndarray,
        listed: list[str] | None = None,
        readings: Sequence[Reading] | None = None,
    ) -> Path:
        path = self.root / "embeddings.h5"
        return store(path, self.name, listed or self.texts, values, readings)

    def score(
        self,
        settings: ScoringSettings | None = None,
        threads: int = 1,
        code: Mapping[str, str] | None = None,
    ) -> pd.DataFrame:
        output = self.root / "table.parquet"
        score_task(
            self.embeddings, self.name, output, self.root / "layers", settings,
            folders=self.folders, threads=threads, recipe={"code": code or {}},
        )  # fmt: skip
        return pq.read_table(output).to_pandas()

    def files(self) -> dict[int, Path]:
        """The result of each layer (of the reading `all`)."""
        found = {}
        for path in (self.root / "layers").rglob(f"{self.name}.json"):
            about = json.loads(path.with_name("model_meta.json").read_text())["experiment_kwargs"]
            if about["tokens"] == "all":
                found[about["layer"]] = path
        return found
