"""The distinct texts that a task's evaluators ask for, and the file that lists them.

``results/tasks/{task}.texts.parquet``: columns ``text`` and ``prompt_type`` (``query``,
``document``, or empty, as mteb's evaluators say it of a text); each pair of them once. In its
metadata are the task's type and mteb's instruction for each prompt type, so that whoever embeds
the texts knows which prompt goes in front, without mteb. Of a task of images ``text`` is the
SHA-256 of an image's file, and a column ``image`` has its bytes. Of a task of words each row is a
word: ``text`` its sentence, and ``start`` and ``stop`` the characters of it.

The list comes from a run of mteb's own evaluation with an encoder that notes what it is asked for
(`layerwise.tasks.encoders.TextRecorder`). So it is exactly what the evaluators will ask for: the
training sentences that the classification experiments draw, the documents that a clustering
samples, queries and documents as they are put together, and nothing else.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layerwise import tables
from layerwise.activations.words import Word
from layerwise.errors import LayerwiseError
from layerwise.tables import Kind
from layerwise.tasks import catalog

log = logging.getLogger(__name__)

TEXTS = Kind("layerwise.task_texts", 4)
WORDS = ("text", "start", "stop")


@dataclass(frozen=True)
class TaskTexts:
    """What a task's evaluators encode.

    Attributes
    ----------
    texts : list of str, or of Word
        In the order of first use. A text that is query and document stands there twice.
    prompt_types : list of str
        ``query``, ``document`` or empty, of each.
    instructions : mapping from prompt type to mteb's instruction for the task
    images : list of bytes
        The file of each image, where the texts are hashes of images; else empty.
    """

    task: str
    task_type: str
    texts: list[Any]
    prompt_types: list[str]
    instructions: Mapping[str, str] = field(default_factory=dict)
    images: Sequence[bytes] = ()


def distinct_texts(task: Any) -> TaskTexts:
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
        raise LayerwiseError(f"{task.metadata.name} has nothing to encode; check its data.")
    for _, text in recorder.texts:
        if not isinstance(text, str):
            raise LayerwiseError(
                f"The data of {task.metadata.name} has {text!r:.60} where a text should be; mend "
                "the files in its folder."
            )
    return TaskTexts(
        task=task.metadata.name,
        task_type=task.metadata.type,
        texts=[text for _, text in recorder.texts],
        prompt_types=[prompt_type for prompt_type, _ in recorder.texts],
        instructions=recorder.instructions,
        images=[recorder.images[text] for _, text in recorder.texts] if recorder.images else (),
    )


def write_texts(path: Path, asked: TaskTexts, **facts: Any) -> None:
    """Write the list of a task's texts; `facts` (key and recipe of the job) go into the metadata.

    Raises
    ------
    LayerwiseError
        If the folder cannot be written.
    """
    import pandas as pd

    columns: dict[str, list[Any]] = {"text": asked.texts}
    if asked.texts and isinstance(asked.texts[0], Word):
        columns = dict(zip(WORDS, map(list, zip(*asked.texts, strict=True)), strict=True))
    frame = pd.DataFrame({**columns, "prompt_type": asked.prompt_types})
    facts |= {"task_type": asked.task_type, "instructions": dict(asked.instructions)}
    if asked.images:
        frame["image"] = asked.images
    tables.write(path, frame, kind=TEXTS, task=asked.task, **facts)


def read_texts(path: Path, task: str | None = None) -> TaskTexts:
    """The texts of a task, in the order in which they are embedded.

    Raises
    ------
    LayerwiseError
        If the file is missing, damaged, no such list, or about another task.
    """
    frame = tables.read(path, "texts", kind=TEXTS)
    texts: list[Any] = frame["text"].to_list()
    if set(WORDS) <= set(frame):
        texts = [Word(*row) for row in frame[list(WORDS)].itertuples(index=False)]
    facts = tables.facts(path)
    found = facts["task"]
    if task is not None and found != task:
        raise LayerwiseError(f"{path} is about {found!r}, wanted was {task!r}; {tables.REMEDY}")
    return TaskTexts(
        task=found,
        task_type=facts["task_type"],
        texts=texts,
        prompt_types=frame["prompt_type"].to_list(),
        instructions=json.loads(facts["instructions"]),
        images=frame["image"].to_list() if "image" in frame else (),
    )
