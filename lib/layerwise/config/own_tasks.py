"""The section ``own_tasks``: tasks made of one's own labels, of texts or of images."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from layerwise.config.base import Distinct, Name, Positive, Section, Seed, later
from layerwise.vocabulary import WORDS

Kind = Literal["classification", "regression", "pairs", "preference", "tags"]
SUFFIXES = (".parquet", ".jsonl", ".csv")
TAGGED = (".conll", ".conllu")
"""The files of words and tags."""
TEXTS = {
    "classification": ("text",),
    "regression": ("text",),
    "pairs": ("first", "second"),
    "preference": ("chosen", "rejected"),
    "tags": (),
}
"""The columns of texts, by kind, where none are named."""
TASK_TYPES = {
    "classification": "Classification",
    "regression": "Regression",
    "pairs": "STS",
    "preference": "Preference",
    "tags": "Tagging",
}
"""The task type in the tables of scores, by kind."""
LABELS = {"classification": "label", "regression": "label", "pairs": "score"}
"""The column of labels, by kind, where none is named; preferences have none."""


class OwnTask(Section):
    """A task made of one's own labels."""

    file: str | None = Field(
        None,
        description="Local file of labelled texts: .parquet, .jsonl or .csv; of words and tags: "
        ".conll or .conllu.",
    )
    corpus: Name | None = Field(
        None,
        description="In place of a file: a corpus of images, each with the label that it has "
        "there. Of the kind classification.",
    )
    kind: Kind = Field(
        description="classification: a class for each text; regression: a number for each; pairs: "
        "a number for two texts (how alike they are, or 0 and 1); preference: of two texts the "
        "one that was chosen; tags: a class for each word of a sentence."
    )
    texts: Distinct[str] | None = Field(
        None,
        description="Columns of the texts, one or two as the kind has; null for text, for first "
        "and second, or for chosen and rejected.",
    )
    label: str | None = Field(
        None,
        min_length=1,
        description="Column of the label; null for label, or for score of pairs. Preferences have "
        "none.",
    )
    group: str | None = Field(
        None,
        min_length=1,
        description="Column whose equal values keep rows together, such as an author or a prompt: "
        "never some to train a probe on and some to test it. The same text always stays together.",
    )
    seed: Seed = Field(
        0, description="Seed of the rows that probes are trained and tested on, and of shuffling."
    )
    word: Positive | None = Field(
        None,
        description="Of tags: column of the word, from 1; null for the first, or FORM of .conllu.",
        json_schema_extra=later(None),
    )
    tag: Positive | None = Field(
        None,
        description="Of tags: column of the tag, from 1; null for the last, or UPOS of .conllu.",
        json_schema_extra=later(None),
    )
    sample: Positive | None = Field(
        None,
        description="Of tags: words that are probed, in whole sentences drawn by the seed; null "
        f"for {WORDS:,}. A larger number keeps the sentences drawn before.",
        json_schema_extra=later(None),
    )

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if (self.file is None) == (self.corpus is None):
            raise ValueError("accepted is one of file and corpus")
        accepted = TAGGED if self.kind == "tags" else SUFFIXES
        if self.file is not None and not self.file.lower().endswith(accepted):
            raise ValueError(
                f"file: {self.file} came; of kind {self.kind} accepted are files that end in "
                f"{', '.join(accepted)}"
            )
        self._of_tags()
        own = self.kind == "classification" and not (self.texts or self.label or self.group)
        if self.corpus is not None and not own:
            raise ValueError(
                "a corpus of images goes with kind classification, without texts, label or group"
            )
        wanted = len(TEXTS[self.kind])
        if self.texts is not None and len(self.texts) != wanted:
            raise ValueError(
                f"texts: {len(self.texts)} columns came; {self.kind} needs {wanted} of them"
            )
        if self.kind == "preference" and self.label is not None:
            raise ValueError("label came, and preferences have none; leave it out")
        if self.kind == "pairs" and self.group is not None:
            raise ValueError("group came, and pairs are compared without training; leave it out")
        return self

    def _of_tags(self) -> None:
        kinds = {
            "tags": ("texts", "label", "group"),
            "other kinds": ("word", "tag", "sample"),
        }
        here = "tags" if self.kind == "tags" else "other kinds"
        for name in kinds[here]:
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} came, which kind {self.kind} does not have; leave it out"
                )
        if self.word is not None and self.word == self.tag:
            raise ValueError(f"word and tag are both column {self.word}; name two columns")

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns of texts."""
        return self.texts or TEXTS[self.kind]

    @property
    def label_column(self) -> str | None:
        """The column of labels, if the kind has one."""
        return self.label or LABELS.get(self.kind)
