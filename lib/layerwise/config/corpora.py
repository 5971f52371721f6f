"""The section ``corpora``: the source of the prompts, their selection, and their views."""

from __future__ import annotations

import functools
import itertools
import operator
import string
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, GetCoreSchemaHandler, Tag, model_validator
from pydantic_core import CoreSchema

from layerwise import addons
from layerwise.section import (
    Count,
    Distinct,
    Pattern,
    Positive,
    Probability,
    Section,
    Seed,
    SomeOf,
    ends_with,
    one_of,
)
from layerwise.vocabulary import LABELS, TABLES, Protocol, Sublayer, Tokens

Action = Literal["insert", "substitute", "swap", "delete"]


def _template(value: str) -> str:
    """Refuse a template that is more than text with columns in braces."""
    try:
        columns = [piece[1:] for piece in string.Formatter().parse(value)]
    except ValueError as error:
        raise ValueError(f"{error}; write {{{{ and }}}} for braces in the text") from error
    named = [name for name, _, _ in columns if name is not None]
    if not named or "" in named or any(form or conversion for _, form, conversion in columns):
        raise ValueError("expected text with columns in braces, such as 'Q: {question}'")
    return value


Template = Annotated[str, AfterValidator(_template)]
"""A text with columns in braces."""


class Columns(Section):
    """The columns of a table that make a prompt."""

    column: str = "text"
    """Column or key that holds the text; unused for .txt."""
    template: Template | None = None
    """Text over several columns in place of `column`, such as 'Q: {question}\\nA: {answer}'. Rows
    in which one of them is empty are dropped."""


class HubData(Section):
    """A data set on the Hugging Face hub."""

    hub: str = Field(min_length=1)
    """Data set on the Hugging Face hub ('owner/name') or its local folder. A cached copy is used
    offline."""
    name: str | None = None
    """The data set's configuration, such as wikitext-103-raw-v1."""
    split: str = "train"
    """Split, such as train, validation or train[:10%]."""
    revision: str | None = None
    """Branch, tag or commit of the data set."""


class HubTexts(HubData, Columns):
    """Texts of a data set on the Hugging Face hub."""


class FileTexts(Columns):
    """Texts of a local file."""

    file: Annotated[str, ends_with(*TABLES, ".txt")]
    """Local file in UTF-8 (.parquet, .jsonl, .json, .csv, .tsv, .txt); .txt has a prompt in each
    line."""
    id: str | None = None
    """Column or key with a unique id; null numbers the rows from 0."""


class TaskTexts(Section):
    """Texts of a task."""

    task: str = Field(min_length=1)
    """The distinct texts of this MTEB task."""


class Generation(Section):
    """Answers of a model to prompts."""

    model: str = Field(min_length=1)
    """A model of `models`, which writes the texts at its last checkpoint."""
    prompts: Annotated[
        Annotated[HubTexts, Tag("{hub}")] | Annotated[FileTexts, Tag("{file}")],
        one_of("hub", "file"),
    ]
    """Source of the prompts: one of hub, file."""
    max_new_tokens: Positive = 512
    """Maximum number of tokens of an answer."""


class GeneratedTexts(Section):
    """Texts that a model writes itself, by greedy decoding."""

    generate: Generation
    """The model and its prompts. A text is a prompt in the chat template and the answer."""


TextSource = Annotated[
    Annotated[HubTexts, Tag("{hub}")]
    | Annotated[FileTexts, Tag("{file}")]
    | Annotated[TaskTexts, Tag("{task}")]
    | Annotated[GeneratedTexts, Tag("{generate}")],
    one_of("hub", "file", "task", "generate"),
]
"""The source of a corpus of texts."""


def data_of(source: Any) -> Any:
    """The data that a source reads: of generated texts those of the prompts."""
    return source.generate.prompts if isinstance(source, GeneratedTexts) else source


class Filters(Section):
    """Texts to drop, in this order."""

    drop_headings: bool = True
    """Drop headings of WikiText ( = Title = ) and MediaWiki (== Title ==)."""
    min_tokens: Count = 30
    """Drop texts with fewer words and punctuation marks."""
    max_tokens: Positive | None = None
    """Maximum number of words and punctuation marks; null for no limit."""
    longer: Literal["drop", "cut"] = "drop"
    """Drop longer texts, or cut them after max_tokens."""
    drop_duplicates: bool = True
    """Keep only the first of equal texts."""


class Sample(Section):
    """The sample of the prompts that passed the filters."""

    n: Positive | None = None
    """Number of prompts; null for all. A larger number keeps the earlier prompts, in the same
    order."""
    seed: Seed = 0
    """Seed of the sample."""


class Views(Section):
    """Number of augmented copies."""

    n: int = Field(2, ge=0, le=1000)
    """Views of each prompt. InfoNCE and DiME need 2, LiDAR gains from more (16
    in the reference). A larger number keeps the earlier views."""


class ViewSettings(Views):
    """Augmented copies of each prompt: nlpaug's SplitAug, RandomCharAug, KeyboardAug in turn, or
    units that change places."""

    p: float = Field(0.3, gt=0, le=1)
    """Share of words, and of the characters of such a word, that each augmenter changes, at most
    10 of them."""
    actions: SomeOf[Action] = ("substitute",)
    """Actions of RandomCharAug; one is drawn for each view. The paper lists all four, nlpaug's
    default is substitute."""
    units: Pattern | None = None
    """For texts that are no language: a regular expression of a unit, such as '[A-Z]' for residues
    of a protein. A share p of the units is replaced by units drawn from the same text, in place of
    typing errors; actions do not apply."""
    on_failure: Literal["error", "drop"] = "error"
    """Stop at a prompt without enough distinct views, or drop it and log its id."""


class Perturb(Section):
    """Changes of a prompt's tokens before a model sees them.

    They change the token ids of each model; special tokens stay in place. A key with a list makes
    a corpus of each value, named ``<corpus> <key> <value>``.
    """

    repetition: Probability | SomeOf[Probability] | None = None
    """Probability that a token is replaced by one that is drawn, once, from the prompt's own
    tokens."""
    randomness: Probability | SomeOf[Probability] | None = None
    """Probability that a token is replaced by one drawn uniformly from the vocabulary without
    special tokens."""
    length: Positive | SomeOf[Positive] | None = None
    """Number of tokens kept of each prompt, from the first; a shorter prompt is an error. With
    randomness 1: random prompts of that length."""

    @property
    def labels(self) -> dict[str, Any]:
        """The given perturbations and their values."""
        return {key: value for key in LABELS if (value := getattr(self, key)) is not None}


class Kept(Section):
    """Settings of `extract` that a corpus overrides."""

    tokens: SomeOf[Tokens] | None = None
    """Token selections for this corpus; null for the model's or extract.tokens."""
    protocols: SomeOf[Protocol] | None = None
    """Protocols for this corpus; null for extract.protocols."""
    sublayers: Distinct[Sublayer] | None = None
    """Sub-layers kept on this corpus; null for extract.sublayers. They take several times the disk
    of the layers, so use fewer prompts."""


class CorpusSettings(Kept):
    """Prompts and their views: ``corpora.<name>``."""

    source_key: ClassVar[str] = "source"
    stage: ClassVar[str] = "corpus"

    source: TextSource
    """Source of the texts: one of hub, file, task, generate."""
    filters: Filters = Filters()
    """Texts to drop."""
    sample: Sample = Sample()
    """Sample of the remaining texts."""
    views: ViewSettings = ViewSettings()
    """Augmented copies of each prompt."""
    perturb: Perturb | None = None
    """Changes of each prompt's tokens before a model sees them. Needs views.n 0."""

    @model_validator(mode="after")
    def _no_views(self) -> Self:
        if self.perturb is not None and self.views.n:
            raise ValueError(
                "perturb changes tokens and views are made of text; add views: {n: 0}"
            )
        return self

    def spread(self, name: str) -> Iterator[tuple[str, CorpusSettings]]:
        """The corpora of this entry, by name: one for each listed perturbation."""
        labels = self.perturb.labels if self.perturb else {}
        listed = {key: values for key, values in labels.items() if isinstance(values, tuple)}
        if self.perturb is None or not listed:
            yield name, self
            return
        for values in itertools.product(*listed.values()):
            chosen = dict(zip(listed, values, strict=True))
            label = " ".join(f"{key} {value:g}" for key, value in chosen.items())
            perturb = self.perturb.model_copy(update=chosen)
            yield f"{name} {label}", self.model_copy(update={"perturb": perturb})


class _OfAnyMedium:
    """The union of `CorpusSettings` and the corpora of add-ons, known when a config is read."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        kinds = [CorpusSettings, *(medium.corpus for medium in addons.media())]
        members = [Annotated[kind, Tag(f"{{{kind.source_key}}}")] for kind in kinds]
        keys = one_of(
            *(kind.source_key for kind in kinds),
            hint=""
            if kinds[1:]
            else "; corpora of images or recordings need the add-on media "
            "(lib/media of layerwise's repository), which is not installed",
        )
        union = functools.reduce(operator.or_, members)
        return handler.generate_schema(Annotated[union, keys])


Corpus = Annotated[Any, _OfAnyMedium]
"""A corpus of texts, or of a medium of an add-on."""
