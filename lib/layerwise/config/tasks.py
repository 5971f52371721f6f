"""The section ``tasks``: tasks that layers are scored on.

.. code-block:: yaml

    tasks:
      STSBenchmark:                                       # of mteb
      EmotionClassification: {folder: /data/emotion}      # its data from a local folder
      pairs: {folder: /data/pairs, type: STS}             # your own task in mteb's schema
      reviews: {file: reviews.csv, kind: classification}  # your own labels
      mmlu: {questions: {hub: cais/mmlu, name: all}}      # multiple choice, by logit lens

A list of names is short for entries without settings.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from layerwise.config.corpora import HubData
from layerwise.section import (
    Distinct,
    Name,
    Positive,
    Section,
    Seed,
    distinct,
    ends_with,
    one_of,
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


class _Columns(Section):
    """Columns of questions, named as in MMLU."""

    question: str = Field("question", min_length=1)
    """Column of the question."""
    choices: str = Field("choices", min_length=1)
    """Column of the list of answers."""
    answer: str = Field("answer", min_length=1)
    """Column of the correct answer's position, from 0."""
    subject: str | None = "subject"
    """Column of the subject, for examples of the same; null for none."""


class HubQuestions(HubData, _Columns):
    """Questions on the Hugging Face hub."""

    split: str = "test"
    """Split of the questions."""
    examples: str = "dev"
    """Split of the examples for few-shot prompts."""


Table = Annotated[str, ends_with(*TABLES)]


class FileQuestions(_Columns):
    """Questions in a local file."""

    file: Table
    """Local file: .parquet, .jsonl, .json, or .csv or .tsv with the answers as a JSON list."""
    examples: Table | None = None
    """File of the examples for few-shot prompts."""


Questions = Annotated[
    Annotated[HubQuestions, Tag("{hub}")] | Annotated[FileQuestions, Tag("{file}")],
    one_of("hub", "file"),
]
"""The source of multiple-choice questions."""


class ChoiceEntry(Section):
    """Multiple choice: the answer that a layer finds most likely, read by logit lens."""

    questions: Questions
    """Source of the questions: hub or file."""
    shots: int = Field(0, ge=0, le=100)
    """Examples before each question, of the same subject."""
    sample: Positive | None = None
    """Number of questions, in equal shares of all subjects; null for all."""


def _tag(entry: Any) -> str:
    keys = entry if isinstance(entry, dict) else getattr(entry, "__dict__", ())
    if "questions" in keys:
        return "{choice}"
    return "{labelled}" if {"file", "corpus", "kind"} & set(keys) else "{mteb}"


Task = Annotated[
    Annotated[MtebEntry, Tag("{mteb}")]
    | Annotated[LabelledEntry, Tag("{labelled}")]
    | Annotated[ChoiceEntry, Tag("{choice}")],
    Discriminator(_tag),
]
"""A task: of mteb, of your own labels, or of multiple choice."""


def _named(tasks: Any) -> Any:
    if isinstance(tasks, tuple) and all(isinstance(name, str) for name in tasks):
        return {name: {} for name in distinct(tasks)}
    if isinstance(tasks, dict):
        return {name: {} if entry is None else entry for name, entry in tasks.items()}
    return tasks


Tasks = Annotated[dict[Name, Task], BeforeValidator(_named)]
"""Tasks by name; a list of names is short for entries without settings."""
