"""Convert a GGUF file to a Hugging Face folder once, because loading GGUF is slow."""

from __future__ import annotations

import copy
import functools
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from layerwise.errors import LayerwiseError
from layerwise.extras import require
from layerwise.models.failures import why
from layerwise.models.quiet import quiet
from layerwise.models.source import Location

log = logging.getLogger(__name__)


def convert(location: Location, target: Path) -> None:
    """Dequantise a GGUF model and save it with its tokenizer as float32 safetensors.

    transformers refuses to save a model that it read from GGUF, so we move the weights into a new
    model, built from the configuration without its quantisation.

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
    common = location.options()
    try:
        with read_once():
            tokenizer = AutoTokenizer.from_pretrained(location.name, **common)
            log.info("reading %s", location.gguf_file)
            quantised = AutoModel.from_pretrained(location.name, dtype=torch.float32, **common)
    except MemoryError:  # says nothing of the file
        raise
    except Exception as error:  # transformers fails in many ways on broken files
        raise LayerwiseError(f"GGUF model {location.name}: {why(error, location)}") from error
    config = copy.deepcopy(quantised.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = torch.float32
    plain = type(quantised)(config)
    plain.load_state_dict(quantised.state_dict())
    # A remaining file, such as a chat template, would be read with the new ones.
    if target.is_dir():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    plain.save_pretrained(target)
    tokenizer.save_pretrained(target)


@contextmanager
def read_once() -> Iterator[None]:
    """Cache the files and name tables that the package gguf reads, within this context.

    transformers reads the whole file for the tokenizer, for the configuration and for the weights,
    and makes the table again for every submodule, which is half of a conversion's time.
    """
    gguf = require("gguf", "gguf")

    before = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    for name, function in before.items():
        setattr(gguf, name, functools.cache(function))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(gguf, name, function)
