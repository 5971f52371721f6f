"""The section ``tasks``: tasks that layers are scored on.

.. code-block:: yaml

    tasks:
      STSBenchmark:                                       # of mteb
      EmotionClassification: {folder: /data/emotion}      # its data from a local folder
      pairs: {folder: /data/pairs, type: STS}             # your own task in mteb's schema
      reviews: {file: reviews.csv, kind: classification}  # your own labels
      parity: {task: mypackage.tasks.Parity}              # a class of your own

A list of names is short for entries without settings.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    SerializeAsAny,
    Tag,
    model_validator,
)

from layerwise.config.corpora import HubData
from layerwise.section import (
    Distinct,
    Name,
    Positive,
    Section,
    Seed,
    distinct,
)
from layerwise.vocabulary import TABLES

Kind = Literal["classification", "regression", "pairs", "tags"]
TAGGED = (".conll", ".conllu")
"""Files of words and tags."""


MtebType = Literal[
    "Classification", "Clustering", "PairClassification", "Reranking", "Retrieval", "STS"
]


class MtebEntry(Section):
    """A task of mteb, or your own in its schema."""

    folder: str | None = Field(None, min_length=1)
    """Local folder of the task's data in mteb's schema; null for the hub."""
    type: MtebType | None = None
    """For a task that mteb does not have: its type, which decides how it is scored; null to look
    up the name in mteb. Classification with a test split alone is cross-validated in ten folds."""

    @model_validator(mode="after")
    def _has_data(self) -> Self:
        if self.type is not None and self.folder is None:
            raise ValueError("a task with a type of its own needs its data; add folder")
        return self

    @property
    def task_type(self) -> str | None:
        """Type of the task in the tables of scores, if the config says it."""
        return self.type


class LabelledEntry(Section):
    """A task made of your own labels."""

    file: str | None = None
    """Local file of labelled texts (.parquet, .jsonl, .json, .csv, .tsv), or of words and
    tags (.conll, .conllu)."""
    corpus: Name | None = None
    """In place of a file: a corpus of images or audio with labels, for classification."""
    kind: Kind
    """classification: a class for each text; regression: a number for each text; pairs: a number
    for two texts, such as their similarity; tags: a class for each word."""
    texts: Distinct[str] | None = None
    """Columns of the texts; null for text, or first and second of pairs."""
    label: str | None = Field(None, min_length=1)
    """Column of the label; null for label, or score of pairs."""
    group: str | None = Field(None, min_length=1)
    """Column whose equal values keep rows together, such as an author, in either training or test
    data of a probe. Equal texts always stay together."""
    word: Positive | None = None
    """For tags: column of the word, from 1; null for the first, or for FORM."""
    tag: Positive | None = None
    """For tags: column of the tag, from 1; null for the last, or for UPOS."""
    sample: Positive | None = None
    """For tags: number of words to probe, in whole sentences drawn by the seed; null for 10,000. A
    larger number keeps the earlier sentences."""
    seed: Seed = 0
    """Seed of the split into training and test data."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.file is None) == (self.corpus is None):
            raise ValueError("give one of file and corpus")
        suffixes = TAGGED if self.kind == "tags" else TABLES
        if self.file is not None and not self.file.lower().endswith(suffixes):
            expected = ", ".join(suffixes)
            raise ValueError(f"{self.kind} needs a file of type {expected}, got {self.file}")
        if self.corpus is not None and self.kind != "classification":
            raise ValueError("a corpus has labels of classes; write kind: classification")
        unused = ["texts", "label"] if self.kind == "tags" else ["word", "tag", "sample"]
        unused += ["group"] if self.kind in ("tags", "pairs") else []
        unused += ["texts", "label", "group"] if self.corpus is not None else []
        for key in unused:
            if getattr(self, key) is not None:
                raise ValueError(f"{self.kind} does not use {key} here; remove it")
        columns = 2 if self.kind == "pairs" else 1
        if self.texts is not None and len(self.texts) != columns:
            raise ValueError(f"{self.kind} needs {columns} columns of texts, got {self.texts}")
        return self

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns of texts."""
        return self.texts or (("first", "second") if self.kind == "pairs" else ("text",))

    @property
    def label_column(self) -> str:
        """The column of labels; empty for tags."""
        return self.label or ("score" if self.kind == "pairs" else "label")

    @property
    def task_type(self) -> str:
        """Type of the task in the tables of scores."""
        return task_type(self.kind)


def task_type(kind: str) -> str:
    """Type of a task of labels in the tables of scores, by its kind."""
    return {"pairs": "STS", "tags": "Tagging"}.get(kind, kind.capitalize())


class CustomEntry(Section):
    """A task of a class that you name. Its other keys are those of the class."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    task: str
    """Class of the task by its dotted name, such as mypackage.tasks.Parity: a subclass of
    `layerwise.tasks.task.CustomTask` in an installed package or on PYTHONPATH."""

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_class(cls, entry: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        if cls is CustomEntry and isinstance(entry, dict):
            return cast("Self", _class_named(entry["task"]).model_validate(entry))
        return read(entry)

    @property
    def task_type(self) -> str:
        """Type of the task in the tables of scores; by default the name of its class."""
        return type(self).__name__

    @property
    def files(self) -> tuple[str, ...]:
        """Files whose content decides the scores; by default the one under the key ``file``."""
        return tuple(filter(None, [getattr(self, "file", None)]))

    @property
    def data_sets(self) -> tuple[HubData, ...]:
        """Data sets on the hub that it reads."""
        return ()

    @property
    def forms(self) -> tuple[str, ...]:
        """Readings of a model in place of tokens and poolings, if it has its own; they stand in
        the column of poolings."""
        return ()


def _class_named(name: Any) -> type[CustomEntry]:
    module, _, attribute = str(name).rpartition(".")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"task: cannot import {name!r} ({error}); install its package, or add its folder to "
            "PYTHONPATH"
        ) from error
    if not (isinstance(found, type) and issubclass(found, CustomEntry)):
        raise ValueError(
            f"task: {name} is no task; derive the class from layerwise.tasks.task.CustomTask"
        )
    return found


def _tag(entry: Any) -> str:
    keys = entry if isinstance(entry, dict) else getattr(entry, "__dict__", ())
    if "task" in keys:
        return "{custom}"
    return "{labelled}" if {"file", "corpus", "kind"} & set(keys) else "{mteb}"


Task = Annotated[
    Annotated[MtebEntry, Tag("{mteb}")]
    | Annotated[LabelledEntry, Tag("{labelled}")]
    | Annotated[SerializeAsAny[CustomEntry], Tag("{custom}")],
    Discriminator(_tag),
]
"""A task: of mteb, of your own labels, or of a class that you name."""


def _named(tasks: Any) -> Any:
    if isinstance(tasks, tuple) and all(isinstance(name, str) for name in tasks):
        return {name: {} for name in distinct(tasks)}
    if isinstance(tasks, dict):
        return {name: {} if entry is None else entry for name, entry in tasks.items()}
    return tasks


Tasks = Annotated[dict[Name, Task], BeforeValidator(_named)]
"""Tasks by name; a list of names is short for entries without settings."""
