"""All metrics of an activations file as tidy tables, by layer and by prompt.

Quantities along the sequence: of the first t tokens of a prompt, and of its t-th token.

They have one dimension more than metrics, so they are a separate table: a row for each layer and
position on the grid of `layerwise.activations.store.grid`.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from layerwise.activations.store import Activations, grid
from layerwise.metrics.formulas import (
    Array,
    UndefinedMetricError,
    entropy_from_eigenvalues,
    normalise,
)
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import (
    PLACE,
    QUANTITIES,
    RAW,
    Metric,
    PerPrompt,
    Result,
    all_metrics,
)
from layerwise.progress import Progress

if TYPE_CHECKING:
    from layerwise.config.settings import MetricsSettings

log = logging.getLogger(__name__)

COLUMNS = PLACE | {
    "variant": "str",
    "normalization": "str",
    "value": "float64",
    "stderr": "float64",
    "n": "int64",
    "n_left_out": "int64",
}
PROMPT_COLUMNS = PLACE | {"prompt_id": "str", "n_tokens": "int64", "value": "float64"}

# Memory for layers that are computed at once.
MEMORY = 4 * 2**30

Row = dict[str, Any]


@dataclass
class Rows:
    """Results of a layer.

    Attributes
    ----------
    values : rows of the table of metrics, without their place
    prompts : pieces of the table of prompts: columns, and values that all their rows share
    left_out : number of rows that each reason cost, by metric and reason
    """

    values: list[Row] = field(default_factory=list)
    prompts: list[Row] = field(default_factory=list)
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)


def compute_layer(layer: Layer, metrics: Sequence[Metric]) -> Rows:
    """All metrics of one layer under one protocol and choice of tokens."""
    rows, n = Rows(), len(layer.prompts)
    by_size: defaultdict[int, list[Metric]] = defaultdict(list)
    for metric in metrics:
        if layer.protocol in metric.protocols and layer.tokens in metric.tokens:
            by_size[min(n, metric.max_prompts.get(layer.protocol, n))].append(metric)
    for size, group in by_size.items():
        sample = layer.sample(size)
        _measure(sample, group, rows)
        joint = [row for row in rows.values if "stderr" not in row]  # of all prompts together
        names = {row["metric"] for row in joint}
        stderr = _errors(sample, [metric for metric in group if metric.name in names])
        for row in joint:
            row["stderr"] = stderr.get(_key(row), math.nan)
    for row in rows.values:
        row["n_left_out"] = n - row["n"]
    return rows


def _measure(layer: Layer, metrics: Sequence[Metric], rows: Rows) -> None:
    """Add the rows of metrics; those of all prompts together have no standard error yet."""
    for metric in metrics:
        try:
            results = list(metric.on(layer))
        except UndefinedMetricError as undefined:
            rows.left_out[metric.name, str(undefined)] += 1
            continue
        names = metric.normalizations.get(layer.protocol, RAW)
        for result in results:
            base: Row = {"metric": metric.name, "alpha": result.alpha}
            variant = metric.variants.get(layer.protocol, "")
            for name in names:
                if name != "raw" and name not in layer.settings.normalizations:
                    continue
                row = _row(layer, result, name)
                if math.isfinite(row["value"]):
                    rows.values.append({**base, "variant": variant, "normalization": name, **row})
                else:
                    rows.left_out[metric.name, f"no prompt has a value ({name})."] += 1
            if isinstance(result, PerPrompt):
                defined = np.isfinite(result.values)
                columns = {
                    "prompt_id": np.array(layer.prompts)[defined],
                    "n_tokens": layer.n_tokens[defined],
                    "value": result.values[defined],
                }
                rows.prompts.append({**base, **columns})


def stderr_of_mean(values: Array) -> float:
    """Standard error of the mean of independent values; NaN for fewer than two."""
    n = len(values)
    return float(np.std(values, ddof=1) / math.sqrt(n)) if n > 1 else math.nan


def _row(layer: Layer, result: Result, normalization: str) -> Row:
    if isinstance(result, PerPrompt):
        values = normalise(result.values, normalization, layer.n_tokens, layer.hidden)
        values = values[np.isfinite(values)]
        value = values.mean() if len(values) else math.nan
        row = {"value": float(value), "n": len(values), "stderr": stderr_of_mean(values)}
    else:
        value = normalise(result.value, normalization, result.n, layer.hidden)
        row = {"value": float(value), "n": result.n}
    if result.parts is not None:
        values = normalise(result.parts.values, normalization, result.parts.n, layer.hidden)
        row["stderr"] = layer.parts.stderr(values)
    return row


def _key(row: Row) -> tuple[Any, ...]:
    return row["metric"], row["alpha"], row["normalization"]


def _errors(layer: Layer, metrics: Sequence[Metric]) -> dict[tuple[Any, ...], float]:
    """Standard errors of metrics with a value on each part of the prompts."""
    by_part: list[dict[tuple[Any, ...], float]] = []
    for subset in layer.on_parts() if metrics else ():
        rows = Rows()
        _measure(subset, metrics, rows)
        by_part.append({_key(row): row["value"] for row in rows.values})
    return {
        key: layer.parts.stderr(np.array([values[key] for values in by_part]))
        for key in (by_part[0] if by_part else ())
        if all(key in values for values in by_part)
    }


def compute(
    activations: Activations, settings: MetricsSettings, threads: int = 1
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All metrics of all layers of a file, and of the parts of its blocks if it holds any.

    A part's first and last layer, with which some metrics compare, are its own. Each thread holds
    one layer at a time and calls BLAS with one thread, which is faster than many BLAS threads on
    one layer after another.

    Parameters
    ----------
    activations : Activations
    settings : Settings
    threads : int

    Returns
    -------
    metrics : DataFrame
        Columns `COLUMNS`.
    prompts : DataFrame
        Columns `PROMPT_COLUMNS`: every prompt's own value (raw) of the metrics that have one.

    Raises
    ------
    LayerwiseError
        If the file lacks a protocol that is asked for, or holds NaN or infinity; the message names
        the prompt.
    """
    available = all_metrics()
    metrics = [available[n] for n in (available if settings.metrics is None else settings.metrics)]
    values: list[Row] = []
    prompts: list[pd.DataFrame] = []
    left_out: Counter[tuple[str, str]] = Counter()
    variants = list(itertools.product(activations.protocols, activations.tokens))
    # The embedding output has no sublayers.
    n_layers = len(activations.sublayers) * (activations.n_layers - 1) + 1
    what = f"metrics of {activations.model} {activations.revision}"
    # A layer takes about six copies of its embeddings, in float64.
    room = MEMORY // (48 * len(activations.prompts) * activations.hidden + 1)
    threads = max(1, min(threads, room))
    with (
        threadpool_limits(1, "blas"),
        ThreadPoolExecutor(threads) as pool,
        Progress(len(variants) * n_layers, what, "layer") as bar,
    ):
        for sublayer in activations.sublayers:
            with Activations(activations.path, sublayer=sublayer) as source:
                places = [(*v, layer) for v in variants for layer in source.layers]
                layers = (Layer(source, settings, *place) for place in places)
                all_rows = pool.map(partial(compute_layer, metrics=metrics), layers)
                for (protocol, tokens, layer), rows in zip(places, all_rows, strict=True):
                    variant: Row = {
                        "sublayer": sublayer,
                        "layer": layer,
                        "depth": layer / max(1, source.n_layers - 1),
                        "protocol": protocol,
                        "tokens": tokens,
                    }
                    values += ({**variant, **row} for row in rows.values)
                    prompts += (pd.DataFrame({**variant, **piece}) for piece in rows.prompts)
                    left_out += rows.left_out
                    bar.update()
    for (name, reason), count in sorted(left_out.items()):
        log.warning("%s is left out in %d places: %s", name, count, reason)
    table = tidy(values, activations, COLUMNS)
    numbers = table.groupby(["metric", "protocol", "tokens"])["n"].agg(["min", "max"])
    for (name, protocol, tokens), low, high in numbers.itertuples():
        if low < high:
            where = f"{name} ({protocol}, {tokens})"
            log.warning("%s is of %d to %d prompts: n differs by layer", where, low, high)
    return table, tidy(pd.concat(prompts or [pd.DataFrame()]), activations, PROMPT_COLUMNS)


def tidy(rows: Any, activations: Activations, columns: Mapping[str, str]) -> pd.DataFrame:
    """A table of rows with these columns in this order, each of its type; at the end the stream,
    for a model that has several."""
    about = {name: getattr(activations, name) for name in ("model", "revision", "corpus")}
    frame = pd.DataFrame(rows).assign(**about, **activations.labels)
    columns = {**columns, **dict.fromkeys(activations.labels, "str")}
    return frame.reindex(columns=list(columns)).reset_index(drop=True).astype(dict(columns))


ALONG_COLUMNS = PLACE | {
    "normalization": "str",
    "position": "int64",
    "value": "float64",
    "stderr": "float64",
    "quartile_1": "float64",
    "median": "float64",
    "quartile_3": "float64",
    "n": "int64",
    "n_left_out": "int64",
}


def compute_along(activations: Activations, settings: MetricsSettings) -> pd.DataFrame:
    """The quantities of all layers of a file, if it has their inputs.

    Row t leaves out and counts prompts of fewer than t tokens.

    Parameters
    ----------
    activations : Activations
    settings : MetricsSettings
        Its `alphas` and `normalizations`.

    Returns
    -------
    DataFrame
        Columns `ALONG_COLUMNS`: mean over prompts with its standard error, and quartiles.
    """
    rows: list[Row] = []
    for layer in activations.layers:
        about = {
            "sublayer": activations.sublayer,
            "layer": layer,
            "protocol": "paper",
            "depth": layer / max(1, activations.n_layers - 1),
        }
        quantities = [(t, _entropies(activations, settings, t, layer)) for t in activations.tokens]
        if "all" in activations.tokens:
            quantities.append(("all", _norms(activations, layer)))
        for tokens, series in quantities:
            for position, values in series:
                quartiles = np.quantile(values, [0.25, 0.5, 0.75])
                summary = {
                    "value": values.mean(),
                    "stderr": stderr_of_mean(values),
                    **dict(zip(("quartile_1", "median", "quartile_3"), quartiles, strict=True)),
                    "n": len(values),
                    "n_left_out": len(activations.prompts) - len(values),
                }
                rows.append({**about, "tokens": tokens, **position, **summary})
    return tidy(rows, activations, ALONG_COLUMNS)


def _norms(activations: Activations, layer: int) -> Iterator[tuple[dict[str, Any], Array]]:
    """Norms of the t-th token, on the grid of t."""
    norms = activations.norms(layer).astype(np.float64)
    for t in grid(norms.shape[1]):
        values = norms[~np.isnan(norms[:, t - 1]), t - 1]
        yield {"metric": "token_norm", "normalization": "raw", "position": t}, values


def _entropies(
    activations: Activations, settings: MetricsSettings, tokens: str, layer: int
) -> Iterator[tuple[dict[str, Any], Array]]:
    """Entropies of the first t tokens, by order and normalisation."""
    has_prefixes = "prefix_spectrum" in activations.arrays
    spectra_of = activations.prefixes(tokens, layer) if has_prefixes else {}
    for t, spectra in spectra_of.items():
        spectra = spectra[spectra[:, 0] > 0]
        size = t - (tokens == "drop_first")
        for alpha in settings.alphas if len(spectra) else ():
            values = entropy_from_eigenvalues(spectra, alpha)
            where = {"metric": "prefix_entropy", "alpha": alpha, "position": t}
            for name in QUANTITIES["prefix_entropy"].normalizations:
                # log 1 is 0 and cannot divide.
                if name == "raw" or (name in settings.normalizations and size > 1):
                    normalised = normalise(values, name, n=size, d=activations.hidden)
                    yield {**where, "normalization": name}, normalised
