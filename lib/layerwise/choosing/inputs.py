"""Texts and labelled rows to choose a layer by: read, sampled, near-copies kept together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from layerwise.analysis import labels_of, prompts_of, refuse_column
from layerwise.config.tasks import LabelledEntry
from layerwise.corpora.media import Medium
from layerwise.corpora.media_sources import in_folder
from layerwise.corpora.sources import read_rows
from layerwise.errors import LayerwiseError, check_name, closest, listed
from layerwise.section import parse
from layerwise.tasks import labelled, probes
from layerwise.tasks.labelled import Labels
from layerwise.tasks.labels import KINDS, kind_of_labels, read_tagged

FEWEST_TEXTS = 20
SHARE_OF_NEAR_COPIES = 0.9
TAGGED = (".conll", ".conllu")


def read_texts(
    path: Path, column: str | None = None, *, most: int, seed: int = 0
) -> tuple[list[Any], int]:
    """Read the texts of a file, or the images or recordings of a folder, and count all.

    They are sampled as by `sample_texts`; files of a folder that are not drawn are not read.

    Raises
    ------
    LayerwiseError
        As `sample_texts` and `layerwise.analysis.prompts_of`.
    """
    if not path.is_dir():
        texts = prompts_of(path, column)
        return sample_texts(texts, most, seed), len(texts)
    if column is not None:
        refuse_column(path, column)
    media, read = in_folder(path)
    drawn: dict[str, tuple[int, Medium]] = {}
    for place in np.random.default_rng(seed).permutation(len(media.ids)):
        if len(drawn) == most:
            break
        medium = read(place)
        drawn.setdefault(medium.sha256, (place, medium))
    _check_enough(len(drawn))
    return [medium for _, medium in sorted(drawn.values(), key=itemgetter(0))], len(media.ids)


def sample_texts(texts: Sequence[Any], most: int, seed: int = 0) -> list[Any]:
    """Distinct texts, images or recordings, without blank texts, at most so many, drawn by a seed.

    Raises
    ------
    LayerwiseError
        If there are fewer than `FEWEST_TEXTS`.
    """
    given = (t for t in texts if not isinstance(t, str) or t.strip())
    distinct = list({getattr(t, "sha256", t): t for t in given}.values())
    _check_enough(len(distinct))
    drawn = np.random.default_rng(seed).permutation(len(distinct))[:most]
    return [distinct[row] for row in sorted(drawn)]


def _check_enough(n: int) -> None:
    if n < FEWEST_TEXTS:
        raise LayerwiseError(
            f"{n} different texts given; choosing a layer takes {FEWEST_TEXTS}, better some "
            "hundreds.",
            code="too_few",
        )


def task_of(
    path: Path,
    texts: Sequence[str] = (),
    label: str | None = None,
    seed: int = 0,
    kind: str | None = None,
) -> LabelledEntry:
    """The task that a file of labels is, by its ending and its columns.

    Parameters
    ----------
    texts : sequence of str
        Column of the texts, or the two columns of pairs; by default ``text``, or ``first`` and
        ``second``.
    label : str, optional
        Column of the label; by default ``label``, or ``score`` of pairs.
    kind : {'classification', 'regression'}, optional
        By default as `layerwise.tasks.labels.kind_of_labels`.

    Raises
    ------
    LayerwiseError
        If it lacks a column, or columns are named of a file of tags.
    """
    given = {"file": str(path), "texts": [*texts] or None, "label": label, "seed": seed}
    if kind is not None:
        check_name("kind", kind, KINDS)
    if path.suffix.lower() in TAGGED:
        if kind is not None:
            raise LayerwiseError(
                f"{path} has tags, which are classes; remove --kind.", code="conflict"
            )
        return parse(LabelledEntry, {**given, "kind": "tags"}, str(path))
    frame = read_rows(path)
    pairs = len(texts) == 2 or (not texts and {"first", "second"} <= set(frame.columns))
    task = parse(
        LabelledEntry, {**given, "kind": "pairs" if pairs else "classification"}, str(path)
    )
    for name in (*task.text_columns, task.label_column):
        if name not in frame:
            raise LayerwiseError(
                f"{path} has no column {name!r}{closest(name, frame.columns)}, but "
                f"{listed(frame.columns)}; name the columns of the text and the label by --text "
                "and --label.",
                code="unknown_name",
            )
    if pairs and kind is not None:
        raise LayerwiseError(
            f"{path} has pairs of texts, whose labels are numbers; remove --kind.", code="conflict"
        )
    if pairs:
        return task
    in_text = path.suffix.lower() in (".csv", ".tsv")  # Their numbers are texts.
    kind = kind or kind_of_labels(frame[task.label_column], in_text=in_text)
    return task.model_copy(update={"kind": kind})


def read_labels(task: LabelledEntry, most: int) -> tuple[Labels, int]:
    """Read labelled rows of a file, at most so many drawn by the task's seed, and count all.

    Of files of words and tags, words of whole sentences.

    Raises
    ------
    LayerwiseError
        As `layerwise.tasks.labelled.read`; and if a row of each class for every split is more than
        `most`.
    """
    if task.kind == "tags":
        n = sum(len(sentence.words) for sentence in read_tagged(Path(str(task.file))))
        return labelled.read(task.model_copy(update={"sample": most})), n
    return _sampled(labelled.read(task), most)


def read_folder(folder: Path, most: int, seed: int = 0) -> tuple[Labels, int]:
    """Read images or recordings whose subfolders are their classes, as `read_labels`.

    Files that are not drawn are not read.

    Raises
    ------
    LayerwiseError
        As `read_labels`; and if a file is in no subfolder.
    """
    media, read = in_folder(folder)
    if None in media.labels:
        raise LayerwiseError(
            f"{folder}: {media.ids[media.labels.index(None)]} is in no subfolder; the subfolder "
            "is the label.",
            code="too_few",
        )
    n, numbers = len(media.ids), probes.classes(media.labels)
    files = Labels("classification", [media.ids], numbers, media.ids, seed)
    rows = range(n) if n <= most else _drawn(files, most)
    labels = [media.labels[row] for row in rows]
    data = labels_of([read(row) for row in rows], labels, "classification")
    data = replace(data, seed=seed)
    data.check_splits()
    return data, n


def _sampled(data: Labels, most: int) -> tuple[Labels, int]:
    """At most so many rows, and the number of all."""
    n = len(data.labels)
    if n <= most:
        return data, n
    rows = _drawn(data, most)
    sample = data.rows(rows)
    sample.check_splits()
    return sample, n


def _drawn(data: Labels, most: int) -> Any:
    """Rows drawn at random; of each class at least as many groups as there are splits, or all."""
    rows = pd.DataFrame({"label": data.labels, "group": data.groups})
    rows = rows.iloc[np.random.default_rng(data.seed).permutation(len(rows))]
    needed = rows.index[:0]
    if np.issubdtype(data.labels.dtype, np.integer):
        needed = rows.drop_duplicates().groupby("label").head(probes.FOLDS).index
    if len(needed) > most:
        raise LayerwiseError(
            f"--sample {most} is too few for {rows['label'].nunique()} classes; give "
            f"{len(needed)} or more.",
            code="too_few",
        )
    rest = rows.index.difference(needed, sort=False)[: most - len(needed)]
    return np.sort(np.concatenate([needed, rest]))


def with_copies_together(data: Labels) -> tuple[Labels, int]:
    """Put near-copies of texts, or of pairs, into one group, and count them.

    Near-copies share 90% of their sequences of five characters (cosine of binary counts). Pairs
    are near-copies if both texts are.

    Returns
    -------
    labels : Labels
        Rows that are linked by near-copies or by groups are in one group.
    n : int
        Number of rows that are near-copies of a row in another group of `data`.

    Raises
    ------
    LayerwiseError
        If there are too few groups left for probes.
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    if data.kind == "tags" or not all(isinstance(text, str) for text in data.distinct()):
        return data, 0
    vectorizer = HashingVectorizer(
        analyzer="char_wb", ngram_range=(5, 5), binary=True, alternate_sign=False, dtype=np.float32
    )
    # A lone surrogate has no UTF-8; the tokenizer replaces it too.
    texts = ([t.encode("utf-8", "replace").decode() for t in column] for column in data.texts)
    counts = [vectorizer.transform(column) for column in texts]
    groups, names = pd.factorize(np.array(data.groups, dtype=object))
    links, n = coo_array((len(names), len(names)), dtype=bool), 0
    for start in range(0, len(groups), 1000):
        part = slice(start, start + 1000)
        alike = [(c[part] @ c.T).toarray() >= SHARE_OF_NEAR_COPIES for c in counts]
        copies = np.logical_and.reduce(alike) & (groups[part, None] != groups)
        n += int(copies.any(axis=1).sum())
        ends = groups[part][copies.nonzero()[0]], groups[copies.nonzero()[1]]
        links += coo_array((np.ones(len(ends[0]), bool), ends), links.shape)
    if n == 0:
        return data, 0
    joined = replace(data, groups=connected_components(links, directed=False)[1][groups].tolist())
    try:
        joined.check_splits()
    except LayerwiseError as error:
        raise LayerwiseError(
            f"{n} rows are near-copies of others and count as one with them. {error}",
            code=error.code,
        ) from error
    return joined, n
