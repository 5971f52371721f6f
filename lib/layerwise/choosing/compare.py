"""Compare the scores of layers with the output's, and answer which layer to use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm

from layerwise import stats
from layerwise.choosing.choice import Choice
from layerwise.errors import LayerwiseError
from layerwise.tasks import measures
from layerwise.tasks.labelled import Labels
from layerwise.tasks.results import Score

# Variance added for the training rows that probes share, in units of Nadeau and Bengio's (2003),
# and more for each tested row of scores that change much with the penalty, which varies between
# splits whatever the rows. Simulated (docs/statistics.md).
ADDED_VARIANCE, ADDED_IF_VARYING, ADDED_PER_ROW = 0.8, 1.6, 0.0044
VARYING = ("r2", "balanced_accuracy", "macro_f1")
OF_WHAT = {"pairs": "with the cosine", "tags": "of a linear probe on words"}


def compare(scores: Sequence[Score], measure: str) -> pd.DataFrame:
    """Compare layers 0 to L with the last one, which is the output.

    The best layer is selected among L + 1, and an interval that ignores this would be too high.
    The intervals of scores and differences hold for all layers together: their quantile is that of
    the largest |t| over layers, with the correlation between layers
    (`layerwise.stats.simultaneous_ci`). With it, intervals of scores from 0 to 1 are Wilson's,
    those of correlations are on Fisher's z scale, and those of R² end at 1, so they stay in the
    range of the score.

    Parameters
    ----------
    measure : str
        Name of the score, of `layerwise.tasks.measures`.

    Returns
    -------
    DataFrame
        As `Choice.table`, and the score of guessing as its attribute ``guessing``. A layer without
        a score has a row of missing values.

    Raises
    ------
    LayerwiseError
        If the last layer has no score.
    """
    scored = {layer: one for layer, one in enumerate(scores) if one.values is not None}
    if len(scores) - 1 not in scored:
        why = next(one.why for one in scores if one.values is None)
        raise LayerwiseError(f"These labels give no score: {why}.", code="undefined")
    values = np.stack([np.asarray(one.values) for one in scored.values()], axis=1)
    factor = widening(scores[-1], measure)
    table = pd.DataFrame({"score": values.mean(axis=0)}, index=pd.Index(scored, name="layer"))
    ends = stats.simultaneous_ci(values, widening=factor)
    table["low"], table["high"] = interval(ends, measure)
    lead = stats.simultaneous_ci(values - values[:, [-1]], widening=factor)
    table["difference"], table["difference_low"], table["difference_high"] = lead[:3]
    table = table.reindex(range(len(scores))).reset_index().assign(n=scores[-1].n_runs)
    table["compute_saved"] = 1 - table["layer"] / max(len(scores) - 1, 1)
    table.attrs["guessing"] = scores[-1].baseline or 0.0
    return table


def answer(table: pd.DataFrame, rows: Labels, within: float | None, **reading: Any) -> Choice:
    """Answer with the best layer, or the earliest one that is not much worse than the output.

    Parameters
    ----------
    table : DataFrame
        Of `compare`.
    within : float, optional
        Points that the layer may lose against the output.
    **reading
        Tokens, pooling and input of the model, as `Choice` has them.
    """
    last = len(table) - 1
    if within is None:
        layer = int(np.nanargmax(table["difference"]))
        # Rounding is no lead.
        layer = layer if table["difference"][layer] > 1e-12 else last
        alone = "and no other layer scores higher"
        alone += "; these labels are too easy" if np.ptp(table["score"]) == 0 else ""
    else:
        layer = int(np.argmax(table["difference"] >= -within / 100))
        alone = f"and no earlier layer scores at most {within:g} points below it"
    row: Any = table.loc[layer].to_dict()
    reason = f"It scores {row['score']:.2f} (95% CI {row['low']:.2f} to {row['high']:.2f})"
    guessing = table.attrs["guessing"]
    if row["low"] <= guessing:
        reason += f", not significantly better than guessing ({guessing:.2f})"
    if layer == last:
        reason += f", {alone}."
    else:
        lead = [100 * row[f"difference{end}"] for end in ("", "_low", "_high")]
        certain = "significant" if lead[1] > 0 or lead[2] < 0 else "not significant"
        reason += (
            f". Difference from the output: {lead[0]:z.1f} points (95% CI {lead[1]:z.1f} to "
            f"{lead[2]:z.1f}), {certain}. The blocks after it, {row['compute_saved']:.0%} of the "
            "model's, need not run."
        )
    what = f"the output (layer {last})" if layer == last else f"layer {layer} of {last}"
    name = f"{measures.NAMES[rows.measure]} {OF_WHAT.get(rows.kind, 'of a linear probe')}"
    return Choice(
        layer,
        f"Use {what}.",
        reason + _why_measure(rows),
        score=name,
        table=table,
        rows=f"Read {rows.described(len(rows.labels))}.",
        **reading,
    )


def _why_measure(rows: Labels) -> str:
    """Sentence on classes of which one has most rows."""
    if rows.measure != measures.default(rows.kind, rows.labels) or rows.measure != "auroc":
        return ""
    share = np.bincount(rows.labels).max() / len(rows.labels)
    return f" Scored by AUROC: guessing the largest class has an accuracy of {share:.2f}."


def widening(score: Score, measure: str) -> float:
    """Factor on standard errors for probes that share training rows."""
    if not score.n_train:
        return 1.0
    varying = ADDED_IF_VARYING + ADDED_PER_ROW * score.n_runs
    added = varying if measure in VARYING else ADDED_VARIANCE
    return float(np.sqrt(1 + added * score.n_runs / score.n_train))


def interval(score: stats.Estimate, measure: str) -> tuple[Any, Any]:
    """Ends of simultaneous intervals that stay in the range of the score."""
    from statsmodels.stats.proportion import proportion_confint  # type: ignore[import-untyped]

    value, stderr = score.estimate, score.stderr
    varies = stderr > 0
    # A layer that has every row right does not vary, and has the quantile of a single interval.
    quantile = ((score.high - value)[varies] / stderr[varies]).max(initial=1.96)
    if measure == "spearman":
        # A perfect correlation is infinite on Fisher's scale.
        shift = quantile * stderr
        low, high = np.maximum(value - shift, -1), np.minimum(value + shift, 1)
        other = np.abs(value) < 1 - 1e-9
        z, shift = np.arctanh(value[other]), shift[other] / (1 - value[other] ** 2)
        low[other], high[other] = np.tanh(z - shift), np.tanh(z + shift)
        return low, high
    if measure == "r2":
        return score.low, np.minimum(score.high, 1)
    value = value.clip(0, 1)
    n = np.full(len(value), float(score.n))
    n[varies] = (value * (1 - value))[varies] / stderr[varies] ** 2
    low, high = proportion_confint(value * n, n, 2 * norm.sf(quantile), method="wilson")
    return low, high
