"""A golden case, the list of all, and what several of them need."""

from __future__ import annotations

import atexit
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from layerwise.io.files import sha256_text

sys.path.insert(0, str(Path(__file__).parents[1]))

SHARED = Path(__file__).parents[3] / "shared"


@dataclass(frozen=True)
class Case:
    """One golden table.

    Attributes
    ----------
    make : callable
        Computes the table.
    keys : tuple of str
        Columns that identify a row; all others are compared.
    rtol, atol : float
        How far numbers may differ.
    """

    make: Callable[[], pd.DataFrame]
    keys: tuple[str, ...]
    rtol: float = 1e-5
    atol: float = 1e-6


CASES: dict[str, Case] = {}


@cache
def workspace() -> Path:
    """A folder for what the cases write, removed at the end."""
    folder = tempfile.TemporaryDirectory(prefix="golden-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def place(name: str) -> Path:
    """A new folder in the workspace."""
    folder = workspace() / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def short_hash(*texts: str) -> str:
    """The first digits of a hash of texts."""
    return sha256_text(*texts)[:16]


KEYS = (
    *("model", "revision", "corpus", "sublayer", "metric", "protocol", "tokens", "alpha"),
    *(
        "normalization",
        "pooling",
        "readout",
        "representation",
        "task",
        "task_type",
        "subset",
        "split",
    ),
    *("measure", "layer", "other_model", "other_revision", "other_layer", "position", "quantity"),
    *("y", "rule", "group", "prompt_id", "beta", "what", "path", "step", "row"),
)


def numbers_of(table: pd.DataFrame) -> pd.DataFrame:
    """The keys and numbers of a table; rows with equal keys are numbered."""
    kept = [
        name
        for name in table
        if name in KEYS
        or pd.api.types.is_numeric_dtype(table[name])
        or pd.api.types.is_bool_dtype(table[name])
    ]
    table = table[kept].rename(columns=str).reset_index(drop=True)
    table = table.dropna(axis="columns", how="all")
    keys = [name for name in table if name in KEYS]
    if table.duplicated(keys).any():
        order = table.groupby(keys, dropna=False).cumcount() if keys else table.index
        table = table.assign(row=order)
    return table
