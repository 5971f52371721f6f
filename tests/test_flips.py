"""Flips of signs: exact for few, and what they correct for."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from layerwise.statistics.flips import flips


def test_the_first_flip_is_none_and_few_are_exact() -> None:
    values = np.array([[1.0, 2.0, 3.0], [1.0, np.nan, -3.0], [0.0, 0.0, 0.0]])
    found = flips(values)
    assert found.t.shape == (8, 3)
    assert found.mean == pytest.approx([2, -1, 0]) and found.t[0] == pytest.approx(
        [2 / np.sqrt(2 / 9), -1 / np.sqrt(4 / 2), 0]
    )
    assert np.sort(found.t[:, 0]) == pytest.approx(-np.sort(-found.t[:, 0])[::-1])


def test_the_lower_end_of_one_mean_is_students() -> None:
    values = np.random.default_rng(0).normal(0.3, size=(1, 60))
    known = stats.ttest_1samp(values[0], 0).confidence_interval(0.95)
    assert flips(values).low()[0] == pytest.approx(known.low, abs=0.02)


def test_the_largest_of_many_pays_for_them() -> None:
    """No difference: a lower end above 0 in about one sample in forty, however many layers."""
    rng = np.random.default_rng(0)
    told = [flips(rng.normal(size=(20, 10))).low().max() > 0 for _ in range(200)]
    assert np.mean(told) < 0.06
