"""All metrics of an activations file as tidy tables, by layer and by prompt."""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from layerwise.activations.store import BLOCK, Activations
from layerwise.errors import LayerwiseError
from layerwise.metrics.formulas import uncertainty
from layerwise.metrics.formulas.arrays import Array, UndefinedMetricError
from layerwise.metrics.formulas.entropy import normalise
from layerwise.metrics.jackknife import standard_errors
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import RAW, Metric, Overall, PerPrompt, Result, all_metrics
from layerwise.progress import Progress

if TYPE_CHECKING:
    from layerwise.config.metrics import MetricsSettings

log = logging.getLogger(__name__)

# Columns and their types; ``alpha`` and ``stderr`` are null where there is none.
PLACE = {
    "model": "str",
    "revision": "str",
    "corpus": "str",
    "sublayer": "str",
    "layer": "int64",
    "depth": "float64",
    "metric": "str",
    "protocol": "str",
    "tokens": "str",
    "alpha": "float64",
}
COLUMNS = PLACE | {
    "normalization": "str",
    "value": "float64",
    "stderr": "float64",
    "n": "int64",
    "n_left_out": "int64",
}
PROMPT_COLUMNS = PLACE | {"prompt_id": "str", "n_tokens": "int64", "value": "float64"}

Row = dict[str, Any]


@dataclass
class Rows:
    """Results of one layer or several.

    Attributes
    ----------
    values : rows of the table of metrics, lacking model, revision and corpus
    prompts : pieces of the table of prompts: columns as arrays, and what all their rows share
    left_out : how many rows each reason cost, by metric and reason
    """

    values: list[Row] = field(default_factory=list)
    prompts: list[tuple[Row, dict[str, Any]]] = field(default_factory=list)
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, other: Rows) -> None:
        """Append the rows of `other`."""
        self.values += other.values
        self.prompts += other.prompts
        self.left_out += other.left_out


def wanted(settings: MetricsSettings) -> list[Metric]:
    """The metrics that the settings ask for."""
    known = all_metrics()
    return [known[name] for name in (settings.metrics or tuple(known))]


def compute_layer(layer: Layer, metrics: list[Metric]) -> Rows:
    """All metrics of one layer under one protocol and choice of tokens."""
    rows = Rows()
    results: list[tuple[Metric, Result]] = []
    for metric in metrics:
        if layer.protocol not in metric.protocols or layer.tokens not in metric.tokens:
            continue
        try:
            results += ((metric, result) for result in metric.on(layer))
        except UndefinedMetricError as undefined:
            rows.left_out[metric.name, str(undefined)] += 1
    joint = {m.name: m for m, r in results if isinstance(r, Overall) and r.stderr is None}
    errors = standard_errors(layer, list(joint.values())) if layer.errors and joint else {}
    for metric, result in results:
        if isinstance(result, PerPrompt):
            _record(rows, layer, metric, _of_all_prompts(result, layer, metric.name))
        else:
            stderr = result.stderr
            if stderr is None:
                stderr = errors.get((metric.name, result.alpha), math.nan)
            _record(rows, layer, metric, replace(result, stderr=stderr))
    return rows


def _of_all_prompts(result: PerPrompt, layer: Layer, metric: str) -> PerPrompt:
    """A value for each prompt of the file, also from a metric of `layer.pooled`.

    There prompts without a token that counts are missing; they get NaN.

    Raises
    ------
    LayerwiseError
        If there is another number of values.
    """
    kept, given = layer.kept, len(result.values)
    if given == len(layer.prompts):
        return result
    if given != int(kept.sum()):
        raise LayerwiseError(
            f"The metric {metric!r} gives {given} values at a layer of {len(layer.prompts)} "
            f"prompts, {int(kept.sum())} with tokens; give one of these numbers.",
            code="wrong_shape",
        )

    def spread(values: Array) -> Array:
        whole = np.full(len(kept), np.nan)
        whole[kept] = values
        return whole

    sizes = None if result.sizes is None else spread(np.asarray(result.sizes, dtype=np.float64))
    return replace(result, values=spread(result.values), sizes=sizes)


def _record(rows: Rows, layer: Layer, metric: Metric, result: Result) -> None:
    names = metric.normalizations.get(layer.protocol, RAW)
    names = tuple(n for n in names if n == "raw" or n in layer.settings.normalizations)
    base: Row = {"metric": metric.name, "alpha": result.alpha}
    for normalization in names:
        _refuse_unsized(metric, result, normalization)
        part = partial(normalise, normalization=normalization, d=layer.hidden)
        row = (
            _mean_row(result, part)
            if isinstance(result, PerPrompt)
            else _overall_row(layer, result, part)
        )
        if row is None:
            rows.left_out[metric.name, f"no prompt has a value ({normalization})."] += 1
        else:
            rows.values.append({**base, "normalization": normalization, **row})
    if isinstance(result, PerPrompt):
        defined = np.isfinite(result.values)
        columns = {
            "prompt_id": np.asarray(layer.prompts, dtype=object)[defined],
            "n_tokens": layer.n_tokens[defined],
            "value": result.values[defined],
        }
        rows.prompts.append((base, columns))


def _refuse_unsized(metric: Metric, result: Result, normalization: str) -> None:
    size = result.sizes if isinstance(result, PerPrompt) else result.size
    if size is None and normalization not in ("raw", "logD"):
        raise LayerwiseError(
            f"The metric {metric.name!r} declares the normalisation {normalization!r}, which "
            "divides by log N, and does not say what N is; give its results `size` (`sizes`), or "
            "leave it out of `normalizations`."
        )


def _mean_row(result: PerPrompt, normalised: partial[Any]) -> Row | None:
    if result.stderr is not None and normalised.keywords["normalization"] != "raw":
        raise LayerwiseError(
            "A metric that gives its own standard error of the mean over prompts cannot be "
            "normalised prompt by prompt; leave out `normalizations` or `stderr`."
        )
    sizes = result.sizes if result.sizes is not None else np.full(len(result.values), np.nan)
    values = normalised(result.values, n=sizes)
    defined = values[np.isfinite(values)]
    if not defined.size:
        return None
    return {
        "value": float(defined.mean()),
        "stderr": uncertainty.of_mean(defined) if result.stderr is None else result.stderr,
        "n": len(defined),
        "n_left_out": len(values) - len(defined),
    }


def _overall_row(layer: Layer, result: Overall, normalised: partial[Any]) -> Row | None:
    size = math.nan if result.size is None else float(result.size)
    error = math.nan if result.stderr is None else result.stderr
    value, stderr = (float(normalised(x, n=size)) for x in (result.value, error))
    if not math.isfinite(value):
        return None
    left_out = len(layer.prompts) - result.n
    return {"value": value, "stderr": stderr, "n": result.n, "n_left_out": left_out}


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
    metrics = wanted(settings)
    protocols, choices = settings.protocols or activations.protocols, activations.tokens
    for protocol in protocols:
        if protocol not in activations.protocols:
            raise LayerwiseError(
                f"{activations.path} has no protocol {protocol!r}, only "
                f"{', '.join(activations.protocols)}: add it to extract.protocols.",
                code="unknown_name",
            )
    all_rows = Rows()
    n_layers = sum(activations.n_layers - (part != BLOCK) for part in activations.sublayers)
    total = len(protocols) * len(choices) * n_layers
    what = f"metrics of {activations.model} {activations.revision}"
    with (
        threadpool_limits(1, "blas"),
        ThreadPoolExecutor(max(1, threads)) as pool,
        Progress(total, what, "layer") as bar,
    ):
        for part in activations.sublayers:
            with _opened(activations, part) as source:
                for protocol, tokens in itertools.product(protocols, choices):
                    found = _one_reading(source, protocol, tokens, settings, metrics, pool)
                    for rows in found:
                        all_rows.add(rows)
                        bar.update()
    _report(all_rows)
    about = {k: getattr(activations, k) for k in ("model", "revision", "corpus")}
    return (
        _tidy(pd.DataFrame(all_rows.values).assign(**about), COLUMNS),
        _tidy(_stack(all_rows.prompts).assign(**about), PROMPT_COLUMNS),
    )


def _one_reading(
    activations: Activations,
    protocol: str,
    tokens: str,
    settings: MetricsSettings,
    metrics: list[Metric],
    pool: ThreadPoolExecutor,
) -> Iterator[Rows]:
    """The rows of each layer under one protocol and choice of tokens, in order."""

    def one(layer: int) -> Rows:
        return compute_layer(Layer(activations, settings, protocol, tokens, layer), metrics)

    for layer, rows in zip(activations.layers, pool.map(one, activations.layers), strict=True):
        place: dict[str, Any] = {
            "sublayer": activations.sublayer,
            "layer": layer,
            "depth": layer / max(1, activations.n_layers - 1),
            "protocol": protocol,
            "tokens": tokens,
        }
        rows.values = [{**place, **row} for row in rows.values]
        rows.prompts = [({**place, **row}, columns) for row, columns in rows.prompts]
        yield rows


@contextmanager
def _opened(activations: Activations, part: str) -> Iterator[Activations]:
    """The same file with a part's arrays in place of the layers'."""
    if part == activations.sublayer:
        yield activations
    else:
        with Activations(activations.path, sublayer=part) as other:
            yield other


def _tidy(frame: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """The frame with these columns in this order, each of its type, rows numbered anew."""
    return frame.reindex(columns=list(columns)).reset_index(drop=True).astype(dict(columns))


def _stack(pieces: list[tuple[Row, dict[str, Any]]]) -> pd.DataFrame:
    """Put pieces one under the other: many small tables at once, which pandas is slow at."""
    if not pieces:
        return pd.DataFrame()
    shared = pd.DataFrame([row for row, _ in pieces])
    sizes = [len(columns["value"]) for _, columns in pieces]
    frame = shared.loc[np.repeat(np.arange(len(pieces)), sizes)].reset_index(drop=True)
    for name in pieces[0][1]:
        frame[name] = np.concatenate([columns[name] for _, columns in pieces])
    return frame


def _report(rows: Rows) -> None:
    for (name, reason), count in sorted(rows.left_out.items()):
        log.warning("%s is left out in %d places: %s", name, count, reason)
