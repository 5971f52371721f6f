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

import pyarrow as pa
import pyarrow.parquet as pq

from layerwise.errors import LayerwiseError
from layerwise.files import provenance, replacing, sha256_text

log = logging.getLogger(__name__)

SCHEMA = "layerwise.task_texts"
VERSION = "1"


def distinct_texts(task: Any) -> list[str]:
    """The distinct texts that the evaluators of a loaded task encode, in order of first use.

    Raises
    ------
    LayerwiseError
        If the task has no text at all.
    """
    from layerwise.tasks.encoders import TextRecorder
    from layerwise.tasks.evaluation import evaluate

    recorder = TextRecorder()
    with warnings.catch_warnings():
        # Scores of noise are ill-defined, and not wanted.
        warnings.simplefilter("ignore")
        evaluate(task, recorder)
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
    table = pa.table({"key": [sha256_text(t) for t in texts], "text": texts})
    facts = provenance(schema=SCHEMA, schema_version=VERSION, task=task)
    with replacing(path) as partial:
        pq.write_table(table.replace_schema_metadata(facts), partial)


def read_texts(path: Path, task: str | None = None) -> tuple[list[str], list[str]]:
    """Keys and texts of a task, in the order in which they are embedded.

    Raises
    ------
    LayerwiseError
        If the file is missing, no such list, or about another task.
    """
    path = Path(path)
    remedy = "delete it and run snakemake again."
    if not path.is_file():
        raise LayerwiseError(f"There is no file {path}; run the rule that makes it.")
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise LayerwiseError(f"{path} is not a readable parquet file; {remedy}") from error
    facts = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
    if (facts.get("schema"), facts.get("schema_version")) != (SCHEMA, VERSION):
        raise LayerwiseError(
            f"{path} is no list of a task's texts that this layerwise reads ({SCHEMA} version "
            f"{VERSION}); {remedy}"
        )
    if task is not None and facts.get("task") != task:
        raise LayerwiseError(
            f"{path} is about {facts.get('task')!r}, wanted was {task!r}; {remedy}"
        )
    return table["key"].to_pylist(), table["text"].to_pylist()
