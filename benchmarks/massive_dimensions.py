"""Massive dimensions of a model: entropy without them, and which block writes them.

    python benchmarks/massive_dimensions.py gemma-3-270m FOLDER#FILE.gguf --ablate

The three largest dimensions are those with the largest share of the mean square over tokens, on
average over layers and prompts. The layer is that of the lowest prompt entropy before the last.
With --ablate, the attention (or mixer) and the MLP of each block up to it in turn write nothing.
Rows go to docs/massive_blocks.csv in place of the model's earlier ones.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

import layerwise as lw
from layerwise.analysis import measure
from layerwise.config.models import Ablation
from layerwise.models.opening import open_model

MEASURED = ["prompt_entropy", "largest_dimension"]
N_PROMPTS, N_ABLATED = 40, 12
CORPUS = Path("results/real_texts/corpora/wikipedia.parquet")


def curves(loaded: Any, texts: list[str], **changes: Any) -> pd.DataFrame:
    """The metrics by layer and token selection, of a model with a changed entry."""
    changed = replace(loaded, entry=loaded.entry.model_copy(update=changes))
    tokens = ["all", "drop_first"]
    table, _ = measure(changed, [texts], metrics=MEASURED, tokens=tokens, alphas=[1.0])
    table = table[table["normalization"] == "raw"]
    return table.pivot(index="layer", columns=["metric", "tokens"], values="value")


def massive(model: str, texts: list[str]) -> tuple[int, ...]:
    """The three dimensions with the largest share of the mean square."""
    with tempfile.TemporaryDirectory() as folder:
        arrays = lw.extract(model, texts, f"{folder}/a.h5", arrays=["dimension"])
        places, shares = (arrays[n].to_numpy().ravel() for n in ("dimension", "dimension_share"))
    return tuple(map(int, pd.Series(shares).groupby(places).sum().nlargest(3).index))


def main(name: str, model: str, texts: list[str], ablate: bool) -> pd.DataFrame:
    """The rows of a model."""
    dimensions, rows = massive(model, texts), []

    def add(curve: pd.DataFrame, layer: int, n: int, what: str, block: int | None = None) -> None:
        at = curve.loc[layer]
        row = {"model": name, "without": what, "block": block, "layer": layer, "n": n}
        row["dimensions"] = ", ".join(map(str, dimensions))
        row["prompt_entropy"] = at["prompt_entropy", "all"]
        row["entropy_drop_first"] = at["prompt_entropy", "drop_first"]
        row["largest_dimension"] = at["largest_dimension", "drop_first"]
        rows.append(row)

    with open_model(model) as loaded:
        whole = curves(loaded, texts)
        layer = int(whole["prompt_entropy", "all"].iloc[1:-1].idxmin())
        add(whole, layer, len(texts), "nothing")
        add(curves(loaded, texts, drop_dimensions=dimensions), layer, len(texts), "dimensions")
        if not ablate:
            return pd.DataFrame(rows)
        few = texts[:N_ABLATED]
        add(curves(loaded, few), layer, len(few), "nothing")
        for block in range(1, layer + 1):
            for part in ("mixer", "mlp"):
                ablation = Ablation(layer=block, part=part, token="all")
                add(curves(loaded, few, ablate=(ablation,)), layer, len(few), part, block)
    return pd.DataFrame(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name")
    parser.add_argument("model")
    parser.add_argument("--ablate", action="store_true")
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--output", type=Path, default=Path("docs/massive_blocks.csv"))
    given = parser.parse_args()
    prompts = pd.read_parquet(given.corpus)["text"].to_list()[:N_PROMPTS]
    table = main(given.name, given.model, prompts, given.ablate).round(5)
    if given.output.is_file():
        earlier = pd.read_csv(given.output)
        table = pd.concat([earlier[earlier["model"] != given.name], table])
    table.astype({"block": "Int64"}).to_csv(given.output, index=False)
