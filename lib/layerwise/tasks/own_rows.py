"""The rows of a user's own file of labelled texts or of questions."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from layerwise.errors import LayerwiseError, closest, first_line
from layerwise.io.files import is_file


def read_rows(path: Path) -> pd.DataFrame:
    """The rows of a .parquet, .jsonl or .csv file.

    Raises
    ------
    LayerwiseError
        If it is missing, empty, damaged, or of another kind.
    """
    if not is_file(path):
        near = closest(path.name, [p.name for p in path.parent.glob("*")])
        raise LayerwiseError(
            f"There is no file {path}{near}; relative paths start at the current folder.",
            code="missing_file",
        )
    readers = {
        ".parquet": pd.read_parquet,
        ".jsonl": partial(pd.read_json, lines=True, dtype=False),
        # "NA" and the like are texts; an empty field is none.
        ".csv": partial(pd.read_csv, keep_default_na=False, na_values=[""]),
    }
    reader: Any = readers.get(path.suffix.lower())
    if reader is None:
        raise LayerwiseError(
            f"{path} is of no kind that is read here; accepted are {', '.join(readers)}.",
            code="unreadable",
        )
    try:
        frame: pd.DataFrame = reader(path) if path.stat().st_size else pd.DataFrame()
    except MemoryError:
        raise
    except Exception as error:  # pandas and pyarrow say what is wrong in many ways
        raise LayerwiseError(
            f"{path} cannot be read: {first_line(error)}.", code="unreadable"
        ) from error
    if frame.empty:
        raise LayerwiseError(
            f"{path} is empty; a row for each text or question is needed.", code="too_few"
        )
    return frame
