"""The distinct texts that a task's evaluators ask for, and the file that lists them.

``results/tasks/{task}.texts.parquet``: columns ``key`` (SHA-256 of the text) and ``text``.

The list is taken by running mteb's own evaluation with an encoder that notes what it is asked
(`layerwise.tasks.encoders.TextRecorder`). So it is exactly what the evaluators will ask for:
the training sentences that the classification experiments draw, the documents that a clustering
samples, queries and documents as they are put together, and nothing else.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

from layerwise.corpora import parquet
from layerwise.errors import LayerwiseError
from layerwise.files import sha256_text
from layerwise.tasks import catalog

log = logging.getLogger(__name__)

SCHEMA = "layerwise.task_texts"
VERSION = 2


def distinct_texts(task: Any) -> list[str]:
    """The distinct texts that the evaluators of a loaded task encode, in order of first use.

    Raises
    ------
    LayerwiseError
        If the evaluators cannot use the task's data, or it has no text at all.
    """
    from layerwise.tasks.encoders import TextRecorder
    from layerwise.tasks.evaluation import evaluate

    recorder = TextRecorder()
    with warnings.catch_warnings():
        # Scores of noise are ill-defined, and not wanted.
        warnings.simplefilter("ignore")
        try:
            evaluate(task, recorder)
        except (KeyError, TypeError, ValueError) as error:
            raise catalog.unusable(task, error) from error
    if not recorder.texts:
        raise LayerwiseError(f"{task.metadata.name} has no text to encode; check its data.")
    return list(recorder.texts)


def write_texts(path: Path, task: str, texts: list[str]) -> None:
    """Write the list of a task's texts.

    Raises
    ------
    LayerwiseError
        If the folder cannot be written.
    """
    keys = [sha256_text(text) for text in texts]
    columns = {"key": ("large_string", keys), "text": ("large_string", texts)}
    parquet.write(path, SCHEMA, VERSION, columns, {"task": task})


def read_texts(path: Path, task: str | None = None) -> tuple[list[str], list[str]]:
    """Keys and texts of a task, in the order in which they are embedded.

    Raises
    ------
    LayerwiseError
        If the file is missing, damaged, no such list, or about another task.
    """
    kinds = {"key": "large_string", "text": "large_string"}
    columns, facts = parquet.read(path, SCHEMA, VERSION, kinds, facts=["task"])
    if task is not None and facts["task"] != task:
        raise LayerwiseError(
            f"{path} is about {facts['task']!r}, wanted was {task!r}; {parquet.REMEDY}"
        )
    if any(sha256_text(t) != k for k, t in zip(columns["key"], columns["text"], strict=True)):
        raise LayerwiseError(f"{path} is damaged (a text does not fit its key); {parquet.REMEDY}")
    return columns["key"], columns["text"]
