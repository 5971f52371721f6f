"""Parts of blocks in the tables of metrics: values, who leaves them aside, and their figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny
from association_tables import tidy_metrics, tidy_scores

from layerwise import metrics as flat
from layerwise.activations.store import BLOCK, Activations
from layerwise.association.selection import select_layers
from layerwise.association.table import associate
from layerwise.config.association import AssociationSettings
from layerwise.config.metrics import MetricsSettings
from layerwise.metrics import table
from layerwise.metrics.formulas.entropy import entropy
from layerwise.metrics.registry import directions
from layerwise.section import parse

N = 24
PARTS = ("input_norm", "mixer", "mixer_residual", "mlp")
METRICS = ["prompt_entropy", "dataset_entropy", "curvature", "infonce", "cka_first", "cka_last"]


def extracted(folder: Path, family: str) -> Path:
    """Activations of a tiny model, with all parts of its blocks."""
    views = [tiny.texts(N, seed=v, shortest=6) for v in range(3)]
    return tiny.extracted(
        tiny.loaded(family, folder / family), folder / "a.h5", *views, sublayers=PARTS
    )


def compute(path: Path, **settings: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    settings = {"metrics": METRICS, **settings}
    with Activations(path) as activations:
        return table.compute(activations, parse(MetricsSettings, settings), threads=2)


@pytest.fixture(scope="module")
def pythia(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extracted(tmp_path_factory.mktemp("pythia"), "gpt_neox")


def test_values_are_those_of_the_parts_own_arrays(pythia: Path) -> None:
    metrics, prompts = compute(pythia)
    assert set(metrics["sublayer"]) == set(prompts["sublayer"]) == {BLOCK, *PARTS}
    chosen = metrics[
        (metrics["tokens"] == "all")
        & (metrics["normalization"] == "raw")
        & (metrics["alpha"].isna() | (metrics["alpha"] == 1))
    ]
    assert not chosen.duplicated(["sublayer", "layer", "metric"]).any()
    value = chosen.set_index(["sublayer", "layer", "metric"])["value"]
    for part in (BLOCK, *PARTS):
        with Activations(pythia, sublayer=part) as own:
            first, last = (own.pooled("paper", "all", own.layers[k]) for k in (0, -1))
            for layer in own.layers:
                views = own.views("paper", "all", layer).astype(float)
                spectra = own.spectrum("paper", "all", layer)
                spread = [_entropy_of(s) for s in spectra]
                expected = {
                    "prompt_entropy": np.mean(spread),
                    "dataset_entropy": entropy(views[0]),
                    "curvature": own.curvature("paper", "all", layer).mean(),
                    "infonce": flat.infonce(views[1], views[2]),
                    "cka_first": flat.cka(views[0], first),
                    "cka_last": flat.cka(views[0], last),
                }
                for metric, wanted in expected.items():
                    ours = value[part, layer, metric]
                    assert ours == pytest.approx(wanted, rel=1e-6), (part, layer, metric)
                mine = prompts[
                    (prompts["sublayer"] == part)
                    & (prompts["layer"] == layer)
                    & (prompts["tokens"] == "all")
                    & (prompts["metric"] == "prompt_entropy")
                    & (prompts["alpha"] == 1)
                ]
                np.testing.assert_allclose(mine["value"], spread, rtol=1e-6)
        depths = chosen.loc[chosen["sublayer"] == part].groupby("layer")["depth"].first()
        np.testing.assert_allclose(depths, np.array(own.layers) / 3)
        # The parts differ from one another and from the layers.
        others = [p for p in (BLOCK, *PARTS) if p != part]
        assert all(value[part, 2, "curvature"] != value[o, 2, "curvature"] for o in others)


def _entropy_of(eigenvalues: np.ndarray) -> float:
    shares = eigenvalues[eigenvalues > 0] / eigenvalues.sum()
    return float(-(shares * np.log(shares)).sum())


# Downstream


def with_parts() -> pd.DataFrame:
    """Made-up metrics of layers, and of two parts that say the opposite."""
    depth = np.linspace(0, 1, 7)
    hill = np.sin(np.pi * depth)
    names = ("prompt_entropy", "dataset_entropy", "curvature", "infonce", "lidar", "dime")
    curves = dict.fromkeys(names, 2 + hill)
    blocks = tidy_metrics(curves).assign(sublayer=BLOCK)
    parts = [
        tidy_metrics({k: level - v for k, v in curves.items()}).assign(sublayer=part)
        for part, level in (("mixer", 9.0), ("mlp", 7.0))
    ]
    inner = pd.concat(parts)
    return pd.concat([blocks, inner[inner["layer"] > 0]], ignore_index=True)


SCORES = tidy_scores(
    np.sin(np.pi * np.linspace(0, 1, 7)) * 0.1 + np.array([[0.3], [0.5]]), types=("STS", "STS")
)


def test_all_else_is_about_the_layers_themselves() -> None:
    metrics = with_parts()
    blocks = metrics[metrics["sublayer"] == BLOCK]
    plain = blocks.drop(columns="sublayer")  # as tables from elsewhere have it
    settings = AssociationSettings()
    for same in (blocks, plain):
        pd.testing.assert_frame_equal(
            associate(metrics, SCORES, settings), associate(same, SCORES, settings)
        )
        pd.testing.assert_frame_equal(
            select_layers(metrics, SCORES, directions()), select_layers(same, SCORES, directions())
        )
