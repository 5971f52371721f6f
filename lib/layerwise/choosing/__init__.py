"""Choose a layer of one model, from labels or from published scores of models of its kind.

With labels, every layer has a score, and the answer is the layer of the least expected loss, or
the cheapest that is expected to lose little. Without labels, the answer is the output, unless
another rule loses significantly less in the published models of this kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from layerwise.analysis import labels_of, prompts_of, score_labels
from layerwise.choosing.by_evidence import choose_by_evidence
from layerwise.choosing.by_scores import choose_by_scores
from layerwise.choosing.choice import Choice
from layerwise.choosing.inputs import with_copies_together
from layerwise.errors import LayerwiseError, check_name
from layerwise.models.opening import open_model
from layerwise.models.states import States, is_array
from layerwise.tasks import measures
from layerwise.tasks.labelled import Labels

__all__ = ["Choice", "choose"]


def choose(
    model: Any,
    texts: Any = None,
    labels: Sequence[Any] | None = None,
    tokenizer: Any = None,
    *,
    tokens: str | None = None,
    within: float | None = None,
    significant: bool = False,
    score: str | None = None,
    test: Labels | None = None,
    kind: str | None = None,
    part: Mapping[str, Any] | None = None,
    column: str | None = None,
    max_length: int | None = None,
    revision: str = "main",
    device: str = "auto",
    dtype: str = "float32",
    threads: int = 1,
) -> Choice:
    """Recommend a layer, from labels of the prompts or from published scores.

    Parameters
    ----------
    texts
        As for `layerwise.analyse`, or the rows that `layerwise.choosing.inputs` reads from files.
        None without labels, as texts alone don't tell which layer to use.
    tokens : str, optional
        Token selection; by default ``drop_first`` for causal models, else ``all``.
    within : float, optional
        Recommend the cheapest layer that is expected to lose at most so many points (hundredths of
        the score) against the output.
    significant : bool
        Recommend another layer than the output only if its lead is significant.
    score : str, optional
        Score of the layers, of `layerwise.tasks.measures`; by default accuracy, R² or Spearman's
        correlation, and AUROC if 80% of the rows are of one class.
    test : Labels, optional
        Labelled rows of another source (`layerwise.choosing.inputs.read_labels`): probes are
        trained on the labels and scored on these, and the answer is by these scores.
    kind : {'classification', 'regression'}, optional
        Kind of the labels; by default classes, unless they are more than 20 numbers that are not
        whole or hardly repeat.
    part : mapping, optional
        Part of each text whose tokens count, as ``scoring.part`` of a config: ``after`` and
        ``before`` (markers), ``last`` (so many tokens).
    dtype : str
        Type that a model computes in that is loaded here.
    model, labels, tokenizer, column, max_length, revision, device, threads
        As for `layerwise.analyse`.

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
        If texts, an option of labels or an array of states is given without labels.
    """
    data: Any = texts
    of_labels = {
        "significant": significant,
        "score": score,
        "test": test,
        "within": within,
        "part": part,
        "column": column,
        "kind": kind,
    }
    if labels is not None:
        prompts = prompts_of(texts, column)
        model = States(model, prompts) if is_array(model) else model
        data = labels_of(prompts, labels, kind)
    if isinstance(data, Labels):
        if score is not None:
            check_name(f"score of {data.kind}", score, measures.OF_KIND[data.kind])
        usual = measures.default(data.kind, data.labels)
        data = replace(with_copies_together(data), measure=score or usual, n_shuffles=0)
        labelled, data = data, data if test is None else data.with_test(test)
    elif name := next((n for n, v in of_labels.items() if v is not None and v is not False), ""):
        raise LayerwiseError(f"{name} needs labels; give --labels.", code="conflict")
    elif texts is not None or is_array(model):
        what = "An array of states" if is_array(model) else "Texts"
        raise LayerwiseError(
            f"{what} without labels cannot tell which layer to use; add labels, or give the model "
            "alone for an answer from published scores of its kind.",
            code="conflict",
        )
    with open_model(
        model, tokenizer, max_length=max_length, revision=revision, device=device, dtype=dtype
    ) as loaded:
        tokens = tokens or ("drop_first" if loaded.is_causal else "all")
        if not isinstance(data, Labels):
            return choose_by_evidence(loaded, tokens)
        scores: Any = score_labels(loaded, data, tokens, threads, part=part)
        options: Any = {"significant": significant, "measure": data.measure}
        choice = choose_by_scores(scores, data.kind, tokens, within, **options)
        rows = f"Read {data.described(len(data.labels))}."
        reason = choice.reason + why_score(labelled, score)
        if test is not None:
            crossed = score_labels(loaded, labelled, tokens, threads, part=part)
            reason += ranks_in_both(choice, choose_by_scores(crossed, data.kind, **options))
        about: dict[str, Any] = {"pooling": loaded.embedder.pooling, "takes": loaded.reader.takes}
        return replace(choice, rows=rows, reason=reason, **about)


def why_score(data: Labels, score: str | None) -> str:
    """Reason for a score that nobody asked for, if it is not the usual one."""
    if score is not None or data.measure == measures.OF_KIND[data.kind][0]:
        return ""
    share = np.bincount(data.labels).max() / len(data.labels)
    return (
        f" Scored by {measures.NAMES[data.measure]}, because guessing the largest class has an "
        f"accuracy of {share:.2f} (--score accuracy scores by that)."
    )


def ranks_in_both(choice: Choice, of_labels: Choice) -> str:
    """How far layers rank differently on test rows of another source and on the labelled rows."""
    scores, others = choice.table["score"], of_labels.table["score"]
    rank, n = int(others.rank(ascending=False, method="min")[choice.layer]), len(scores)
    rho = scores.corr(others, method="spearman")
    return (
        f" By cross-validation on the labelled rows it scores {others[choice.layer]:.2f} and "
        f"ranks {rank} of {n}, where layer {of_labels.layer} would be chosen; the rank "
        f"correlation of layers between both is {rho:.2f}."
    )
