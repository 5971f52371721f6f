"""Multiple-choice questions: from the hub, from a file, or made of Wikipedia articles."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from layerwise.config.tasks import ChoiceTask, FileQuestions, HubQuestions
from layerwise.corpora.paragraphs import Paragraph, read_paragraphs, sentences_of
from layerwise.corpora.sources import load_hub, read_rows
from layerwise.errors import LayerwiseError, check_name
from layerwise.tasks.passages import shuffled

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
PLACES = {letter: place for place, letter in enumerate(LETTERS)}


class Question(NamedTuple):
    """A question with the answers to choose from; `answer` is the right one's place."""

    subject: str
    question: str
    choices: tuple[str, ...]
    answer: int


def read_questions(
    task: ChoiceTask, paragraphs: Path | None = None
) -> tuple[list[Question], list[Question]]:
    """The questions that a task draws, and the examples in front of them.

    Parameters
    ----------
    paragraphs : Path, optional
        Table of Wikipedia paragraphs, for questions that are made of them.

    Raises
    ------
    LayerwiseError
        If the data cannot be had, or hold something else than questions.
    """
    questions, examples = _all_questions(task, paragraphs)
    order = np.random.default_rng(task.seed).permutation(len(questions))
    questions = [questions[place] for place in sorted(order[: task.sample])]
    n_examples = Counter(q.subject for q in examples)
    for subject in {q.subject for q in questions}:
        if n_examples[subject] < task.shots:
            raise LayerwiseError(
                f"shots: {task.shots} is more than the {n_examples[subject]} examples about "
                f"{subject or 'the questions'!r}; give more examples or lower it.",
                code="too_few",
            )
    return questions, examples


def _all_questions(
    task: ChoiceTask, paragraphs: Path | None
) -> tuple[list[Question], list[Question]]:
    source = task.questions
    if isinstance(source, HubQuestions):
        splits = [source.split, *([source.examples] if task.shots else [])]
        found = [_of_table(of_hub(source, s), source, f"{source.hub}, {s}") for s in splits]
    elif isinstance(source, FileQuestions):
        files = [source.file, *([source.examples] if task.shots and source.examples else [])]
        found = [_of_table(read_rows(Path(file)), source, file) for file in files]
    else:
        assert paragraphs is not None
        return cloze(read_paragraphs(paragraphs))
    return found[0], found[1] if len(found) > 1 else []


def of_hub(source: HubQuestions, split: str) -> pd.DataFrame:
    """The rows of a split of questions on the hub, or in the local cache; raises as `load_hub`."""
    data, _ = load_hub(source.model_copy(update={"split": split}))
    frame: pd.DataFrame = data.to_pandas()
    return frame


def _of_table(
    frame: pd.DataFrame, source: HubQuestions | FileQuestions, where: str
) -> list[Question]:
    names = [source.question, source.choices, source.answer]
    for name in names:
        check_name("column", name, frame)
    subjects = frame[source.subject] if source.subject in frame else [""] * len(frame)
    rows = zip(subjects, *(frame[name] for name in names), strict=True)
    return [_question(f"{where}, row {place}", *row) for place, row in enumerate(rows)]


def _question(where: str, subject: Any, text: Any, choices: Any, answer: Any) -> Question:
    try:
        listed = tuple(json.loads(choices) if isinstance(choices, str) else choices)
        right = float(PLACES.get(str(answer).upper(), answer))
    except (TypeError, ValueError):
        listed, right = (), -1
    is_text = all(isinstance(one, str) and one.strip() for one in [text, *listed])
    if not (is_text and 2 <= len(listed) <= len(LETTERS) and right in range(len(listed))):
        raise LayerwiseError(
            f"{where} is no question: accepted are a text, a list of 2 to {len(LETTERS)} answers "
            "and the right one's place from 0 (or its letter); "
            f"{text!r:.40}, {choices!r:.60} and {answer!r:.20} came.",
            code="unreadable",
        )
    subject = "" if pd.isna(subject) else str(subject)
    return Question(subject.replace("_", " "), text, listed, int(right))


# Questions made of Wikipedia

WORD = re.compile(r"[a-z]{5,}")
WHOLE_WORD = re.compile(r"(?<![\w-])[a-z]{5,}(?![\w-])")
WORDS = (12, 30)
PER_ARTICLE, EXAMPLES, ANSWERS = 8, 10, 4


def cloze(paragraphs: Sequence[Paragraph]) -> tuple[list[Question], list[Question]]:
    """Questions after a missing word of a sentence, made of encyclopedia articles.

    Of each article up to eight sentences of 12 to 30 words. A word of five or more small
    letters in the second half is blanked. The three others to choose from are words of the same
    article that end in the same two letters (so that they mostly are of the same part of speech)
    and do not stand in the sentence. All is chosen by hashes, so that the same articles always
    give the same questions. A few are kept as examples.

    Raises
    ------
    LayerwiseError
        If the articles give too few.
    """
    articles: dict[str, list[str]] = {}
    for paragraph in paragraphs:
        articles.setdefault(paragraph.title, []).extend(sentences_of(paragraph.text))
    found: list[Question] = []
    for title, sentences in articles.items():
        vocabulary = {word for s in sentences for word in WORD.findall(s)}
        fitting = {s for s in sentences if WORDS[0] <= len(s.split()) <= WORDS[1]}
        made = (_blanked(s, vocabulary) for s in shuffled(fitting, title))
        found += list(filter(None, made))[:PER_ARTICLE]
    found = shuffled(found, "question")
    if len(found) <= 2 * EXAMPLES:
        raise LayerwiseError(
            f"The Wikipedia paragraphs give {len(found)} questions, and at least "
            f"{2 * EXAMPLES + 1} are needed; give more articles.",
            code="too_few",
        )
    return found[EXAMPLES:], found[:EXAMPLES]


def _blanked(sentence: str, vocabulary: set[str]) -> Question | None:
    late = [m for m in WHOLE_WORD.finditer(sentence) if m.start() > len(sentence) / 2]
    for match in shuffled(late, sentence):
        word = match.group()
        others = {
            w
            for w in vocabulary
            if w[-2:] == word[-2:] and w not in sentence.lower() and word not in w
        }
        if len(others) >= ANSWERS - 1 and sentence.lower().count(word) == 1:
            choices = shuffled([word, *shuffled(others, word)[: ANSWERS - 1]], "order", sentence)
            text = f"{sentence[: match.start()]}____{sentence[match.end() :]}"
            question = f"Which word is missing from this sentence? {text}"
            return Question("", question, tuple(choices), choices.index(word))
    return None
