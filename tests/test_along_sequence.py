"""Quantities along the sequence: prefixes from one pass, their tables and their figure."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from helpers import tiny
from helpers.kept_states import states_of

from layerwise import metrics as flat
from layerwise.activations.store import Activations, grid
from layerwise.config.settings import MetricsSettings
from layerwise.metrics.table import ALONG_COLUMNS, compute_along

N = 9


def test_the_grid_is_powers_of_root_two() -> None:
    assert grid(600) == [1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256, 362, 512]
    for longest in range(1, 300):
        places = grid(longest)
        assert places[-1] <= longest < 2 * places[-1]
        # What the docstring says of the cost.
        assert sum(t**3 for t in places) <= 1.65 * longest**3


@pytest.mark.parametrize("family", ["gpt2", "rwkv"])
def test_the_table_is_that_of_passes_of_the_shorter_prompts(family: str, tmp_path: Path) -> None:
    texts = tiny.texts(N, shortest=6, longest=20)
    loaded = tiny.loaded(family, tmp_path / family)
    ids, _ = loaded.texts.prompts(texts)
    tokens = ("all", "drop_first", "drop_sinks")
    path = tiny.extracted(loaded, tmp_path / "a.h5", texts, arrays=tiny.PREFIXES, tokens=tokens)
    with Activations(path) as file:
        settings = MetricsSettings(alphas=(1.0, 2.0), normalizations=("logN",))
        table = compute_along(file, settings)
        assert file.prefixes("drop_sinks", 1) == {}
    assert list(table.columns) == list(ALONG_COLUMNS)
    table = table[table["layer"] == 2]
    entropies = table[table["metric"] == "prefix_entropy"]
    wide = entropies.pivot_table("value", ["tokens", "position", "alpha"], "normalization")
    places = wide.index.to_frame()
    n = places["position"] - (places["tokens"] == "drop_first")
    assert wide["logN"].isna().tolist() == (n < 2).tolist()
    np.testing.assert_allclose(wide["logN"][n > 1], (wide["raw"] / np.log(n))[n > 1])
    table = table[table["normalization"] == "raw"]
    for t in grid(max(map(len, ids)))[1:]:
        long = states_of(loaded, [own[:t] for own in ids if len(own) >= t])[2, "block"]
        rows = table[table["position"] == t].set_index(["metric", "tokens", "alpha"])
        for choice, alpha in itertools.product(tokens[:2], (1.0, 2.0)):
            row = rows.loc["prefix_entropy", choice, alpha]
            each = [flat.prompt_entropy(s[choice == "drop_first" :], alpha) for s in long]
            assert row["value"] == pytest.approx(np.mean(each), abs=1e-5)
            assert row["median"] == pytest.approx(np.median(each), abs=1e-5)
            assert (row["n"], row["n_left_out"]) == (len(long), N - len(long))
        norms = [np.linalg.norm(s[t - 1]) for s in long]
        found = rows.loc["token_norm", "value"].item()
        assert found == pytest.approx(np.mean(norms), rel=1e-5)
