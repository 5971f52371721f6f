"""Reads a config from YAML or JSON; no key may be given twice."""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from layerwise.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """YAML that refuses a key given twice; the plain loader would keep the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value]
        for key, _ in node.value:
            if keys.count(key.value) > 1:
                problem = f"the key {key.value!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(file: Path) -> dict[str, Any]:
    """Read a config.

    Raises
    ------
    ConfigError
        If the file is missing, is not YAML, is not a mapping, or has a key twice.
    """
    try:
        text = file.read_text(encoding="utf-8")
        document = json.loads(text) if file.suffix == ".json" else yaml.load(text, _Loader)
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
