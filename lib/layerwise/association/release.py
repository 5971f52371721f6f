"""Import a checkout of the results that Skean et al. released with arXiv 2502.02013.

The release has a folder per model and checkpoint, ``results/<family>/<size>/<revision>``, with

- ``mteb/layer_<l>/<task>.json``: results as mteb 1.x writes them;
- ``metrics/<data set>[/<split>]/<metric>.pkl``: values by normalisation and layer, pickled.
"""

from __future__ import annotations

import json
import logging
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy._core import multiarray

from layerwise import data
from layerwise.errors import LayerwiseError, first_line
from layerwise.io.files import replacing

log = logging.getLogger(__name__)

SPLITS = ("train", "validation", "dev", "test")
# A file has a number for each normalisation and layer, so that a megabyte is far too much.
LARGEST_PICKLE = 1_000_000
SCORE_ROW = ("hf_subset", "main_score")


def read_scores(results: Path) -> pd.DataFrame:
    """MTEB scores of a release.

    Parameters
    ----------
    results : Path
        The folder that holds the families: ``experiments/results`` of a checkout.

    Returns
    -------
    DataFrame
        Columns of `layerwise.association.published.SCORES`: a row for each task, subset and layer.
        Test splits of the paper's tasks only.
    """
    types = _task_types()
    rows: list[dict[str, Any]] = []
    other = set()
    for path in sorted(results.glob("*/*/*/mteb/layer_*/*.json")):
        family, size, revision = path.relative_to(results).parts[:3]
        if path.stem not in types:
            if path.stem != "model_meta":
                other.add(path.stem)
            continue
        for entry in _json(path).get("scores", {}).get("test", []):
            missing = [key for key in SCORE_ROW if key not in entry]
            if missing:
                raise LayerwiseError(
                    f"{path}: expected {' and '.join(missing)} in each score.", code="unreadable"
                )
            rows.append(
                {
                    "family": family,
                    "size": size,
                    "revision": revision,
                    "layer": _layer(path),
                    "task": path.stem,
                    "task_type": types[path.stem],
                    "hf_subset": entry["hf_subset"],
                    "languages": "|".join(entry.get("languages", ["eng-Latn"])),
                    "split": "test",
                    "main_score": entry["main_score"],
                }
            )
    if other:
        log.info("Tasks that the paper does not use are skipped: %s", ", ".join(sorted(other)))
    return pd.DataFrame(rows)


def read_metrics(results: Path) -> pd.DataFrame:
    """Metrics of a release.

    Parameters
    ----------
    results : Path
        As in `read_scores`.

    Returns
    -------
    DataFrame
        Columns of `layerwise.association.published.METRICS`: a row for each metric, data set,
        normalisation and layer. Missing values are left out.
    """
    rows: list[dict[str, Any]] = []
    for path in sorted(results.glob("*/*/*/metrics/**/*.pkl")):
        family, size, revision, _, *corpus = path.relative_to(results).parts[:-1]
        split = corpus.pop() if corpus and corpus[-1] in SPLITS else None
        name = {
            "family": family,
            "size": size,
            "revision": revision,
            "dataset": "/".join(corpus),
            "split": split,
            "metric": path.stem,
        }
        for normalization, values in _values(path):
            rows += [
                name | {"normalization": normalization, "layer": layer, "value": float(value)}
                for layer, value in enumerate(values)
                if np.isfinite(value)
            ]
    return pd.DataFrame(rows)


def write(table: pd.DataFrame, path: Path) -> None:
    """Write a table as compact Parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        table.to_parquet(partial, compression="zstd", index=False)


def load_arrays(path: Path) -> Any:
    """Load a pickle that may hold numpy arrays and plain containers, and no other object.

    Raises
    ------
    LayerwiseError
        If the file is too large, damaged, or refers to anything else.
    """
    if path.stat().st_size > LARGEST_PICKLE:
        raise LayerwiseError(
            f"{path}: expected a file of at most {LARGEST_PICKLE:,} bytes.", code="unreadable"
        )
    try:
        with path.open("rb") as file:
            return _Arrays(file).load()
    except LayerwiseError:
        raise
    except Exception as error:  # a damaged pickle fails in many ways
        raise LayerwiseError(
            f"{path}: not a readable pickle ({first_line(error)}).", code="unreadable"
        ) from error


ADMITTED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("multiarray", "_reconstruct"): multiarray._reconstruct,
    ("multiarray", "scalar"): multiarray.scalar,
}


class _Arrays(pickle.Unpickler):
    """An unpickler that admits numpy arrays and numbers only."""

    def find_class(self, module: str, name: str) -> Any:
        # numpy 1 and 2 store the same functions under numpy.core and numpy._core.
        short = re.sub(r"^numpy\._?core\.", "", module)
        if (short, name) not in ADMITTED:
            raise LayerwiseError(
                f"{self.name}: refers to {module}.{name}; only numpy arrays are read.",
                code="unsafe",
            )
        return ADMITTED[short, name]

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.name = file.name


def _values(path: Path) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """The values of each normalisation, shape (layers,)."""
    found = load_arrays(path)
    if not isinstance(found, dict):
        raise LayerwiseError(
            f"{path}: expected values by normalisation, got {type(found)}.", code="unreadable"
        )
    for normalization, values in found.items():
        try:
            array = np.asarray(values, dtype=float)
        except (TypeError, ValueError) as error:
            raise LayerwiseError(
                f"{path}: {normalization}: expected numbers.", code="unreadable"
            ) from error
        if array.ndim != 1:
            raise LayerwiseError(
                f"{path}: {normalization}: expected a number per layer, got shape {array.shape}.",
                code="unreadable",
            )
        yield str(normalization), array


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LayerwiseError(
            f"{path}: not readable JSON ({first_line(error)}).", code="unreadable"
        ) from error
    if not isinstance(found, dict):
        raise LayerwiseError(f"{path}: expected a result of mteb 1.x.", code="unreadable")
    return found


def _layer(path: Path) -> int:
    found = re.fullmatch(r"layer_(\d+)", path.parent.name)
    if not found:
        raise LayerwiseError(
            f"{path.parent}: expected a folder named layer_<number>.", code="unreadable"
        )
    return int(found[1])


def _task_types() -> dict[str, str]:
    """Types of the paper's tasks, from the shipped scores."""
    known = pd.read_parquet(data.published("scores"), columns=["task", "task_type"])
    return dict(known.drop_duplicates().astype(str).itertuples(index=False, name=None))
