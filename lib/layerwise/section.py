"""The base of every section of a config, the types of its keys, and its error messages.

A section is a pydantic model. It is read once, and functions take it instead of a dictionary.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Hashable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
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
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from layerwise.errors import Code, ConfigError, closest, listed

REMOVED = {
    "parts": "remove it: one job scores all tasks, and several configs share tasks",
    "waiting_gb": "remove it: at most 4 GB of TMPDIR wait for scoring",
    "forms": "remove it: all three forms are scored, and a study names those that it shows",
    "cap": "remove it: at most 10 words and characters change, nlpaug's default",
    **dict.fromkeys(
        ("crop", "jitter", "grey", "blur", "shift", "gain"),
        "remove it: docs/your-images.md and docs/your-audio.md have the views",
    ),
    **dict.fromkeys(
        ("attention", "dimensions", "prefixes"),
        "remove it: arrays are kept where a metric or a study needs them",
    ),
    "questions": "add task: papers.choice.ChoiceTask beside it",
    "seed": "remove it: the draws are always the same",
    "token_states": "set it in extract, in a config of this corpus alone",
}
"""Keys that earlier versions had in some sections: what to use instead."""

S = TypeVar("S", bound="Section")
T = TypeVar("T")


class Section(BaseModel):
    """A part of the config: frozen, without unknown keys, NaN or infinity.

    Types are strict: ``2.0`` is not an integer and ``"yes"`` is not a boolean.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, section: Any) -> Any:
        if isinstance(section, dict):
            for key in section:
                if key not in cls.model_fields:
                    if instead := REMOVED.get(key):
                        raise PydanticCustomError(
                            "unknown_key", f"{key} is no key any more; {instead}"
                        )
                    hint = closest(key, cls.model_fields) or f"; use {listed(cls.model_fields)}"
                    raise PydanticCustomError(
                        "unknown_key", "unknown key {key}{hint}", {"key": repr(key), "hint": hint}
                    )
        return section

    def override(self, section: S) -> S:
        """A section's settings, overridden by those that this one gives under the same keys."""
        shared = type(self).model_fields.keys() & type(section).model_fields.keys()
        overrides = {key: value for key in shared if (value := getattr(self, key)) is not None}
        return section.model_copy(update=overrides)

    def plain(self) -> dict[str, Any]:
        """The section as JSON has it, with every default."""
        return self.model_dump(mode="json")


# Types of keys

LARGEST = 10_000_000
NAME = r"^(?!.*(^|/)\.\.?(/|$))[A-Za-z0-9][A-Za-z0-9 ._/+:@=,~-]*$"
NAMES = (
    "names start with a letter or digit and consist of letters, digits, spaces and ._/+:@=,~- "
    "without a '..' part"
)


def _name(value: str) -> str:
    if not re.fullmatch(NAME, value) or value.endswith("\n"):
        context = {"name": _show(value)}
        raise PydanticCustomError("bad_name", "{name} is not a name; " + NAMES, context)
    return value


def distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Refuse a list with duplicates."""
    seen = set()
    for value in values:
        if value in seen:
            raise PydanticCustomError(
                "duplicate", "{value} is listed twice; list it once", {"value": _show(value)}
            )
        seen.add(value)
    return values


Name = Annotated[str, AfterValidator(_name), WithJsonSchema({"type": "string", "pattern": NAME})]
"""A name of a model, revision, corpus, task or study."""

Count = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Threads = Annotated[int, Field(ge=1, le=1024)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Probability = Annotated[float, Field(ge=0, le=1)]


def _pattern(value: str) -> str:
    """Refuse what is no regular expression, and one that matches nothing but empty places."""
    try:
        empty = re.compile(value).fullmatch("") is not None
    except re.error as error:
        raise ValueError(f"{value!r} is no regular expression: {error}") from error
    if empty:
        raise ValueError(f"{value!r} matches the empty text; write one unit, such as '[A-Z]'")
    return value


Pattern = Annotated[str, AfterValidator(_pattern)]
"""A regular expression of a unit of a text."""

Alpha = Annotated[
    float,
    Field(gt=0, allow_inf_nan=True),
    BeforeValidator(lambda value: math.inf if value == "inf" else value),
    PlainSerializer(lambda value: "inf" if math.isinf(value) else value),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"const": "inf"}]}),
]
"""The order of an entropy: above 0, ``inf`` for infinity."""

Distinct = Annotated[
    tuple[T, ...], AfterValidator(distinct), Field(json_schema_extra={"uniqueItems": True})
]
"""A list without duplicates."""
SomeOf = Annotated[
    Distinct[T], Field(min_length=1, json_schema_extra={"minItems": 1, "uniqueItems": True})
]
"""A list without duplicates, of at least one."""


def ends_with(*suffixes: str) -> AfterValidator:
    """Refuse a file without one of these endings."""

    def check(value: str) -> str:
        if not value.lower().endswith(suffixes):
            raise ValueError(f"expected a file of type {', '.join(suffixes)}, got {value}")
        return value

    return AfterValidator(check)


def one_of(*keys: str, hint: str = "") -> Discriminator:
    """Distinguish the members of a union by their keys: one of these is given.

    The member of the key ``hub`` has ``Tag("{hub}")``, which no key of a config can be. `hint`
    ends the error's sentence.
    """

    def tag(value: Any) -> str | None:
        section = value if isinstance(value, dict) else getattr(value, "__dict__", ())
        return next((f"{{{key}}}" for key in keys if key in section), None)

    return Discriminator(
        tag,
        custom_error_type="one_of",
        custom_error_message="expected a mapping with one of the keys {expected}" + hint,
        custom_error_context={"expected": ", ".join(map(repr, keys))},
    )


# Reading and errors


def parse(kind: type[S], document: Any, where: str = "") -> S:
    """Read a section from what YAML or JSON gave.

    Parameters
    ----------
    kind : subclass of Section
    document : mapping
    where : str
        The section's place in the config, for errors: ``extract``, ``models.pythia``.

    Raises
    ------
    ConfigError
        In one sentence: the key, what was expected, what was given, and the closest known name.
    """
    if not isinstance(document, Mapping):
        problem = f"expected a mapping, got {_show(document)}."
        raise ConfigError(where or "the config", problem, code="wrong_type")
    document = _plain(document, where)
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise _explain(error, document, where) from None


# Keys whose text models read; it may have several lines.
_TEXTS = re.compile(r"\.template$|\bprompts\.[^.]*$")


def item_path(where: str, key: str | int) -> str:
    """The path of an item of a mapping or list, such as ``models.a.revisions[2]``."""
    if isinstance(key, int):
        return f"{where}[{key}]"
    return f"{where}.{key}" if where else key


def _plain(value: Any, where: str) -> Any:
    """The value with tuples for lists; refuses other types than JSON's and control characters."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                problem = f"the key {key!r} is not text; put it in quotes."
                raise ConfigError(where or "the config", problem, code="wrong_type")
            _plain(key, where)
        return {key: _plain(item, item_path(where, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_plain(item, item_path(where, i)) for i, item in enumerate(value))
    if isinstance(value, str):
        allowed = "\n\t" if _TEXTS.search(where) else ""
        for c in value:
            if c not in allowed and unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp"):
                character = f"the control character U+{ord(c):04X}"
                problem = f"{value[:60]!a} contains {character}; remove it."
                raise ConfigError(where or "the config", problem, code="control_character")
    elif not (value is None or isinstance(value, bool | int | float)):
        problem = f"{value!r} is a {type(value).__name__}; put it in quotes."
        raise ConfigError(where or "the config", problem, code="wrong_type")
    return value


def _explain(error: ValidationError, document: Any, where: str) -> ConfigError:
    """One mistake that pydantic found, as a sentence."""
    mistakes = [(_path(mistake, document), mistake) for mistake in error.errors(include_url=False)]
    first = mistakes[0][0]
    # Of `text | list`, a list with a wrong item fails twice: the item is blamed, not the list.
    deepest = max((path for path, _ in mistakes if path[: len(first)] == first), key=len)
    reasons = [mistake for path, mistake in mistakes if path == deepest]
    # Of a union's members, the one with the right type failed for a better reason: False sorts
    # before True.
    problem, code = _sentence(min(reasons, key=lambda reason: reason["type"].endswith("_type")))
    for key in deepest:
        where = item_path(where, key)
    return ConfigError(where or "the config", f"{problem}.", code=code)


def _path(mistake: ErrorDetails, document: Any) -> tuple[Any, ...]:
    """The keys and positions that lead to a mistake: pydantic's, without the members of unions.

    ``('models', 'm', 'source', '{hub}', 'hub')`` gives ``('models', 'm', 'source', 'hub')``.
    """
    path, value = [], document
    for key in mistake["loc"]:
        # The name of a union's member, such as {hub}, is not in the document.
        with suppress(KeyError, IndexError, TypeError):
            value = value[key]
            path.append(key)
    return (*path, mistake["loc"][-1]) if mistake["type"] == "missing" else tuple(path)


# Codes of pydantic's errors. Any other that ends in _type is of a wrong type; the rest are bounds.
_CODES: Mapping[str, Code] = {
    "unknown_key": "unknown_key",
    "bad_name": "bad_name",
    "duplicate": "duplicate",
    "unsupported": "unsupported",
    "one_of": "one_of",
    "missing": "missing",
    "literal_error": "unknown_value",
    "value_error": "invalid",
}


def _sentence(mistake: ErrorDetails) -> tuple[str, Code]:
    """The problem of one of pydantic's errors, and its code."""
    kind, value = mistake["type"], mistake["input"]
    code = _CODES.get(kind, "wrong_type" if kind.endswith("_type") else "out_of_range")
    message = re.sub("^Input should", "must", mistake["msg"].removeprefix("Value error, "))
    message = message.replace("tuple", "list").replace("dictionary", "mapping")
    hint = ""
    if kind in ("literal_error", "one_of"):
        choices = re.findall("'([^']*)'", mistake["ctx"]["expected"])
        words = list(value) if isinstance(value, Mapping) else [str(value)]
        hint = next(filter(None, (closest(word, choices) for word in words)), "")
    elif isinstance(value, str | int | float):
        advice = {"tuple_type": f"; write [{value}]", "string_type": "; put it in quotes"}
        hint = advice.get(kind, "")
    if kind == "literal_error" and hint:
        return f"unknown value {_show(value)}{hint}", code
    if code in ("wrong_type", "out_of_range", "one_of", "unknown_value"):
        message += f", got {_show(value)}{hint}"
    return message, code


def _show(value: Any) -> str:
    """A value as YAML would have it, cut to 60 characters."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


LARGEST, DEEPEST = 100_000, 50
TOO_LARGE = f"it has more than {LARGEST:,} values or {DEEPEST} levels; use fewer aliases"


class Loader(yaml.SafeLoader):
    """YAML without octal numbers or keys given twice; the plain loader keeps the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            value = key.value if isinstance(key, yaml.ScalarNode) else key
            if value in seen:
                problem = f"the key {value!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(value)
        return super().construct_mapping(node, deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge ``<<`` keys, as long as they do not multiply."""
        super().flatten_mapping(node)
        if len(node.value) > LARGEST:
            raise yaml.constructor.ConstructorError(None, None, TOO_LARGE, node.start_mark)


def _number(loader: Loader, node: yaml.ScalarNode) -> float:
    """Refuse ``0100``, which YAML reads as 64, and ``1:30``, which it reads as 90."""
    if re.match(r"[-+]?0[0-7_]|.*:", node.value):
        problem = f"{node.value} is not a decimal number; put it in quotes, or write it as one"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    is_whole = node.tag == "tag:yaml.org,2002:int"
    return loader.construct_yaml_int(node) if is_whole else loader.construct_yaml_float(node)


for _kind in ("int", "float"):
    Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _number)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping of JSON, which refuses a key given twice as well."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        twice = next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
        raise ValueError(f"the key {twice!r} is given twice")
    return mapping


def _check_size(document: Any) -> None:
    """Refuse a document with too many values or levels, counting aliases as often as used."""
    sizes: dict[int, tuple[int, int]] = {}

    def size(value: Any) -> tuple[int, int]:
        if not isinstance(value, dict | list):
            return 1, 0
        if id(value) not in sizes:
            sizes[id(value)] = LARGEST, DEEPEST  # which is used if it holds itself
            parts = [size(v) for v in (value.values() if isinstance(value, dict) else value)]
            n = 1 + sum(n for n, _ in parts)
            sizes[id(value)] = n, 1 + max((depth for _, depth in parts), default=0)
        return sizes[id(value)]

    n, depth = size(document)
    if n > LARGEST or depth > DEEPEST:
        raise ValueError(TOO_LARGE)


def read_yaml(file: Path) -> dict[str, Any]:
    """Read a config.

    Raises
    ------
    ConfigError
        If the file is missing, is not YAML, is not a mapping, or has a key twice.
    """
    try:
        text = file.read_text(encoding="utf-8")
        is_json = file.suffix == ".json"
        document = (
            json.loads(text, object_pairs_hook=_once) if is_json else yaml.load(text, Loader)
        )
        _check_size(document)
    except FileNotFoundError as error:
        problem = "no such file; name a config with --config, or write one with `layerwise new`."
        raise ConfigError("", problem, code="missing_file", file=str(file)) from error
    except (OSError, yaml.YAMLError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
            mark = error.problem_mark
            reason = f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
        problem = f"cannot be read as YAML: {reason}."
        raise ConfigError("", problem, code="unreadable", file=str(file)) from error
    if not isinstance(document, dict):
        problem = f"expected a mapping of keys, got {type(document).__name__}."
        raise ConfigError("", problem, code="wrong_type", file=str(file))
    return document
