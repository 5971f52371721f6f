"""The JSON Schema of the config, for editors and readers: ``python -m layerwise.config.schema``.

Written to ``workflow/schemas/config.schema.yaml``; a test holds the file to the models.
"""

from __future__ import annotations

import sys
from typing import Any

import yaml

from layerwise.config import Config

HEAD = "# Made by `python -m layerwise.config.schema` from lib/layerwise/config/; don't edit.\n"


def schema() -> dict[str, Any]:
    """The schema: every key with its description, default and bounds."""
    found = Config.model_json_schema(mode="validation")
    found["properties"]["tasks"] = _or_mapping(found["properties"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_untitled(found)}


def _or_mapping(properties: dict[str, Any]) -> dict[str, Any]:
    """`tasks` as a list, or as the mapping that `layerwise.config.tasks` takes apart."""
    tasks = dict(properties["tasks"])
    own, tokens = (properties[s]["patternProperties"] for s in ("own_tasks", "token_tasks"))
    ((pattern, entry),) = own.items()
    data = {"type": "string", "description": "Local folder of the task's data; see task_folders."}
    folder = {"type": "object", "properties": {"folder": data}, "required": ["folder"],
              "additionalProperties": False}  # fmt: skip
    entries = [{"type": "null"}, folder, entry, *tokens.values()]
    mapping = {"type": "object", "patternProperties": {pattern: {"anyOf": entries}},
               "additionalProperties": False}  # fmt: skip
    said = {key: tasks.pop(key) for key in ("description", "default") if key in tasks}
    return {**said, "anyOf": [tasks, mapping]}


def _untitled(value: Any) -> Any:
    """Without the titles that pydantic makes of names, which say nothing more."""
    if isinstance(value, dict):
        if "patternProperties" in value:
            # Names that users give: `patternProperties` would let those that do not fit pass.
            ((pattern, held),) = value.pop("patternProperties").items()
            value |= {"propertyNames": {"pattern": pattern}, "additionalProperties": held}
        named = isinstance(value.get("properties"), dict)
        kept = {
            k: v for k, v in value.items()
            if k != "silent_at" and (k != "title" or not isinstance(v, str))
        }  # fmt: skip
        return {
            k: {n: _untitled(s) for n, s in v.items()} if k == "properties" and named
            else _untitled(v)
            for k, v in kept.items()
        }  # fmt: skip
    return [_untitled(v) for v in value] if isinstance(value, list) else value


def text() -> str:
    """The schema as YAML."""
    return HEAD + yaml.safe_dump(schema(), sort_keys=False, width=100, allow_unicode=True)


if __name__ == "__main__":
    sys.stdout.write(text())
