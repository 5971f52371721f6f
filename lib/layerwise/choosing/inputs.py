"""Labelled rows to choose a layer by: read and sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerwise.analysis import labels_of, prompts_in
from layerwise.config.tasks import TAGGED, LabelledEntry
from layerwise.corpora.media import in_folder
from layerwise.corpora.sources import label_column
from layerwise.corpora.sources import read_rows as read_table
from layerwise.errors import LayerwiseError, check_name, closest, listed
from layerwise.section import parse
from layerwise.tasks import labelled, measures, probes
from layerwise.tasks.labelled import Labels
from layerwise.tasks.labels import KINDS, kind_of_labels, read_tagged


def read_rows(
    texts: Any, labels: Sequence[Any] | None, kind: str | None, score: str | None
) -> Labels:
    """Read labelled rows to choose a layer by: with their score.

    Parameters
    ----------
    texts, labels, kind, score
        As for `layerwise.choose`.

    Raises
    ------
    LayerwiseError
        If there are no labels, they are no classes or numbers, or the score is not one of theirs.
    """
    if labels is None and not isinstance(texts, Labels):
        raise LayerwiseError(
            "choose needs labels: no metric of texts alone tells which layer to use. Label 40 "
            "texts or more (--labels FILE, labels=).",
            code="missing",
        )
    rows = texts if labels is None else labels_of(prompts_in(texts), labels, kind)
    measure = score or measures.default(rows.kind, rows.labels)
    check_name(f"score of {rows.kind}", measure, measures.OF_KIND[rows.kind])
    return replace(rows, measure=measure, n_shuffles=0, with_values=True)


def read(
    path: Path,
    texts: Sequence[str] = (),
    label: str | None = None,
    *,
    kind: str | None = None,
    sample: int = 1000,
    seed: int = 0,
) -> tuple[Labels, str]:
    """Read labelled rows of a file or a folder, at most `sample`, and describe them in a line.

    Parameters
    ----------
    path : Path
        A file (`task_of`), or a folder of images or recordings with a subfolder for each class.
    texts, label, kind, seed
        As for `task_of`, of a file.

    Raises
    ------
    LayerwiseError
        As `task_of`, `read_labels` and `read_folder`; and if columns or a kind are named of a
        folder.
    """
    if not path.is_dir():
        rows, n = read_labels(task_of(path, texts, label, seed, kind), sample)
        return rows, rows.described(n)
    if texts or label or kind:
        raise LayerwiseError(
            "--text, --label and --kind are for the columns of a file, and a folder has none.",
            code="conflict",
        )
    rows, n = read_folder(path, sample, seed)
    return rows, rows.described(n, "labelled files")


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
    if kind is not None:
        check_name("kind", kind, KINDS)
    is_tagged = path.suffix.lower() in TAGGED
    frame = pd.DataFrame() if is_tagged else read_table(path)
    has_pairs = len(texts) == 2 or (not texts and {"first", "second"} <= set(frame.columns))
    only = "tags" if is_tagged else "pairs" if has_pairs else None
    if only and kind:
        raise LayerwiseError(
            f"{path} has {only}, and --kind is for a label of each text; remove it.",
            code="conflict",
        )
    columns = {"texts": [*texts] or None, "label": label}
    settings = {"file": str(path), "seed": seed, "kind": only or kind or KINDS[0], **columns}
    task = parse(LabelledEntry, settings, str(path))
    if is_tagged:
        return task
    for name in (*task.text_columns, task.label_column):
        if name not in frame:
            raise LayerwiseError(
                f"{path} has no column {name!r}{closest(name, frame.columns)}, but "
                f"{listed(frame.columns)}; name the columns of the text and the label by --text "
                "and --label.",
                code="unknown_name",
            )
    if only or kind:
        return task
    in_text = path.suffix.lower() in (".csv", ".tsv")  # Their numbers are texts.
    kind = kind_of_labels(label_column(path, frame, task.label_column), in_text=in_text)
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
    data = labelled.read(task)
    return sample_labels(data, most), len(data.labels)


def sample_labels(data: Labels, most: int) -> Labels:
    """At most so many rows, drawn by their seed."""
    sample = data.rows(_drawn(data, most))
    sample.check_splits()
    return sample


def read_folder(folder: Path, most: int, seed: int = 0) -> tuple[Labels, int]:
    """Read images or recordings whose subfolders are their classes, as `read_labels`.

    Files that are not drawn are not read.

    Raises
    ------
    LayerwiseError
        As `read_labels`; and if a file is in no subfolder.
    """
    files = in_folder(folder)
    if None in files.labels:
        raise LayerwiseError(
            f"{folder}: {files.ids[files.labels.index(None)]} is in no subfolder; the subfolder "
            "is the label.",
            code="too_few",
        )
    numbers = probes.classes(files.labels)
    rows = _drawn(Labels("classification", [files.ids], numbers, files.ids, seed), most)
    labels = [files.labels[row] for row in rows]
    data = labels_of([files.read(row) for row in rows], labels, "classification")
    data = replace(data, seed=seed)
    data.check_splits()
    return data, len(files.ids)


def _drawn(data: Labels, most: int) -> Any:
    """Rows drawn at random; of each class at least as many groups as there are splits, or all."""
    if len(data.labels) <= most:
        return np.arange(len(data.labels))
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
