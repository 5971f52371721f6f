"""Import a checkout of the results that Skean et al. released with arXiv 2502.02013.

The release has a folder per model and checkpoint, ``results/<family>/<size>/<revision>``, with

- ``mteb/layer_<l>/<task>.json``: results as mteb 1.x writes them;
- ``metrics/<data set>[/<split>]/<metric>.pkl``: values by normalisation and state, pickled;

and the accuracies of vision models:

- ``results/<family>/<size>/<data set>/layer_<l>.pkl``: linear probes, pickled;
- ``results/vision_results/<family>/<size>/<data set>/attention_probe/layers-<k>-to-<k>.json``.

Layers are counted as everywhere here: 0 is the embedding output, L the last block.
"""

from __future__ import annotations

import json
import logging
import pickle
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy._core import multiarray

from layerwise import data
from layerwise.errors import LayerwiseError, first_line
from papers.published import OLD_NAME

log = logging.getLogger(__name__)

SPLITS = ("train", "validation", "val", "dev", "test")
# A file has a number for each normalisation and layer, so that a megabyte is far too much.
LARGEST_PICKLE = 1_000_000

# Folders that are no families: the same models with another pooling.
POOLED = {
    "bert_CLS": ("bert", "cls"),
    "roberta_CLS": ("roberta", "cls"),
    "roberta_mean_pooling": ("roberta", "mean"),
}
# The files of these number their states from the first block on. Mamba's metrics end with the last
# block's states again, after the final norm.
METRICS_FROM_BLOCK_1 = ("aim", "mamba")
PROBES_FROM_BLOCK_1 = ("aim", "aimv2")
# Their last state has the final norm; the others have not.
NORMED = ("Pythia", "Llama3", "LLM2Vec")
PROBES = {"imagenet": "ImageNet linear probe", "imagenet100": "ImageNet-100 linear probe"}
SECOND_PROBE = "ImageNet linear probe of the last layer"
ATTENTION_PROBE = "ImageNet-100 attention probe"
ONE_WAY = "mi-lower-bound"
"""The array that only files of the one-way loss have, since January 2025."""


Last = Mapping[tuple[str, str], int]
"""L of each family and size."""


def read_scores(results: Path) -> pd.DataFrame:
    """Scores of a release: MTEB's main scores, and top-1 accuracies of vision models.

    A score that is missing in its file is left out. The folder ``layer_<l>_last`` repeats
    ``layer_<l>`` and is read for tasks that the latter lacks.

    Parameters
    ----------
    results : Path
        The folder that holds the families: ``experiments/results`` of a checkout.

    Returns
    -------
    DataFrame
        Columns of `papers.published.SCORES`, ``pooling`` and ``last_layer``: a row
        for each task, subset and layer. Test splits of the paper's tasks only.
    """
    last = _last_layers(results)
    rows = [*_text_scores(results), *_linear_probes(results, last), *_attention_probes(results)]
    return _with_last_layer(pd.DataFrame(rows), last)


def _text_scores(results: Path) -> Iterator[dict[str, Any]]:
    shipped = pd.read_parquet(data.published("scores"), columns=["task", "task_type"])
    types = dict(shipped.drop_duplicates().astype(str).to_numpy())
    for path in sorted(results.glob("*/*/*/mteb/layer_*/*.json")):
        whole = path.parent.with_name(path.parent.name.removesuffix("_last"))
        if path.stem not in types or (whole != path.parent and (whole / path.name).exists()):
            continue
        folder, size, revision = path.relative_to(results).parts[:3]
        family, pooling = POOLED.get(folder, (folder, "mean"))
        about: dict[str, Any] = {"family": family, "size": size, "revision": revision}
        about |= {
            "pooling": pooling,
            "split": "test",
            "task": path.stem,
            "task_type": types[path.stem],
        }
        try:
            layer = int(whole.name.removeprefix("layer_"))
            for entry in json.loads(path.read_bytes())["scores"].get("test", []):
                score = entry.get("main_score")
                if score is None or not np.isfinite(score):
                    log.warning("%s has no main score; left out", path)
                    continue
                languages = "|".join(entry.get("languages", ["eng-Latn"]))
                more = {"layer": layer, "languages": languages, "hf_subset": entry["hf_subset"]}
                yield {**about, **more, "main_score": float(score)}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _unreadable(path, "result of mteb 1.x", error) from error


def _linear_probes(results: Path, last: Last) -> Iterator[dict[str, Any]]:
    for folder in sorted(results.glob("*/*/imagenet*")):
        family, size, dataset = folder.relative_to(results).parts
        files = {
            int(path.stem.removeprefix("layer_")): path for path in folder.glob("layer_*.pkl")
        }
        output = files.pop(-1, None)
        by_layer = {n + (family in PROBES_FROM_BLOCK_1): path for n, path in files.items()}
        # Of some models the last layer has this file alone, AIM-600M has two probes of it.
        if output and (family, size) in last:
            layer = last[family, size]
            if layer in by_layer:
                yield _probe(output, family, size, SECOND_PROBE, layer, load_pickle(output))
            by_layer.setdefault(layer, output)
        for layer, path in sorted(by_layer.items()):
            yield _probe(path, family, size, PROBES[dataset], layer, load_pickle(path))


def _attention_probes(results: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(results.glob("vision_results/*/*/imagenet*/attention_probe/*.json")):
        family, size = path.relative_to(results).parts[1:3]
        ends = re.fullmatch(r"layers-(\d+)-to-(\d+)", path.stem)
        if ends is None or ends[1] != ends[2]:
            continue  # of several layers together
        layer = int(ends[1]) - (family not in PROBES_FROM_BLOCK_1)
        yield _probe(path, family, size, ATTENTION_PROBE, layer, json.loads(path.read_bytes()))


def _probe(
    path: Path, family: str, size: str, task: str, layer: int, found: object
) -> dict[str, Any]:
    """The row of a vision model's probe."""
    about: dict[str, Any] = {"family": family, "size": size, "revision": "main"}
    about |= {"task": task, "task_type": "ImageClassification", "hf_subset": "default"}
    about |= {"pooling": "mean", "split": "test", "layer": layer, "languages": "eng-Latn"}
    try:
        return {**about, "main_score": float(found["val_acc1"]) / 100}  # type: ignore[index]
    except (ValueError, TypeError, KeyError) as error:
        raise _unreadable(path, "file with the accuracy val_acc1", error) from error


def read_metrics(results: Path) -> pd.DataFrame:
    """Metrics of a release.

    Those of a checkpoint on its tasks, or on WikiText, have the protocol ``reference_2024`` if
    prompt entropy has its old name among them. Their alpha is 2 on WikiText; all others have 1.

    Parameters
    ----------
    results : Path
        As in `read_scores`.

    Returns
    -------
    DataFrame
        Columns of `papers.published.METRICS`, and protocol, alpha, ``last_layer``, ``variant``
        and ``normed``, true for states after the final norm: a row for each metric, data set,
        normalisation and layer. Missing values are left out.
    """
    paths = sorted(results.glob("*/*/*/metrics/**/*.pkl"))
    old = {_computed_together(path) for path in paths if path.stem == OLD_NAME}
    rows: list[dict[str, Any]] = []
    for path in paths:
        folder, size, revision, _, *corpus = path.relative_to(results).parts[:-1]
        family, _ = POOLED.get(folder, (folder, ""))
        split = corpus.pop() if corpus[-1] in SPLITS else None
        is_old = _computed_together(path) in old
        about: dict[str, Any] = {"family": family, "size": size, "revision": revision}
        about |= {"dataset": "/".join(corpus), "split": split, "metric": path.stem}
        about |= {"protocol": "reference_2024" if is_old else "reference"}
        about |= {"alpha": 2.0 if is_old and corpus[0] == "wikitext" else 1.0}
        arrays = load_arrays(path)
        if path.stem == "infonce":
            about["variant"] = "one_way" if ONE_WAY in arrays else "two_way"
        for normalization, values in arrays.items():
            rows += [
                {**about, "normalization": normalization, **state, "value": value}
                for state, value in zip(_states(family, len(values)), values, strict=False)
                if np.isfinite(value)
            ]
    return _with_last_layer(pd.DataFrame(rows), _last_layers(results))


def _computed_together(path: Path) -> Path:
    """The folder of the metrics that were computed in one go: of all tasks, or on WikiText."""
    return next((folder for folder in path.parents if folder.name == "mteb"), path.parent)


def _states(family: str, n: int) -> list[dict[str, Any]]:
    """Layer and final norm of the states in a file, without the second ones of the last layer."""
    if family in METRICS_FROM_BLOCK_1:
        n_layers = n - 1 if family == "mamba" else n
        return [{"layer": layer, "normed": False} for layer in range(1, n_layers + 1)]
    last = n - 1 if family.startswith(NORMED) else None
    return [{"layer": layer, "normed": layer == last} for layer in range(n)]


def _last_layers(results: Path) -> Last:
    """L of the models that have metrics."""
    found = {}
    for folder in sorted(results.glob("*/*/*/metrics")):
        name, size = folder.relative_to(results).parts[:2]
        family, _ = POOLED.get(name, (name, ""))
        path = next(iter(sorted(folder.glob("**/*.pkl"))), None)
        if path is not None and (family, size) not in found:
            n = max(map(len, load_arrays(path).values()))
            found[family, size] = _states(family, n)[-1]["layer"]
    return found


def _with_last_layer(table: pd.DataFrame, last: Last) -> pd.DataFrame:
    """With L in the column ``last_layer``: the scores of some models end before it."""
    if table.empty:
        return table
    deepest = table.groupby(["family", "size"])["layer"].transform("max")
    known = [last.get(key, 0) for key in zip(table["family"], table["size"], strict=True)]
    return table.assign(last_layer=np.maximum(known, deepest))


def load_arrays(path: Path) -> dict[str, list[float]]:
    """Load a pickle of numbers by normalisation and layer.

    Raises
    ------
    LayerwiseError
        As `load_pickle`, or if the file holds anything else.
    """
    found = load_pickle(path)
    try:
        return {str(name): [float(v) for v in values] for name, values in found.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise _unreadable(path, "pickle of a number per normalisation and layer", error) from error


def load_pickle(path: Path) -> Any:
    """Load a pickle of numbers and arrays, and run nothing that it refers to.

    Raises
    ------
    LayerwiseError
        If the file is too large, damaged, or refers to anything else.
    """
    try:
        if path.stat().st_size > LARGEST_PICKLE:
            raise ValueError(f"it has more than {LARGEST_PICKLE:,} bytes")
        with path.open("rb") as file:
            return _Arrays(file).load()
    except LayerwiseError:
        raise
    except Exception as error:  # a damaged pickle fails in many ways
        raise _unreadable(path, "pickle of numbers and arrays", error) from error


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
