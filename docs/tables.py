"""Collect the numbers that the pages cite: quickstart.csv, published.csv, real.csv, ablation.csv.

`make pictures` runs it. A row names its study, and the column of the study's table that the number
is from or what was computed from it. docs/render.py writes them into the pages.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from layerwise import stats
from layerwise.association.curves import ScoreCurves
from layerwise.association.scores import gains_by_task
from layerwise.errors import LayerwiseError
from papers import losses
from papers.claims.metrics import valleys_on_tasks
from papers.claims.scores import associations
from papers.tables import BERT, EMBEDDER, MAMBA, PYTHIA, Release

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "results"

# Studies of the quickstart and of docs/gallery.yaml.
QUICKSTART = (
    "final_norm", "metric_vs_score", "metrics_by_depth", "metrics_over_checkpoints",
    "score_by_depth", "score_by_type", "sink_rate", "training", "along_sequence", "sublayers",
)  # fmt: skip
QUICKSTART_COLUMNS = (
    "study", "model", "revision", "y", "what", "representation", "sublayer", "metric", "layer",
    "position", "value", "low", "high", "n_tasks", "n_clusters", "score", "output_score",
    "measure", "association", "null95",
)  # fmt: skip

# Columns of all studies of presets/real.yaml and presets/ablation.yaml.
STUDY_COLUMNS = (
    "study", "model", "task", "y", "representation", "layer", "value", "low", "high", "n_tasks",
    "n_clusters", "n", "chance", "p_adjusted",
)  # fmt: skip

# Columns of studies of presets/published.yaml.
PUBLISHED = {
    "figure_3_over_tasks": ("association", "null95"),
    "layer_selection": ("regret", "regret_low", "regret_high"),
    "score_over_training": ("gain", "gain_low", "gain_high"),
}
KEYS = ["study", "model", "revision", "metric", "end", "layer", "what"]
SIZES = ("14m", "70m", "160m", "410m")
# Models whose scores are published at every layer.
SCORED = (
    *(f"Pythia-{size}" for size in SIZES), MAMBA, BERT, "roberta-base",
    EMBEDDER,
)  # fmt: skip


def main() -> None:
    """Write all tables, or those that are named."""
    tables = {
        "quickstart": quickstart,
        "published": released,
        "real": lambda: studies(RESULTS / "real"),
        "ablation": lambda: studies(RESULTS / "ablation"),
    }
    missing = []
    for name in sys.argv[1:] or tables:
        try:
            tables[name]().to_csv(DOCS / f"{name}.csv", index=False, float_format="%.6g")
        except LayerwiseError as error:
            missing.append(str(error))
    if missing:
        sys.exit("\n".join(missing))


def quickstart() -> pd.DataFrame:
    """Numbers of the quickstart, the best layers among them."""
    tables = {study: _table(RESULTS, study) for study in QUICKSTART}
    best = pd.read_csv(RESULTS / "report" / "best_layers.csv")
    layer = (
        best["best_layer"].where(best["best_layer"] != "output", best["last_layer"]).astype(int)
    )
    tables["best_layers"] = best.rename(columns={"difference": "value"}).assign(layer=layer)
    tables["sink_rate"] = pd.concat([tables["sink_rate"], sinks(tables["sink_rate"])])
    rows = pd.concat(table.assign(study=study) for study, table in tables.items())
    found = rows.reindex(columns=list(QUICKSTART_COLUMNS))
    return found.astype({"layer": "Int64", "position": "Int64"})


def sinks(table: pd.DataFrame) -> pd.DataFrame:
    """Norm, entropy and attention of the first token compared over layers.

    The attention of a block reads the layer before it.
    """
    at = table.pivot_table(index="layer", columns="metric", values="value")
    norm, following = np.log(at["largest_norm"]), at["sink_rate"].shift(-1)
    large = at["largest_norm"] > 3
    found = {
        "r of log norm and entropy": norm.corr(at["prompt_entropy"]),
        "r of log norm and the next block's sink rate": norm.corr(following),
        "least next sink rate, norm above 3": following[large].min(),
        "mean next sink rate, norm above 3": following[large].mean(),
        "largest next sink rate, norm up to 3": following[~large].max(),
    }
    return pd.DataFrame(found.items(), columns=["what", "value"])


def released() -> pd.DataFrame:
    """Numbers of the authors' tables."""
    release = Release()
    valleys = valleys_on_tasks(release).mean().rename_axis("model").rename("value").reset_index()
    valleys = valleys.assign(study="valley_by_size", what="depth of the valley")
    parts = [_curves(release), _associations(release), _gains(release), _losses(), valleys]
    for study, columns in PUBLISHED.items():
        table = _table(RESULTS / "published", study)
        keys = [key for key in KEYS if key in table and key != "layer"]
        for column in columns:
            part = table[[*keys, column]].rename(columns={column: "value"})
            parts.append(part.drop_duplicates().assign(study=study, what=column))
    found = (
        pd.concat(parts, ignore_index=True)
        .dropna(subset="value")
        .reindex(columns=[*KEYS, "value"])
    )
    return found.astype({"layer": "Int64"})


def studies(results: Path) -> pd.DataFrame:
    """The values by layer of all studies of a run."""
    tables = []
    for path in sorted((results / "tables").glob("*.csv")):
        table = pd.read_csv(path).rename(columns={"linear": "value", "n_test": "n"})
        tables.append(table.assign(study=path.stem).reindex(columns=list(STUDY_COLUMNS)))
    if not tables:
        raise LayerwiseError(f"{results} has no tables; run `make pictures`.", code="missing_file")
    return pd.concat(tables, ignore_index=True).dropna(axis=1, how="all")


def _table(results: Path, study: str) -> pd.DataFrame:
    path = results / "tables" / f"{study}.csv"
    if not path.is_file():
        raise LayerwiseError(f"{path} is missing; run `make pictures`.", code="missing_file")
    return pd.read_csv(path)


def _curves(release: Release) -> pd.DataFrame:
    """Scores of the best layer and the output, and the lead with its 95% CI."""
    rows = []
    for model in SCORED:
        curves = release.score(model)
        lead = stats.simultaneous_ci(curves.values - curves.output[:, None], curves.sources)
        best = int(curves.values.mean(axis=0).argmax())
        ahead = (curves.values - curves.output[:, None])[:, best]
        found = {
            "score": curves.values.mean(axis=0)[best],
            "output's score": curves.output.mean(),
            "lead": lead.estimate[best],
            "lead, low": lead.low[best],
            "lead, high": lead.high[best],
            "lead in the median task": np.median(ahead),
            "tasks": len(ahead),
            "tasks ahead": (ahead > 0).sum(),
            "last layer": curves.layers[-1],
        }
        about = {"study": "score_by_size", "model": model, "layer": curves.layers[best]}
        rows += [{**about, "what": what, "value": value} for what, value in found.items()]
    return pd.DataFrame(rows)


def _associations(release: Release) -> pd.DataFrame:
    found = associations(release, PYTHIA, "dcor")
    rows = [
        (metric, what, value)
        for metric, pair in found.items()
        for what, value in zip(("association", "null95"), pair, strict=True)
    ]
    table = pd.DataFrame(rows, columns=["metric", "what", "value"])
    return table.assign(study="figure_3_metric_vs_score", model=PYTHIA)


def _gains(release: Release) -> pd.DataFrame:
    """Gain over the output if each task takes the layer at an end of a metric."""
    parts = []
    for size in SIZES:
        scores: ScoreCurves = release.score(f"Pythia-{size}")
        for metric, values in release.own_texts(scores).items():
            gains = gains_by_task(values, scores)
            if len(gains):
                gains = gains.melt("end", ["gain", "low", "high"], "what", "value")
                parts.append(gains.assign(metric=metric, model=f"Pythia-{size}"))
    return pd.concat(parts).assign(study="table_2_layer_per_task")


def _losses() -> pd.DataFrame:
    """Points that rules of layer selection lose, on average over Pythia's sizes."""
    lost = losses.shipped()
    lost = lost[lost["model"].isin([f"Pythia-{size}" for size in SIZES])]
    lost = lost[lost["corpus"].isna() | (lost["corpus"] == "wikitext")]
    mean = (lost.groupby("rule")["loss"].mean() / 100).rename("value").reset_index()
    return mean.rename(columns={"rule": "metric"}).assign(
        study="layer_selection", what="mean loss over sizes"
    )


if __name__ == "__main__":
    main()
