"""Branches of the suites in presets/checkpoints.yaml, named as on the hub, without the hub."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from layerwise.config import models

BRANCHES = {
    "allenai/OLMo-2-0425-1B": [
        "main",
        "stage2-ingredient1-step1000-tokens3B",
        *(f"stage1-step{n}-tokens{-(-21 * n // 10_000)}B" for n in range(0, 1_900_001, 10_000)),
    ],
    "HuggingFaceTB/SmolLM3-3B-checkpoints": [
        "main",
        "stage2-step-3480000",
        *(f"stage1-step-{n}" for n in range(40_000, 3_450_000, 40_000)),
    ],
}


@contextmanager
def suites_listed() -> Iterator[None]:
    """Answer for the hub."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "branches_of", BRANCHES.__getitem__)
        yield
