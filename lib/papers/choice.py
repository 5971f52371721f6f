"""Multiple choice at every layer, by logit lens (`papers.lens`): a task for `tasks`.

.. code-block:: yaml

    mmlu: {task: papers.choice.ChoiceTask, questions: {hub: cais/mmlu, name: all}, shots: 5}
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from pydantic import Field

from layerwise.config.corpora import HubData
from layerwise.errors import LayerwiseError
from layerwise.section import Positive
from layerwise.tasks.task import Array, CustomTask, ModelPrompts, Setup, Unit, Vectors, keep_data
from papers.questions import (
    LETTERS,
    Answer,
    HubQuestions,
    Question,
    Questions,
    Source,
    read_questions,
)

if TYPE_CHECKING:
    from layerwise.config.settings import ScoringSettings
    from layerwise.models.load import LoadedModel
    from layerwise.tasks.evaluate import Score
    from papers.lens import Floats

log = logging.getLogger(__name__)

WINDOW = 128  # questions whose tokens are in memory

FORMS: Mapping[str, str] = {
    "letter": "letter of the answer",
    "answer": "likelihood of the answer",
    "answer_per_character": "likelihood per character",
}
"""Forms of a question and its answers."""


class ChoiceTask(CustomTask):
    """Multiple choice: the answer that a layer finds most likely, read by logit lens.

    The vector of a question has one number: 1 if the likeliest answer is the right one, else 0;
    nan if the question, with its examples, is longer than the model takes.
    """

    task: str = "papers.choice.ChoiceTask"
    questions: Source
    """Source of the questions: hub or file."""
    shots: int = Field(0, ge=0, le=100)
    """Examples before each question, of the same subject."""
    sample: Positive | None = None
    """Number of questions, in equal shares of all subjects; null for all."""

    @property
    def task_type(self) -> str:
        """Multiple choice."""
        return "MultipleChoice"

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the questions and of the examples."""
        source = self.questions
        if isinstance(source, HubQuestions):
            return ()
        return tuple(filter(None, [source.file, source.examples]))

    @property
    def data_sets(self) -> tuple[HubData, ...]:
        """The splits of the questions and of the examples that are asked for."""
        source = self.questions
        if not isinstance(source, HubQuestions):
            return ()
        splits = [source.split, *([source.examples] if self.shots else [])]
        return tuple(source.model_copy(update={"split": split}) for split in splits)

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms of the questions."""
        return tuple(FORMS)

    @property
    def reader(self) -> object:
        """The task: its layers answer questions."""
        return self

    def prompt(self, prompts: ModelPrompts, name: str, prompt_type: str) -> str:  # noqa: ARG002
        """None: the form of the questions is the task's."""
        return ""

    def text_of(self, item: Question) -> str:
        """The question without its answers."""
        return item.question

    def units(self, most: int) -> Iterator[Unit]:
        """At most so many different questions each."""
        asked = list(dict.fromkeys(_questions(self).asked))
        for start in range(0, len(asked), most):
            questions = asked[start : start + most]
            keys = [("", question) for question in questions]
            yield Unit(keys, selection=frozenset(questions))

    def score(
        self,
        selection: frozenset[Question],
        vectors: Vectors,
        settings: ScoringSettings,  # noqa: ARG002
    ) -> list[tuple[bool, float]]:
        """For each question that fits the model: True if the answer is right; chance."""
        asked = [question for question in _questions(self).asked if question in selection]
        right = vectors.of("", asked)[:, 0]
        return [
            (bool(is_right), 1 / len(question.choices))
            for question, is_right in zip(asked, right, strict=True)
            if not np.isnan(is_right)
        ]

    def combine(
        self,
        units: Sequence[list[tuple[bool, float]]],
        settings: ScoringSettings,  # noqa: ARG002
    ) -> list[Score]:
        """Share of right answers, with Wilson's interval."""
        from statsmodels.stats.proportion import (  # type: ignore[import-untyped]
            proportion_confint,
        )

        from layerwise.tasks.evaluate import Score

        answered = [answer for of_unit in units for answer in of_unit]
        if not answered:
            raise LayerwiseError(
                f"All {len(_questions(self).asked)} questions, with {self.shots} examples "
                "each, are longer than the model takes; lower shots.",
                code="too_few",
            )
        right, chances = zip(*answered, strict=True)
        n = len(right)
        low, high = proportion_confint(sum(right), n, method="wilson")
        chance = float(np.mean(chances))
        return [Score(sum(right) / n, float(low), float(high), n, chance=chance)]

    def width(self, setup: Setup) -> int:  # noqa: ARG002
        """One number."""
        return 1

    def read(
        self,
        setup: Setup,
        inputs: Sequence[Question],
        prompts: Sequence[str],  # noqa: ARG002
        into: Array,
    ) -> Iterator[int]:
        """Answer questions; raises `NoAnswersError` for a model that cannot be asked."""
        from papers.lens import lens_of, likelihoods

        loaded = setup.loaded
        examples, budget = _questions(self).examples, setup.extraction.batch_tokens
        lens = lens_of(loaded)
        into[:] = np.nan
        for start in range(0, len(inputs), WINDOW):
            window = inputs[start : start + WINDOW]
            asked = [self._tokenized(loaded, question, examples) for question in window]
            fitting = [row for row, answers in enumerate(asked) if answers]
            answers = [answer for of_question in asked for answer in of_question]
            likely = likelihoods(loaded, lens, answers, budget)
            ends = np.cumsum([len(asked[row]) for row in fitting])
            for row, end in zip(fitting, ends, strict=True):
                values = likely[:, end - len(asked[row]) : end]
                into[:, :, start + row, 0] = self._is_right(window[row], values)
            yield len(window)
        n_long = int(np.isnan(into[0, 0]).sum())
        if n_long:
            log.warning("%d of %d questions are too long and left out", n_long, len(inputs))

    def _is_right(self, question: Question, likelihoods: Floats) -> npt.NDArray[np.bool_]:
        """True where the likeliest answer is right, shape (forms, layers).

        Parameters
        ----------
        likelihoods : array, shape (layers, forms * answers)
        """
        chosen = []
        for form, likely in zip(FORMS, np.split(likelihoods, len(FORMS), axis=1), strict=True):
            if form == "answer_per_character":
                likely = likely / [len(choice) for choice in question.choices]
            chosen.append(likely.argmax(axis=1))
        return np.asarray(np.array(chosen) == question.answer)

    def _tokenized(
        self, loaded: LoadedModel, question: Question, examples: Sequence[Question]
    ) -> list[Answer]:
        """Answers to a question in each form; none if one is too long.

        The tokens of an answer are those where prompt and answer together differ from the prompt.
        """
        shown = [e for e in examples if e.subject == question.subject][: self.shots]
        special = set(loaded.texts.tokenizer.all_special_ids)
        answers = []
        for form in FORMS:
            prompt, choices = prompts(question, form, shown)
            texts = [prompt, *(prompt + choice for choice in choices)]
            (alone, *wholes), (_, *cut) = loaded.texts.prompts(texts)
            for ids in wholes:
                while ids and ids[-1] in special:
                    ids.pop()
                same = [a == b for a, b in zip(ids, alone, strict=False)]
                start = same.index(False) if False in same else len(same)
                if any(cut) or not 0 < start < len(ids):
                    return []
                answers.append(Answer(tuple(ids[:-1]), tuple(ids[start:])))
        return answers


@keep_data
def _questions(task: ChoiceTask) -> Questions:
    return read_questions(task.questions, task.shots, task.sample)


def prompts(
    question: Question, form: str, examples: Sequence[Question]
) -> tuple[str, tuple[str, ...]]:
    """The text before the answer, and what may follow it.

    Parameters
    ----------
    form : {'letter', 'answer', 'answer_per_character'}
        letter: as in MMLU (Hendrycks et al. 2021), answers listed and lettered.
    examples : sequence of Question
        Stand before the question with their right answers.
    """
    if form != "letter":
        shown = [f"Question: {q.question}\nAnswer: {q.choices[q.answer]}\n\n" for q in examples]
        return (
            f"{''.join(shown)}Question: {question.question}\nAnswer:",
            tuple(f" {choice}" for choice in question.choices),
        )
    about = f" about {question.subject}" if question.subject else ""
    head = f"The following are multiple choice questions (with answers){about}.\n\n"
    shown = [f"{_listed(q)} {LETTERS[q.answer]}\n\n" for q in examples]
    letters = tuple(f" {letter}" for letter in LETTERS[: len(question.choices)])
    return f"{head}{''.join(shown)}{_listed(question)}", letters


def _listed(question: Question) -> str:
    lines = (f"{LETTERS[k]}. {choice}" for k, choice in enumerate(question.choices))
    return "\n".join([question.question.strip(), *lines, "Answer:"])
