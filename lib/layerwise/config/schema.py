"""Prints the JSON Schema of the config, for editors and the docs:
``python -m layerwise.config.schema``.
"""

from __future__ import annotations

import sys
from typing import Any

import yaml

from layerwise.config import Config


def schema() -> dict[str, Any]:
    """Every key with its description, default and bounds."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    tidy: dict[str, Any] = _tidy(Config.model_json_schema(mode="validation"))
    names = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    tasks = tidy["properties"]["tasks"]
    mapping = {key: tasks.pop(key) for key in list(tasks) if key not in ("description", "default")}
    tasks["anyOf"] = [names, mapping]
    return head | tidy


def _tidy(value: Any) -> Any:
    """Without pydantic's titles, and with the pattern of names as `propertyNames`.

    ``patternProperties`` would accept any key that does not match.
    """
    if isinstance(value, list):
        return [_tidy(v) for v in value]
    if not isinstance(value, dict):
        return value
    if "patternProperties" in value:
        ((pattern, entry),) = value["patternProperties"].items()
        value = {k: v for k, v in value.items() if k != "patternProperties"}
        value |= {"propertyNames": {"pattern": pattern}, "additionalProperties": entry}
    return {
        k: " ".join(v.split()) if k == "description" and isinstance(v, str) else _tidy(v)
        for k, v in value.items()
        if not (k == "title" and isinstance(v, str))
    }


if __name__ == "__main__":
    yaml.safe_dump(schema(), sys.stdout, sort_keys=False, width=100, allow_unicode=True)
