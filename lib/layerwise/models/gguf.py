"""Convert a GGUF file to a Hugging Face folder once, because loading GGUF is slow."""

from __future__ import annotations

import functools
import logging
import shutil
from pathlib import Path
from unittest.mock import patch

import torch

from layerwise.errors import LayerwiseError
from layerwise.extras import require
from layerwise.models.failures import why
from layerwise.models.source import Location, quiet

log = logging.getLogger(__name__)


def convert(location: Location, target: Path) -> None:
    """Dequantise a GGUF model and save it with its tokenizer as float32 safetensors.

    Parameters
    ----------
    location : a folder, or a name on the hub with its revision, with its ``gguf_file`` set
    target : the folder to write; files of an earlier conversion are removed

    Raises
    ------
    LayerwiseError
        If the file cannot be found or read; the message says why.
    """
    from transformers import AutoModel, AutoTokenizer

    quiet()
    gguf = require("gguf", "gguf")
    # transformers reads the file for the tokenizer, the configuration and the weights, and makes
    # the table of names for every module: half of a conversion's time.
    reader, names = map(functools.cache, (gguf.GGUFReader, gguf.get_tensor_name_map))
    common = location.options()
    log.info("reading %s", location.gguf_file)
    try:
        with (
            patch.object(gguf, "GGUFReader", reader),
            patch.object(gguf, "get_tensor_name_map", names),
        ):
            tokenizer = AutoTokenizer.from_pretrained(location.name, **common)
            model = AutoModel.from_pretrained(location.name, dtype=torch.float32, **common)
    except Exception as error:  # transformers fails in many ways on broken files
        raise LayerwiseError(
            f"GGUF model {location.name}: {why(error, location)}", code="unreadable"
        ) from error
    # transformers refuses to save what it calls quantised; the weights are ordinary by now.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    # A remaining file, such as a chat template, would be read with the new ones.
    if target.is_dir():
        shutil.rmtree(target)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
