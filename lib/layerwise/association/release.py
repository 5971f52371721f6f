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
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy._core import multiarray

from layerwise import data
from layerwise.errors import LayerwiseError, first_line

log = logging.getLogger(__name__)

SPLITS = ("train", "validation", "dev", "test")
# A file has a number for each normalisation and layer, so that a megabyte is far too much.
LARGEST_PICKLE = 1_000_000


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
    shipped = pd.read_parquet(data.published("scores"), columns=["task", "task_type"])
    types = dict(shipped.drop_duplicates().astype(str).to_numpy())
    rows: list[dict[str, Any]] = []
    for path in sorted(results.glob("*/*/*/mteb/layer_*/*.json")):
        if path.stem not in types:
            continue
        family, size, revision = path.relative_to(results).parts[:3]
        about = {"family": family, "size": size, "revision": revision, "split": "test"}
        about |= {"task": path.stem, "task_type": types[path.stem]}
        try:
            layer = int(path.parent.name.removeprefix("layer_"))
            for entry in json.loads(path.read_bytes())["scores"].get("test", []):
                languages = "|".join(entry.get("languages", ["eng-Latn"]))
                found = {name: entry[name] for name in ("hf_subset", "main_score")}
                rows.append({**about, "layer": layer, "languages": languages, **found})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _unreadable(path, "result of mteb 1.x", error) from error
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
        about: dict[str, Any] = {"family": family, "size": size, "revision": revision}
        about["split"] = corpus.pop() if corpus and corpus[-1] in SPLITS else None
        about |= {"dataset": "/".join(corpus), "metric": path.stem}
        for normalization, values in load_arrays(path).items():
            rows += [
                {**about, "normalization": normalization, "layer": layer, "value": value}
                for layer, value in enumerate(values)
                if np.isfinite(value)
            ]
    return pd.DataFrame(rows)


def load_arrays(path: Path) -> dict[str, list[float]]:
    """Load a pickle of numbers by normalisation and layer, and run nothing of what it refers to.

    Raises
    ------
    LayerwiseError
        If the file is too large, damaged, or holds or refers to anything else.
    """
    try:
        if path.stat().st_size > LARGEST_PICKLE:
            raise ValueError(f"it has more than {LARGEST_PICKLE:,} bytes")
        with path.open("rb") as file:
            found = _Arrays(file).load()
        return {str(name): [float(v) for v in values] for name, values in found.items()}
    except LayerwiseError:
        raise
    except Exception as error:  # a damaged pickle fails in many ways
        raise _unreadable(path, "pickle of a number per normalisation and layer", error) from error


def _unreadable(path: Path, what: str, error: Exception) -> LayerwiseError:
    return LayerwiseError(f"{path}: expected a {what} ({first_line(error)}).", code="unreadable")


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
                f"A pickle refers to {module}.{name}; only numpy arrays are read.", code="unsafe"
            )
        return ADMITTED[short, name]
