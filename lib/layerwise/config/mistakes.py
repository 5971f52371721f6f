"""What pydantic finds wrong with a config, as one sentence that says how to mend it."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Discriminator, ValidationError
from pydantic.fields import FieldInfo

from layerwise.config.base import NAMES, show
from layerwise.errors import closest

KINDS = {
    "string_type": "string",
    "int_type": "integer",
    "int_parsing_size": "integer",
    "float_type": "number",
    "bool_type": "boolean",
    "dict_type": "object",
    "model_type": "object",
    "model_attributes_type": "object",
    "tuple_type": "array",
    "list_type": "array",
    "none_required": "null",
}
BOUNDS = {
    "greater_than_equal": "accepted is {ge} or more",
    "greater_than": "accepted is more than {gt}",
    "less_than_equal": "accepted is {le} or less",
    "less_than": "accepted is less than {lt}",
    "multiple_of": "accepted are multiples of {multiple_of}",
    "too_short": "at least {min_length} is needed",
    "too_long": "at most {max_length} are accepted",
    "string_too_short": "at least {min_length} character is needed",
    "finite_number": "accepted is a finite number",
}
OWN = {"once": "each may stand there once", "name": NAMES}


@dataclass(frozen=True)
class Problem:
    """One of pydantic's errors, with its place in terms of the config.

    Attributes
    ----------
    path : tuple of str
        Keys and positions; a position in a list as ``[2]`` glued to its key.
    unions : tuple of (int, str)
        Where the path goes through a union of plain types: how long it is there, and the branch.
    owner : the model whose keys are accepted there, if it is a mapping of known keys
    """

    error: Mapping[str, Any]
    path: tuple[str, ...]
    unions: tuple[tuple[int, str], ...]
    about: str
    owner: type[BaseModel] | None

    @property
    def kind(self) -> str:
        return str(self.error["type"])


def explain(kind: type[BaseModel], error: ValidationError, where: str) -> str:
    """The most telling of the mistakes that pydantic found, in one line.

    Parameters
    ----------
    kind : the section's model
    where : the section's place in the config; empty for the whole
    """
    problems = [_place(kind, e) for e in error.errors(include_url=False)]
    # A misspelt key is also a missing one; the former says more.
    first = min(problems, key=lambda p: (len(p.path), p.kind != "extra_forbidden"))
    same = [p for p in problems if _below(p.path, first.path)]
    problem = _branch(first, same)
    path = ".".join(p for p in (where, *problem.path) if p) or "the config"
    return _sentence(problem, path, same)


def _below(path: tuple[str, ...], place: tuple[str, ...]) -> bool:
    """Whether a path is a place or leads into it; ``chat[0]`` is in ``chat``."""
    if not place:
        return True
    *before, last = path[: len(place)] or ("",)
    return tuple(before) == place[:-1] and (last == place[-1] or last.startswith(f"{place[-1]}["))


def _branch(first: Problem, same: list[Problem]) -> Problem:
    """Of the branches of a union, the one whose shape came nearest."""
    if not first.unions:
        return first
    branches: dict[str, list[Problem]] = {}
    for problem in same:
        if problem.unions:
            branches.setdefault(problem.unions[0][1], []).append(problem)

    def mismatch(found: list[Problem]) -> tuple[bool, int]:
        at_once = any(len(p.path) == p.unions[0][0] and p.kind in KINDS for p in found)
        return at_once, -max(len(p.path) for p in found)

    return min(branches.values(), key=mismatch)[0]


def _sentence(problem: Problem, path: str, same: list[Problem]) -> str:
    came, context = problem.error.get("input"), problem.error.get("ctx", {})
    about = f" ({problem.about.rstrip('.')})" if problem.about else ""
    if problem.kind == "extra_forbidden":
        unknown = problem.path[-1]
        place = path.removesuffix(problem.path[-1]).rstrip(".") or "the config"
        known = list(problem.owner.model_fields) if problem.owner else []
        gone = getattr(problem.owner, "gone", {}).get(unknown)
        if gone:
            return f"{place}: the key {unknown!r} is gone: {gone}; leave it out."
        return (
            f"{place}: unknown key {unknown!r}{closest(unknown, known)}; "
            f"accepted are {', '.join(known)}."
        )
    if problem.kind == "missing":
        place = path.removesuffix(problem.path[-1]).rstrip(".") or "the config"
        return f"{place}: the key {problem.path[-1]!r} is missing; {show(came)} came."
    if problem.kind == "one_of":
        keys = str(context["keys"])
        if not isinstance(came, Mapping):
            return f"{path}: {show(came)} came; accepted is object{about}."
        return (
            f"{path}: {show(came)} came{_near(came, keys.split(', '))}; accepted is a mapping "
            f"with one of the keys {keys}."
        )
    if problem.kind == "literal_error":
        allowed = [str(a) for p in same for a in _literals(p)] or [str(context["expected"])]
        return (
            f"{path}: {show(came)} came{closest(str(came), allowed)}; "
            f"accepted are {', '.join(map(show, allowed))}."
        )
    if problem.kind == "value_error":
        reason = str(context["error"])
        if reason == "name":
            return f"{path}: {show(came)} cannot be a name; {NAMES}"
        return f"{path}: {show(came)} came; {OWN.get(reason, reason)}{about}."
    if problem.kind in KINDS:
        wanted = dict.fromkeys(
            KINDS[p.kind] for p in same if p.path == problem.path and p.kind in KINDS
        )
        if wanted.keys() == {"string"} and isinstance(came, int | float):
            return f"{path}: {show(came)} came; accepted is string: put it in quotes{about}."
        return f"{path}: {show(came)} came; accepted is {' or '.join(wanted)}{about}."
    bounds = {k: f"{v:g}" if isinstance(v, float) else v for k, v in context.items()}
    accepted = BOUNDS.get(problem.kind, str(problem.error["msg"])).format(**bounds)
    return f"{path}: {show(came)} came; {accepted}{about}."


def _near(came: Mapping[str, Any], keys: list[str]) -> str:
    return next((near for k in came if (near := closest(str(k), keys))), "")


def _literals(problem: Problem) -> list[str]:
    if problem.kind != "literal_error":
        return []
    expected = str(problem.error["ctx"]["expected"])
    return [w.strip("' ") for w in expected.replace(" or ", ", ").split(",")]


def _place(kind: type[BaseModel], error: Any) -> Problem:
    """Follow an error's location through the models, leaving out pydantic's own marks."""
    at: Any = kind
    owner: type[BaseModel] | None = None
    about = ""
    path: list[str] = []
    unions: list[tuple[int, str]] = []
    rest = list(error["loc"])
    while rest:
        at, branches = _peel(at)
        if branches is not None and branches != "tagged":
            label = str(rest.pop(0))
            unions.append((len(path), label))
            at = _member(branches, label)
            continue
        if branches == "tagged":
            tag = str(rest.pop(0))
            at = _tagged(at, tag)
            continue
        step = rest.pop(0)
        if step == "[key]":
            continue
        if isinstance(step, int):
            path[-1:] = [f"{path[-1]}[{step}]"] if path else [f"[{step}]"]
            at = _item(at)
            continue
        path.append(str(step))
        owner = at if _is_model(at) else None
        field: FieldInfo | None = owner.model_fields.get(str(step)) if owner else None
        if field is not None:
            about = field.description or about
            at = Annotated[field.annotation, *field.metadata, *_marks(field)]
        else:
            at = _item(at)
    last = error["loc"][-1] if error["loc"] else None
    if last == "[key]":
        error = {**error, "type": "value_error", "ctx": {"error": "name"}}
        path = path[:-1]
    return Problem(error, tuple(path), tuple(unions), about, owner)


def _marks(field: FieldInfo) -> tuple[Any, ...]:
    return (field.discriminator,) if field.discriminator else (None,)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _peel(kind: Any) -> tuple[Any, Any]:
    """The type without marks and None; and the members, if it is a union (``tagged`` if it has
    a discriminator)."""
    tagged = False
    while get_origin(kind) is Annotated:
        tagged = tagged or any(isinstance(m, Discriminator) for m in get_args(kind)[1:])
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, types.UnionType):
        if tagged:
            return kind, "tagged"
        members = [m for m in get_args(kind) if m is not type(None)]
        return _peel(members[0]) if len(members) == 1 else (kind, members)
    return kind, None


def _tagged(kind: Any, tag: str) -> Any:
    for member in get_args(kind):
        if any(getattr(m, "tag", None) == tag for m in get_args(member)[1:]):
            return member
    return None


def _member(members: list[Any], label: str) -> Any:
    """The member of a union that pydantic calls so."""
    for member in members:
        core, _ = _peel(member)
        origin = get_origin(core) or core
        name = "literal" if origin is Literal else getattr(origin, "__name__", str(origin))
        if name in label:
            return member
    return None


def _item(kind: Any) -> Any:
    """What a list or mapping holds."""
    held = [a for a in get_args(kind) if a is not Ellipsis]
    return held[-1] if held else None
