"""Configs made from the typed settings: every key of every section, and values it must not take."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from layerwise.config import Config
from layerwise.section import Section

# Every section and every kind of source stands here once.
BASE: dict[str, Any] = {
    "results": "results",
    "models": {
        "a": {"source": {"folder": "models/{revision}"}, "revisions": ["main", "step2"],
              "adapters": [{"hub": "owner/adapter"}, {"folder": "adapter"}]},
        "b": {"source": {"package": "json"}},
        "c": {"source": {"hub": "owner/name"}},
        "small": {"source": {"folder": "results/nano/small/{revision}"}, "revisions": ["step1"]},
        "seeing": {"source": {"folder": "adapter"}, "preprocess": {"size": 32}},
    },
    "nano": {"small": {"architecture": "gpt_neox"}},
    "published": {"p": {"scores": "scores.csv", "metrics": "metrics.csv"}},
    "corpora": {
        "texts": {"source": {"file": "mine.txt"}},
        "hub": {"source": {"hub": "owner/texts"}},
        "news": {"source": {"package": "lee"}},
        "own": {"source": {"task": "LeeNewsSimilarity"}},
        "chats": {"source": {"hub": "owner/chats", "template": "{a}"}},
        "odd": {"source": {"package": "lee"}, "views": {"n": 0}, "perturb": {"repetition": 0.5}},
        "digits": {"images": {"package": "digits"}},
        "photos": {"images": {"folder": "photos"}},
        "pictures": {"images": {"hub": "owner/pictures"}},
    },
    "tasks": {
        "LeeNewsSimilarity": {"folder": "tasks"},
        "BIOSSES": None,
        "reviews": {"file": "reviews.csv", "kind": "classification"},
        "parts of speech": {"file": "tagged.conll", "kind": "tags", "word": 1, "sample": 50},
        "which digit": {"corpus": "digits", "kind": "classification"},
        "asked": {"questions": {"file": "questions.jsonl"}},
        "fetched": {"questions": {"hub": "owner/questions"}},
        "made": {"questions": {"package": "wikipedia"}},
    },
    "association": {"own_texts": {"texts": "LeeNewsSimilarity"}, "directions": {"curvature": 1}},
    "studies": {
        "depth": {"kind": "metrics_by_depth", "corpora": ["texts"], "models": ["a"], "tokens": ["all"],
                  "metrics": ["curvature", {"metric": "prompt_entropy", "alpha": 1}]},
        "depth of p": {"kind": "score_by_depth", "published": "p"},
        "law": {"kind": "power_law"},
        "digits": {"kind": "metrics_by_depth", "corpora": ["digits"], "models": ["seeing"],
                   "metrics": ["prompt_entropy"], "tokens": ["all"]},
    },
}  # fmt: skip

NUMBERS: list[Any] = [
    float("nan"), float("inf"), float("-inf"), -1, 0, 1, 2.0, 0.5, -0.0, 10**9, 10**30, -(10**30),
    1e308, 2**31, 2**53 + 1, 2**64, 5e-324,
]  # fmt: skip
TEXTS: list[Any] = [
    "", " ", "two", "2", ".", "..", "/", "~", "~/x", "a\n", "\na", "a\0b", "{", "{x}", "a{b}", "a}{b",
    "$(touch PWNED)", "`touch PWNED`", "; touch PWNED #", "'", '"', "it's", "%s%n", "\x1b[31mred", "é",
    "\ud800", "x" * 5000, "*", "?", "[a]", "..%2F..", "CON", "-rf", "=cmd|' /C calc'!A0", "‮txt",
]  # fmt: skip
OTHERS: list[Any] = [True, False, None, [], {}, [[]], [1], ["a"], {"a": 1}, [None], {"": ""}]
VALUES = [*NUMBERS, *TEXTS, *OTHERS]

Place = tuple[str | int, ...]


def filled() -> dict[str, Any]:
    """The base with every default written out."""
    return Config.of(copy.deepcopy(BASE)).plain()


def places(document: Any, here: Place = ()) -> Iterator[Place]:
    """Every place in a document, inner ones too."""
    inside = document.items() if isinstance(document, dict) else enumerate(document) if isinstance(
        document, list) else ()  # fmt: skip
    for key, value in inside:
        yield (*here, key)
        yield from places(value, (*here, key))


def put(document: dict[str, Any], place: Place, value: Any) -> dict[str, Any]:
    """A copy with another value at a place."""
    made = copy.deepcopy(document)
    at: Any = made
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    return made


def renamed(document: dict[str, Any], place: Place, name: str) -> dict[str, Any]:
    """A copy with another key at a place."""
    made = copy.deepcopy(document)
    at: Any = made
    for key in place[:-1]:
        at = at[key]
    at[name] = at.pop(place[-1])
    return made


def sections(kind: Any = Config) -> set[type[Section]]:
    """All sections that a type holds, itself included."""
    found: set[type[Section]] = set()

    def visit(one: Any) -> None:
        if isinstance(one, type) and issubclass(one, Section):
            if one not in found:
                found.add(one)
                for field in one.model_fields.values():
                    visit(field.annotation)
        elif get_origin(one) is not None:
            of_all = (Annotated,), (Union, types.UnionType)
            args = get_args(one)[:1] if get_origin(one) in of_all[0] else get_args(one)
            for part in args:
                visit(part)

    visit(kind)
    return found


def used(value: Any) -> set[type[Section]]:
    """All sections that a value is made of."""
    if isinstance(value, Section):
        parts = (used(getattr(value, name)) for name in type(value).model_fields)
        return {type(value)}.union(*parts)
    if isinstance(value, dict | tuple):
        inside = value.values() if isinstance(value, dict) else value
        return set().union(*(used(v) for v in inside))
    return set()


def furnish(folder: Path) -> None:
    """Make the folders and files that the base names."""
    for part in ("models/main", "models/step2", "adapter", "tasks", "photos/one"):
        (folder / part).mkdir(parents=True)
    (folder / "tasks" / "test.jsonl").write_text("{}")
    for name in ("scores.csv", "metrics.csv", "mine.txt", "questions.jsonl", "photos/one/a.png"):
        (folder / name).write_text("x\n")
    (folder / "reviews.csv").write_text("text,label\na,b\n")
    (folder / "tagged.conll").write_text("a DT\nb NN\n")


@cache
def all_places() -> tuple[Place, ...]:
    return tuple(places(filled()))
