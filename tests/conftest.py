"""Shared by all tests: where real data may lie, and tiny models that need no download."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real data beside the checkout; tests that need it are skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the folder 'shared' with real data is not beside the checkout")
    return SHARED


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tests run in several processes at once: one thread each."""
    import torch

    torch.set_num_threads(1)
