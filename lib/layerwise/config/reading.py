"""Reads a config from YAML, strictly: no key twice, no explosion of aliases."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import yaml

from layerwise.errors import ConfigError

# Far above any real config: a sweep of 154 checkpoints by name has a few thousand.
MOST_NODES = 1_000_000


class _Loader(yaml.SafeLoader):
    """YAML that refuses a key given twice; the plain loader would keep the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # the plain loader refuses it
            if key in seen:
                problem = f"the key {key!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(files: Iterable[Path]) -> dict[str, Any]:
    """Read configs; keys of later files replace those of earlier ones, mapping by mapping, as
    Snakemake merges them.

    Raises
    ------
    ConfigError
        If a file is missing, is not YAML, is not a mapping, or has a key twice.
    """
    merged: dict[str, Any] = {}
    for file in files:
        document = _read(Path(file))
        if not isinstance(document, dict):
            problem = f"expected a mapping of keys, got {type(document).__name__}."
            raise ConfigError("", problem, code="wrong_type", file=str(file))
        merged = _over(merged, document)
    return merged


def _over(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {key: _over(below.get(key), value) for key, value in above.items()}


def _read(file: Path) -> Any:
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".json":
            return json.loads(text)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            if _size(node, {}) > MOST_NODES:
                problem = f"it has more than {MOST_NODES:,} entries with its aliases; shorten it."
                raise ConfigError("", problem, code="out_of_range", file=str(file))
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except FileNotFoundError as error:
        problem = "no such file; name a config with --config, or write one with `layerwise new`."
        raise ConfigError("", problem, code="missing_file", file=str(file)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "", f"cannot be read ({error}).", file=str(file), code="unreadable"
        ) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
            mark = error.problem_mark
            reason = f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
        problem = f"not valid YAML: {reason}."
        raise ConfigError("", problem, code="unreadable", file=str(file)) from error


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """The number of nodes with every alias written out."""
    if id(node) not in known:
        known[id(node)] = 1
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            parts = [n for pair in node.value for n in pair]
        elif isinstance(node, yaml.SequenceNode):
            parts = list(node.value)
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]
