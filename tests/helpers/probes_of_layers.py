"""Linear probes of all layers at once: the predictions of `layerwise.tasks.probes`, faster.

For simulations, which fit millions of probes. Two classes, or numbers.
"""

from collections.abc import Sequence

import numpy as np
from scipy.special import expit
from sklearn.metrics import accuracy_score, r2_score

from layerwise.tasks import probes
from layerwise.tasks.evaluate import Score
from layerwise.tasks.labelled import Labels
from layerwise.tasks.probes import LEAST, PENALTIES, Split

STEPS, TOLERANCE = 300, 3e-4


class Linear:
    """Linear models of L layers, fitted on some rows, in the basis of their principal axes.

    Parameters
    ----------
    x : array, shape (L, n, D)
    rows : array of int
        Rows that features are standardised over and models fitted on.
    y : array, shape (n,)
        Of integers 0 and 1, or of floats.
    """

    def __init__(self, x: np.ndarray, rows: np.ndarray, y: np.ndarray) -> None:
        known = x[:, rows]
        mean, spread = known.mean(axis=1, keepdims=True), known.std(axis=1, keepdims=True)
        x = (x - mean) / spread
        known = x[:, rows]
        variances, axes = np.linalg.eigh(known.transpose(0, 2, 1) @ known / len(rows))
        rank = min(len(rows) - 1, x.shape[2])
        self.y = y[rows]
        self.of_classes = y.dtype.kind == "i"
        dtype = np.float32 if self.of_classes else np.float64
        self.variances = variances[:, -rank:].astype(dtype)
        self.x = (x @ axes[:, :, -rank:]).astype(dtype)
        self.known = np.ascontiguousarray(self.x[:, rows])
        self.weights, self.bias = np.zeros_like(self.variances), np.zeros(len(x), dtype)

    def fit(self, penalty: float, layers: np.ndarray) -> None:
        """Fit some layers, classes from where their last fit ended."""
        x, variances, n = self.known[layers], self.variances[layers], len(self.y)
        if not self.of_classes:
            self.bias[layers] = self.y.mean()
            towards = np.matvec(x.transpose(0, 2, 1), self.y - self.y.mean()) / n
            self.weights[layers] = towards / (variances + penalty)
            return
        weights, bias = self.weights[layers], self.bias[layers]
        for _ in range(STEPS):
            wrong = (expit(np.matvec(x, weights) + bias[:, None]) - self.y) / n
            slope = np.matvec(x.transpose(0, 2, 1), wrong) + penalty * weights
            slope_of_bias = wrong.sum(axis=1)
            if max(np.abs(slope).max(), np.abs(slope_of_bias).max()) < TOLERANCE:
                break
            # No curvature of the loss is above 1/4 of the variance (Böhning & Lindsay 1988).
            weights -= slope / (variances / 4 + penalty)
            bias -= 4 * slope_of_bias
        self.weights[layers], self.bias[layers] = weights, bias

    def predict(self, layers: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Predictions, shape (layers, rows): numbers, or log-odds of class 1."""
        found = np.matvec(self.x[np.ix_(layers, rows)], self.weights[layers])
        return found + self.bias[layers, None]


def predictions(x: np.ndarray, y: np.ndarray, splits: Sequence[Split]) -> np.ndarray:
    """Predictions of test rows, shape (L, n), as `Linear.predict`; parameters as there."""
    found, every = np.empty(x.shape[:2]), np.arange(len(x))
    for split in splits:
        chosen = chosen_penalties(Linear(x, split.train, y), split.validation, y)
        model = Linear(x, split.fitted, y)
        for k, penalty in enumerate(PENALTIES[: chosen.max() + 1]):
            model.fit(penalty, every[chosen >= k])
        found[:, split.test] = model.predict(every, split.test)
    return found


def chosen_penalties(model: Linear, validation: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Index of each layer's penalty: the strongest within a standard error of the best."""
    truth, layers = y[validation], np.arange(len(model.x))
    means = np.full((len(PENALTIES), len(layers)), np.nan)
    stderrs = np.full_like(means, np.nan)
    open_ones = layers
    for k, penalty in enumerate(PENALTIES):
        model.fit(penalty, open_ones)
        found = model.predict(open_ones, validation).astype(float)
        if model.of_classes:
            losses = -np.log(expit(np.where(truth == 1, found, -found)).clip(LEAST))
        else:
            losses = (found - truth) ** 2
        means[k, open_ones] = losses.mean(axis=1)
        stderrs[k, open_ones] = losses.std(axis=1, ddof=1) / np.sqrt(len(truth))
        best = np.nanargmin(means, axis=0)
        open_ones = np.flatnonzero(np.isfinite(means[k]) & (k - best < 2))
        if not len(open_ones):
            break
    return np.asarray((means <= means[best, layers] + stderrs[best, layers]).argmax(axis=0))


def layer_scores(data: Labels, x: np.ndarray) -> list[Score]:
    """What `layerwise.tasks.labelled.layer_score` tells the choice of a layer.

    Parameters
    ----------
    data : Labels
        Of two classes, or numbers; at most `layerwise.tasks.probes.FEW` rows.
    x : array, shape (L, n, D)
    """
    return scores_of(data, predictions(x, data.labels, data.splits))


def scores_of(data: Labels, found: np.ndarray, measure: str = "") -> list[Score]:
    """The same from predictions, by accuracy or R² or the score that is named."""
    y, n, splits = data.labels, len(data.labels), data.splits
    usual = np.empty(n)
    for split in splits:
        known = y[split.fitted]
        usual[split.test] = np.bincount(known).argmax() if y.dtype.kind == "i" else known.mean()
    is_class = y.dtype.kind == "i"
    baseline = accuracy_score(y, usual) if is_class else r2_score(y, usual)
    tested = np.concatenate([split.test for split in splits])
    groups, truth = np.array(data.groups)[tested], y[tested]
    tested_by = np.repeat(np.arange(len(splits)), [len(split.test) for split in splits])
    compared = (found[:, tested] > 0).astype(int) if is_class else found[:, tested]
    if measure in probes.OF_SHARES:
        compared = expit(np.stack([-found[:, tested], found[:, tested]], axis=-1))
    about = {"n_runs": n, "n_train": len(splits[0].fitted), "baseline": baseline}
    return [
        Score(values.mean(), values=values, **about)
        for values in (
            probes.pseudo_values(measure, one, truth, groups, tested_by)
            if measure
            else fast_values(one, truth, groups)
            for one in compared
        )
    ]


def fast_values(predicted: np.ndarray, truth: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """`layerwise.tasks.probes.pseudo_values` of accuracy or R², from sums over rows."""
    blocks = probes.blocks_of(groups, np.zeros(len(truth), int))
    rows = [np.ones(len(truth)), predicted == truth]
    if truth.dtype.kind == "f":
        rows = [np.ones(len(truth)), (predicted - truth) ** 2, truth, truth**2]
    sums = np.stack([np.bincount(blocks, row) for row in rows])

    def score(n: np.ndarray, first: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        return 1 - first / (rest[1] - rest[0] ** 2 / n) if rest else first / n

    whole, n = sums.sum(axis=1), sums.shape[1]
    values = n * score(*whole) - (n - 1) * score(*(whole[:, None] - sums))
    return values + score(*whole) - values.mean()
