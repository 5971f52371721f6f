"""Text sources of tasks: tasks made of the same texts are not independent.

A task that is not listed here is its own source, unless `association.text_sources` names one.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

COLUMN = "text_source"

SHARED: Mapping[str, str] = {
    # Of the paper's 32. STSBenchmark is a selection from STS12 to STS17.
    "MassiveIntentClassification": "massive",
    "MassiveScenarioClassification": "massive",
    "MTOPDomainClassification": "mtop",
    "MTOPIntentClassification": "mtop",
    **{f"STS{year}": "sts" for year in range(12, 18)},
    "STSBenchmark": "sts",
}


def with_text_sources(scores: pd.DataFrame, own: Mapping[str, str]) -> pd.DataFrame:
    """Scores with the text source of each task in the column `COLUMN`.

    Parameters
    ----------
    own : mapping of task to text source
        What the config says; it comes before what is known here.
    """
    if "task" not in scores.columns:
        return scores  # score_curves names the missing column
    sources = scores["task"].astype(str).replace({**SHARED, **own})
    return scores.assign(**{COLUMN: sources})
