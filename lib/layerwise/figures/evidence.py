"""What associations are evidence of, for titles and captions: tests, and counts against chance."""

from __future__ import annotations

from typing import Any

import pandas as pd

from layerwise.association.curves import VARIANT
from layerwise.association.table import MATCH, POOLED
from layerwise.figures.labels import SYMBOLS, counted
from layerwise.statistics.headlines import ALPHA, NO_EVIDENCE

# By scripts/plan_power.py --r 0.5, at 7, 13 and 25 layers; a test holds it to that.
POWER = (
    "A test across models would see a metric that goes with the scores at r = .5 beyond depth in "
    "about half of cases with 6 models, and in .8 to .95 with 12."
)
READING = ["tokens", "pooling"]
TASK_TYPE = ["task_type"]


def matched(associations: pd.DataFrame, shown: pd.DataFrame, task_type: str) -> dict[str, Any]:
    """How many of the metrics shown belong to their own models' scores.

    Parameters
    ----------
    shown : DataFrame
        Metrics and readings, in the columns of `VARIANT`, tokens and pooling.

    Returns
    -------
    dict
        n, k (corrected p ≤ .05), models, best_p, and `reason` where there is no test.
    """
    over = associations[
        (associations["model"] == POOLED)
        & (associations["measure"] == MATCH)
        & (associations["task_type"] == task_type)
    ]
    keys = [*VARIANT, *READING]
    wanted = shown[keys].assign(alpha=pd.to_numeric(shown["alpha"], errors="coerce"))
    mine = over.merge(wanted.drop_duplicates(), on=keys)
    known = mine[mine["p_all"].notna()]
    reason = "" if len(known) else "one model has one curve, and no test of it"
    if len(mine) and not len(known):
        reason = str(mine["reason"].iloc[0])
    return {
        "n": len(known),
        "k": int((known["p_all"] <= ALPHA).sum()),
        "models": int(known["n_models"].iloc[0]) if len(known) else 0,
        "best_p": float(known["p_all"].min()) if len(known) else None,
        "reason": reason,
    }


def beyond_chance(table: pd.DataFrame) -> dict[str, Any]:
    """How many sizes exceed what 95 % of unrelated curves stay below; chance gives 1 in 20."""
    known = table[table["value"].notna() & table["chance"].notna()]
    return {
        "n": len(known),
        "k": int((known["value"].abs() > known["chance"]).sum()),
        "expected": 0.05 * len(known),
    }


def title(test: dict[str, Any], sizes: dict[str, Any], measure: str) -> str:
    """What may be said, with what chance gives beside every count."""
    count = (
        f"{sizes['k']} of {sizes['n']} {SYMBOLS[measure]} exceed what unrelated curves reach, by "
        f"chance {sizes['expected']:.1f}"
    )
    said = "a metric says more of the score than depth does"
    if test["k"]:
        return (
            f"{test['k']} of {counted(test['n'], 'metric')} say more of the score than depth does "
            f"(matched across {test['models']} models, corrected p ≤ .05, by chance none in 19 of "
            f"20 cases); {count}"
        )
    why = (
        f"0 of {test['n']} matched across {test['models']} models, smallest corrected p "
        f"{test['best_p']:.2f}"
        if test["n"]
        else test["reason"]
    )
    return f"{NO_EVIDENCE.capitalize()} that {said} ({why}); {count}"


def explained(test: dict[str, Any]) -> str:
    """How the title's test works, as sentences for a caption."""
    if not test["n"]:
        return (
            f"No p is given ({test['reason']}): the layers of a model are one curve, and "
            f"shuffling or shifting them makes no test. {POWER}"
        )
    return (
        "The test permutes which model's scores meet which model's metric, both less their mean "
        f"over {test['models']} models at each depth, and corrects for all metrics and readings."
    )
