"""Counts and winners with what chance would have given.

"An earlier layer beats the last in 3 of 4 models" is true of models whose layers are all alike:
the last of 31 is rarely the highest. So no count stands without the count to be expected when the
layers cannot be told apart, and no winner among rules without the score it gets where it was not
chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError
from layerwise.statistics.sampling import design, draws_like

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

NO_EVIDENCE = "no evidence"
ALPHA = 0.05


@dataclass(frozen=True)
class Count:
    """How many of n, and what chance gives.

    Attributes
    ----------
    k, n : int
    expected : float
        By chance.
    p : float
        Chance of k or more, under independence of the n; in (0, 1].
    """

    k: int
    n: int
    expected: float
    p: float

    @property
    def stands(self) -> bool:
        """Whether chance gives so many in fewer than 5 % of cases."""
        return self.p <= ALPHA

    def text(self, what: str, unit: str) -> str:
        """One sentence for a title, with the chance expectation in it.

        >>> Count(2, 4, 3.7, 0.99).text("An earlier layer beats the last", "models")
        'No evidence that an earlier layer beats the last: in 2 of 4 models, by chance in 3.7'
        """
        expected = f"{self.expected:.1f}".removesuffix(".0")
        said = f"in {self.k} of {self.n} {unit}, by chance in {expected}"
        if self.stands:
            return f"{what} {said}"
        return f"{NO_EVIDENCE.capitalize()} that {what[0].lower()}{what[1:]}: {said}"


@dataclass(frozen=True)
class BestRule:
    """The best of several rules for choosing a layer, and what is left of it elsewhere.

    Attributes
    ----------
    rule : int
        Place of the rule with the lowest mean regret over all models.
    apparent : float
        Its mean regret on the very models it was chosen by.
    nested : float
        Mean regret, on each model left out, of the rule that is best on the others; ties share.
    nested_each : array, shape (M,)
        The same on each model.
    distinct : int
        Number of rules that differ in a pick.
    p : float
        Chance that the best of so many rules does as well when a rule's picks have nothing to do
        with the model: each distinct rule's picks are dealt out to the models at random.
    """

    rule: int
    apparent: float
    nested: float
    nested_each: Floats
    distinct: int
    p: float


def count(k: int, chances: npt.ArrayLike) -> Count:
    """A count of n independent events against the chance of each.

    Parameters
    ----------
    k : int
    chances : array, shape (n,)
        Each in [0, 1].
    """
    odds = np.atleast_1d(np.asarray(chances, dtype=np.float64))
    if not (0 <= k <= len(odds)) or (odds < 0).any() or (odds > 1).any():
        raise LayerwiseError(
            f"A count of {k} in {len(odds)} with chances from {odds.min():g} to {odds.max():g} "
            "makes no sense: k is at most the number of chances, each within 0 and 1."
        )
    pmf = np.ones(1)
    for chance in odds:
        pmf = np.convolve(pmf, [1 - chance, chance])
    return Count(k, len(odds), float(odds.sum()), float(min(pmf[k:].sum(), 1.0)))


def earlier_is_best(scores: Sequence[npt.ArrayLike]) -> Count:
    """In how many models the best layer is not the last, against layers in random order.

    With L exchangeable layers the last is the best with a chance of 1 / L.

    Parameters
    ----------
    scores : sequence of arrays, shape (T, L_m) or (L_m,)
        Of each model, last layer last.
    """
    means = [np.atleast_2d(np.asarray(s, dtype=np.float64)).mean(axis=0) for s in scores]
    k = sum(int(m.argmax() < len(m) - 1) for m in means)
    return count(k, [1 - 1 / len(m) for m in means])


def earlier_is_best_if_equal(
    scores: npt.ArrayLike,
    sources: Sequence[object] | None = None,
    draws: int = 2000,
    seed: int = 0,
) -> float:
    """Chance that the last layer is not the best of one model whose layers are equally good.

    Drawn with the covariance over layers that the tasks show: neighbours go together, so the last
    layer, at an end, is the best more often than 1 / L.

    Parameters
    ----------
    scores : array, shape (T, L)
    """
    values = np.asarray(scores, dtype=np.float64)
    rng = np.random.default_rng(seed)
    drawn = draws_like(values, design(len(values), sources), draws, rng).mean(axis=1)
    return float((drawn.argmax(axis=1) < values.shape[1] - 1).mean())


def told_apart(signs: Sequence[int], wanted: int = 1, level: float = 0.95) -> Count:
    """How many intervals leave out 0 on one side, against the share that does so by chance.

    Parameters
    ----------
    signs : sequence of int
        ``Gain.sign`` or ``Interval.sign`` of each model (or task).
    wanted : int
        +1 or -1.
    """
    return count(sum(s == wanted for s in signs), [(1 - level) / 2] * len(signs))


def distinct(picks: npt.ArrayLike) -> Ints:
    """Which rules pick the same layer everywhere.

    Parameters
    ----------
    picks : array of int, shape (R, M)

    Returns
    -------
    array of int, shape (R,)
        Place of the first rule with the same picks: rule r is a duplicate unless it is r itself.
    """
    first: dict[bytes, int] = {}
    rows = np.ascontiguousarray(np.asarray(picks, dtype=np.int64))
    return np.array([first.setdefault(row.tobytes(), i) for i, row in enumerate(rows)], dtype=int)


def best_rule(
    picks: npt.ArrayLike,
    scores: Sequence[npt.ArrayLike],
    *,
    best: npt.ArrayLike | None = None,
    draws: int = 5000,
    seed: int = 0,
) -> BestRule:
    """The best of several rules over several models, nested and against chance.

    Parameters
    ----------
    picks : array of int, shape (R, M)
        The layer that each rule picks in each model.
    scores : sequence of M arrays, shape (L_m,)
        Mean score over tasks of each layer that can be picked.
    best : array, shape (M,), optional
        Best score of each model, where something that is no layer, as its output, may be better;
        by default that of its best layer.
    draws : int
        For p. Under chance each distinct rule's relative depths are dealt out among the models at
        random (a rule that always says "two thirds down" is its own chance, and gets p = 1); with
        fewer than four models there is no p.

    Raises
    ------
    LayerwiseError
        If there are fewer than two models.
    """
    rows = np.asarray(picks, dtype=np.int64)
    curves = [np.asarray(s, dtype=np.float64) for s in scores]
    if rows.ndim != 2 or rows.shape[1] != len(curves) or len(curves) < 2:
        raise LayerwiseError(
            f"The best of several rules needs picks of shape (rules, models) for two models or "
            f"more; these are {rows.shape} for {len(curves)} models."
        )
    kept = np.flatnonzero(distinct(rows) == np.arange(len(rows)))
    tops = [c.max() for c in curves] if best is None else np.asarray(best, dtype=np.float64)
    regret = np.stack([tops[m] - c[rows[kept, m]] for m, c in enumerate(curves)], axis=1)
    mean = regret.mean(axis=1)
    others = (regret.sum(axis=1, keepdims=True) - regret) / (len(curves) - 1)
    winners = others <= others.min(axis=0) + 1e-12
    nested = np.asarray((regret * winners).sum(axis=0) / winners.sum(axis=0))
    p = float("nan")
    if len(curves) >= 4:
        rng = np.random.default_rng(seed)
        last = np.array([len(c) - 1 for c in curves])
        depths = rows[kept] / last
        least = np.empty(draws)
        for i in range(draws):
            dealt = rng.permuted(depths, axis=1)
            at = np.rint(dealt * last).astype(int)
            least[i] = np.mean([tops[m] - c[at[:, m]] for m, c in enumerate(curves)], axis=0).min()
        p = float((1 + (least <= mean.min() + 1e-12).sum()) / (1 + draws))
    best_of_all = int(kept[mean.argmin()])
    return BestRule(best_of_all, float(mean.min()), float(nested.mean()), nested, len(kept), p)
