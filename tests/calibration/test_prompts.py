"""A few draws of each check over prompts: none is far from what it should be."""

from __future__ import annotations

import numpy as np
import pytest
from prompts import CHECKS

DRAWS = 40


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_intervals_and_tests_over_prompts(name: str) -> None:
    check, wanted = CHECKS[name]
    rng = np.random.default_rng(11)
    share = np.mean([check(60, 7, rng) for _ in range(DRAWS)])
    # Four standard errors of a share of 0.05 or 0.95 with so few draws.
    slack = 4 * np.sqrt(0.05 * 0.95 / DRAWS)
    target = float(wanted.split()[-1])
    assert share <= target + slack if target < 0.5 else share >= target - slack
