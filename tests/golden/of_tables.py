"""Associations, layer choice, similarity, published tables, and the tables behind figures."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from functools import cache, partial
from typing import Any

import made_up
import numpy as np
import pandas as pd
import pytest
from cases import CASES, KEYS, SHARED, Case, numbers_of
from matplotlib.backends.backend_agg import FigureCanvasAgg
from of_models import activations

from layerwise import association
from layerwise.activations.store import Activations
from layerwise.association.scores import best_layers
from layerwise.association.selection import select_layers, summarize
from layerwise.association.table import associate
from layerwise.config.studies import Study
from layerwise.figures.render import draw
from layerwise.io.tables import read_table
from layerwise.metrics.registry import directions
from layerwise.names import Order
from papers import published as module
from papers import similarity


def made_up_order() -> Any:
    return Order(list(made_up.LAYERS), made_up.CHECKPOINTS)


@cache
def associations() -> pd.DataFrame:
    """Association of the made-up metrics with the made-up scores."""
    found = made_up.tables()
    return associate(found["metrics"], found["scores"], None, made_up_order())


VARIANT = ("metric", "protocol", "alpha", "normalization")
ASSOCIATED = (
    *("model", "revision", "corpus", *VARIANT, "tokens", "pooling", "task_type", "measure"),
)


def associated() -> pd.DataFrame:
    values = ["value", "sign", "low", "high", "null95"]
    values += ["p", "p_adjusted", "n_layers", "n_tasks", "n_sources", "n_models"]
    table = associations()
    of_all = (table["task_type"] == "all") & (table["revision"] != "step8")
    table = table[of_all & table["model"].isin(["all", "decoder-70m", "mamba-1m"])]
    return table[[*ASSOCIATED, *values]]


def measures() -> pd.DataFrame:
    """Measures of association on arrays."""
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(2, 25))
    names = {"distance_correlation": "dcor", "spearman": "spearman", "kendall": "kendall"}
    pairs = {
        "unrelated": (x, y),
        "linear": (x, 2 * x + 0.5 * y),
        "square": (x, x**2 + 0.1 * y),
        "ties": (np.round(x), np.round(x + y)),
    }
    return pd.DataFrame(
        {
            "pair": pair,
            "measure": name,
            "value": association.strengths(short, *np.array(given)[:, None])[0],
        }
        for pair, given in pairs.items()
        for name, short in names.items()
    )


@cache
def chosen() -> pd.DataFrame:
    """The layers that the made-up metrics pick."""
    found = made_up.tables()
    # The made-up standard errors have nothing to do with how the curves vary.
    metrics = found["metrics"].assign(stderr=float("nan"))
    return select_layers(metrics, found["scores"], dict(directions()), order=made_up_order())


CHOSEN = ("model", "revision", "corpus", *VARIANT, "tokens", "pooling", "task_type")


def choices_shown() -> pd.DataFrame:
    values = ["direction", "layer", "depth", "score", "best_layer", "best_is_output"]
    values += ["best_score", "regret", "regret_low", "regret_high", "output_score"]
    values += ["gain_over_output", "gain_low", "gain_high"]
    values += ["n_layers", "n_tasks", "n_sources"]
    table = chosen()
    table = table[table["task_type"].isin(["all", "STS"])]
    return table[[*CHOSEN, *values]]


def choices_summed_up() -> pd.DataFrame:
    return numbers_of(summarize(chosen(), made_up_order()))


def best() -> pd.DataFrame:
    return numbers_of(best_layers(made_up.tables()["scores"]))


def similar() -> pd.DataFrame:
    with ExitStack() as stack:
        files = [
            stack.enter_context(Activations(activations(name))) for name in ("llama", "mamba2")
        ]
        found = similarity.table(files, ["all"])
    return found[["model", "other_model", "measure", "layer", "other_layer", "value", "stderr"]]


def published(what: str) -> pd.DataFrame:
    files = {"metrics": "metrics.csv.gz", "scores": "mteb_scores.csv.gz"}
    path = SHARED / "published" / files[what]
    if not path.is_file():
        pytest.skip("the published tables are not next to the checkout")
    table = getattr(module, f"published_{what}")(read_table(path))
    table = table[table["model"] == sorted(table["model"].unique())[0]]
    key = "corpus" if what == "metrics" else "task"
    table = table[table[key].isin(sorted(table[key].unique())[:4]) & (table["layer"] % 5 == 0)]
    return numbers_of(table)


CASES |= {
    "associate.table": Case(associated, ASSOCIATED),
    "associate.measures": Case(measures, ("pair", "measure")),
    "associate.published_metrics": Case(partial(published, "metrics"), KEYS),
    "associate.published_scores": Case(partial(published, "scores"), KEYS),
    "select.choices": Case(choices_shown, CHOSEN),
    "select.summary": Case(choices_summed_up, KEYS),
    "select.best": Case(best, KEYS),
    "similarity.table": Case(similar, ("model", "other_model", "measure", "layer", "other_layer")),
}


# Figures

STUDIES: dict[str, dict[str, Any]] = {
    "curves": {"y": ("scores", "metrics"), "metrics": ("prompt_entropy", "curvature")},
    "score_by_depth": {},
    "metrics_by_depth": {},
    "metrics_over_checkpoints": {"models": ("nano-1m",)},
    "model_overview": {"models": ("decoder-70m",)},
    "token_selection": {},
    "checkpoint_heatmap": {"models": ("nano-1m",)},
    "scores_over_checkpoints": {"models": ("nano-1m", "mamba-1m")},
    "task_heatmap": {"models": ("decoder-70m", "encoder-20m")},
    "metric_vs_score": {},
    "layer_selection": {},
    "association_strength": {},
    "probes_by_depth": {},
    "bimodality": {"models": ("decoder-70m", "encoder-20m")},
    "along_sequence": {"models": ("decoder-70m", "nano-1m")},
    "sublayers": {"models": ("decoder-70m", "encoder-20m")},
    "attention_sink": {},
    "valley_and_peak": {"models": ("decoder-70m",), "metrics": ("prompt_entropy",)},
    "layer_similarity": {"models": ("nano-1m",)},
    "finetuning_effects": {"models": ("encoder-20m", "nano-1m"), "tokens": ("all",)},
    "score_differences": {"models": ("decoder-70m", "encoder-20m"), "tokens": ("all",)},
    "size_scaling": {},
    "training_dynamics": {"models": ("nano-1m",)},
    "alpha_robustness": {"models": ("decoder-70m", "encoder-20m"), "tokens": ("all",)},
    "power_law": {},
}


@cache
def tables_of(kind: str) -> dict[str, pd.DataFrame]:
    """The made-up tables of the study of a kind."""
    study = Study(kind=kind, **STUDIES[kind])
    found = made_up.tables()
    prompts = made_up.parts_of_blocks() if kind == "sublayers" else found["prompts"]
    similarities = made_up.similarities()
    if study.models:
        last = [made_up.CHECKPOINTS[name][-1] for name in study.models]
        similarities = similarities[
            similarities["model"].isin(study.models)
            & similarities["other_model"].isin(study.models)
            & similarities["revision"].isin(last)
            & similarities["other_revision"].isin(last)
        ]
    tables = {
        **{name: found[name] for name in ("metrics", "scores")},
        "prompts": prompts,
        "positions": made_up.positions(),
        "similarities": similarities,
    }
    if kind == "probes_by_depth":
        tables["scores"] = made_up.probes()
    if kind in ("metric_vs_score", "association_strength"):
        tables["associations"] = associations()
    if kind == "layer_selection":
        tables["selections"] = chosen()
    return tables


@cache
def drawn(kind: str) -> Any:
    """A figure of a kind from the made-up tables; a complaint of its layout is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = draw(Study(kind=kind, **STUDIES[kind]), tables_of(kind), made_up_order())
        FigureCanvasAgg(figure.figure).draw()
    return figure


def behind_figure(kind: str) -> pd.DataFrame:
    table = drawn(kind).table
    if kind == "bimodality":
        table = table[table["what"] != "density"]
    return numbers_of(table)


CASES |= {f"figure.{kind}": Case(partial(behind_figure, kind), KEYS) for kind in STUDIES}
