"""Compare ways of pooling at every layer: mean task score, embeddings unscaled.

layerwise itself has no median and no mean of tokens of unit length. Run it after `make demo`:

python benchmarks/pooling.py smollm2-135m minilm-l6 --output docs/pooling.csv
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from torch import Tensor

from layerwise.activations import forward
from layerwise.activations.representation import Packed, pool, select_tokens
from layerwise.config import Config
from layerwise.config.settings import ScoringSettings
from layerwise.models.load import LoadedModel
from layerwise.run import script
from layerwise.run.plan import Plan
from layerwise.tasks.task import Vectors, one_thread
from layerwise.vocabulary import BLOCK


def unit_mean(packed: Packed) -> Tensor:
    """Mean of the tokens, each scaled to unit length."""
    unit = torch.nn.functional.normalize(packed.states, dim=-1)
    return Packed(unit, packed.lengths).mean


def median(packed: Packed) -> Tensor:
    """Median of each coordinate over the tokens."""
    return packed.states.masked_fill(~packed.mask[..., None], torch.nan).nanmedian(dim=1).values


# Readout and pooling.
WAYS: dict[str, tuple[str, Callable[[Packed], Tensor]]] = {
    "final norm, mean": ("final_norm", lambda packed: packed.mean),
    "mean": ("residual", lambda packed: packed.mean),
    "mean without first": ("residual", lambda packed: select_tokens(packed, "drop_first").mean),
    "mean of unit tokens": ("residual", unit_mean),
    "median": ("residual", median),
    "last token": ("residual", lambda packed: pool(packed, "last_token")),
    "final norm, last token": ("final_norm", lambda packed: pool(packed, "last_token")),
    "max": ("residual", lambda packed: pool(packed, "max")),
}


class Batch:
    """Pools each layer of a batch in all ways."""

    def __init__(self, loaded: LoadedModel, into: np.ndarray, rows: list[int]) -> None:
        self.loaded, self.into, self.rows = loaded, into, rows

    def take(self, layer: int, sublayer: str, packed: Packed, /) -> None:
        """Pool one layer's states."""
        if sublayer == BLOCK:
            for way, (readout, pooled) in enumerate(WAYS.values()):
                states = forward.read(self.loaded, packed, readout)
                self.into[way, layer, self.rows] = pooled(states).numpy()

    def finish(self) -> None:
        """Nothing waits for the end of the pass."""


def scores(loaded: LoadedModel, task: Any) -> list[dict[str, Any]]:
    """Main score of a task at every layer in every way."""
    settings = ScoringSettings(normalize=False)
    parts: dict[tuple[int, int], list[Any]] = {}
    for unit in task.units(100_000):
        ids, _ = loaded.texts.prompts([text for _, text in unit.keys])
        anatomy = loaded.anatomy
        into = np.empty((len(WAYS), anatomy.n_layers, len(ids), anatomy.hidden), np.float32)
        forward.run(
            loaded,
            [prompt or [loaded.texts.stand_in] for prompt in ids],
            lambda rows, into=into: Batch(loaded, into, rows),
        )
        rows = {key: place for place, key in enumerate(unit.keys)}
        with one_thread():
            for way, layer in np.ndindex(into.shape[:2]):
                vectors = Vectors(into[way, layer], rows)
                part = task.score(unit.selection, vectors, settings)
                parts.setdefault((way, layer), []).append(part)
    return [
        {
            "layer": layer,
            "pooling": list(WAYS)[way],
            "score": 100 * np.mean([score.main_score for score in task.combine(own, settings)]),
        }
        for (way, layer), own in parts.items()
    ]


def main(arguments: argparse.Namespace) -> None:
    """Score the models of the config on its tasks and write a row per layer."""
    config = Config.of(yaml.safe_load(arguments.config.read_text(encoding="utf-8")))
    plan = Plan(config)
    tables = []
    for model in arguments.models:
        revision = config.models[model].revisions[-1]
        rows: list[dict[str, Any]] = []
        extraction = config.extraction(model)
        with script.open_model(plan, model, revision, extraction) as loaded:
            for name in config.tasks:
                found = scores(loaded, script.task_of(plan, name))
                rows += [{"model": model, "task": name, **row} for row in found]
        table = pd.DataFrame(rows).pivot_table("score", ["model", "layer"], "pooling")
        tables.append(table[list(WAYS)])
    pd.concat(tables).round(1).to_csv(arguments.output)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--config", type=Path, default=Path("config.yaml"))
    options.add_argument("models", nargs="+", help="models of the config")
    options.add_argument("--output", type=Path, required=True, help="table to write")
    main(options.parse_args())
