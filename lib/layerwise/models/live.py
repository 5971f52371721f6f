"""Read the layers of a model in memory without changing it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from layerwise.config.models import HubSource, Model
from layerwise.errors import LayerwiseError
from layerwise.models import devices
from layerwise.models.images import processor_of, takes_images
from layerwise.models.load import LoadedModel, body, prepare
from layerwise.models.source import quiet


@contextmanager
def live(model: Any, reader: Any = None, *, name: str = "") -> Iterator[LoadedModel]:
    """Prepare a live model; its modules return to training or evaluation mode at the end.

    Parameters
    ----------
    model : transformers.PreTrainedModel or sentence_transformers.SentenceTransformer
        We read the model below a head, the encoder of an encoder-decoder, and the image tower of
        a model of images and texts.
    reader : optional
        Its tokenizer or image processor; by default the one of the folder or hub name that the
        model came from.
    name : str
        Name for tables and messages; by default that of the model's folder, or its class.

    Raises
    ------
    LayerwiseError
        If the model is of another kind, has no known tokenizer, or its layers cannot be read.
    """
    quiet()
    network, max_length = getattr(model, "transformers_model", None) or model, None
    if not hasattr(network, "config") or not hasattr(network, "parameters"):
        raise LayerwiseError(
            f"model: expected a model of transformers or sentence-transformers, a folder or a "
            f"name on the hub, got {type(model).__name__}.",
            code="wrong_type",
        )
    network = body(getattr(network, "base_model", network))
    if hasattr(model, "max_seq_length"):  # of sentence-transformers
        max_length, reader = model.max_seq_length, reader or model.tokenizer
    origin = str(network.config.name_or_path or "")
    name = name or origin.rstrip("/").rsplit("/", 1)[-1] or type(network).__name__
    try:
        reader = processor_of(origin, network.config) if reader is None else copy.deepcopy(reader)
    except Exception as error:  # the hub, files and models fail in many ways
        what = "image processor" if takes_images(network.config) else "tokenizer"
        raise LayerwiseError(
            f"{name} comes without {what}; give it as tokenizer=.", code="missing_file"
        ) from error
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield prepare(
            name,
            network,
            reader,
            Model(source=HubSource(hub=origin or name), max_length=max_length),
            revision="live",
            dtype=str(network.dtype).removeprefix("torch."),
            weights="",
            claim=devices.Claim(network.device),
            scales=any(type(module).__name__ == "Normalize" for module in model.modules()),
        )
    finally:
        for module, training in modes.items():
            module.training = training
