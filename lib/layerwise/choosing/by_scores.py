"""Choose a layer by its scores on labels: of the least expected loss, or the cheapest.

Layers are compared with the model's output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm

from layerwise import stats
from layerwise.choosing.choice import Choice, advice, with_ends
from layerwise.errors import LayerwiseError
from layerwise.tasks import measures
from layerwise.tasks.results import Score

# Variance added for the training rows that probes share, in units of
# Nadeau and Bengio's (2003), and more for each tested row of scores that change much with the
# penalty, which varies between splits whatever the rows. Simulated (docs/statistics.md).
ADDED_VARIANCE, ADDED_IF_VARYING, ADDED_PER_ROW = 0.8, 1.6, 0.0044
VARYING = ("r2", "balanced_accuracy", "macro_f1")
OF_WHAT = {"pairs": "with the cosine", "tags": "of a linear probe on words"}


def choose_by_scores(
    scores: Sequence[Score],
    kind: str,
    tokens: str = "all",
    within: float | None = None,
    *,
    significant: bool = False,
    measure: str = "",
) -> Choice:
    """Choose by the scores of layers 0 to L, the last of which is the output.

    The layer of the largest expected gain over the output (`expected_gains`) is chosen, which is
    the one of the least expected loss. With `significant`, the best layer is chosen if it is
    significantly better than the output; with `within`, the first layer of which the expected
    loss against the output is at most so many points.

    The best layer is selected among L + 1, and an interval that ignores this would be too high.
    The intervals of scores and differences hold for all layers together: their quantile is that of
    the largest |t| over layers, with the correlation between layers
    (`layerwise.stats.simultaneous_ci`). With it, intervals of scores from 0 to 1 are Wilson's,
    those of correlations are on Fisher's z scale, and those of R² end at 1, so they stay in the
    range of the score.

    Parameters
    ----------
    measure : str
        Name of the score, of `layerwise.tasks.measures`; by default the kind's first.

    Raises
    ------
    LayerwiseError
        If the last layer has no score.
    """
    scored = {layer: one for layer, one in enumerate(scores) if one.parts is not None}
    if len(scores) - 1 not in scored:
        why = next(one.why for one in scores if one.parts is None)
        raise LayerwiseError(f"These labels give no score: {why}.", code="undefined")
    measure = measure or measures.OF_KIND[kind][0]
    intervals = Intervals([*scored.values()], measure)
    table = pd.DataFrame({"score": intervals.scores}, index=pd.Index(scored, name="layer"))
    table["low"], table["high"] = intervals.of_scores()
    lead = intervals.of_differences(-1)
    table["difference"], table["difference_low"], table["difference_high"] = lead[:3]
    depth = np.array([*scored]) / max(1, len(scores) - 1)
    gain, error = expected_gains(intervals.scores, intervals.covariance(), depth)
    quantile = norm.isf(0.025)
    table["gain"], table["gain_low"] = gain, gain - quantile * error
    table["gain_high"] = gain + quantile * error
    table = table.reindex(range(len(scores))).reset_index().assign(n=scores[-1].n_runs)
    if within is None:
        layer, reason = _conclusion(table, scores[-1].baseline or 0.0, significant=significant)
    else:
        layer, reason = _cheapest(table, within, significant=significant)
    score = f"{measures.NAMES[measure]} {OF_WHAT.get(kind, 'of a linear probe')}"
    return Choice(layer, advice(layer, len(scores) - 1), reason, tokens, score, table)


# What is expected of a curve of scores before it is measured (docs/statistics.md).
# Decline of the mean curve from the output to the embeddings.
DECLINE = 0.1
# Standard deviation of smooth departures from it, and the depth over which they change.
SPREAD, LENGTH = 0.1, 0.2
# Standard deviation of each layer on its own.
ROUGHNESS = 0.02


def expected_gains(scores: Any, covariance: Any, depth: Any) -> tuple[Any, Any]:
    """Posterior means, and standard deviations, of each score's difference from the last one.

    The curve of true scores over depth is a Gaussian process of unknown level that declines away
    from the output. Noisy scores are shrunk towards their neighbours and towards this curve, so
    few rows favour the output, and many rows the highest score.

    Parameters
    ----------
    scores, depth : array, shape (k,)
    covariance : array, shape (k, k)
        Of the errors of the scores.
    """
    apart = depth[:, None] - depth
    prior = SPREAD**2 * np.exp(-((apart / LENGTH) ** 2) / 2) + ROUGHNESS**2 * np.eye(len(depth))
    prior += 1  # The level of the curve may be anything.
    expected = DECLINE * (depth - 1)
    weights = np.linalg.solve(prior + covariance, prior).T
    means = expected + weights @ (scores - expected)
    errors = prior - weights @ prior
    variance = np.diag(errors) + errors[-1, -1] - 2 * errors[:, -1]
    return means - means[-1], np.sqrt(variance.clip(0))


class Intervals:
    """95% intervals of several scores on the same rows, which hold for all of them together."""

    def __init__(self, scores: Sequence[Score], measure: str) -> None:
        self.measure, groups = measure, scores[-1].groups
        # Each row's contribution times their number has the score as its mean.
        self.rows = np.stack([np.asarray(one.parts) for one in scores], axis=1)
        self.rows *= len(self.rows)
        self.groups = np.arange(len(self.rows)) if groups is None else groups
        self.scores = self.rows.mean(axis=0)
        self.factor = widening(scores[-1], measure)

    def covariance(self) -> Any:
        """Covariance of the errors of the scores, by groups."""
        more = (self.rows - self.scores) / len(self.rows)
        sums = np.stack([np.bincount(self.groups, column) for column in more.T], axis=1)
        return self.factor**2 * len(sums) / (len(sums) - 1) * sums.T @ sums

    def of_scores(self) -> tuple[Any, Any]:
        """Ends of the intervals of the scores."""
        ends = stats.simultaneous_ci(self.rows, self.groups, 0, self.factor)
        return interval(ends, self.measure)

    def of_differences(self, column: int) -> stats.Estimate:
        """Intervals of the differences from one of the scores.

        They are of sums over groups: of few groups, those that correct for the sizes of groups
        are too narrow (docs/statistics.md).
        """
        more = self.rows - self.rows[:, [column]]
        sums = np.stack([np.bincount(self.groups, one) for one in more.T], axis=1)
        return stats.simultaneous_ci(sums * len(sums) / len(more), widening=self.factor)


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


def _conclusion(table: pd.DataFrame, guessing: float, *, significant: bool) -> tuple[int, str]:
    """The layer to use, and the reason.

    Another layer has to be expected to score higher than the output, or, if it has to be certain,
    to score significantly higher than the output and than guessing.
    """
    rows: Any = table.to_dict("records")
    column = "difference" if significant else "gain"
    output, best = rows[-1], rows[int(np.nanargmax(table[column]))]
    last, layer = output["layer"], best["layer"]
    if best[column] <= 1e-12:
        verb = "scores" if significant else "is expected to score"
        easy = "; these labels are too easy" if np.ptp(table["score"]) == 0 else ""
        return last, f"It scores {with_ends(output)}, and no other layer {verb} higher{easy}."
    is_guess = best["low"] <= guessing
    not_better = f"not significantly better than guessing ({guessing:.2f})"
    if significant and is_guess:
        return last, f"Layer {layer} is ahead with {with_ends(best)}, {not_better}."
    if significant and best["difference_low"] <= 0:
        lead = f"layer {layer} scores {best['score']:.2f}, {_points(best, column)} above it"
        return last, f"It scores {with_ends(output)}; {lead}, which is not significant."
    certain = "significant" if best["difference_low"] > 0 else "not significant"
    what = "Lead" if significant else "Expected gain"
    score = f"{with_ends(best)}, {not_better}" if is_guess else with_ends(best)
    return layer, (
        f"It scores {score}. {what} over the output: {_points(best, column)}, {certain}."
    )


def _points(row: Any, column: str) -> str:
    """A difference in points, with its interval."""
    value, low, high = (100 * row[column + end] for end in ("", "_low", "_high"))
    return f"{value:z.1f} points (95% CI {low:z.1f} to {high:z.1f})"


def _cheapest(table: pd.DataFrame, within: float, *, significant: bool) -> tuple[int, str]:
    """The first layer that is expected, or certain, to lose at most so many points, and why."""
    last = len(table) - 1
    column, bound = ("difference", "difference_low") if significant else ("gain", "gain")
    rows: Any = table.to_dict("records")
    layer = next((n for n in range(last) if rows[n][bound] >= -within / 100), last)
    if layer == last:
        what = "certain" if significant else "expected"
        return last, f"No earlier layer is {what} to lose at most {within:g} points."
    row = rows[layer]
    reason = f"It scores {with_ends(row)}, {_points(row, column)} against the output"
    if significant:
        return layer, f"{reason}."
    error = (row["gain_high"] - row["gain"]) / norm.isf(0.025)
    more = norm.cdf((-within / 100 - row["gain"]) / error) if error else 0.0
    return layer, f"{reason}; the probability that it loses more than {within:g} is {more:.2f}."
