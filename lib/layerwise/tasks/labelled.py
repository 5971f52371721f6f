"""Tasks of a user's own labels: texts, images or words with classes or numbers.

============== ============== ==================================================================
kind           task type      score
============== ============== ==================================================================
classification Classification accuracy of a linear probe on held-out texts
regression     Regression     R² of a linear probe on held-out texts
pairs          STS            Spearman's correlation of cosine and label; nothing is trained
tags           Tagging        accuracy of a linear probe on words of held-out sentences; its
                              control gives each word type a tag at random
============== ============== ==================================================================
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.cluster.hierarchy import DisjointSet

from layerwise.activations.words import words_of
from layerwise.config.scoring import ScoringSettings
from layerwise.config.tasks import TASK_TYPES, LabelledTask
from layerwise.corpora.prompts import read_images, read_labels
from layerwise.corpora.sources import read_rows
from layerwise.errors import LayerwiseError, closest
from layerwise.tasks import conll, probes
from layerwise.tasks.pairs import correlate
from layerwise.tasks.probes import Split
from layerwise.tasks.results import Score
from layerwise.tasks.task import Unit, Vectors, keep_data, normalized
from layerwise.vocabulary import WORDS

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Labelled:
    """Labelled texts, images or words.

    Attributes
    ----------
    kind : str
        As in the config.
    texts : list of lists
        One list of N texts, or two for pairs; of images the SHA-256 of their files, of words
        `layerwise.activations.words.Word`.
    labels : array, shape (N,)
        As `layerwise.tasks.probes.classes` or `layerwise.tasks.probes.numbers` gives them.
    groups : list
        Rows of one group are never on both sides of a split: they share a text, the task's
        `group`, or a sentence.
    types : list of str, optional
        Word types of words.
    """

    kind: str
    texts: list[list[Any]]
    labels: Array
    groups: list[Any]
    seed: int = 0
    types: list[str] | None = None

    @cached_property
    def splits(self) -> list[Split]:
        """Rows that probes are trained and tested on; raises as `probes.splits`."""
        return probes.splits(self.labels, self.groups, self.seed)

    def distinct(self) -> list[Any]:
        """Every text once, in order of first use."""
        return list(dict.fromkeys(text for column in self.texts for text in column))


def read(task: LabelledTask, images: Path | None = None) -> Labelled:
    """Read the labelled texts of a file, or the labelled images of a corpus.

    Parameters
    ----------
    images : Path, optional
        The table of the task's corpus of images.

    Raises
    ------
    LayerwiseError
        If the file is missing, is no table, lacks a column, a text or a label, or has too few
        rows or classes.
    """
    path = images or Path(str(task.file))
    readers = {"tags": _read_words} if images is None else {task.kind: _read_images}
    try:
        data = readers.get(task.kind, _read_texts)(task, path)
        if task.kind != "pairs":
            data.splits  # noqa: B018  (says at once what cannot be split)
    except LayerwiseError as error:
        named = str(path) in str(error)
        raise error if named else LayerwiseError(f"{path}: {error}", code=error.code) from error
    return data


def _read_images(task: LabelledTask, path: Path) -> Labelled:
    pictures = read_images(path)
    known = read_labels(path)
    missing = [p.name for p in pictures if p.name not in known]
    if missing:
        raise LayerwiseError(
            f"{len(missing)} of {len(pictures)} images have no label (the first is "
            f"{missing[0]!r}); give the source a label column, or one folder per class.",
            code="missing",
        )
    names = [picture.sha256 for picture in pictures]
    labels = probes.classes([known[picture.name] for picture in pictures])
    return Labelled(task.kind, [names], labels, names, task.seed)


def _read_words(task: LabelledTask, path: Path) -> Labelled:
    """Words of randomly drawn whole sentences, without those of tags in too few sentences."""
    sentences = list(dict.fromkeys(conll.read(path, task.word, task.tag)))
    drawn: list[conll.Sentence] = []
    n = 0
    for place in np.random.default_rng(task.seed).permutation(len(sentences)):
        n += len(sentences[place].words)
        if n > (task.sample or WORDS) and drawn:
            break
        drawn.append(sentences[place])
    words = [word for s in drawn for word in words_of(s.words)]
    tags = [tag for s in drawn for tag in s.tags]
    n_sentences = Counter(tag for s in drawn for tag in set(s.tags))
    rare = sorted(tag for tag, count in n_sentences.items() if count < probes.FOLDS)
    if len(n_sentences) - len(rare) < 2:
        raise LayerwiseError(
            f"{len(n_sentences) - len(rare)} tags are in {probes.FOLDS} or more of {len(drawn)} "
            "sentences, and a probe needs two; take more sentences (sample), or other tags.",
            code="too_few",
        )
    kept = [row for row, tag in enumerate(tags) if tag not in rare]
    log.info("%s: %d words of %d of %d sentences", path, len(kept), len(drawn), len(sentences))
    if rare:
        log.warning(
            "%s: %d words are left out, whose tags (%s) are in fewer than %d sentences",
            path,
            len(tags) - len(kept),
            ", ".join(rare),
            probes.FOLDS,
        )
    words = [words[row] for row in kept]
    labels = probes.classes([tags[row] for row in kept])
    types = [str(word) for word in words]
    return Labelled(task.kind, [words], labels, [w.sentence for w in words], task.seed, types)


def _read_texts(task: LabelledTask, path: Path) -> Labelled:
    frame = read_rows(path)
    columns = [*task.text_columns, str(task.label_column), *([task.group] if task.group else [])]
    for name in columns:
        if name not in frame:
            raise LayerwiseError(
                f"{path} has no column {name!r}{closest(name, map(str, frame.columns))}; it has "
                f"{', '.join(map(str, frame.columns))}.",
                code="unknown_name",
            )
    for name in task.text_columns:
        for row, text in enumerate(frame[name]):
            if not isinstance(text, str) or not text.strip():
                raise LayerwiseError(
                    f"{path}, column {name!r}, row {row} (from 0): expected a text, got "
                    f"{text!r:.40}; fill the row or leave it out.",
                    code="missing",
                )
    texts = [frame[name].tolist() for name in task.text_columns]
    given = frame[str(task.label_column)].tolist()
    labels = probes.classes(given) if task.kind == "classification" else probes.numbers(given)
    groups = _linked(texts, list(frame[task.group]) if task.group else None)
    return Labelled(task.kind, texts, labels, groups, task.seed)


def _linked(texts: list[list[str]], group: list[Any] | None) -> list[str]:
    """For each row the first text of all rows that it is linked with by shared texts or groups."""
    rows = DisjointSet(range(len(texts[0])))
    for columns in (texts, [] if group is None else [list(map(str, group))]):
        first: dict[str, int] = {}
        for column in columns:
            for row, value in enumerate(column):
                rows.merge(row, first.setdefault(value, row))
    named: dict[int, str] = {}
    return [named.setdefault(rows[row], text) for row, text in enumerate(texts[0])]


def _codes(values: list[str]) -> Array:
    # An array of objects: one of strings has the longest one's width in every row.
    return np.asarray(pd.factorize(np.array(values, dtype=object))[0])


def layer_score(data: Labelled, columns: Sequence[Array], confidence: float = 0.95) -> Score:
    """Score one layer.

    Parameters
    ----------
    columns : sequence of arrays, shape (N, D)
        Vectors of `data.texts`, one array for each column.
    confidence : float
        Of the interval: over groups of test rows for probes, over pairs for similarities.
    """
    if data.kind != "pairs":
        return probes.probe(
            columns[0],
            data.labels,
            data.splits,
            data.groups,
            seed=data.seed,
            confidence=confidence,
            types=data.types,
        )
    first, second = map(normalized, columns)
    cosines = np.einsum("nd,nd->n", first, second, dtype=np.float64)
    texts = _codes([text for column in data.texts for text in column]).reshape(2, -1)
    score = correlate(cosines, data.labels, texts, confidence)
    if score.parts is None:
        return score
    return replace(score, parts=np.bincount(_codes(data.groups), score.parts))


@dataclass(frozen=True)
class LabelTask:
    """A task of own labels; see `layerwise.tasks.task.Task`.

    Attributes
    ----------
    images : Path, optional
        The table of its corpus of images.
    """

    entry: LabelledTask
    images: Path | None = None

    @property
    def task_type(self) -> str:
        """By its kind."""
        return TASK_TYPES[self.entry.kind]

    def instruction(self, prompt_type: str) -> str:  # noqa: ARG002
        """Empty: own labels come without instructions."""
        return ""

    def units(self, most: int) -> Iterator[Unit]:  # noqa: ARG002
        """All texts at once: probes need them together."""
        pictures = read_images(self.images) if self.images is not None else []
        keys = [("", text) for text in _kept(self).distinct()]
        yield Unit(keys, {picture.sha256: picture for picture in pictures})

    def score(self, selection: None, vectors: Vectors, settings: ScoringSettings) -> Score:  # noqa: ARG002
        """Score one layer."""
        data = _kept(self)
        columns = [vectors.of("", column) for column in data.texts]
        return layer_score(data, columns, settings.confidence)

    def scores(self, parts: Sequence[Score], settings: ScoringSettings) -> Sequence[Score]:  # noqa: ARG002
        """The score of the only unit."""
        return parts


@keep_data
def _kept(task: LabelTask) -> Labelled:
    return read(task.entry, task.images)
