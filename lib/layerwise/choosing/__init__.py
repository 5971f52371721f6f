"""Choose a layer of one model, from labels or from published scores of models of its kind.

With labels, every layer has a score, and the best one, or the cheapest that is not worse, is
compared with the model's output. Without labels, the answer is the output, unless another rule
loses significantly less in the published models of this kind.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from layerwise.analysis import score_labels
from layerwise.choosing.by_evidence import choose_by_evidence
from layerwise.choosing.by_scores import choose_by_scores, compare_several
from layerwise.choosing.choice import Choice, advice_together, plot
from layerwise.choosing.inputs import (
    read_folder,
    read_labels,
    read_texts,
    sample_texts,
    task_of,
    with_copies_together,
)
from layerwise.errors import LayerwiseError
from layerwise.models.load import LoadedModel
from layerwise.tasks.labelled import Labels

__all__ = [
    "Choice",
    "choose_by_scores",
    "compare_several",
    "plot",
    "read_folder",
    "read_labels",
    "read_texts",
    "recommend",
    "sample_texts",
    "task_of",
]

log = logging.getLogger(__name__)


def recommend(
    loaded: LoadedModel,
    data: Labels | Sequence[Any],
    *,
    tokens: str | None = None,
    within: float | None = None,
    layers: int | None = None,
    threads: int = 1,
) -> Choice:
    """Choose a layer of a loaded model, by labels if there are any.

    Parameters
    ----------
    data : Labels, or sequence of texts, images or recordings
        From `read_labels` or `sample_texts`.
    tokens : str, optional
        Token selection; by default ``drop_first`` for causal models, else ``all``.
    within : float, optional
        Choose the cheapest layer that loses at most so many points (hundredths of the score)
        against the output.
    layers : int, optional
        Compare so many layers together with the best one, as `compare_several`.

    Raises
    ------
    LayerwiseError
        If `within` or `layers` is given without labels, or the model has too few layers.
    """
    if layers is not None and not 2 <= layers <= loaded.anatomy.n_layers:
        raise LayerwiseError(
            f"layers: expected 2 to {loaded.anatomy.n_layers}, the layers of {loaded.name}, got "
            f"{layers}.",
            code="out_of_range",
        )
    tokens = tokens or ("drop_first" if loaded.is_causal() else "all")
    if not isinstance(data, Labels):
        if within is not None:
            raise LayerwiseError("within needs labels; give --labels.", code="conflict")
        if layers is not None:
            raise LayerwiseError("layers needs labels; give --labels.", code="conflict")
        return choose_by_evidence(loaded, tokens)
    data, n_copies = with_copies_together(data)
    if n_copies:
        log.warning(
            "%d of %d rows are near-copies of others; copies stay together when rows are split "
            "into training and test rows.",
            n_copies,
            len(data.labels),
        )
    scores: Any = score_labels(loaded, data, tokens, threads, keep_vectors=layers is not None)
    choice = choose_by_scores(scores, data.kind, tokens, within)
    if layers is None:
        return choice
    columns = [one.columns for one in scores]
    comparison = compare_several(data, columns, layers, normalize=loaded.normalizes)
    if comparison.better is None or within is not None:
        return replace(
            choice, reason=f"{choice.reason} {comparison.reason}", several=comparison.table
        )
    return replace(
        choice,
        advice=advice_together(comparison.better),
        reason=f"{comparison.reason} Of single layers: {choice.advice} {choice.reason}",
        several=comparison.table,
        together=comparison.better,
    )
