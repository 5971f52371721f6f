"""What a caption says of where the uncertainty of a difference between layers comes from."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from association_tables import tidy_scores

from layerwise.association.curves import score_curves
from layerwise.section import parse
from layerwise.config.studies import Study
from layerwise.figures.sources import of_leads
from layerwise.figures.studies import Tables, draw


def scores(models: int, rng: np.random.Generator, spread: float) -> pd.DataFrame:
    """Leads over the output that differ by model (so much) and by task (.01)."""
    tasks = 0.01 * rng.normal(size=(12, 1))
    drawn = []
    for m in range(models):
        lead = spread * rng.normal() + tasks + 0.001 * rng.normal(size=(12, 7))
        lead[:, -1] = 0
        drawn.append(tidy_scores(0.5 + lead, model=f"m{m}"))
    return pd.concat(drawn, ignore_index=True)


def test_variance_is_laid_to_the_source_that_it_comes_from() -> None:
    rng = np.random.default_rng(0)
    found = of_leads(score_curves(scores(30, rng, 0.03)))
    assert found is not None
    assert found.levels == {"task": 12, "model": 30}
    assert found.variance["model"] == pytest.approx(9, rel=0.5)
    assert found.variance["task"] == pytest.approx(1, rel=0.7)
    assert found.variance["residual"] == pytest.approx(0.01, rel=0.3)
    alone = of_leads(score_curves(scores(1, rng, 0.03)))
    assert alone is not None
    assert set(alone.levels) == {"task"}


def test_a_caption_says_what_would_make_a_lead_surer() -> None:
    table = scores(4, np.random.default_rng(1), 0.03)
    study = parse(Study, {"kind": "score_by_depth"})
    drawn = draw(study, Tables(scores=table))
    said = drawn.caption[drawn.caption.index("What would make") :]
    assert "between models" in said
    assert "with twice the models" in said
    levels, error = (drawn.facts["sources"][k] for k in ("levels", "error"))
    variance = drawn.facts["sources"]["variance"]
    assert error**2 == pytest.approx(
        sum(variance[k] / n for k, n in levels.items())
        + variance["residual"] / np.prod(list(levels.values()))
    )
