"""Score every layer of a model on a task of token states, and each against what it is paired with.

Two tables. The first has the columns of all scores (`layerwise.tasks.results`) and ``chance``,
what guessing gives (null where that is 0). The second sets scores of the same items against each
other, one row a reading and layer:

========== ====================================================================================
score      in [0, 1]
against    ``mean`` (the pooled cosine at the same layer) for sentence pairs; ``output`` (the
           last layer, as the model reads it itself) for questions
other      the score it is set against
difference ``score - other``, with ``low`` and ``high``, its interval
p, p_holm  of a difference of 0; corrected over the layers of the reading (Holm)
========== ====================================================================================
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from layerwise import tables
from layerwise.activations.representation import SINK_RATIO
from layerwise.config.models import Model
from layerwise.config.tasks import MULTIPLE_CHOICE, ChoiceTask
from layerwise.errors import LayerwiseError
from layerwise.models.load import LoadedModel
from layerwise.statistics import rank
from layerwise.statistics.corrections import holm
from layerwise.tables import Kind
from layerwise.tasks import items, lens, results
from layerwise.tasks.score import SCORES

log = logging.getLogger(__name__)

PAIRED = Kind("layerwise.paired_scores", 1)
PAIRED_COLUMNS = {
    "model": "string", "revision": "string", "task": "string", "task_type": "string",
    "subset": "string", "split": "string", "layer": "int32", "depth": "float64",
    "tokens": "string", "pooling": "string", "readout": "string", "against": "string",
    "score": "float64", "other": "float64", "difference": "float64", "low": "float64",
    "high": "float64", "p": "float64", "p_holm": "float64", "n": "int32",
}  # fmt: skip

Floats = npt.NDArray[np.float64]
Rows = list[dict[str, Any]]


def score_tokens(
    loaded: LoadedModel,
    entry: Model,
    name: str,
    task: ChoiceTask,
    source: Path,
    targets: Mapping[str, Path],
    *,
    tokens: Sequence[str],
    readouts: Sequence[str],
    confidence: float,
    budget: int | None = None,
    sink_ratio: float = SINK_RATIO,
    **facts: Any,
) -> None:
    """Score all layers on a task and write both tables.

    Parameters
    ----------
    entry : Model
        The model's entry in the config.
    source : Path
        The task's items (`layerwise.tasks.items`).
    targets : mapping
        ``scores`` and ``paired``: the tables.
    tokens, readouts : sequences of str
        For sentence pairs: which tokens count, and which states are read.
    confidence : float
        Of the intervals.
    sink_ratio : float
        For sentence pairs: see `layerwise.activations.representation.choose`.
    **facts
        More for the tables' metadata: key and recipe of the job.

    A model that cannot be asked at all (`layerwise.tasks.lens.NoAnswersError`) has no scores, and
    the table says why, so that what else is made of it goes on.

    Raises
    ------
    LayerwiseError
        If the items are none, or none fits the model.
    """
    about = {"model": loaded.name, "revision": loaded.revision, "task": name}
    common = {**about, "task_type": MULTIPLE_CHOICE}
    scores, paired = _questions(loaded, entry, task, source, common, confidence, budget)
    facts |= {**about, "dtype": loaded.dtype, "weights_sha256": loaded.weights}
    fields = [(n, pa.type_for_alias(kind)) for n, kind in PAIRED_COLUMNS.items()]
    table = pa.Table.from_pylist(paired, schema=pa.schema(fields))
    tables.write(targets["paired"], table, kind=PAIRED, **facts)
    schema = results.schema().append(pa.field("chance", pa.float64()))
    tables.write(targets["scores"], pa.Table.from_pylist(scores, schema=schema), kind=SCORES,
                 **facts)  # fmt: skip


def _questions(
    loaded: LoadedModel,
    entry: Model,
    task: ChoiceTask,
    source: Path,
    common: Mapping[str, str],
    confidence: float,
    budget: int | None,
) -> tuple[Rows, Rows]:
    questions, examples = items.read_questions(source)
    last = loaded.anatomy.n_layers - 1
    about = {"subset": "default", "split": "test", "tokens": "all", "readout": "final_norm"}
    try:
        readout = lens.lens_of(loaded, entry)
    except lens.NoAnswersError as error:
        log.error("%s", error)
        return [
            {**common, **about, "layer": layer, "depth": layer / max(last, 1), "pooling": form,
             "n_runs": 1, "why": str(error)}
            for form in task.forms for layer in range(last + 1)
        ], []  # fmt: skip
    found = lens.answer(loaded, readout, task, questions, examples, budget)
    scores: Rows = []
    paired: Rows = []
    for form, right in zip(found.forms, found.right, strict=True):
        own: Rows = []
        for layer, mine in enumerate(right):
            n, k = len(mine), int(mine.sum())
            row = {
                **common, **about, "layer": layer, "depth": layer / max(last, 1), "pooling": form
            }  # fmt: skip
            low, high = wilson(k, n, confidence)
            scores.append(
                {**row, "main_score": k / n, "score_low": low, "score_high": high, "n_runs": n,
                 "why": None, "chance": found.chance}
            )  # fmt: skip
            if layer < last:
                difference, (low, high), p = accuracies(mine, right[last], confidence)
                own.append(
                    {**row, "against": "output", "score": k / n,
                     "other": float(right[last].mean()), "difference": difference, "low": low,
                     "high": high, "p": p, "n": n}
                )  # fmt: skip
        paired += _corrected(own)
    return scores, paired


def _corrected(rows: Rows) -> Rows:
    """The rows of one reading with p corrected over its layers."""
    corrected: Any = holm([row["p"] for row in rows]) if rows else []
    return [{**row, "p_holm": float(p)} for row, p in zip(rows, corrected, strict=True)]


def wilson(k: int, n: int, confidence: float) -> tuple[float, float]:
    """Wilson's interval of a share k / n (Wilson 1927)."""
    from scipy.stats import binomtest

    found = binomtest(k, n).proportion_ci(confidence, method="wilson")
    return float(found.low), float(found.high)


def accuracies(
    one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_], confidence: float
) -> tuple[float, tuple[float, float], float]:
    """Difference of two accuracies on the same questions, with interval and p.

    The interval adds a half to each of the four counts (Bonett & Price 2012); the p is McNemar's
    exact one.
    """
    from scipy.stats import binomtest, norm

    n = len(one)
    gained, lost = int((one & ~other).sum()), int((other & ~one).sum())
    up, down = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    margin = float(norm.isf((1 - confidence) / 2)) * np.sqrt(
        (up + down - (up - down) ** 2) / (n + 2)
    )
    p = float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    return (gained - lost) / n, (up - down - margin, up - down + margin), p
