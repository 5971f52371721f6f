"""Prints the JSON Schema of the config, the file ``config.schema.json`` that editors read:
``python -m tools.schema > config.schema.json``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from layerwise.config import Config


class _WithoutTitles(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False


def schema() -> dict[str, Any]:
    """Every key with its description, default and bounds."""
    document = Config.model_json_schema(schema_generator=_WithoutTitles)
    names = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    tasks = document["properties"]["tasks"]
    tasks["anyOf"] = [names, {key: tasks.pop(key) for key in ("type", "patternProperties")}]
    return document


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=1, ensure_ascii=False) + "\n")
