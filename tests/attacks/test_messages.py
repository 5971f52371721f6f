"""Sentences blame what is wrong, and not its neighbour."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from attack import REFUSED, Tally, tally
from configs import filled, put

from layerwise.config import Config
from layerwise.config.studies import Study
from layerwise.figures.render import draw

__all__ = ["tally"]

AREA = "messages"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1000, 2000], "models.a.revisions[0]: 1000 came; accepted is string: put it in quotes"),
        ([True, 1], "models.a.revisions[0]: true came; accepted is string: put it in quotes"),
        (["a", 3, "..", None], "models.a.revisions[1]: 3 came; accepted is string: put it in quotes"),
        (["..", "/x", ""], 'models.a.revisions[0]: ".." cannot be a name'),
        ("sweep", "one of 'all', 'log'"),
        ([["step1"]], 'models.a.revisions[0]: ["step1"] came; accepted is string'),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_revisions(tally: Tally, value: Any, said: str) -> None:
    document = put(filled(), ("models", "a", "revisions"), value)
    message, _ = tally.attack(AREA, lambda: Config.of(document), outcome=REFUSED)
    assert message is not None
    assert said in message


def test_names_that_would_be_formulas_are_drawn_as_they_are(tally: Tally) -> None:
    """A table made by hand may hold any name; matplotlib would take dollars for mathematics."""
    name = "$\\frac{$ $x$ \\alpha_{"
    rows = [
        {"model": name, "revision": "main", "task": task, "task_type": "STS", "subset": "default",
         "split": "test", "layer": layer, "depth": layer / 3, "tokens": "all", "pooling": "mean",
         "main_score": 0.1 * layer, "score_low": np.nan, "score_high": np.nan, "n_runs": 1}
        for layer in range(4) for task in ("a", "b")
    ]  # fmt: skip
    study = Study(kind="score_by_depth")

    def figure() -> set[str]:
        drawn = draw(study, {"scores": pd.DataFrame(rows)})
        drawn.figure.savefig("/dev/null", format="png")
        return {text.get_text() for text in drawn.figure.findobj(lambda o: hasattr(o, "get_text"))}

    message, texts = tally.attack(AREA, figure)
    assert message is None
    assert texts is not None
    assert any(name in text for text in texts)
