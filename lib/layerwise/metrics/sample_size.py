"""A metric against the number of prompts: are there enough of them?

Metrics of all prompts together (dataset entropy, RankMe, LiDAR, DiME, …) grow with N until the
prompts have shown all directions there are. Means over prompts only get steadier.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from layerwise.activations.store import Activations
from layerwise.errors import LayerwiseError
from layerwise.metrics.layer import Arrays, Layer
from layerwise.metrics.table import Row, compute_layer, wanted

if TYPE_CHECKING:
    from layerwise.config.metrics import MetricsSettings

log = logging.getLogger(__name__)

COLUMNS = ("metric", "protocol", "alpha", "n", "repeat", "value")


def halvings(n: int, smallest: int = 16) -> tuple[int, ...]:
    """n, n/2, n/4, … down to `smallest`, ascending."""
    sizes = [n]
    while sizes[-1] // 2 >= smallest:
        sizes.append(sizes[-1] // 2)
    return tuple(reversed(sizes))


def against_n(
    arrays: Arrays,
    settings: MetricsSettings,
    protocol: str = "paper",
    sizes: Sequence[int] | None = None,
    repeats: int = 5,
    seed: int = 0,
) -> pd.DataFrame:
    """Metrics of one layer on random subsets of the prompts.

    Each repeat is one random order of the prompts, whose first n are taken, so that a repeat's
    points belong together.

    Parameters
    ----------
    arrays : Arrays
    settings : MetricsSettings
    protocol : str
    sizes : sequence of int, optional
        Numbers of prompts; by default all, half, a quarter, … down to 16.
    repeats : int
        Random orders. All prompts together are computed once.
    seed : int

    Returns
    -------
    DataFrame
        Columns ``metric``, ``protocol``, ``alpha`` (null where there is none), ``n``,
        ``repeat``, ``value`` (raw). Rows on which a metric is not defined are absent and logged;
        those on which it took a sample of its own (``metrics.dime.sample``) are absent.
    """
    total = len(arrays.prompts)
    sizes = halvings(total) if sizes is None else [n for n in sizes if n <= total]
    metrics = wanted(settings)
    rng = np.random.default_rng(seed)
    rows = []
    for repeat in range(repeats):
        order = rng.permutation(total)
        for n in sizes:
            if n == total and repeat > 0:
                continue
            part = Layer(arrays.subset(np.sort(order[:n])), settings, protocol, errors=False)
            found = compute_layer(part, metrics)
            for (name, reason), _ in found.left_out.items():
                log.warning("%s on %d prompts: %s", name, n, reason)
            rows += [
                {**row, "protocol": protocol, "n": n, "repeat": repeat}
                for row in found.values
                if row["normalization"] == "raw" and not _sampled(row, n, settings)
            ]
    frame = pd.DataFrame(rows).reindex(columns=list(COLUMNS))
    return frame.astype({"alpha": "float64", "value": "float64"})


def _sampled(row: Row, n: int, settings: MetricsSettings) -> bool:
    """Whether a metric's own sample, not the subset, decided how many prompts it saw."""
    most = getattr(getattr(settings, row["metric"], None), "sample", n)
    return bool(row["n"] == most < n)


def against_n_by_layer(
    activations: Activations,
    settings: MetricsSettings,
    layers: Sequence[int],
    sizes: Sequence[int] | None = None,
    repeats: int = 5,
    seed: int = 0,
) -> pd.DataFrame:
    """`against_n` for layers of a file, with the columns ``tokens`` and ``layer`` before it.

    Raises
    ------
    LayerwiseError
        If there is no such layer.
    """
    for layer in layers:
        if not 0 <= layer < activations.n_layers:
            raise LayerwiseError(
                f"{activations.path} has no layer {layer}; its layers are 0 to "
                f"{activations.n_layers - 1}."
            )
    pieces = []
    for protocol in settings.protocols or activations.protocols:
        for tokens in settings.tokens or activations.tokens:
            for layer in layers:
                arrays = Arrays.of(activations, protocol, tokens, layer)
                frame = against_n(arrays, settings, protocol, sizes, repeats, seed)
                pieces.append(frame.assign(tokens=tokens, layer=layer))
    return pd.concat(pieces, ignore_index=True)[["tokens", "layer", *COLUMNS]]


def change_by_doubling(frame: pd.DataFrame) -> pd.DataFrame:
    """How much each metric still changes from half of the prompts to all of them.

    Parameters
    ----------
    frame : DataFrame
        From `against_n` or `against_n_by_layer`.

    Returns
    -------
    DataFrame
        A row for each metric (layer, protocol, …): ``n``; ``value`` on all prompts; ``half``,
        the mean over repeats on half of them; ``change``, relative to ``value``; ``spread``, the
        standard deviation over repeats on half of them, relative to ``value``. A change of a few
        per cent says that there are enough prompts; comparisons between layers need less.
    """
    keys = [c for c in ("tokens", "layer", "metric", "protocol", "alpha") if c in frame.columns]
    rows = []
    for group, part in frame.groupby(keys, dropna=False, sort=False):
        n = int(part["n"].max())
        value = float(part.loc[part["n"] == n, "value"].mean())
        half = part.loc[part["n"] == n // 2, "value"]
        scale = abs(value) or math.nan
        rows.append(
            {
                **dict(zip(keys, group, strict=True)),
                "n": n,
                "value": value,
                "half": float(half.mean()),
                "change": (value - float(half.mean())) / scale,
                "spread": float(half.std(ddof=1)) / scale if len(half) > 1 else math.nan,
            }
        )
    return pd.DataFrame(rows)
