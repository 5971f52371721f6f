"""Merge adapters into a model's weights, and let a decoder attend in both directions.

LLM2Vec's models are Llama 3 with bidirectional attention and one or two PEFT adapters, merged one
after another. PEFT reads and merges them; only safetensors are read.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from torch import nn

from layerwise.config.models import FolderAdapter, HubAdapter
from layerwise.errors import LayerwiseError, first_line
from layerwise.extras import require
from layerwise.models.source import locate

log = logging.getLogger(__name__)

FILES = ["adapter_config.json", "adapter_model.safetensors"]


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
            "bidirectional: true for this model.",
            code="unsupported",
        )
    for owner in (model.config, *modules):
        owner.is_causal = False


def merge(model: nn.Module, adapter: HubAdapter | FolderAdapter) -> None:
    """Add an adapter to the weights of a model, in place.

    Raises
    ------
    LayerwiseError
        If the adapter is missing, damaged, cannot be merged, or fits another model.
    """
    require("peft", "adapters")
    from huggingface_hub import snapshot_download
    from peft import PeftConfig, PeftModel, set_peft_model_state_dict
    from safetensors.torch import load_file

    location = locate(adapter)
    head = str(model.base_model_prefix)
    try:
        folder = location.folder or Path(
            snapshot_download(location.name, allow_patterns=FILES, **location.options())
        )
        # PEFT alone would read pickle files, too.
        weights = load_file(folder / FILES[1])
        config = PeftConfig.from_pretrained(str(folder))
        # A model without a head has no task.
        config.task_type = None
        base: Any = model
        if any(key.startswith(f"base_model.model.{head}.") for key in weights):
            # The adapter's names are those of a model with a head.
            base = nn.ModuleDict({head: model})
            base.config = model.config
        wrapped = PeftModel(base, config)
        loaded = set_peft_model_state_dict(wrapped, weights)
        # PEFT would leave missing weights random and ignore the others.
        unfit = [*(k for k in loaded.missing_keys if "lora_" in k), *loaded.unexpected_keys]
        if unfit:
            raise ValueError(f"the model and the adapter do not both have {unfit[0]}")
        wrapped.merge_and_unload()
    except MemoryError:
        raise
    except Exception as error:  # PEFT fails in many ways on unusual files
        raise LayerwiseError(
            f"The adapter {location.name} cannot be merged into {type(model).__name__} "
            f"({first_line(error)}); check that it is an adapter of this model, saved by PEFT as "
            "safetensors, or fetch or copy it again.",
            code="unreadable",
        ) from error
    log.info("merged the adapter %s", location.name)
