"""The distinct texts that a task's evaluators ask for, and the file that lists them.

``results/tasks/{task}.texts.parquet``: columns ``key`` (SHA-256 of the text) and ``text``.

The list comes from a run of mteb's own evaluation with an encoder that notes what it is asked for
(`layerwise.tasks.encoders.TextRecorder`). So it is exactly what the evaluators will ask for: the
training sentences that the classification experiments draw, the documents that a clustering
samples, queries and documents as they are put together, and nothing else.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

from layerwise import tables
from layerwise.errors import LayerwiseError
from layerwise.files import sha256_text
from layerwise.tables import Kind
from layerwise.tasks import catalog

log = logging.getLogger(__name__)

TEXTS = Kind("layerwise.task_texts", 3)


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
        except (LayerwiseError, MemoryError):
            raise
        except Exception as error:  # of mteb's code, on data that may hold anything
            raise catalog.unusable(task, error) from error
    if not recorder.texts:
        raise LayerwiseError(f"{task.metadata.name} has no text to encode; check its data.")
    for text in recorder.texts:
        if not isinstance(text, str):
            raise LayerwiseError(
                f"The data of {task.metadata.name} has {text!r:.60} where a text should be; mend "
                "the files in its folder."
            )
    return list(recorder.texts)


def write_texts(path: Path, task: str, texts: list[str], **facts: Any) -> None:
    """Write the list of a task's texts; `facts` (key and recipe of the job) go into the metadata.

    Raises
    ------
    LayerwiseError
        If the folder cannot be written.
    """
    import pandas as pd

    frame = pd.DataFrame({"key": [sha256_text(text) for text in texts], "text": texts})
    tables.write(path, frame, kind=TEXTS, task=task, **facts)


def read_texts(path: Path, task: str | None = None) -> tuple[list[str], list[str]]:
    """Keys and texts of a task, in the order in which they are embedded.

    Raises
    ------
    LayerwiseError
        If the file is missing, damaged, no such list, or about another task.
    """
    frame = tables.read(path, "texts", ["key", "text"], kind=TEXTS)
    found = tables.facts(path)["task"]
    if task is not None and found != task:
        raise LayerwiseError(f"{path} is about {found!r}, wanted was {task!r}; {tables.REMEDY}")
    return frame["key"].to_list(), frame["text"].to_list()
