"""Find a model's tokenizer, image processor or feature extractor, and what reads its inputs."""

from __future__ import annotations

import logging
from typing import Any

from layerwise.config.models import Preprocess
from layerwise.models.media import Images, Recordings, takes_audio, takes_images
from layerwise.models.texts import Texts

log = logging.getLogger(__name__)

# The processors that transformers has for each reader.
PROCESSORS = {Texts: "tokenizer", Images: "image processor", Recordings: "feature extractor"}


def reader_of(config: Any) -> type[Texts] | type[Images] | type[Recordings]:
    """The reader of a model with this configuration."""
    if takes_images(config):
        return Images
    return Recordings if takes_audio(config) else Texts


def processor_of(
    name: str, config: Any, preprocess: Preprocess | None = None, **options: Any
) -> Any:
    """The tokenizer, image processor or feature extractor of a folder or hub name.

    Parameters
    ----------
    config : of the model
    preprocess : Preprocess, optional
        In place of an image model's preprocessor_config.json.
    """
    from transformers import (
        AutoFeatureExtractor,
        AutoImageProcessor,
        AutoTokenizer,
        BitImageProcessorPil,
    )
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    kind = reader_of(config)
    if kind is Recordings:
        return AutoFeatureExtractor.from_pretrained(name, **options)
    if kind is Texts:
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        asked = get_tokenizer_config(name, **options).get("add_eos_token")
        if asked and tokenizer("a")["input_ids"][-1:] != [tokenizer.eos_token_id]:
            log.warning(
                "%s: its tokenizer_config.json asks for an end-of-text token after each text "
                "(add_eos_token), but this version of transformers adds none.",
                name,
            )
        return tokenizer
    if preprocess is None:
        # torchvision scales differently, so values would depend on whether it is installed.
        return AutoImageProcessor.from_pretrained(name, backend="pil", **options)
    return BitImageProcessorPil(
        size={"shortest_edge": preprocess.resize or preprocess.size},
        crop_size={"height": preprocess.size, "width": preprocess.size},
        image_mean=list(preprocess.mean),
        image_std=list(preprocess.std),
        resample=3,  # bicubic, as in DINOv2, MAE and CLIP
    )
