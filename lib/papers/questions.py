"""Multiple-choice questions from the hub or from a file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field, Tag

from layerwise.config.corpora import HubData
from layerwise.corpora.sources import load_hub, read_rows
from layerwise.errors import LayerwiseError, check_name
from layerwise.section import Section, ends_with, one_of
from layerwise.vocabulary import TABLES

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NUMBERS = {letter: number for number, letter in enumerate(LETTERS)}


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


Source = Annotated[
    Annotated[HubQuestions, Tag("{hub}")] | Annotated[FileQuestions, Tag("{file}")],
    one_of("hub", "file"),
]
"""The source of multiple-choice questions."""


class Question(NamedTuple):
    """A question with the answers to choose from; `answer` is the right one's place."""

    subject: str
    question: str
    choices: tuple[str, ...]
    answer: int


class Answer(NamedTuple):
    """An answer to a question as tokens.

    Attributes
    ----------
    before, ids : tuple of int
        Tokens that the model reads, and those of the answer; the last of `before` predicts the
        first of `ids`, and so on.
    """

    before: tuple[int, ...]
    ids: tuple[int, ...]


class Questions(NamedTuple):
    """The questions of a task, and the examples in front of them."""

    asked: list[Question]
    examples: list[Question]


def read_questions(source: Source, shots: int = 0, sample: int | None = None) -> Questions:
    """The questions that a task draws, and the examples in front of them.

    Parameters
    ----------
    shots : int
        Examples before each question, of the same subject.
    sample : int, optional
        Number of questions, in equal shares of all subjects; by default all.

    Raises
    ------
    LayerwiseError
        If the data cannot be had, or hold something else than questions.
    """
    questions = _read(source, source.split if isinstance(source, HubQuestions) else source.file)
    examples = _read(source, source.examples) if shots and source.examples else []
    order = np.random.default_rng(0).permutation(len(questions))
    # Subjects take turns until one has no more questions.
    subjects = pd.Series([questions[number].subject for number in order])
    turns = subjects.groupby(subjects).cumcount()
    drawn = order[turns.argsort(kind="stable")][:sample]
    questions = [questions[number] for number in sorted(drawn)]
    n_examples = Counter(q.subject for q in examples)
    for subject in {q.subject for q in questions}:
        if n_examples[subject] < shots:
            raise LayerwiseError(
                f"shots: {shots} is more than the {n_examples[subject]} examples of the "
                f"subject {subject!r}; give more examples or lower it.",
                code="too_few",
            )
    return Questions(questions, examples)


def of_hub(source: HubQuestions, split: str) -> pd.DataFrame:
    """The rows of a split of questions on the hub, or in the local cache; raises as `load_hub`."""
    data, _ = load_hub(source.model_copy(update={"split": split}))
    frame: pd.DataFrame = data.to_pandas()
    return frame


def _read(source: Source, split: str) -> list[Question]:
    """The questions of a split on the hub, or of a file."""
    if isinstance(source, HubQuestions):
        frame, where = of_hub(source, split), f"{source.hub}, {split}"
        frame.index = pd.RangeIndex(1, len(frame) + 1, name="row")
    else:
        frame, where = read_rows(Path(split)), split
    names = [source.question, source.choices, source.answer]
    for name in names:
        check_name(f"column of {where}", name, frame)
    subjects = frame[source.subject] if source.subject in frame else [""] * len(frame)
    rows = zip(subjects, *(frame[name] for name in names), strict=True)
    places = [f"{where}, {frame.index.name} {number}" for number in frame.index]
    return [_question(where, *row) for where, row in zip(places, rows, strict=True)]


def _question(where: str, subject: Any, text: Any, choices: Any, answer: Any) -> Question:
    try:
        listed, names = _choices(json.loads(choices) if isinstance(choices, str) else choices)
        if str(answer) in names:
            right: float = names.index(str(answer))
        elif names and all(map(str.isdecimal, names)):
            right = -1  # it is none of the names, which do not count from 0
        else:
            right = float(NUMBERS.get(str(answer).upper(), answer))
    except (TypeError, ValueError, KeyError):
        listed, right = (), -1
    is_text = all(isinstance(one, str) and one.strip() for one in [text, *listed])
    if not (is_text and 2 <= len(listed) <= len(LETTERS) and right in range(len(listed))):
        raise LayerwiseError(
            f"{where} is no question: accepted are a text, a list of 2 to {len(LETTERS)} answers "
            "(or answers by name) and the right one's name, letter or place from 0; "
            f"{text!r:.40}, {choices!r:.60} and {answer!r:.20} came.",
            code="unreadable",
        )
    subject = "" if pd.isna(subject) else str(subject)
    return Question(subject.replace("_", " "), text, listed, int(right))


def _choices(choices: Any) -> tuple[tuple[Any, ...], list[str]]:
    """The answers, and their names where they have some: a mapping by name, lists of both
    (``text`` and ``label``), or a list of mappings with both."""
    if isinstance(choices, Mapping) and set(choices) != {"text", "label"}:
        return tuple(choices.values()), [*map(str, choices)]
    if not isinstance(choices, Mapping):
        choices = list(choices)
        if not any(isinstance(one, Mapping) for one in choices):
            return tuple(choices), []
        choices = {name: [one[name] for one in choices] for name in ("text", "label")}
    names = [*map(str, choices["label"])]
    if len({*names}) != len(choices["text"]):
        return (), []
    return tuple(choices["text"]), names
