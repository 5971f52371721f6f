"""Load a model with its tokenizer, ready for hooks."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from layerwise.errors import LayerwiseError
from layerwise.models.architectures import Anatomy, dissect
from layerwise.models.quiet import quiet
from layerwise.models.source import Location, locate

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    """A model at one revision on one device.

    Attributes
    ----------
    max_length : int
        The longest prompt in tokens, special tokens included.
    weights : str
        SHA-256 over the names, shapes, types and bytes of all parameters and buffers.
    """

    name: str
    revision: str
    model: nn.Module
    tokenizer: Any
    anatomy: Anatomy
    device: torch.device
    dtype: str
    max_length: int
    special_tokens: bool
    weights: str

    def tokenize(self, texts: list[str]) -> tuple[list[list[int]], list[int]]:
        """Token ids of each text, cut at `max_length`, and how many tokens were cut off each."""
        special = self.special_tokens
        full = self.tokenizer(texts, add_special_tokens=special)["input_ids"]
        if all(len(ids) <= self.max_length for ids in full):
            return full, [0] * len(full)
        cut = self.tokenizer(
            texts, add_special_tokens=special, truncation=True, max_length=self.max_length
        )["input_ids"]
        return cut, [len(a) - len(b) for a, b in zip(full, cut, strict=True)]


def pick_device(device: str) -> torch.device:
    """Turn ``auto``, ``cpu``, ``cuda`` or ``cuda:1`` into a device, and log which it is.

    Raises
    ------
    LayerwiseError
        If a GPU is asked for by name and there is none: it is never replaced by the CPU.
    """
    if device == "auto":
        picked = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    else:
        picked = torch.device(device)
        if picked.type == "cuda" and not torch.cuda.is_available():
            raise LayerwiseError(
                f"device is {device!r}, but torch sees no GPU here; set device to 'cpu' or 'auto'."
            )
    log.info("device: %s (asked for: %s)", picked, device)
    return picked


def load(
    name: str,
    spec: Mapping[str, Any],
    revision: str,
    *,
    device: str = "auto",
    dtype: str = "float32",
) -> LoadedModel:
    """Load a model of the config.

    Parameters
    ----------
    spec : mapping
        The model's config entry: ``source``, and optionally ``max_length``, ``special_tokens``,
        ``trust_remote_code``, ``tokenizer`` (a source of its own).

    Raises
    ------
    LayerwiseError
        If it cannot be had; the message says why.
    """
    from transformers import AutoModel, AutoTokenizer

    quiet()
    place = pick_device(device)
    location = locate(spec["source"], revision)
    trust = bool(spec.get("trust_remote_code", False))
    log.info("loading %s at %s from %s", name, revision, location.name)
    common: dict[str, Any] = {"trust_remote_code": trust, **_where(location)}
    try:
        tokenizer = AutoTokenizer.from_pretrained(location.name, **common)
        model = AutoModel.from_pretrained(
            location.name, dtype=DTYPES[dtype], use_safetensors=True, **common
        )
    except (OSError, ValueError, ImportError) as error:
        raise LayerwiseError(f"Model {name!r} at {revision!r}: {_why(error, location)}") from error
    model.eval().requires_grad_(False)
    weights = weights_hash(model)
    model.to(place)
    if tokenizer.pad_token_id is None:
        # Pads never count and never reach another token; any id will do.
        tokenizer.pad_token_id = tokenizer.eos_token_id or 0
    return LoadedModel(
        name=name,
        revision=revision,
        model=model,
        tokenizer=tokenizer,
        anatomy=dissect(model),
        device=place,
        dtype=dtype,
        max_length=_max_length(model, tokenizer, spec.get("max_length")),
        special_tokens=bool(spec.get("special_tokens", True)),
        weights=weights,
    )


def _where(location: Location) -> dict[str, Any]:
    where: dict[str, Any] = {}
    if location.revision is not None:
        where["revision"] = location.revision
    if location.gguf_file is not None:
        where["gguf_file"] = location.gguf_file
    return where


def _max_length(model: nn.Module, tokenizer: Any, asked: int | None) -> int:
    limits = [asked] if asked else []
    config: Any = model.config
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        # RoBERTa counts its positions from pad_token_id + 1.
        offset = 2 if config.model_type in {"roberta", "xlm-roberta", "camembert"} else 0
        limits.append(positions - offset)
    if tokenizer.model_max_length < 10**9:
        limits.append(int(tokenizer.model_max_length))
    return min(limits, default=10**9)


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over all parameters and buffers: names, shapes, types, bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(flat.numpy().data)
    return digest.hexdigest()


def _why(error: Exception, location: Location) -> str:
    text = " ".join(str(error).split())
    lowered = text.lower()
    if "trust_remote_code" in text:
        return (
            f"{location.name} needs code of its own to be run; read that code, then set "
            "trust_remote_code: true for this model."
        )
    if "gated" in lowered or "401" in text or "403" in text:
        return (
            f"access to {location.name} is restricted; accept its terms and run `hf auth login`."
        )
    if "safetensors" in lowered and ("no file named" in lowered or "pickle" in lowered):
        return (
            f"{location.name} has no weights as safetensors, and pickle files are not read; "
            "convert them first."
        )
    folder = location.folder
    if folder is None and ("offline" in lowered or "couldn't connect" in lowered):
        return (
            f"{location.name} is not in the cache and the hub cannot be reached; fetch it on a "
            "machine with a network, or set HF_HOME to a cache that has it."
        )
    if (
        folder is not None
        and not (Path(folder) / "config.json").is_file()
        and not location.gguf_file
    ):
        return f"the folder {folder} has no config.json; it is not a Hugging Face model folder."
    return text
