"""Merge LoRA adapters into a model's weights, and let a decoder attend in both directions.

LLM2Vec's models are Llama 3 with bidirectional attention and one or two PEFT adapters, merged one
after another. Only LoRA is read, only from safetensors; anything else in an adapter is refused by
name, never skipped.

Source of the formula: Hu et al. 2021 (arXiv 2106.09685): ``W + (alpha / r) B A``; with rsLoRA
(Kalajdzievski 2023) ``alpha / sqrt(r)``.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from layerwise.errors import LayerwiseError
from layerwise.models.failures import why
from layerwise.models.source import Location, locate

log = logging.getLogger(__name__)

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
KEY = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])\.weight")


def attend_both_ways(model: nn.Module) -> None:
    """Turn a decoder's causal attention into bidirectional attention, by transformers' own means.

    Its mask functions go by ``config.is_causal``, its attention functions by each module's.

    Raises
    ------
    LayerwiseError
        If the model has no attention module that says whether it is causal.
    """
    modules: list[Any] = [m for m in model.modules() if hasattr(m, "is_causal")]
    if not modules:
        raise LayerwiseError(
            f"bidirectional: true came for {type(model).__name__}, whose attention cannot be "
            "told to be bidirectional; leave it out for this model."
        )
    config: Any = model.config
    config.is_causal = False
    for module in modules:
        module.is_causal = False


def merge(model: nn.Module, source: Mapping[str, Any]) -> None:
    """Add an adapter to the weights of a model, in place.

    Parameters
    ----------
    source : mapping
        ``{"hub": name}`` (with ``revision``, by default main) or ``{"folder": path}``.

    Raises
    ------
    LayerwiseError
        If the adapter cannot be had, is damaged, is of another kind than LoRA, or fits another
        model.
    """
    location = locate(source, str(source.get("revision", "main")))
    config_path, weights_path = (_file(location, name) for name in (CONFIG, WEIGHTS))
    from safetensors.torch import load_file

    config = _read(_settings, config_path, location)
    _check_kind(config, location.name)
    _check_numbers(config, location.name)
    weights = _read(load_file, weights_path, location)
    pairs: dict[str, dict[str, Tensor]] = {}
    for key, tensor in weights.items():
        match = KEY.fullmatch(key.removeprefix(PREFIX))
        if match is None:
            raise LayerwiseError(
                f"The adapter {location.name} holds {key!r}, which is no LoRA matrix of a linear "
                "layer; such adapters are not read."
            )
        pairs.setdefault(match["module"], {})[match["part"]] = tensor
    modules = dict(model.named_modules())
    for name, pair in pairs.items():
        # Adapters trained on a model with a head name the body's modules "model.…".
        place = name if name in modules else name.partition(".")[2]
        target = modules.get(place)
        if set(pair) != {"A", "B"} or not isinstance(getattr(target, "weight", None), Tensor):
            raise LayerwiseError(
                f"The adapter {location.name} is for {name!r}, which {type(model).__name__} does "
                "not have; is it an adapter of this model?"
            )
        _add(target, name, pair, config, location.name)
    log.info("merged the adapter %s into %d modules", location.name, len(pairs))


def _add(
    module: Any, name: str, pair: Mapping[str, Tensor], config: Mapping[str, Any], adapter: str
) -> None:
    rank = _pattern(config.get("rank_pattern"), name, config["r"])
    alpha = _pattern(config.get("alpha_pattern"), name, config["lora_alpha"])
    scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    # In float32: the product of two bfloat16 matrices would lose what the adapter adds.
    change = scale * (pair["B"].float() @ pair["A"].float())
    if config.get("fan_in_fan_out"):
        change = change.T
    if change.shape != module.weight.shape:
        raise LayerwiseError(
            f"The adapter {adapter} changes {name!r} by a matrix of {tuple(change.shape)}, but "
            f"the weight is {tuple(module.weight.shape)}; is it an adapter of this model?"
        )
    with torch.no_grad():
        merged = module.weight.float() + change.to(module.weight.device)
        module.weight.copy_(merged.to(module.weight.dtype))


def _pattern(patterns: Mapping[str, Any] | None, name: str, default: Any) -> Any:
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", name):
            return value
    return default


def _check_kind(config: Mapping[str, Any], adapter: str) -> None:
    kind = config.get("peft_type")
    odd = [k for k in ("use_dora", "modules_to_save", "lora_bias") if config.get(k)]
    if config.get("bias", "none") != "none":
        odd.append("bias")
    if kind != "LORA" or odd:
        raise LayerwiseError(
            f"The adapter {adapter} is of the kind {' with '.join([str(kind), *odd])}; accepted "
            "is plain LoRA: merge it yourself and name the merged folder as the source."
        )


def _check_numbers(config: Mapping[str, Any], adapter: str) -> None:
    for key in ("r", "lora_alpha"):
        value = config.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            came = f"{json.dumps(value)} came" if key in config else "it is missing"
            raise LayerwiseError(
                f"{key!r} in {CONFIG} of the adapter {adapter} must be a number above 0, but "
                f"{came}; fetch or copy the adapter again."
            )


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
    except (ValueError, SafetensorError) as error:
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
