"""All metrics of an activations file as tidy tables: one row a value, and one a prompt's value."""

from __future__ import annotations

import logging
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from layerwise.activations.layout import Activations
from layerwise.errors import LayerwiseError, closest
from layerwise.metrics import uncertainty
from layerwise.metrics.entropy import normalise
from layerwise.metrics.inputs import LayerInputs, from_file
from layerwise.metrics.registry import (
    RAW,
    Metric,
    Overall,
    PerPrompt,
    Result,
    UndefinedMetricError,
    all_metrics,
)
from layerwise.metrics.settings import Settings
from layerwise.metrics.storage import COLUMNS, PROMPT_COLUMNS, tidy
from layerwise.progress import Progress

log = logging.getLogger(__name__)

Row = dict[str, Any]


@dataclass
class Rows:
    """What one layer, or many, yielded.

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


def wanted(settings: Settings) -> list[Metric]:
    """The metrics that the settings ask for."""
    known = all_metrics()
    return [known[name] for name in (settings.metrics or tuple(known))]


def compute_layer(layer: LayerInputs, metrics: list[Metric]) -> Rows:
    """All metrics of one layer under one protocol and choice of tokens."""
    rows = Rows()
    for metric in metrics:
        if layer.protocol not in metric.protocols:
            continue
        try:
            reason = _lacking(layer, metric)
            if reason:
                raise UndefinedMetricError(reason)
            for result in metric.compute(layer):
                _record(rows, layer, metric, result)
        except UndefinedMetricError as undefined:
            rows.left_out[metric.name, str(undefined)] += 1
    return rows


def _lacking(layer: LayerInputs, metric: Metric) -> str | None:
    if layer.n_views < metric.min_views:
        return (
            f"it needs {metric.min_views} augmented views of each prompt, the activations hold "
            f"{layer.n_views}."
        )
    if len(layer.names) < metric.min_prompts:
        return f"it needs {metric.min_prompts} prompts, the activations hold {len(layer.names)}."
    return None


def _record(rows: Rows, layer: LayerInputs, metric: Metric, result: Result) -> None:
    names = metric.normalizations.get(layer.protocol, RAW)
    names = tuple(n for n in names if n == "raw" or n in layer.settings.normalizations)
    base: Row = {"metric": metric.name, "alpha": result.alpha}
    for normalization in names:
        part = partial(normalise, normalization=normalization, d=layer.n_hidden)
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
            "prompt_id": np.asarray(layer.names, dtype=object)[defined],
            "n_tokens": layer.n_tokens[defined],
            "value": result.values[defined],
        }
        rows.prompts.append((base, columns))


def _mean_row(result: PerPrompt, normalised: partial[Any]) -> Row | None:
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


def _overall_row(layer: LayerInputs, result: Overall, normalised: partial[Any]) -> Row | None:
    size = math.nan if result.size is None else float(result.size)
    value, stderr = (float(normalised(x, n=size)) for x in (result.value, result.stderr))
    if not math.isfinite(value):
        return None
    left_out = len(layer.names) - result.n
    return {"value": value, "stderr": stderr, "n": result.n, "n_left_out": left_out}


def compute(
    activations: Activations, settings: Settings, threads: int = 1
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All metrics of all layers of a file.

    Layers are spread over threads, each of which holds one layer at a time; BLAS has one thread
    in each, which is faster than many threads on one layer after another.

    Parameters
    ----------
    activations : Activations
    settings : Settings
    threads : int

    Returns
    -------
    metrics : DataFrame
        Columns `COLUMNS`; ``alpha`` and ``stderr`` are null where there is none.
    prompts : DataFrame
        Columns `PROMPT_COLUMNS`: every prompt's own value (raw) of the metrics that have one.

    Raises
    ------
    LayerwiseError
        If the file does not have a protocol or a choice of tokens that is asked for, or holds
        NaN or infinity; the message names the prompt.
    """
    metrics = wanted(settings)
    _subset(activations, "protocol", settings.protocols, activations.protocols)
    choices = settings.tokens or activations.tokens
    _subset(activations, "choice of tokens", choices, activations.tokens)
    layers = range(activations.n_layers)
    all_rows = Rows()
    total = len(settings.protocols) * len(choices) * len(layers)
    what = f"metrics of {activations.model} {activations.revision}"
    with (
        threadpool_limits(1, "blas"),
        ThreadPoolExecutor(max(1, threads)) as pool,
        Progress(total, what, "layer") as bar,
    ):
        for protocol in settings.protocols:
            for tokens in choices:
                ends = _ends(activations, protocol, tokens, metrics)

                def one(layer: int, at: tuple[Any, ...] = (protocol, tokens, ends)) -> Rows:
                    inputs = from_file(activations, at[0], at[1], layer, settings, at[2])
                    return compute_layer(inputs, metrics)

                for layer, rows in zip(layers, pool.map(one, layers), strict=True):
                    place: dict[str, Any] = {
                        "layer": layer,
                        "depth": layer / max(1, activations.n_layers - 1),
                        "protocol": protocol,
                        "tokens": tokens,
                    }
                    rows.values = [{**place, **row} for row in rows.values]
                    rows.prompts = [({**place, **row}, columns) for row, columns in rows.prompts]
                    all_rows.add(rows)
                    bar.update()
    _report(all_rows)
    about = {k: getattr(activations, k) for k in ("model", "revision", "corpus")}
    return (
        tidy(pd.DataFrame(all_rows.values).assign(**about), COLUMNS),
        tidy(_stack(all_rows.prompts).assign(**about), PROMPT_COLUMNS),
    )


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


def _subset(
    activations: Activations, what: str, asked: tuple[str, ...], held: tuple[str, ...]
) -> None:
    for name in asked:
        if name not in held:
            raise LayerwiseError(
                f"{activations.path} has no {what} {name!r}{closest(name, held)}; it holds "
                f"{', '.join(held)}: extract again with it, or leave it out of the metrics."
            )


def _ends(
    activations: Activations, protocol: str, tokens: str, metrics: list[Metric]
) -> tuple[Any, Any]:
    """Readers of the first and the last layer, which read once and serve every layer."""
    if not any("ends" in metric.inputs for metric in metrics):
        return (lambda: None), (lambda: None)
    first = activations.pooled(protocol, tokens, 0)
    last = activations.pooled(protocol, tokens, activations.n_layers - 1)
    return (lambda: first), (lambda: last)


def _report(rows: Rows) -> None:
    for (name, reason), count in sorted(rows.left_out.items()):
        log.warning("%s is left out in %d places: %s", name, count, reason)
