"""Compare several layers together with the best layer and with the model's output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from layerwise.choosing.by_scores import Intervals
from layerwise.choosing.choice import with_ends
from layerwise.errors import LayerwiseError
from layerwise.tasks import several
from layerwise.tasks.labelled import Labels
from layerwise.tasks.task import Combination


class Comparison(NamedTuple):
    """Several layers together against one layer.

    Attributes
    ----------
    table : DataFrame
        The columns used, layers (those that all rows select, with the number of splits that agree
        if not all do), score, low, high, difference (from the output), gain (over the best
        layer), and the ends of both. The 95% intervals of a column hold for all rows together.
    reason : str
        What the best combination gains.
    better : Combination, optional
        The best combination, if it scores significantly higher than the best layer, the output and
        guessing.
    """

    table: pd.DataFrame
    reason: str
    better: Combination | None


def compare_several(
    data: Labels, layers: Sequence[several.Columns], k: int, *, normalize: bool = False
) -> Comparison:
    """Compare k layers together with the best layer, selected in the same way, and the output.

    Parameters
    ----------
    layers, normalize
        As for `layerwise.tasks.several.combinations`, which says how layers are selected.

    Raises
    ------
    LayerwiseError
        If the output, the best layer, or every combination has no score.
    """
    every = several.combinations(data, layers, k, normalize=normalize)
    found = [one for one in every if one.score.parts is not None]
    if found[:2] != every[:2] or len(found) == 2:
        missing = next(one for one in every if one.score.parts is None)
        raise LayerwiseError(
            f"These labels give no score of several layers together: of {missing.name}, "
            f"{missing.score.why}.",
            code="undefined",
        )
    intervals = Intervals([one.score for one in found], data.kind)
    low, high = intervals.of_scores()
    table = pd.DataFrame(
        {
            "used": [one.name for one in found],
            "layers": [_selected(one) for one in found],
            "score": intervals.scores,
            "low": low,
            "high": high,
        }
    )
    for name, against in (("difference", 0), ("gain", 1)):
        more = intervals.of_differences(against)
        table[name], table[f"{name}_low"], table[f"{name}_high"] = more[:3]
    place = 2 + int(table["score"][2:].to_numpy().argmax())
    best: Any = table.to_dict("records")[place]
    low, high = best["gain_low"], best["gain_high"]
    certain = "significant" if low > 0 or high < 0 else "not significant"
    guessing = found[place].score.baseline or 0.0
    better = low > 0 and best["difference_low"] > 0 and best["low"] > guessing
    return Comparison(
        table,
        f"Of {k} layers together, the {best['used']}, score best: {with_ends(best)}, "
        f"{100 * best['gain']:+.1f} points against the best layer ({100 * low:+.1f} to "
        f"{100 * high:+.1f}), which is {certain}.",
        found[place].layers if better else None,
    )


def _selected(candidate: several.Candidate) -> str:
    layers, splits = candidate.layers.layers, candidate.of_splits
    n = splits.count(layers)
    agree = "" if n == len(splits) else f" ({n} of {len(splits)} splits)"
    return " ".join(map(str, layers)) + agree
