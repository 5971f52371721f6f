"""What every section of the config has in common: strict types, finite numbers, known keys.

A section is a pydantic model. It is read once, from the YAML of the config, and handed on as it
is: no part of layerwise takes settings as a dictionary.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
)

from layerwise.errors import LayerwiseError

S = TypeVar("S", bound="Section")

LARGEST = 10_000_000
LARGEST_ALPHA = 1e6

NAME = r"^(?!.*(^|/)\.\.?(/|$))[A-Za-z0-9][A-Za-z0-9 ._/+:@=,~-]*$"
NAMES = (
    "Names start with a letter or digit and may hold letters, digits, spaces and ._/+:@=,~- "
    "but no '..' part."
)


class Section(BaseModel):
    """A part of the config: frozen, without unknown keys, NaN or infinity.

    Types are strict: ``2.0`` is no integer and ``"yes"`` is no boolean.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        protected_namespaces=(),
    )
    gone: ClassVar[Mapping[str, str]] = {}
    """Keys that there were once, and why there are none any more."""

    def plain(self) -> dict[str, Any]:
        """The section as JSON has it, every default filled in."""
        return self.model_dump(mode="json")

    def keyed(self) -> dict[str, Any]:
        """What of the section goes into a job's key: all but settings added `later`, at rest."""
        found: dict[str, Any] = {}
        for name, value in self.plain().items():
            extra = type(self).model_fields[name].json_schema_extra
            silent = isinstance(extra, dict) and "silent_at" in extra
            if silent and extra["silent_at"] == value:  # type: ignore[index]
                continue
            held = getattr(self, name)
            found[name] = held.keyed() if isinstance(held, Section) else value
        return found


def _name(value: str) -> str:
    if not re.fullmatch(NAME, value) or value.endswith("\n"):
        raise ValueError("name")
    return value


def _once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise ValueError("once")
    return values


def _alpha(value: Any) -> Any:
    return math.inf if value == "inf" else value


def _reasonable_alpha(value: float) -> float:
    if LARGEST_ALPHA < value < math.inf:
        raise ValueError(f"accepted is up to {LARGEST_ALPHA:g}, or 'inf'")
    return value


def _plain_alpha(value: float) -> float | str:
    return "inf" if math.isinf(value) else value


Name = Annotated[str, AfterValidator(_name), WithJsonSchema({"type": "string", "pattern": NAME})]
"""A name of a model, revision, corpus, task or study."""

Count = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Share = Annotated[float, Field(gt=0, lt=1)]

Alpha = Annotated[
    float,
    Field(gt=0, allow_inf_nan=True),
    BeforeValidator(_alpha),
    AfterValidator(_reasonable_alpha),
    PlainSerializer(_plain_alpha),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"const": "inf"}]}),
]
"""The order of an entropy: above 0, ``inf`` for infinity."""

T = TypeVar("T")
Distinct = Annotated[
    tuple[T, ...], AfterValidator(_once), Field(json_schema_extra={"uniqueItems": True})
]
"""A list in which nothing stands twice."""
SomeOf = Annotated[
    Distinct[T], Field(min_length=1, json_schema_extra={"minItems": 1, "uniqueItems": True})
]
"""A list of at least one, in which nothing stands twice."""


def later(value: Any) -> dict[str, Any]:
    """Marks a setting that came after files had been made, for ``Field(json_schema_extra=…)``.

    Parameters
    ----------
    value : as JSON has it
        Where the setting has this value, all is as it was before there was one, and it is in no
        key: files made earlier stay.
    """
    return {"silent_at": value}


def one_of(*keys: str) -> Discriminator:
    """Tells sources apart by which of the keys is there."""

    def kind(value: Any) -> str | None:
        there = value if isinstance(value, dict) else getattr(value, "__dict__", ())
        return next((key for key in keys if key in there), None)

    listed = ", ".join(keys)
    return Discriminator(
        kind,
        custom_error_type="one_of",
        custom_error_message="one of the keys {keys} is needed",
        custom_error_context={"keys": listed},
    )


def parse(kind: type[S], given: Any, where: str = "") -> S:
    """Read a section from what YAML or JSON gave.

    Parameters
    ----------
    kind : subclass of Section
    given : mapping
    where : str
        The section's place in the config, for errors: ``extract``, ``models.pythia``.

    Raises
    ------
    LayerwiseError
        In one line: which key, what came, what is accepted, and the closest name if one is near.
    """
    from layerwise.config.mistakes import explain

    if not isinstance(given, Mapping):
        raise LayerwiseError(
            f"{where or 'The config'} must be a mapping of keys; {show(given)} came."
        )
    try:
        text = json.dumps(given)
    except (TypeError, ValueError, RecursionError) as error:
        raise LayerwiseError(
            f"{where or 'The config'} holds what no config can: {error}."
        ) from error
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise LayerwiseError(explain(kind, error, where)) from None


def show(value: Any) -> str:
    """A value as a reader of the config would write it, cut to 60 characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
