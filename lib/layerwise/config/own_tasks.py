"""The section ``own_tasks``: tasks made of one's own labels, of texts or of images."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from layerwise.config.base import Distinct, Name, Section, Seed

Kind = Literal["classification", "regression", "pairs", "preference"]
SUFFIXES = (".parquet", ".jsonl", ".csv")
TEXTS = {
    "classification": ("text",),
    "regression": ("text",),
    "pairs": ("first", "second"),
    "preference": ("chosen", "rejected"),
}
"""The columns of texts, by kind, where none are named."""
TASK_TYPES = {
    "classification": "Classification",
    "regression": "Regression",
    "pairs": "STS",
    "preference": "Preference",
}
"""The task type in the tables of scores, by kind."""
LABELS = {"classification": "label", "regression": "label", "pairs": "score"}
"""The column of labels, by kind, where none is named; preferences have none."""


class OwnTask(Section):
    """A task made of one's own labels."""

    file: str | None = Field(
        None, description="Local file of labelled texts: .parquet, .jsonl or .csv."
    )
    corpus: Name | None = Field(
        None,
        description="In place of a file: a corpus of images, each with the label that it has "
        "there. Of the kind classification.",
    )
    kind: Kind = Field(
        description="classification: a class for each text; regression: a number for each; pairs: "
        "a number for two texts (how alike they are, or 0 and 1); preference: of two texts the "
        "one that was chosen."
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

    @field_validator("file")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        if value is not None and not value.lower().endswith(SUFFIXES):
            raise ValueError(f"accepted are files that end in {', '.join(SUFFIXES)}")
        return value

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if (self.file is None) == (self.corpus is None):
            raise ValueError("accepted is one of file and corpus")
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

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns of texts."""
        return self.texts or TEXTS[self.kind]

    @property
    def label_column(self) -> str | None:
        """The column of labels, if the kind has one."""
        return self.label or LABELS.get(self.kind)
