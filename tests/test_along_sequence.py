"""Quantities along the sequence: prefixes from one pass, their tables and their figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from kept_states import states_of

from layerwise import metrics as flat
from layerwise.activations.store import Activations, grid
from layerwise.config.metrics import MetricsSettings
from layerwise.metrics import sequence

N = 9


def test_the_grid_is_powers_of_root_two() -> None:
    assert grid(600) == [1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256, 362, 512]
    for longest in range(1, 300):
        places = grid(longest)
        assert places[-1] <= longest < 2 * places[-1]
        # What the docstring says of the cost.
        assert sum(t**3 for t in places) <= 1.65 * longest**3


def test_the_table_is_that_of_the_functions(tmp_path: Path) -> None:
    texts = tiny.texts(N, shortest=6, longest=20)
    loaded = tiny.loaded("gpt2", tmp_path / "gpt2")
    tokens = ("all", "drop_first")
    path = tiny.extracted(loaded, tmp_path / "a.h5", texts, prefixes=True, tokens=tokens)
    with Activations(path) as file:
        table = sequence.compute(file, MetricsSettings(alphas=(1.0, 2.0)))
    found = states_of(loaded, loaded.texts.prompts(texts)[0])
    states, longest = found[2, "block"], max(map(len, found[2, "block"]))
    assert list(table.columns) == list(sequence.COLUMNS)
    for t in grid(longest)[1:]:
        long = [s[:t].astype(float) for s in states if len(s) >= t]
        for tokens, drop in (("all", 0), ("drop_first", 1)):  # noqa: B007
            for alpha in (1.0, 2.0):
                row = table.query(
                    "metric == 'prefix_entropy' and layer == 2 and position == @t and alpha == "
                    "@alpha and tokens == @tokens and normalization == 'raw'"
                )
                each = [flat.prompt_entropy(s[drop:], alpha) for s in long]
                assert row["value"].item() == pytest.approx(np.mean(each), abs=1e-6)
                assert row["median"].item() == pytest.approx(np.median(each), abs=1e-6)
                assert (row["n"].item(), row["n_left_out"].item()) == (len(long), N - len(long))
        norms = [np.linalg.norm(s[t - 1]) for s in long]
        row = table.query("metric == 'token_norm' and layer == 2 and position == @t")
        assert row["value"].item() == pytest.approx(np.mean(norms), rel=1e-5)
