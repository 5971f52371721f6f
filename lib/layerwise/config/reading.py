"""Reading a config from YAML, strictly: no key twice, no bombs of aliases, nothing JSON lacks."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import yaml

from layerwise.errors import LayerwiseError

# Far above any real config: a sweep of 154 checkpoints by name has a few thousand.
MOST_NODES = 1_000_000
# Where a config holds what models read, which may have lines.
PROMPT = re.compile(r"\.(template|content)$|\.models\..+\.prompts\.")


class _Loader(yaml.SafeLoader):
    """YAML that refuses a key given twice; the plain loader would keep the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        own: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in own:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            if isinstance(key, Hashable):
                own.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(files: Iterable[Path]) -> dict[str, Any]:
    """Read configs; keys of later files replace those of earlier ones, mapping by mapping, as
    Snakemake has it.

    Raises
    ------
    LayerwiseError
        If a file is missing, no YAML, no mapping, or has a key twice.
    """
    merged: dict[str, Any] = {}
    for file in files:
        document = _read(Path(file))
        if not isinstance(document, dict):
            raise LayerwiseError(
                f"{file} must be a mapping of keys; {type(document).__name__} came."
            )
        merged = _over(merged, document)
    return merged


def _over(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {key: _over(below.get(key), value) for key, value in above.items()}


def _read(file: Path) -> Any:
    try:
        text = file.read_text(encoding="utf-8")
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _count(file, node)
            return plain(loader.construct_document(node), str(file))
        finally:
            loader.dispose()
    except FileNotFoundError as error:
        raise LayerwiseError(f"There is no config {file}; give one by --config.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise LayerwiseError(f"The config {file} cannot be read: {error}.") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise LayerwiseError(f"The config {file} is no valid YAML: {said[:300]}.") from error


def _count(file: Path, node: yaml.Node) -> None:
    """Refuse a document that aliases blow up to more nodes than any config has."""
    sizes: dict[int, int] = {}

    def size(one: yaml.Node) -> int:
        if id(one) in sizes:
            return sizes[id(one)]
        sizes[id(one)] = 1
        parts: list[yaml.Node] = []
        if isinstance(one, yaml.MappingNode):
            parts = [n for pair in one.value for n in pair]
        elif isinstance(one, yaml.SequenceNode):
            parts = list(one.value)
        sizes[id(one)] = 1 + sum(map(size, parts))
        return sizes[id(one)]

    if size(node) > MOST_NODES:
        raise LayerwiseError(
            f"The config {file} has more than {MOST_NODES:,} entries once its aliases are "
            "written out; shorten it."
        )


def plain(value: Any, where: str) -> Any:
    """The same value, if it is of JSON's types alone.

    Raises
    ------
    LayerwiseError
        For a date or another of YAML's own types, and for a key that is no text.
    """
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise LayerwiseError(
                    f"{where}: the key {key!r} is read as {type(key).__name__}; put it in quotes."
                )
            _no_control(key, where)
        return {key: plain(sub, f"{where}.{key}") for key, sub in value.items()}
    if isinstance(value, list | tuple):
        return [plain(sub, where) for sub in value]
    if isinstance(value, str):
        _no_control(value, where)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise LayerwiseError(
        f"{where}: {value!r} is read as {type(value).__name__}; put it in quotes to have it as "
        "text."
    )


def _no_control(text: str, where: str) -> None:
    """Refuse line breaks, terminal sequences and halves of characters: nothing is called so."""
    usual = "\n\t" if PROMPT.search(where) else ""
    controls = ("Cc", "Cs", "Zl", "Zp")
    odd = next((c for c in text if c not in usual and unicodedata.category(c) in controls), None)
    if odd is not None:
        place = where.removeprefix("The config.")
        raise LayerwiseError(
            f"{place}: {text[:60]!a} came, which holds the character U+{ord(odd):04X}; accepted "
            "is text in one line, without control characters."
        )
