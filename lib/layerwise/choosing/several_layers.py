"""Compare several layers together with the best layer and with the model's output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from layerwise import stats
from layerwise.choosing.by_scores import interval, widening
from layerwise.choosing.choice import with_ends
from layerwise.tasks import several
from layerwise.tasks.labelled import Labels


def compare_several(
    data: Labels, layers: Sequence[several.Columns], k: int
) -> tuple[pd.DataFrame, str]:
    """Compare k layers together with the best layer, selected in the same way, and the output.

    Parameters
    ----------
    layers : sequence
        Vectors of every layer, as `layerwise.tasks.several.combinations`, which says how layers
        are selected.

    Returns
    -------
    table : DataFrame
        The columns used, layers (those that most splits selected), score, low, high, gain (over
        the best layer), gain_low, gain_high, over_output, over_output_low, over_output_high. The
        95% intervals of a column hold for all rows together.
    sentence : str
        What the best combination gains.
    """
    found = [one for one in several.combinations(data, layers, k) if one.score.parts is not None]
    parts = np.stack([np.asarray(one.score.parts) for one in found], axis=1)
    parts *= len(parts)
    factor = widening(found[0].score, data.kind)
    low, high = interval(stats.simultaneous_ci(parts, widening=factor), data.kind)
    table = pd.DataFrame(
        {
            "used": [one.name for one in found],
            "layers": [_most_selected(one.layers) for one in found],
            "score": parts.mean(axis=0),
            "low": low,
            "high": high,
        }
    )
    for name, against in (("gain", 1), ("over_output", 0)):
        more = stats.simultaneous_ci(parts - parts[:, [against]], widening=factor)
        table[name], table[f"{name}_low"], table[f"{name}_high"] = more[:3]
    best: Any = max(table.to_dict("records")[2:], key=lambda row: row["score"])
    low, high = best["gain_low"], best["gain_high"]
    certain = "significant" if low > 0 or high < 0 else "not significant"
    return table, (
        f"Of {k} layers together, the {best['used']} score best: {with_ends(best)}, "
        f"{100 * best['gain']:+.1f} points against the best layer ({100 * low:+.1f} to "
        f"{100 * high:+.1f}), which is {certain}."
    )


def _most_selected(of_splits: Sequence[tuple[int, ...]]) -> str:
    ((layers, n),) = Counter(tuple(sorted(one)) for one in of_splits).most_common(1)
    share = "" if n == len(of_splits) else f" ({n} of {len(of_splits)} splits)"
    return " ".join(map(str, layers)) + share
