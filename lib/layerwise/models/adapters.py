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
from layerwise.errors import LayerwiseError
from layerwise.extras import require
from layerwise.models.failures import why
from layerwise.models.source import locate

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
            "bidirectional: true for this model.",
            code="unsupported",
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
    from huggingface_hub import snapshot_download
    from peft import PeftConfig, PeftModel
    from safetensors import safe_open

    location = locate(adapter)
    name, folder = location.name, location.folder
    try:
        if folder is None:
            options = location.options()
            folder = Path(snapshot_download(name, allow_patterns=list(FILES), **options))
    except Exception as error:  # of the hub, the network or the disk; `why` explains it
        raise LayerwiseError(
            f"The adapter {name}: {why(error, location)}", code="unreadable"
        ) from error
    if not (folder / FILES[1]).is_file():
        raise LayerwiseError(
            f"The adapter {name} has no {FILES[1]}; only PEFT adapters saved as safetensors are "
            "read.",
            code="missing_file",
        )
    try:
        with safe_open(folder / FILES[1], "pt") as file:
            prefix = f"base_model.model.{model.base_model_prefix}."
            with_head = any(key.startswith(prefix) for key in file.keys())  # noqa: SIM118
        config = PeftConfig.from_pretrained(str(folder))
        # A model without a head has no task.
        config.task_type = None
        wrapped = PeftModel(_WithHead(model) if with_head else model, config)  # type: ignore[arg-type]
        loaded = wrapped.load_adapter(str(folder), "default")
        # PEFT would leave missing weights random and ignore the others.
        unfit = [*loaded.missing_keys, *loaded.unexpected_keys]
        if unfit:
            raise ValueError(f"the model and the adapter do not both have {unfit[0]}")
        wrapped.merge_and_unload()
    except MemoryError:
        raise
    except Exception as error:  # PEFT fails in many ways on unusual files
        detail = " ".join(str(error).split())[:200]
        raise LayerwiseError(
            f"The adapter {name} cannot be merged into {type(model).__name__} "
            f"({type(error).__name__}: {detail}); check that it is an adapter of this model, or "
            "fetch or copy it again.",
            code="unreadable",
        ) from error
    log.info("merged the adapter %s", name)
