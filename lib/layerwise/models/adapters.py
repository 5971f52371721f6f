"""Merge adapters into a model's weights, and let a decoder attend in both directions.

LLM2Vec's models are Llama 3 with bidirectional attention and one or two PEFT adapters, merged one
after another. PEFT reads and merges them; only safetensors are read.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

from torch import nn

from layerwise.config.models import FolderAdapter, HubAdapter
from layerwise.errors import LayerwiseError
from layerwise.extras import require
from layerwise.models.failures import why
from layerwise.models.source import Location, locate

log = logging.getLogger(__name__)

FILES = ("adapter_config.json", "adapter_model.safetensors")


def attend_both_ways(model: nn.Module) -> None:
    """Let a decoder's tokens see later ones too.

    The mask functions of transformers read ``config.is_causal``, its attention functions each
    module's ``is_causal``.

    Raises
    ------
    LayerwiseError
        If no attention module of the model has ``is_causal``.
    """
    modules: list[Any] = [m for m in model.modules() if hasattr(m, "is_causal")]
    if not modules:
        raise LayerwiseError(
            f"{type(model).__name__} has no attention that can be made bidirectional; leave out "
            "bidirectional: true for this model."
        )
    for owner in (model.config, *modules):
        owner.is_causal = False


class _WithHead(nn.Module):
    """Wrap a model as in a model with a head, because adapters use those names."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        setattr(self, body.base_model_prefix, body)
        self.config = body.config


def merge(model: nn.Module, adapter: HubAdapter | FolderAdapter) -> None:
    """Add an adapter to the weights of a model, in place.

    Raises
    ------
    LayerwiseError
        If the adapter is missing, damaged, cannot be merged, or fits another model.
    """
    require("peft", "adapters")
    from peft import PeftConfig, PeftModel
    from safetensors import safe_open

    location = locate(adapter)
    folder = _folder(location)
    try:
        with safe_open(folder / FILES[1], "pt") as file:
            keys = set(file.keys())
        config = PeftConfig.from_pretrained(str(folder))
        # A model without a head has no task.
        config.task_type = None
        prefix = f"base_model.model.{model.base_model_prefix}."
        body: Any = _WithHead(model) if any(key.startswith(prefix) for key in keys) else model
        with warnings.catch_warnings():
            # Otherwise missing adapter weights would be random.
            warnings.filterwarnings("error", message="Found missing adapter keys")
            wrapped = PeftModel.from_pretrained(body, str(folder), config=config)
        found = {key.replace(".default.", ".") for key, _ in wrapped.named_parameters()}
        unused = sorted(key for key in keys - found if "lora_" in key)
        if unused:
            raise ValueError(f"the model has no place for {unused[0]}")
        wrapped.merge_and_unload()
    except MemoryError:
        raise
    except Exception as error:  # PEFT fails in many ways on unusual files
        detail = " ".join(str(error).split())[:200]
        raise LayerwiseError(
            f"The adapter {location.name} cannot be merged into {type(model).__name__} "
            f"({type(error).__name__}: {detail}); check that it is an adapter of this "
            "model, or fetch or copy it again."
        ) from error
    log.info("merged the adapter %s", location.name)


def _folder(location: Location) -> Path:
    """The folder of an adapter's files, fetched if they are on the hub."""
    folder = location.folder
    if folder is None:
        from huggingface_hub import snapshot_download

        try:
            folder = Path(
                snapshot_download(location.name, allow_patterns=list(FILES), **location.options())
            )
        except Exception as error:  # of the hub, the network or the disk; `why` explains it
            raise LayerwiseError(f"The adapter {location.name}: {why(error, location)}") from error
    for name in FILES:
        if not (folder / name).is_file():
            raise LayerwiseError(
                f"The adapter {location.name} has no {name}; only PEFT adapters saved as "
                "safetensors are read."
            )
    return folder
