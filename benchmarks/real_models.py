"""Tables of all real language models: docs/real_models.csv and docs/real_rules.csv.

    python benchmarks/real_models.py results/real_texts --output docs

reads the scores and metrics of presets/real_texts.yaml, and docs/massive_blocks.csv for entropies
without massive dimensions (benchmarks/massive_dimensions.py). Scores are with all tokens, after
the final norm where there is one; entropies are of the residual stream.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from layerwise.association.curves import name_readouts, with_text_sources
from layerwise.association.scores import best_layers, mean_scores
from layerwise.association.selection import CONSENSUS, LOES, MIDDLE, MODEL_OUTPUT, select_layers
from layerwise.association.table import associate
from layerwise.metrics.registry import directions
from layerwise.project import ROOT

PRESET = yaml.safe_load((ROOT / "presets" / "real_texts.yaml").read_text(encoding="utf-8"))
RULES = [
    MODEL_OUTPUT,
    MIDDLE,
    LOES,
    CONSENSUS,
    "prompt_entropy",
    "dataset_entropy",
    "effective_rank",
]
RULES += ["curvature", "anisotropy", "infonce", "dime"]
RESIDUAL = "mean, residual"
WITHOUT = "-without-massive"
MODELS = ("gemma-3-270m", "smollm2-135m", "all-mpnet-base-v2", "minilm-l6")


def scores_of(folder: Path, model: str) -> pd.DataFrame:
    """Scores of a model with the text sources of their tasks."""
    scores = pd.read_parquet(folder / "scores" / model / "main.parquet")
    scores = scores[scores["task"].isin(PRESET["tasks"])]
    return name_readouts(with_text_sources(scores, PRESET["association"]["text_sources"]))


def of_all_tasks(table: pd.DataFrame) -> pd.DataFrame:
    """Rows over all tasks, with all tokens."""
    return table[(table["task_type"] == "all") & (table["tokens"] == "all")]


def row_of(model: str, metrics: pd.DataFrame, scores: pd.DataFrame) -> dict[str, Any]:
    """The model's row."""
    normed = scores[scores["pooling"] == "mean"]
    best = of_all_tasks(best_layers(normed)).iloc[0]
    middle = int(best["last_layer"]) // 2
    plain = metrics[(metrics["normalization"] == "raw") & metrics["alpha"].fillna(1).eq(1)]
    curves = plain.pivot(index="layer", columns=["metric", "tokens"], values="value")
    entropy = curves["prompt_entropy", "all"]
    lowest = int(entropy.iloc[1:-1].idxmin())
    related = of_all_tasks(associate(plain, normed))
    related = related[(related["measure"] == "r") & (related["protocol"] != "baseline")]
    above = related[related["value"].abs() > related["null95"]]
    return {
        "model": model,
        "last_layer": int(best["last_layer"]),
        "best_layer": "output" if best["best_is_output"] else int(best["best_layer"]),
        "best": best["best_score"],
        "output": best["output_score"],
        "middle": score_at(scores, middle, "mean"),
        "lead": best["gain"],
        "lead_low": best["gain_low"],
        "lead_high": best["gain_high"],
        "n_tasks": best["n_tasks"],
        "n_clusters": best["n_sources"],
        "lowest_layer": lowest,
        "entropy": entropy[lowest],
        "entropy_drop_first": curves["prompt_entropy", "drop_first"][lowest],
        "largest_norm": curves["largest_norm", "all"][lowest],
        "first_token_share": curves["first_token_share", "all"][lowest],
        "largest_dimension": curves["largest_dimension", "drop_first"][lowest],
        "sink_rate": curves["sink_rate", "all"].max() if ("sink_rate", "all") in curves else None,
        "score_residual": score_at(scores, lowest, RESIDUAL),
        "score_residual_drop_first": score_at(scores, lowest, RESIDUAL, "drop_first"),
        "score_final_norm": score_at(scores, lowest, "mean"),
        "n_related": related["metric"].nunique(),
        "n_above_null": above["metric"].nunique(),
        "above_null": ", ".join(sorted(above["metric"].unique())),
    }


def means_of(scores: pd.DataFrame, pooling: str, tokens: str = "all") -> pd.Series:
    """Mean score over all tasks of each layer."""
    rows = scores[(scores["pooling"] == pooling) & (scores["tokens"] == tokens)]
    means = mean_scores(rows, []) if len(rows) else pd.DataFrame(columns=["layer", "value"])
    return means.set_index("layer")["value"]


def score_at(scores: pd.DataFrame, layer: int, pooling: str, tokens: str = "all") -> float:
    """Mean score of a layer over all tasks; NaN if there is none."""
    return means_of(scores, pooling, tokens).get(layer, float("nan"))


def best_at(scores: pd.DataFrame, pooling: str, tokens: str = "all") -> str:
    """Layer of the highest mean score."""
    means = means_of(scores, pooling, tokens)
    return "output" if means.idxmax() == means.index.max() else str(means.idxmax())


def main(folder: Path, output: Path) -> None:
    """Write the tables."""
    rows, rules = [], []
    for model in MODELS:
        scores = scores_of(folder, model)
        metrics = pd.read_parquet(folder / "metrics" / model / "main" / "wikipedia.parquet")
        row = row_of(model, metrics, scores)
        if model + WITHOUT in PRESET["models"]:
            bare = scores_of(folder, model + WITHOUT)
            bare = bare[bare["readout"] == "residual"].assign(pooling=RESIDUAL)
            at_lowest = score_at(bare, row["lowest_layer"], RESIDUAL)
            row["score_residual_without_dimensions"] = at_lowest
            row["best_residual"] = best_at(scores, RESIDUAL)
            row["best_residual_drop_first"] = best_at(scores, RESIDUAL, "drop_first")
            row["best_residual_without_dimensions"] = best_at(bare, RESIDUAL)
        rows.append(row)
        normed = scores[(scores["pooling"] == "mean") & (scores["tokens"] == "all")]
        selected = of_all_tasks(select_layers(metrics, normed, directions()))
        selected = selected[selected["alpha"].fillna(1).eq(1) & selected["metric"].isin(RULES)]
        rules.append(selected[selected["normalization"] == "raw"])
    table = pd.DataFrame(rows)
    blocks = pd.read_csv(output / "massive_blocks.csv")
    dropped = blocks[blocks["without"] == "dimensions"].set_index("model")
    table["entropy_without_dimensions"] = table["model"].map(dropped["prompt_entropy"])
    table["massive_dimensions"] = table["model"].map(dropped["dimensions"])
    table.round(5).to_csv(output / "real_models.csv", index=False)
    columns = ["model", "metric", "layer", "unreliable", "score", "regret"]
    columns += ["regret_low", "regret_high"]
    lost = pd.concat(rules)[columns].round(5)
    lost.to_csv(output / "real_rules.csv", index=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "docs")
    given = parser.parse_args()
    main(given.results, given.output)
