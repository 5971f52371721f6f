"""Quantities along the sequence: prefixes from one pass, their tables and their figure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from kept_states import Keep, States

from layerwise import metrics as flat
from layerwise.activations import forward
from layerwise.activations.extract import extract
from layerwise.activations.store import Activations, grid
from layerwise.config.extraction import ExtractSettings
from layerwise.config.metrics import MetricsSettings
from layerwise.metrics import sequence
from layerwise.models.load import load

N = 9


def extracted(folder: Path, family: str, texts: list[str], **more: Any) -> Path:
    loaded = load(family, tiny.entry(tiny.save(family, folder / family)), "main", device="cpu")
    path = folder / f"{family}-{len(texts)}.h5"
    extract(
        loaded,
        corpus="c",
        prompts=[f"p{i}" for i in range(len(texts))],
        views=[texts],
        settings=ExtractSettings(prefixes=True, **more),
        target=path,
        attributes={},
    )
    return path


def test_the_grid_is_powers_of_root_two() -> None:
    assert grid(600) == [1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256, 362, 512]
    for longest in range(1, 300):
        places = grid(longest)
        assert places[-1] <= longest < 2 * places[-1]
        # What the docstring says of the cost.
        assert sum(t**3 for t in places) <= 1.65 * longest**3


def test_metrics_of_a_file_need_no_torch(tmp_path: Path) -> None:
    """Its import is a fifth of a small file's job."""
    path = extracted(tmp_path, "gpt_neox", tiny.texts(6, seed=0, shortest=4))
    code = f"""
import sys
sys.modules["torch"] = None  # cannot be imported any more
from layerwise.activations.store import Activations
from layerwise.config.metrics import MetricsSettings
from layerwise.metrics import sequence, table
with Activations({str(path)!r}) as file:
    settings = MetricsSettings(metrics=("prompt_entropy", "curvature"))
    assert len(table.compute(file, settings, 1)[0]) and len(sequence.compute(file, settings))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_table_is_that_of_the_functions(tmp_path: Path) -> None:
    texts = tiny.texts(N, shortest=6, longest=20)
    with Activations(extracted(tmp_path, "gpt2", texts, tokens=("all", "drop_first"))) as file:
        table = sequence.compute(file, MetricsSettings(alphas=(1.0, 2.0)))
    loaded = load("gpt2", tiny.entry(tmp_path / "gpt2"), "main", device="cpu")
    found: States = {}
    forward.run(loaded, loaded.tokenize(texts)[0], lambda rows: Keep(found, rows, N))
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
