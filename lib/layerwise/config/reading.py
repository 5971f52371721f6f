"""Reads a config from YAML or JSON; no key may be given twice."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from layerwise.errors import ConfigError

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
