"""The section ``corpora``: where prompts come from, which are taken, and their views."""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, Tag, field_validator, model_validator

from layerwise.config.base import (
    Count,
    Distinct,
    Positive,
    Section,
    Seed,
    SomeOf,
    later,
    one_of,
)
from layerwise.config.extraction import ExtractSettings
from layerwise.vocabulary import LABELS, Protocol, Sublayer, Tokens

Action = Literal["insert", "substitute", "swap", "delete"]
SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json", ".csv", ".txt")


def _template(value: str) -> str:
    """Refuse a template that is more than text with columns in braces."""
    try:
        pieces = list(string.Formatter().parse(value))
    except ValueError as error:
        raise ValueError(
            f"{str(error)[0].lower()}{str(error)[1:]}; accepted are columns in braces, such as "
            "{question}; {{ and }} are braces of the text itself"
        ) from error
    for _, name, form, conversion in pieces:
        if name == "" or form or conversion:
            raise ValueError(
                "accepted in braces is the name of a column and nothing else, such as {question}"
            )
    if all(name is None for _, name, _, _ in pieces):
        raise ValueError("it names no column; accepted is a text such as 'Q: {question}'")
    return value


Template = Annotated[str, AfterValidator(_template)]
"""A text with columns in braces."""


class Columns(Section):
    """Which columns of a table a prompt is made of, and how."""

    column: str = Field(
        default="text", description="Column or key that holds the text; not for .txt."
    )
    template: Template | None = Field(
        default=None,
        json_schema_extra=later(None),
        description="Text over several columns in place of `column`, such as "
        "'Q: {question}\\nA: {answer}'; a row in which one of them holds nothing is left out.",
    )
    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.template is not None and self.column != "text":
            raise ValueError("column and template came; accepted is one of them")
        return self


class HubTexts(Columns):
    """Texts of a data set on the Hugging Face hub."""

    hub: str = Field(
        min_length=1,
        description="Data set on the Hugging Face hub ('owner/name'), or a local folder of one; a "
        "cached copy serves offline.",
    )
    name: str | None = Field(
        default=None, description="The data set's configuration, such as wikitext-103-raw-v1."
    )
    split: str = Field(
        default="train", description="Split, such as train, validation or train[:10%]."
    )
    revision: str | None = Field(
        default=None, description="Branch, tag or commit of the data set."
    )


class FileTexts(Columns):
    """Texts of a local file."""

    file: str = Field(
        description="Local file: .parquet, .csv, .jsonl (or .ndjson, .json), or .txt with one "
        "prompt a line; UTF-8.",
    )
    id: str | None = Field(
        default=None,
        description="Column or key that holds a unique id; null numbers the rows from 0.",
    )

    @field_validator("file")
    @classmethod
    def _readable(cls, value: str) -> str:
        if not value.lower().endswith(SUFFIXES):
            raise ValueError(f"accepted are files that end in {', '.join(SUFFIXES)}")
        return value


class PackageTexts(Section):
    """Texts that come inside a Python package."""

    package: Literal["wikipedia", "lee", "lee_background"] = Field(
        description="Texts in gensim's test data: paragraphs of 102 Wikipedia articles, 50 or 300 "
        "news texts.",
    )


class TaskTexts(Section):
    """Texts of an MTEB task."""

    task: str = Field(min_length=1, description="The distinct texts of this MTEB task.")


TextSource = Annotated[
    Annotated[HubTexts, Tag("hub")]
    | Annotated[FileTexts, Tag("file")]
    | Annotated[PackageTexts, Tag("package")]
    | Annotated[TaskTexts, Tag("task")],
    one_of("hub", "file", "package", "task"),
]
"""Where the texts of a corpus come from, told apart by its key."""


class Filters(Section):
    """Which texts are left out, in this order."""

    drop_headings: bool = Field(
        default=True,
        description="Leave out headings as WikiText ( = Title = ) and MediaWiki (== Title ==) "
        "write them.",
    )
    min_tokens: Count = Field(
        default=30,
        description="Leave out texts with fewer tokens: words and punctuation marks, counted "
        "without any model.",
    )
    max_tokens: Positive | None = Field(
        default=None,
        description="Most tokens of a prompt, at least min_tokens; null for no limit.",
    )
    longer: Literal["drop", "cut"] = Field(
        default="drop",
        description="Texts with more than max_tokens are left out, or cut after so many.",
    )
    drop_duplicates: bool = Field(default=True, description="Keep only the first of equal texts.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_tokens is not None and self.max_tokens < self.min_tokens:
            raise ValueError(
                f"accepted is a max_tokens of at least min_tokens, which is {self.min_tokens}"
            )
        return self


class Sample(Section):
    """Which of the texts left are taken."""

    n: Positive | None = Field(
        default=None,
        description="Number of prompts; null for all. A larger number keeps the earlier prompts, "
        "in the same order.",
    )
    seed: Seed = Field(default=0, description="Another seed draws other prompts.")


class ViewSettings(Section):
    """Augmented copies of each prompt: nlpaug's SplitAug, RandomCharAug, KeyboardAug in turn."""

    n: int = Field(
        default=2,
        ge=0,
        le=1000,
        description="Views of each prompt besides the prompt itself; InfoNCE and DiME need 2, "
        "LiDAR as many as possible (16 in the reference). A larger number keeps the earlier ones.",
    )
    seed: Seed = Field(default=0, description="Another seed makes other views.")
    p: float = Field(
        default=0.3,
        gt=0,
        le=1,
        description="Share of words, and of the characters of such a word, that each augmenter "
        "changes.",
    )
    cap: Positive | None = Field(
        default=10,
        description="Most words, and characters a word, that an augmenter changes; 10 is "
        "nlpaug's own, null lifts it.",
    )
    actions: SomeOf[Action] = Field(
        default=("substitute",),
        description="What RandomCharAug may do; one is drawn for each view. The paper lists all "
        "four, the library's default is substitute.",
    )
    on_failure: Literal["error", "drop"] = Field(
        default="error",
        description="A prompt without enough distinct views stops the run, or is left out with "
        "its name in the log.",
    )


Probability = Annotated[float, Field(ge=0, le=1)]


class Perturb(Section):
    """What becomes of a prompt's tokens before a model sees them.

    It is done to the token ids of each model; special tokens stay where they are. A key with a
    list makes a corpus of each of its values, named ``<corpus> <key> <value>``.
    """

    repetition: Probability | SomeOf[Probability] | None = Field(
        default=None,
        description="Probability that a token is replaced by one drawn, once, from the prompt's "
        "own tokens.",
    )
    randomness: Probability | SomeOf[Probability] | None = Field(
        default=None,
        description="Probability that a token is replaced by one drawn uniformly from the "
        "vocabulary, special tokens excluded.",
    )
    length: Positive | SomeOf[Positive] | None = Field(
        default=None,
        description="Tokens that are kept of each prompt, from the first; a shorter prompt is an "
        "error. With randomness 1: random prompts of that length.",
    )
    seed: Seed = Field(
        default=0,
        description="Another seed replaces other tokens. A larger probability replaces the same "
        "tokens by the same ones, and further ones.",
    )

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.labels:
            raise ValueError(f"one or more of the keys {', '.join(LABELS)} is needed")
        return self

    @property
    def labels(self) -> dict[str, Any]:
        """What the corpus is told apart by: the keys that are given, and their values."""
        return {key: value for key in LABELS if (value := getattr(self, key)) is not None}


# Settings of `extract` that a corpus may have of its own.
KEPT = ("tokens", "protocols", "sublayers", "prefixes")


class Kept(Section):
    """What is kept of a pass on a corpus alone."""

    tokens: SomeOf[Tokens] | None = Field(
        default=None,
        description="Which tokens of this corpus' prompts count; null for the model's own, or "
        "extract.tokens.",
        json_schema_extra=later(None),
    )
    protocols: SomeOf[Protocol] | None = Field(
        default=None,
        description="How token states of this corpus are normalised; null for extract.protocols.",
        json_schema_extra=later(None),
    )
    sublayers: Distinct[Sublayer] | None = Field(
        default=None,
        description="Parts of each block that are kept on this corpus; null for "
        "extract.sublayers. They cost several times what the layers do: fewer prompts will do.",
        json_schema_extra=later(None),
    )
    prefixes: bool | None = Field(
        default=None,
        description="Whether the spectra of each prompt's first t tokens are kept on this corpus; "
        "null for extract.prefixes.",
        json_schema_extra=later(None),
    )

    def over(self, section: ExtractSettings) -> ExtractSettings:
        """What is kept of a pass, with the corpus' own settings in place of the section's."""
        own = {key: value for key in KEPT if (value := getattr(self, key)) is not None}
        return section.model_copy(update=own)


class CorpusSettings(Kept):
    """Prompts and their views: ``corpora.<name>``."""

    source: TextSource = Field(
        description="Where the texts come from; exactly one of hub, file, package, task."
    )
    filters: Filters = Field(
        default=Filters(), description="Which texts are left out, in this order."
    )
    sample: Sample = Field(default=Sample(), description="Which of the texts left are taken.")
    views: ViewSettings = Field(
        default=ViewSettings(),
        description="Augmented copies of each prompt (nlpaug's SplitAug, RandomCharAug, "
        "KeyboardAug in sequence).",
    )
    perturb: Perturb | None = Field(
        default=None,
        description="What becomes of the tokens of each prompt before a model sees them; null for "
        "nothing. It goes with views.n 0.",
        json_schema_extra=later(None),
    )

    @model_validator(mode="after")
    def _no_views(self) -> Self:
        if self.perturb is not None and self.views.n:
            raise ValueError(
                "perturb changes tokens and views are made of text, so views: {n: 0} is accepted "
                "beside perturb alone"
            )
        return self

    def spread(self, name: str) -> Iterator[tuple[str, CorpusSettings]]:
        """The corpora that this entry stands for, by name: one of each perturbation listed."""
        listed = {k: v for k, v in (self.perturb.labels if self.perturb else {}).items()
                  if isinstance(v, tuple)}  # fmt: skip
        if self.perturb is None or not listed:
            yield name, self
            return
        for values in itertools.product(*listed.values()):
            chosen = dict(zip(listed, values, strict=True))
            said = " ".join(f"{key} {value:g}" for key, value in chosen.items())
            one = self.perturb.model_copy(update=chosen)
            yield f"{name} {said}", self.model_copy(update={"perturb": one})
