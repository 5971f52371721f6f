"""Sentences blame what is wrong, and not its neighbour."""

from __future__ import annotations

from random import Random

import numpy as np
import pandas as pd
import pytest
from attack import Tally, tally
from configs import VALUES, filled, places, put, renamed

from layerwise.config import Config
from layerwise.config.studies import Study
from layerwise.errors import ConfigError
from layerwise.figures.render import draw

__all__ = ["tally"]

AREA = "messages"


@pytest.mark.parametrize("seed", range(4))
def test_any_value_anywhere_is_read_or_refused_in_a_line(seed: int) -> None:
    random = Random(seed)
    base = filled()
    everywhere = list(places(base))
    for _ in range(200):
        place, value = random.choice(everywhere), random.choice(VALUES)
        name = value if isinstance(value, str) and isinstance(place[-1], str) else None
        change = renamed if name and random.random() < 0.2 else put
        document = change(base, place, name if change is renamed else value)
        try:
            config = Config.of(document)
        except ConfigError as error:
            assert "\n" not in str(error)
        else:
            assert Config.of(config.plain()) == config


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
