"""Prints the JSON Schema of the config, for editors and the docs:
``python -m layerwise.config.schema``.
"""

from __future__ import annotations

import sys
from typing import Any

import yaml
from pydantic.json_schema import GenerateJsonSchema

from layerwise.config import Config


class _WithoutTitles(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False


def schema() -> dict[str, Any]:
    """Every key with its description, default and bounds."""
    found = Config.model_json_schema(schema_generator=_WithoutTitles)
    names = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    tasks = found["properties"]["tasks"]
    tasks["anyOf"] = [names, {key: tasks.pop(key) for key in ("type", "patternProperties")}]
    return found


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)


if __name__ == "__main__":
    yaml.SafeDumper.add_representer(str, _text)
    yaml.safe_dump(schema(), sys.stdout, sort_keys=False, width=100, allow_unicode=True)
