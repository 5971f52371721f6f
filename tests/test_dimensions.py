"""Massive dimensions: their share of a prompt's mean square, and reading states without them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import tiny
from helpers.kept_states import states_of
from helpers.refused import refused

import layerwise as lw
from layerwise import metrics
from layerwise.activations.embedding import embed
from layerwise.activations.representation import Representation
from layerwise.activations.store import Activations
from layerwise.config.settings import MetricsSettings
from layerwise.metrics.table import compute
from layerwise.models.load import LoadedModel

TEXTS = tiny.texts(8)
PLANTED = 5


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A decoder whose second block adds 30 to one dimension of all tokens."""
    model = tiny.loaded("gpt2", tmp_path_factory.mktemp("model"))
    with torch.no_grad():
        model.anatomy.blocks[1].mlp.c_proj.bias[PLANTED] += 30
    return model


def without(loaded: LoadedModel, *dimensions: int) -> LoadedModel:
    entry = loaded.entry.model_copy(update={"drop_dimensions": dimensions})
    return replace(loaded, entry=entry)


def test_the_share_is_one_over_d_for_equal_dimensions_and_near_one_for_a_massive_one() -> None:
    assert metrics.largest_dimension(np.eye(4)) == pytest.approx(1 / 4)
    Z = np.ones((10, 5))
    Z[:, 2] = 20
    assert metrics.largest_dimension(Z) == pytest.approx(400 / 404)
    with refused("undefined"):
        metrics.largest_dimension(np.zeros((3, 2)))


def test_the_file_names_the_dimensions_and_the_metric_is_that_of_the_states(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    tokens = ("all", "drop_first")
    path = tiny.extracted(loaded, tmp_path / "a.h5", TEXTS, tokens=tokens, arrays=tiny.DIMENSIONS)
    states = states_of(loaded, loaded.texts.prompts(TEXTS)[0])
    settings = MetricsSettings(metrics=("largest_dimension",))
    with Activations(path) as file:
        of_prompts = compute(file, settings)[1].set_index(["tokens", "layer", "prompt_id"])
        for selection, skipped in zip(tokens, (0, 1), strict=True):
            for layer in file.layers:
                for n, Z in enumerate(states[layer, "block"]):
                    expected = metrics.largest_dimension(Z[skipped:])
                    value = of_prompts.loc[(selection, layer, f"p{n}"), "value"]
                    assert value == pytest.approx(expected, rel=1e-5)
                    shares = file.array("dimension_share", selection, layer)[n]
                    assert (np.diff(shares) <= 0).all() and shares.sum() <= 1 + 1e-6
    data = lw.extract(
        loaded.model, TEXTS, tmp_path / "b.h5", loaded.texts.tokenizer, arrays=tiny.DIMENSIONS
    )
    largest = data["dimension"].isel(tokens=0, top=0)
    assert (largest.sel(layer=[2, 3]) == PLANTED).all()
    assert not (largest.sel(layer=1) == PLANTED).all()


def test_without_the_setting_the_metric_has_no_rows(loaded: LoadedModel, tmp_path: Path) -> None:
    with Activations(tiny.extracted(loaded, tmp_path / "a.h5", TEXTS)) as file:
        assert "dimension" not in file.arrays
        assert compute(file, MetricsSettings(metrics=("largest_dimension",)))[0].empty
    table = lw.analyse(loaded.model, TEXTS, loaded.texts.tokenizer, metrics="largest_dimension")
    assert (table.set_index("layer")["value"].loc[2:] > 0.8).all()


@pytest.mark.parametrize("readout", ["residual", "final_norm"])
def test_scores_read_states_without_dropped_dimensions(readout: str, loaded: LoadedModel) -> None:
    ways = [Representation(readout=readout)]
    whole, dropped = embed(loaded, TEXTS, ways), embed(without(loaded, PLANTED), TEXTS, ways)
    others = np.arange(loaded.anatomy.hidden) != PLANTED
    assert whole[..., PLANTED].any() and not dropped[..., PLANTED].any()
    np.testing.assert_array_equal(dropped[..., others], whole[..., others])


def test_metrics_read_states_without_dropped_dimensions(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    settings = MetricsSettings(metrics=("prompt_entropy",), alphas=(1.0,))
    states = states_of(loaded, loaded.texts.prompts(TEXTS)[0])
    values = []
    for name, model in (("whole", loaded), ("dropped", without(loaded, PLANTED))):
        with Activations(tiny.extracted(model, tmp_path / f"{name}.h5", TEXTS)) as file:
            values.append(compute(file, settings)[1].set_index(["layer", "prompt_id"])["value"])
    assert json.loads(file.attributes["drop_dimensions"]) == [PLANTED]
    for layer in (0, 3):
        for n, Z in enumerate(states[layer, "block"]):
            Z = np.where(np.arange(Z.shape[1]) == PLANTED, 0, Z)
            expected = metrics.prompt_entropy(Z)
            assert values[1][layer, f"p{n}"] == pytest.approx(expected, abs=1e-5)
    whole, dropped = (column.groupby("layer").mean() for column in values)
    assert (whole.loc[2:] < 0.6).all() and (dropped.loc[2:] > 1).all(), "the valley is gone"


def test_dimensions_that_the_states_do_not_have_are_refused(loaded: LoadedModel) -> None:
    with refused("out_of_range"):
        without(loaded, PLANTED, loaded.anatomy.hidden)
