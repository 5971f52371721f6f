"""Merge LoRA adapters into a model's weights, and let a decoder attend in both directions.

LLM2Vec's models are Llama 3 with bidirectional attention and one or two PEFT adapters, merged one
after another. PEFT does the merging; what is read, and only from safetensors, is plain LoRA
(Hu et al. 2021, arXiv 2106.09685): ``W + (alpha / r) B A``, with rsLoRA (Kalajdzievski 2023)
``alpha / sqrt(r)``. Everything else that an adapter may ask for is refused by name, never skipped.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from layerwise.config.models import FolderAdapter, HubAdapter
from layerwise.errors import LayerwiseError
from layerwise.models.both_ways import MIXER, scan_both_ways
from layerwise.models.failures import why
from layerwise.models.source import Location, locate

log = logging.getLogger(__name__)

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
KEY = re.compile(r"(?P<module>.+)\.lora_[AB]\.weight")

# Settings of PEFT's that plain LoRA may have at any value: they say what the adapter is of and how
# it was trained. `r` and the like are looked at one by one; all others must be as PEFT has them
# by default.
FREE = {
    "auto_mapping", "base_model_name_or_path", "exclude_modules", "fan_in_fan_out",
    "inference_mode", "layers_pattern", "layers_to_transform", "lora_dropout", "megatron_core",
    "peft_version", "qalora_group_size", "revision", "target_modules", "task_type", "use_rslora",
}  # fmt: skip
LOOKED_AT = {"peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "init_lora_weights"}
# Other ways to start training (PiSSA, OLoRA, LoftQ) change the weights that the adapter is added
# to, and so the merged model would be another one.
STARTS = (None, True, False, "gaussian", "orthogonal", "eva")
# A name, perhaps with dots escaped or an end marked: nothing that takes long to match.
PATTERN = re.compile(r"[\w.\\^$-]{1,300}")


def attend_both_ways(model: nn.Module) -> None:
    """Let a decoder's tokens see later ones too.

    Attention by transformers' own means: its mask functions go by ``config.is_causal``, its
    attention functions by each module's. Mamba-2 as `layerwise.models.both_ways` says.

    Raises
    ------
    LayerwiseError
        If the model has no attention module that says whether it is causal.
    """
    mixers = [m for m in model.modules() if type(m).__name__ == MIXER]
    for mixer in mixers:
        scan_both_ways(mixer)
    modules: list[Any] = [m for m in model.modules() if hasattr(m, "is_causal")]
    if mixers and not modules:
        return
    if not modules:
        raise LayerwiseError(
            f"bidirectional: true came for {type(model).__name__}, whose attention cannot be "
            "told to be bidirectional; leave it out for this model."
        )
    config: Any = model.config
    config.is_causal = False
    for module in modules:
        module.is_causal = False


def merge(model: nn.Module, adapter: HubAdapter | FolderAdapter) -> None:
    """Add an adapter to the weights of a model, in place.

    Raises
    ------
    LayerwiseError
        If the adapter cannot be had, is damaged, is of another kind than plain LoRA, or fits
        another model.
    """
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
    from safetensors.torch import load_file

    location = locate(adapter)
    name = location.name
    config_path, weights_path = (_file(location, file) for file in (CONFIG, WEIGHTS))
    settings = _read(_settings, config_path, location)
    known = {field.name: field for field in dataclasses.fields(LoraConfig)}
    _check_kind(settings, known, name)
    _check_numbers(settings, name)
    tensors = _in_place(model, _read(load_file, weights_path, location), name)
    chosen = {k: v for k, v in settings.items() if k in {"r", "lora_alpha", "fan_in_fan_out"}}
    chosen |= {k: _unprefixed(settings.get(k) or {}) for k in ("rank_pattern", "alpha_pattern")}
    chosen |= _targets(settings) or {"target_modules": sorted({_module(key) for key in tensors})}
    lora = LoraConfig(use_rslora=bool(settings.get("use_rslora")), **chosen)
    try:
        wrapped = get_peft_model(model, lora)
    except ValueError as error:  # as PEFT says that no module, or one of another kind, is meant
        raise LayerwiseError(
            f"The adapter {name} does not fit {type(model).__name__} "
            f"({' '.join(str(error).split())[:200]}); is it an adapter of this model?"
        ) from error
    _check_fit(wrapped, tensors, name)
    set_peft_model_state_dict(wrapped, {PREFIX + key: t for key, t in tensors.items()})
    wrapped.merge_and_unload()
    log.info("merged the adapter %s into %d modules", name, len(tensors) // 2)


def _module(key: str) -> str:
    return key.rpartition(".lora_")[0]


def _in_place(model: nn.Module, tensors: Mapping[str, Tensor], adapter: str) -> dict[str, Tensor]:
    """The adapter's matrices by their names in this model.

    Adapters trained on a model with a head name the body's modules "model.…".
    """
    modules = dict(model.named_modules())
    placed: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        bare = key.removeprefix(PREFIX)
        match = KEY.fullmatch(bare)
        if match is None:
            raise LayerwiseError(
                f"The adapter {adapter} holds {key!r}, which is no LoRA matrix of a linear "
                "layer; such adapters are not read."
            )
        if match["module"] not in modules:
            bare = bare.partition(".")[2]
        if not isinstance(getattr(modules.get(_module(bare)), "weight", None), Tensor):
            raise LayerwiseError(
                f"The adapter {adapter} is for {match['module']!r}, which "
                f"{type(model).__name__} does not have; is it an adapter of this model?"
            )
        placed[bare] = tensor
    if not placed:
        raise LayerwiseError(f"The adapter {adapter} holds no matrix; fetch or copy it again.")
    return placed


def _targets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The modules that the adapter says it is of, so that a file that has lost some is noticed.

    Empty where they are said by more than names, such as a pattern, which may take for ever or fit
    too much: then they are those whose matrices are there.
    """
    names = settings.get("target_modules")
    if (
        not isinstance(names, list)
        or not all(isinstance(name, str) and PATTERN.fullmatch(name) for name in names)
        or any(settings.get(k) for k in ("layers_to_transform", "exclude_modules"))
    ):
        return {}
    return {"target_modules": list(_unprefixed(dict.fromkeys(names)))}


def _unprefixed(patterns: Mapping[str, Any]) -> dict[str, Any]:
    """Patterns for names in the body, from those for a model with a head."""
    return {re.sub(r"^\^?model\\?\.", "", pattern): v for pattern, v in patterns.items()}


def _check_fit(wrapped: Any, tensors: Mapping[str, Tensor], adapter: str) -> None:
    from peft import get_peft_model_state_dict

    wanted = {
        key.removeprefix(PREFIX): tuple(tensor.shape)
        for key, tensor in get_peft_model_state_dict(wrapped).items()
    }
    for key in sorted(wanted.keys() | tensors.keys()):
        came = tuple(tensors[key].shape) if key in tensors else None
        if came != wanted.get(key):
            raise LayerwiseError(
                f"The adapter {adapter} has {key} of the shape {came}, but its {CONFIG} and the "
                f"model ask for {wanted.get(key)}; is it an adapter of this model, and r its rank?"
            )


def _check_kind(settings: Mapping[str, Any], known: Mapping[str, Any], adapter: str) -> None:
    unknown = sorted(settings.keys() - known.keys())
    if unknown:
        raise LayerwiseError(
            f"{CONFIG} of the adapter {adapter} has the key {unknown[0]!r}, which this peft does "
            "not know; upgrade peft, or merge the adapter yourself and name the merged folder."
        )
    odd = [
        key
        for key, value in sorted(settings.items())
        if key not in FREE | LOOKED_AT and value and value != known[key].default
    ]
    if settings.get("init_lora_weights") not in STARTS:
        odd.append("init_lora_weights")
    kind = settings.get("peft_type")
    if kind != "LORA" or odd:
        raise LayerwiseError(
            f"The adapter {adapter} is of the kind {' with '.join([str(kind), *odd])}; accepted "
            "is plain LoRA: merge it yourself and name the merged folder as the source."
        )


def _check_numbers(settings: Mapping[str, Any], adapter: str) -> None:
    for key in ("r", "lora_alpha"):
        if key not in settings or not _counts(settings[key], whole=key == "r"):
            raise LayerwiseError(
                f"{key!r} in {CONFIG} of the adapter {adapter} must be {_NUMBER[key]}, but "
                + (f"{json.dumps(settings[key])} came" if key in settings else "it is missing")
                + "; fetch or copy the adapter again."
            )
    for key, of in (("rank_pattern", "r"), ("alpha_pattern", "lora_alpha")):
        patterns = settings.get(key) or {}
        if not isinstance(patterns, dict) or not all(
            PATTERN.fullmatch(name) and _compiles(name) and _counts(value, whole=of == "r")
            for name, value in patterns.items()
        ):
            raise LayerwiseError(
                f"{key!r} in {CONFIG} of the adapter {adapter} must map names of modules to "
                f"{_NUMBER[of]}, but {json.dumps(patterns)[:80]} came; merge the adapter yourself "
                "and name the merged folder as the source."
            )


_NUMBER = {"r": "a whole number above 0", "lora_alpha": "a number above 0"}


def _counts(value: Any, *, whole: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        return False
    return 0 < value < 2**31 and math.isfinite(value)


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _settings(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"{json.dumps(found)[:40]} came, accepted is a JSON object")
    return found


def _read(
    reader: Callable[[Path], dict[str, Any]], path: Path, location: Location
) -> dict[str, Any]:
    from safetensors import SafetensorError

    try:
        return reader(path)
    except (ValueError, RecursionError, SafetensorError) as error:
        raise LayerwiseError(
            f"{path.name} of the adapter {location.name} is damaged ({error}); fetch or copy it "
            "again."
        ) from error
    except OSError as error:
        raise LayerwiseError(f"The adapter {location.name}: {why(error, location)}") from error


def _file(location: Location, name: str) -> Path:
    folder = location.folder
    if folder is not None:
        if not (folder / name).is_file():
            raise LayerwiseError(
                f"The adapter folder {folder} has no {name}; accepted are PEFT adapters as "
                "safetensors."
            )
        return folder / name
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(location.name, name, revision=location.revision))
    except Exception as error:  # the hub's, the network's, the disk's: `why` tells them apart
        raise LayerwiseError(f"The adapter {location.name}: {why(error, location)}") from error
