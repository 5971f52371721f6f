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
from layerwise.config.token_tasks import ChoiceTask, PairTask, type_of
from layerwise.errors import LayerwiseError
from layerwise.models.load import LoadedModel
from layerwise.statistics import rank
from layerwise.statistics.corrections import holm
from layerwise.tables import Kind
from layerwise.tasks import items, lens, matching, results
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
    task: ChoiceTask | PairTask,
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
    common = {**about, "task_type": type_of(task)}
    if isinstance(task, ChoiceTask):
        scores, paired = _questions(loaded, entry, task, source, common, confidence, budget)
    else:
        there = [r for r in readouts if r in loaded.anatomy.readouts]
        if not there:
            raise LayerwiseError(
                f"{loaded.name} has no readout {' and no '.join(readouts)}; it has "
                f"{', '.join(loaded.anatomy.readouts)}: add one of them to readouts."
            )
        scores, paired = _pairs(
            loaded, source, common, tokens, there, confidence, budget, sink_ratio
        )  # fmt: skip
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


def _pairs(
    loaded: LoadedModel,
    source: Path,
    common: Mapping[str, str],
    tokens: Sequence[str],
    readouts: Sequence[str],
    confidence: float,
    budget: int | None,
    sink_ratio: float,
) -> tuple[Rows, Rows]:
    import pandas as pd

    frame = items.read_pairs(source)
    scores: Rows = []
    paired: Rows = []
    for (split, subset), part in frame.groupby(["split", "subset"], sort=False):
        found = matching.similarities(
            loaded, part["first"].to_list(), part["second"].to_list(), tokens=tokens,
            readouts=readouts, budget=budget, sink_ratio=sink_ratio,
        )  # fmt: skip
        judged = part["judged"].to_numpy(dtype=float)
        texts = pd.factorize(pd.concat([part["first"], part["second"]]))[0].reshape(2, -1)
        last = loaded.anatomy.n_layers - 1
        for k, choice in enumerate(tokens):
            for r, readout in enumerate(readouts):
                own: dict[str, Rows] = {measure: [] for measure in matching.MEASURES}
                for layer in range(last + 1):
                    row = {
                        **common, "subset": subset, "split": split, "layer": layer,
                        "depth": layer / max(last, 1), "tokens": choice, "readout": readout,
                    }  # fmt: skip
                    values = found[k, r, :, layer]
                    made, against = _at_layer(values, judged, texts, row, confidence)
                    scores += made
                    for one in against:
                        own[one["pooling"]].append(one)
                paired += [row for rows in own.values() for row in _corrected(rows)]
    return scores, paired


def _at_layer(
    values: npt.NDArray[Any],
    judged: Floats,
    texts: npt.NDArray[Any],
    row: Mapping[str, Any],
    confidence: float,
) -> tuple[Rows, Rows]:
    """The rows of one layer and reading: each measure, and each match against the mean."""
    from scipy.stats import norm

    rho, influence = rank.spearman(values, judged)
    low, high = rank.fisher_interval(rho, rank.errors(influence, texts), confidence)
    scores: Rows = []
    paired: Rows = []
    for m, measure in enumerate(matching.MEASURES):
        known = bool(np.isfinite(rho[m]))
        ends = {"score_low": low[m], "score_high": high[m]}
        scores.append(
            {**row, "pooling": measure, "main_score": rho[m] if known else None,
             **{name: float(end) if known else None for name, end in ends.items()},
             "n_runs": len(judged), "chance": None,
             "why": None if known else "the similarities of all pairs are alike"}
        )  # fmt: skip
        if m == 0 or not (known and np.isfinite(rho[0])):
            continue
        difference = float(rho[m] - rho[0])
        error = float(rank.errors(influence[m] - influence[0], texts))
        margin = float(norm.isf((1 - confidence) / 2)) * error
        p = float(2 * norm.sf(abs(difference) / error)) if error > 0 else 1.0
        paired.append(
            {**row, "pooling": measure, "against": "mean", "score": float(rho[m]),
             "other": float(rho[0]), "difference": difference, "low": difference - margin,
             "high": difference + margin, "p": p, "n": len(judged)}
        )  # fmt: skip
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
