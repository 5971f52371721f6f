"""The example of docs/development.md: an array of tokens and a metric of it, in one file."""

from pathlib import Path

import numpy as np
import pytest
from helpers import tiny
from helpers.kept_states import states_of
from scipy import stats

from layerwise import metrics
from layerwise.activations.store import Activations
from layerwise.config.settings import MetricsSettings
from layerwise.metrics.table import compute


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_kurtosis_is_that_of_the_states_of_each_prompt_alone(family: str, tmp_path: Path) -> None:
    loaded, texts = tiny.loaded(family, tmp_path), tiny.texts(8, seed=3)
    path = tiny.extracted(loaded, tmp_path / "a.h5", texts, arrays=("largest_activation",))
    settings = MetricsSettings(metrics=("activation_kurtosis",))
    with Activations(path) as file:
        rows = compute(file, settings)[1].set_index(["layer", "prompt_id"])["value"]
    for n, ids in enumerate(loaded.texts.prompts(texts)[0]):
        for layer in file.layers:
            Z = states_of(loaded, [ids])[layer, "block"][0]
            expected = stats.kurtosis(np.abs(Z).max(axis=1))
            assert rows[layer, f"p{n}"] == pytest.approx(expected, rel=1e-3, abs=1e-3)
            assert metrics.activation_kurtosis(Z) == pytest.approx(expected, abs=1e-9)
