"""Read a config: check it against the schema, fill in defaults, say what is wrong in a line."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from layerwise.errors import LayerwiseError, closest
from layerwise.figures.kinds import NEEDS
from layerwise.models.revisions import expand
from layerwise.paths import encode


def read_schema(path: Path) -> dict[str, Any]:
    """Read the JSON Schema (written as YAML)."""
    schema: dict[str, Any] = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    return schema


def complete(config: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Check a config and return a copy with every default filled in.

    Raises
    ------
    LayerwiseError
        In one line: which key, what came, what is accepted, and the closest name if one is near.
    """
    if not isinstance(config, Mapping):
        raise LayerwiseError(f"The config must be a mapping of keys; {_show(config)} came.")
    filled: dict[str, Any] = copy.deepcopy(dict(config))
    validator = jsonschema.Draft202012Validator(schema)
    # A misspelt key is also a missing one; the former says more.
    problems = sorted(
        validator.iter_errors(filled),
        key=lambda e: (len(e.absolute_path), e.validator != "additionalProperties", str(e)),
    )
    if problems:
        raise LayerwiseError(_explain(_deepest(problems[0])))
    _fill(filled, schema, schema)
    for name, model in filled["models"].items():
        model["revisions"] = expand(name, model["source"], model["revisions"])
    _check_names(filled)
    _check_lengths(filled)
    return filled


def _deepest(error: jsonschema.ValidationError) -> jsonschema.ValidationError:
    """The most telling branch of a oneOf/anyOf: the one whose shape came nearest."""
    while error.context:
        branches: dict[Any, list[jsonschema.ValidationError]] = {}
        for sub in error.context:
            branches.setdefault(sub.schema_path[0], []).append(sub)

        def mismatch(found: list[jsonschema.ValidationError]) -> tuple[int, int]:
            wrong_kind = sum(e.validator in {"type", "const", "required"} for e in found)
            return wrong_kind, -max(len(e.absolute_path) for e in found)

        error = min(branches.values(), key=mismatch)[0]
    return error


def _explain(error: jsonschema.ValidationError) -> str:
    where = ".".join(str(part) for part in error.absolute_path) or "the config"
    schema: Any = error.schema
    came: Any = error.instance
    wanted: Any = error.validator_value
    if error.validator == "additionalProperties":
        known = list(schema.get("properties", {}))
        unknown = sorted(set(map(str, came)) - set(known))[0]
        return (
            f"{where}: unknown key {unknown!r}{closest(unknown, known)}; "
            f"accepted are {', '.join(known)}."
        )
    if error.validator == "required":
        missing = next(k for k in wanted if k not in came)
        return f"{where}: the key {missing!r} is missing; {_show(came)} came."
    if error.validator in {"enum", "const"}:
        allowed = wanted if error.validator == "enum" else [wanted]
        return (
            f"{where}: {_show(came)} came{closest(str(came), map(str, allowed))}; "
            f"accepted are {', '.join(map(_show, allowed))}."
        )
    about = schema.get("description", "")
    # A pattern would tell nobody how to mend a name; its description does.
    of_a_name = error.validator == "pattern" and about.startswith("Names ")
    if of_a_name or error.validator == "propertyNames" or "propertyNames" in error.schema_path:
        return f"{where}: {_show(came)} cannot be a name; {about}"
    about = f" ({about.rstrip('.')})" if about else ""
    if error.validator == "type":
        kinds = [wanted] if isinstance(wanted, str) else wanted
        return f"{where}: {_show(came)} came; accepted is {' or '.join(kinds)}{about}."
    bounds = {
        "minimum": f"accepted is {wanted} or more",
        "maximum": f"accepted is {wanted} or less",
        "exclusiveMinimum": f"accepted is more than {wanted}",
        "minItems": f"at least {wanted} is needed",
        "minProperties": f"at least {wanted} is needed",
        "uniqueItems": "each may stand there once",
        "pattern": f"accepted is what fits {wanted}",
    }
    accepted = bounds.get(str(error.validator), error.message)
    return f"{where}: {_show(came)} came; {accepted}{about}."


def _show(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _fill(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> None:
    """Set the defaults of missing keys, in place, however deep."""
    schema = _resolve(schema, root)
    if isinstance(value, dict):
        for key, sub in schema.get("properties", {}).items():
            sub = _resolve(sub, root)
            if key not in value and "default" in sub:
                value[key] = copy.deepcopy(sub["default"])
            if key in value:
                _fill(value[key], sub, root)
        extra = schema.get("additionalProperties")
        if isinstance(extra, Mapping):
            for key in value.keys() - schema.get("properties", {}).keys():
                _fill(value[key], extra, root)
    elif isinstance(value, list) and "items" in schema:
        for item in value:
            _fill(item, schema["items"], root)


def _resolve(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" in schema:
        target: Any = root
        for part in str(schema["$ref"]).removeprefix("#/").split("/"):
            target = target[part]
        return {**target, **{k: v for k, v in schema.items() if k != "$ref"}}
    return schema


def _check_names(config: Mapping[str, Any]) -> None:
    """What a schema cannot say: that names refer to something, and that nothing is missing."""
    for study, entry in config["studies"].items():
        needs = () if entry["published"] else NEEDS[entry["kind"]]
        wanted = {"metrics": "corpora", "scores": "tasks"}
        for key in ("models", *(wanted[n] for n in needs if n in wanted)):
            if needs and not config[key]:
                raise LayerwiseError(
                    f"studies.{study}: a study of kind {entry['kind']!r} needs {key!r}, and that "
                    "is missing or empty in the config."
                )
    for where, name, known in _references(config):
        if name not in known:
            raise LayerwiseError(
                f"{where}: there is no {name!r} in the config{closest(name, known)}; "
                f"there are {', '.join(sorted(known)) or 'none'}."
            )


def _check_lengths(config: Mapping[str, Any]) -> None:
    """Make sure that every name can be a part of a path; the schema has seen its letters."""
    for section in ("models", "corpora", "tasks", "published", "studies"):
        for name in config[section]:
            encode(name)
    for model in config["models"].values():
        for revision in model["revisions"]:
            encode(revision)


def _references(config: Mapping[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
    models = config["models"]
    for study, entry in config["studies"].items():
        if entry["published"]:
            yield f"studies.{study}.published", entry["published"], list(config["published"])
            continue
        for key in ("models", "corpora", "tasks"):
            for name in entry.get(key) or []:
                yield f"studies.{study}.{key}", name, list(config[key])
        if isinstance(entry.get("revisions"), list):
            for model in entry["models"] or models:
                for revision in entry["revisions"]:
                    where = f"studies.{study}.revisions (model {model})"
                    yield where, revision, list(models[model]["revisions"])
    for name in config["nano"]:
        yield "nano", name, list(models)
