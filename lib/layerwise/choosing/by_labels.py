"""Choose a layer of one model from labelled texts: the score of every layer on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerwise import probes
from layerwise.config.own_tasks import LABELS, TAGGED, TEXTS, OwnTask
from layerwise.errors import LayerwiseError
from layerwise.models.load import LoadedModel
from layerwise.statistics.flips import flips
from layerwise.tasks import conll, labelled
from layerwise.tasks.labelled import Found, Labelled
from layerwise.tasks.own_rows import read_rows
from layerwise.tasks.task import normalized


@dataclass(frozen=True)
class Lead:
    """What the best layer has over the output.

    Attributes
    ----------
    value : float
        Points of the score, too high on average: the layer was chosen on these rows.
    low : float
        The lower end of a 95 % interval over groups of rows that pays for the choice among all
        layers.
    n_groups : int
    """

    value: float
    low: float
    n_groups: int


@dataclass(frozen=True)
class LabelledChoice:
    """What labels say of each layer.

    Attributes
    ----------
    found : list of Found
        One a layer, 0 to L.
    output : Found
        Of the model's own output.
    lead : Lead or None
        Of the best layer over the output; None where one of the two has no score.
    layer : int or None
        The layer to use; None for the output, unless a layer can be told to lead it.
    """

    found: list[Found]
    output: Found
    n_rows: int
    score: str

    @property
    def best(self) -> int:
        """The layer of the highest score.

        Raises
        ------
        LayerwiseError
            If none has a score.
        """
        if all(f.score is None for f in self.found):
            raise LayerwiseError(f"No layer has a score on these labels: {self.found[0].why}.")
        return int(np.nanargmax([np.nan if f.score is None else f.score for f in self.found]))

    @cached_property
    def lead(self) -> Lead | None:
        best, known = self.best, [f.parts for f in self.found if f.parts is not None]
        if self.output.parts is None or self.found[best].parts is None:
            return None
        # Rows that are hard are so for all layers: what counts is the difference on each.
        found = flips(np.stack(known) - self.output.parts)
        place = sum(f.parts is not None for f in self.found[:best])
        n = len(self.output.parts)
        return Lead(float(n * found.mean[place]), float(n * found.low()[place]), n)

    @property
    def layer(self) -> int | None:
        if self.lead is None:
            return self.best
        return self.best if self.lead.low > 0 else None


SCORES = {
    "classification": "accuracy of a linear probe", "regression": "R² of a linear probe",
    "pairs": "Spearman's correlation with the cosine", "preference": "accuracy of a linear probe",
    "tags": "accuracy of a linear probe on words",
}  # fmt: skip


def kind_of(frame: pd.DataFrame, where: str) -> str:
    """What a table of labels is, by its columns.

    Raises
    ------
    LayerwiseError
        If it has the columns of no kind.
    """
    for kind in ("pairs", "preference", "classification"):
        if {*TEXTS[kind], *([LABELS[kind]] if kind in LABELS else [])} <= set(frame.columns):
            break
    else:
        raise LayerwiseError(
            f"{where} has the columns {', '.join(map(str, frame.columns))}; accepted are text and "
            "label; first, second and score; or chosen and rejected."
        )
    if kind != "classification":
        return kind
    labels = frame["label"].dropna()
    numeric = pd.api.types.is_numeric_dtype(labels)
    return "regression" if numeric and labels.nunique() > 20 else "classification"


def read_labels(path: Path, most: int, seed: int = 0) -> tuple[Labelled, int]:
    """Labelled rows of a file, at most so many drawn by a seed, and how many there are.

    Of files of words and tags, words of whole sentences.

    Raises
    ------
    LayerwiseError
        As `layerwise.tasks.labelled.read`, of the file and of the rows drawn; for columns of no
        kind, and if a row of each class for every split is more than `most`.
    """
    if path.suffix.lower() in TAGGED:
        task = OwnTask(file=str(path), kind="tags", seed=seed, sample=most)
        n = sum(len(sentence.words) for sentence in conll.read(path))
        return labelled.read(task), n
    frame = read_rows(path)
    kind = kind_of(frame, str(path))
    task = OwnTask(file=str(path), kind=kind, seed=seed)  # type: ignore[arg-type]
    data, n = labelled.read(task), len(frame)
    if n <= most:
        return data, n
    rows = _drawn(data, most, seed)
    part = Labelled(
        data.kind, [[column[r] for r in rows] for column in data.texts], data.labels[rows],
        [data.groups[r] for r in rows], seed,
    )  # fmt: skip
    try:
        if kind == "regression":
            probes.numbers(part.labels.tolist())
        if kind != "pairs":
            probes.splits(part.labels, part.groups, seed)
    except LayerwiseError as error:
        raise LayerwiseError(f"{path}, {most} of {n} rows drawn (--sample): {error}") from error
    return part, n


def _drawn(data: Labelled, most: int, seed: int) -> Any:
    """Rows drawn at random; of each class at least as many groups as there are splits, or all."""
    order = np.random.default_rng(seed).permutation(len(data.labels))
    first: list[int] = []
    if np.issubdtype(data.labels.dtype, np.integer):
        seen: dict[int, set[Any]] = {int(c): set() for c in np.unique(data.labels)}
        for row in order:
            groups = seen[int(data.labels[row])]
            if len(groups) < probes.FOLDS and data.groups[row] not in groups:
                groups.add(data.groups[row])
                first.append(int(row))
        if len(first) > most:
            raise LayerwiseError(
                f"--sample {most} is too few for {len(seen)} classes; give {len(first)} or more."
            )
    rest = order[~np.isin(order, first)][: most - len(first)]
    return np.sort(np.concatenate([first, rest]).astype(int))


def choose_by_labels(
    loaded: LoadedModel, data: Labelled, *, tokens: str, threads: int = 1
) -> LabelledChoice:
    """The score of every layer, and of the output, on labelled texts."""
    from joblib import Parallel, delayed  # type: ignore[import-untyped]

    from layerwise.activations.embedding import embed
    from layerwise.activations.representation import Representation

    texts = data.distinct()
    there = [r for r in ("residual", "output") if r in loaded.anatomy.readouts]
    vectors = embed(loaded, texts, [Representation(tokens, "mean", name) for name in there])
    layers = [*vectors[0], *vectors[1:, -1]]
    rows = {text: row for row, text in enumerate(texts)}
    places = [[rows[text] for text in column] for column in data.texts]
    work = (delayed(_layer)(data, normalized(layer), places) for layer in layers)
    found: list[Found] = list(Parallel(n_jobs=threads)(work))
    if len(there) == 1:
        found.append(found[-1])
    return LabelledChoice(found[:-1], found[-1], len(data.labels), SCORES[data.kind])


def _layer(data: Labelled, values: Any, places: Sequence[Sequence[int]]) -> Found:
    return labelled.layer_score(data, [values[column] for column in places])
