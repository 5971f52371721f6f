"""Choose a layer of one model by labels: the layer of the highest cross-validated score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from layerwise.analysis import embed_labels, score_vectors
from layerwise.choosing.choice import Choice
from layerwise.choosing.compare import answer, compare
from layerwise.choosing.inputs import read_rows
from layerwise.models.opening import open_model
from layerwise.models.states import States, is_array

__all__ = ["Choice", "choose"]


def choose(
    model: Any,
    texts: Any = None,
    labels: Sequence[Any] | None = None,
    tokenizer: Any = None,
    *,
    tokens: str | None = None,
    within: float | None = None,
    score: str | None = None,
    kind: str | None = None,
    part: Mapping[str, Any] | None = None,
    threads: int = 1,
    **opening: Any,
) -> Choice:
    """Recommend the layer of the highest score on labels.

    Parameters
    ----------
    model, labels, tokenizer, threads
        As for `layerwise.analyse`.
    texts
        A list of texts, of images or of recordings, a `datasets.Dataset` or a data frame with the
        column ``text``; or labelled rows of a file (`layerwise.choosing.inputs.read`).
    tokens : str, optional
        Token selection; by default ``drop_first`` for causal models, else ``all``.
    within : float, optional
        Recommend the earliest layer whose score is at most so many points (hundredths of the
        score) below the output's.
    score : str, optional
        Score of the layers, of `layerwise.tasks.measures`; by default accuracy, R² or Spearman's
        correlation, and AUROC if 80% of the rows are of one class.
    kind : {'classification', 'regression'}, optional
        Kind of the labels; by default classes, unless they are more than 20 numbers that are not
        whole or hardly repeat.
    part : mapping, optional
        Part of each text whose tokens count, as ``scoring.part`` of a config: ``after`` and
        ``before`` (markers), ``last`` (so many tokens).
    **opening
        Options of `layerwise.models.opening.open_model`: max_length, revision, device, dtype.

    Returns
    -------
    Choice
        Its `layer`, `advice`, `reason` and a `table` of every layer.

    Examples
    --------
    >>> import layerwise as lw
    >>> choice = lw.choose(model, texts, labels, tokenizer)
    >>> list(choice.table.columns[:4])
    ['layer', 'score', 'low', 'high']

    Raises
    ------
    LayerwiseError
        If there are no labels, the texts or the model cannot be read, or the output has no score.
    """
    rows = read_rows(texts, labels, kind, score)
    model = States(model, rows.texts[0]) if is_array(model) else model
    with open_model(model, tokenizer, **opening) as loaded:
        tokens = tokens or ("drop_first" if loaded.is_causal else "all")
        vectors = embed_labels(loaded, rows, tokens, part)
        reading = {"tokens": tokens, "pooling": loaded.embedder.pooling}
    scores = score_vectors(rows, vectors, threads)
    table = compare(scores, rows.measure)
    return answer(table, rows, within, takes=loaded.reader.takes, **reading)
