"""A model's weights: check them, merge adapters, hash them; attention in both directions.

LLM2Vec's models are Llama 3 with bidirectional attention and one or two PEFT adapters, merged one
after another. PEFT reads and merges them; only safetensors are read.
"""

from __future__ import annotations

import hashlib
import logging
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from layerwise.config.models import FolderAdapter, HubAdapter
from layerwise.errors import LayerwiseError, first_line
from layerwise.extras import require
from layerwise.models.architectures import dissect
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


def check_weights(who: str, network: Any, body: nn.Module, info: Any) -> None:
    """Refuse weights that do not fit their config, by transformers' loading info.

    transformers fills missing weights with random numbers and ignores others, with a warning at
    most.
    """
    # Checkpoints of encoders lack the decoder. Poolers are not read, and BERT's language models
    # lack them. Wav2Vec2 has masks in training alone.
    unread = ("decoder.",) if network.config.is_encoder_decoder else ()
    never = re.compile("pooler|masked_spec_embed")
    missing = (n for n in info["missing_keys"] if not never.search(n))
    lacking = [n for n in missing if not n.startswith(unread)]
    # Other unexpected weights may be of a head, or buffers of an older transformers.
    stack = dissect(body)
    block = re.compile(rf"(?:^|\.){re.escape(stack.path or '?')}\.(\d+)\.")
    matches = ((name, block.search(name)) for name in info["unexpected_keys"])
    further = [name for name, at in matches if at and int(at[1]) >= stack.depth]
    unfit = [*lacking, *further, *(name for name, *_ in info["mismatched_keys"])]
    if unfit:
        raise LayerwiseError(
            f"{who}: its weights do not fit its config.json ({min(unfit)} is missing, unexpected "
            "or of another shape); fetch or copy both again, or correct config.json.",
            code="mismatch",
        )


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over all parameters and buffers: names, shapes, types, bytes.

    Raises
    ------
    LayerwiseError
        If some of them are not on any device (they did not fit).
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.is_meta:
            raise LayerwiseError(
                f"{type(model).__name__} does not fit into the memory of the visible GPUs "
                f"together ({name} was left over); use more of them, or a smaller dtype.",
                code="no_memory",
            )
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(flat.numpy().data)
    return digest.hexdigest()
