"""The section ``token_tasks``: tasks that are scored from token states, in a pass of their own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag, field_validator

from layerwise.config.base import Name, Positive, Section, Seed, SomeOf, later, one_of

Form = Literal["letter", "answer", "answer_per_character"]
SUFFIXES = (".parquet", ".jsonl", ".csv")


class _Columns(Section):
    """Columns of questions, named as in MMLU."""

    question: str = Field("question", min_length=1, description="Column of the question.")
    choices: str = Field("choices", min_length=1, description="Column of the list of answers.")
    answer: str = Field(
        "answer", min_length=1, description="Column of the right answer's place, from 0."
    )
    subject: str | None = Field(
        "subject",
        description="Column of the subject, from which examples come too; null for none.",
    )


class HubQuestions(_Columns):
    """Questions on the Hugging Face hub."""

    hub: str = Field(min_length=1, description="Data set on the hub, such as cais/mmlu.")
    name: str | None = Field(None, description="The data set's configuration, such as all.")
    split: str = Field("test", description="Split of the questions.")
    examples: str = Field("dev", description="Split of the examples, where shots asks for any.")
    revision: str | None = Field(None, description="Branch, tag or commit of the data set.")


class FileQuestions(_Columns):
    """Questions in a local file."""

    file: str = Field(
        description="Local file of questions: .parquet, .jsonl, or .csv with the answers as a "
        "JSON list."
    )
    examples: str | None = Field(
        None, description="Such a file of the examples, where shots asks for any."
    )

    @field_validator("file", "examples")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        if value is not None and not value.lower().endswith(SUFFIXES):
            raise ValueError(f"accepted are files that end in {', '.join(SUFFIXES)}")
        return value


class PackageQuestions(Section):
    """Questions made of texts in a Python package."""

    package: Literal["wikipedia"] = Field(
        description="Which of four words is missing from a sentence of gensim's Wikipedia "
        "articles? Made here, for want of a test that comes as a package."
    )


Questions = Annotated[
    Annotated[HubQuestions, Tag("hub")]
    | Annotated[FileQuestions, Tag("file")]
    | Annotated[PackageQuestions, Tag("package")],
    one_of("hub", "file", "package"),
]
"""Where multiple-choice questions come from."""


class ChoiceTask(Section):
    """Multiple choice: which answer does a layer hold for likeliest?"""

    questions: Questions = Field(description="Where the questions come from.")
    shots: int = Field(
        0, ge=0, le=100, description="Examples before each question, of the same subject."
    )
    forms: SomeOf[Form] = Field(
        ("letter", "answer", "answer_per_character"),
        description="letter: the answers are listed, and A, B, C or D is chosen; answer: the "
        "answer itself by its log-likelihood after the question; answer_per_character: by that "
        "over its length. Told apart as poolings are.",
    )
    sample: Positive | None = Field(
        None, description="Questions drawn, in equal shares of all; null for all there are."
    )
    seed: Seed = Field(0, description="Seed of that draw.")


class PairTask(Section):
    """Similarity of sentences by their tokens, matched greedily as BERTScore does."""

    pairs: Name = Field(
        description="MTEB task of the type STS whose sentence pairs are taken; the first sentence "
        "of each counts as the reference."
    )
    sample: Positive | None = Field(
        None,
        description="Pairs drawn at random; null for all there are.",
        json_schema_extra=later(None),
    )
    seed: Seed = Field(0, description="Seed of that draw.", json_schema_extra=later(0))


TokenTask = Annotated[
    Annotated[ChoiceTask, Tag("questions")] | Annotated[PairTask, Tag("pairs")],
    one_of("questions", "pairs"),
]
"""A task scored from token states."""

MATCHES = tuple(
    f"match_{name}{idf}" for idf in ("", "_idf") for name in ("precision", "recall", "f1")
)
"""How matched tokens become one similarity, beside ``mean``, the cosine of pooled embeddings."""

TYPES = {"questions": "MultipleChoice", "pairs": "STS"}


def type_of(task: ChoiceTask | PairTask) -> str:
    """The task type in the tables of scores."""
    return TYPES["questions" if isinstance(task, ChoiceTask) else "pairs"]


def poolings_of(task: ChoiceTask | PairTask) -> tuple[str, ...]:
    """What tells the task's readings apart in the column ``pooling``."""
    return task.forms if isinstance(task, ChoiceTask) else ("mean", *MATCHES)
