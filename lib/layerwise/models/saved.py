"""Settings and modules that sentence-transformers saves with a model."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from layerwise.errors import LayerwiseError, first_line
from layerwise.extras import require
from layerwise.models.source import Location, hub_answers

log = logging.getLogger(__name__)

# Names of poolings in sentence-transformers, and ours.
POOLINGS = {
    "mean": "mean",
    "weightedmean": "weighted_mean",
    "max": "max",
    "lasttoken": "last_token",
    "cls": "cls",
}
# Modules that turn an embedding into one of the same width.
AFTER_POOLING = ("Dense", "LayerNorm")
NEUTRAL = ("Transformer", "Pooling", "Normalize", "Dropout")
TRANSFORMER_SETTINGS = "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
MODULES = "modules.json"


def read(location: Location, name: str) -> Any:
    """A JSON file of a model, from its folder, the cache or the hub; None if there is none."""
    from transformers.utils import cached_file

    file = cached_file(
        location.name,
        name,
        revision=location.revision,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return file and json.loads(Path(file).read_text(encoding="utf-8"))


def module(location: Location, kind: str) -> dict[str, Any] | None:
    """The entry of a module, such as ``Pooling``, in the list of a model's modules."""
    modules = read(location, MODULES) or []
    return next((m for m in modules if m["type"].rpartition(".")[2] == kind), None)


def normalizes(location: Location) -> bool:
    """True if a model's modules scale its embeddings to unit length."""
    return module(location, "Normalize") is not None


@dataclass(frozen=True)
class Embedder:
    """Settings of sentence-transformers for a model's embeddings.

    Attributes
    ----------
    folder : str
        Folder of the transformer among a model's files, such as ``0_Transformer``; usually empty.
    max_length : int or None
        Longest text in tokens.
    lower_case : bool
        True if texts are read in lower case, in addition to what the tokenizer does.
    pooling : str
        Pooling of the tokens; ``mean`` where it has none of ours.
    prompt : str
        Default prompt in front of each text.
    normalizes : bool
        True if embeddings are scaled to unit length.
    modules : tuple of Module
        Applied to the pooled output of the model, and to no other layer.
    """

    folder: str = ""
    max_length: int | None = None
    lower_case: bool = False
    pooling: str = "mean"
    prompt: str = ""
    normalizes: bool = False
    modules: tuple[nn.Module, ...] = ()


def transformer_folder(location: Location) -> str:
    """The folder of the transformer among a model's files; empty for the model's own."""
    entries: list[dict[str, Any]] = read(location, MODULES) or []
    first = entries[0] if entries else {}
    return str(first.get("path", ""))


def embedder(location: Location, who: str, width: int) -> Embedder | None:
    """Read the settings that sentence-transformers saved with a model.

    Parameters
    ----------
    who : str
        The model, for warnings.
    width : int
        Of the model's states.

    Returns
    -------
    Embedder or None
        None if sentence-transformers has not saved the model.
    """
    entries = read(location, MODULES)
    if not entries:
        return None
    folder = str(entries[0].get("path", ""))
    settings = read(location, f"{folder}/{TRANSFORMER_SETTINGS}".lstrip("/")) or {}
    names = [entry["type"].rpartition(".")[2] for entry in entries]
    pooling: Any = "mean"
    if "Pooling" in names:
        require("sentence_transformers", "export")
        from sentence_transformers.sentence_transformer.modules import Pooling

        file = f"{entries[names.index('Pooling')].get('path', '')}/config.json".lstrip("/")
        config = read(location, file) if "/" in file else None
        if config is None:
            log.warning("%s: no pooling is saved (%s); the mean is used.", who, file)
        else:
            pooling = Pooling(**config).pooling_mode
    modules: list[Any] = []
    for name, entry in zip(names, entries, strict=True):
        if name in AFTER_POOLING:
            require("sentence_transformers", "export")
            from sentence_transformers.sentence_transformer import modules as kinds

            modules.append(_loaded(getattr(kinds, name), location, entry["path"]))
    further = [name for name in names if name not in (*AFTER_POOLING, *NEUTRAL)]
    about = read(location, PROMPTS) or {}
    prompt = (about.get("prompts") or {}).get(about.get("default_prompt_name"), "")
    longest = settings.get("max_seq_length")
    lower_case = bool(settings.get("do_lower_case"))
    made = Embedder(folder, longest, lower_case, "mean", prompt or "", "Normalize" in names)
    return _with_modules(made, who, pooling, modules, further, width)


def embedder_of(model: Any, who: str, width: int) -> Embedder:
    """The settings of a model of sentence-transformers in memory; its tokenizer has the case."""
    chain = list(model.children())
    names = [type(module).__name__ for module in chain]
    pooling = next((m.pooling_mode for m in chain if hasattr(m, "pooling_mode")), "mean")
    modules = [m for m, name in zip(chain, names, strict=True) if name in AFTER_POOLING]
    further = [name for name in names if name not in (*AFTER_POOLING, *NEUTRAL)]
    prompt = (model.prompts or {}).get(model.default_prompt_name, "") or ""
    longest = model.max_seq_length
    made = Embedder("", longest, prompt=prompt, normalizes="Normalize" in names)
    return _with_modules(made, who, pooling, modules, further, width)


def _with_modules(
    made: Embedder,
    who: str,
    pooling: Any,
    modules: list[Any],
    further: list[str],
    width: int,
) -> Embedder:
    """Settings with a pooling and modules, after one warning of what is left out."""
    fits = all(getattr(m, "out_features", width) == width for m in modules)
    if not fits or further or pooling not in POOLINGS:
        log.warning(
            "%s: its embeddings by sentence-transformers have steps that layers cannot have "
            "(pooling %s, modules %s); its output is pooled without them.",
            who,
            pooling,
            ", ".join([type(m).__name__ for m in modules] + further) or "none",
        )
        modules = []
    elif modules:
        log.warning(
            "%s: %s of its embeddings apply to its output only; other layers have none.",
            who,
            " and ".join(type(m).__name__ for m in modules),
        )
    usual = POOLINGS.get(pooling if isinstance(pooling, str) else "", "mean")
    return replace(made, pooling=usual, modules=tuple(modules))


def _loaded(kind: Any, location: Location, folder: str) -> Any:
    options: dict[str, Any] = {}
    if location.revision:
        options = {"revision": location.revision, "local_files_only": not hub_answers()}
    try:
        return kind.load(location.name, subfolder=folder, **options).eval()
    except Exception as error:  # missing and damaged files fail in many ways
        raise LayerwiseError(
            f"{location.name}: the module {folder} of its embeddings cannot be read "
            f"({first_line(error)}); fetch or copy the model again, with its folders.",
            code="missing_file",
        ) from error
