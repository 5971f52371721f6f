"""The reader of a model's inputs, and the tokenizer or processor that it needs."""

from __future__ import annotations

from typing import Any

from layerwise.config.models import Preprocess
from layerwise.models.audio import Recordings, takes_audio
from layerwise.models.images import Images, takes_images
from layerwise.models.texts import Texts

# The processors that transformers has for each reader.
PROCESSORS = {Texts: "tokenizer", Images: "image processor", Recordings: "feature extractor"}


def reader_of(config: Any) -> type[Texts] | type[Images] | type[Recordings]:
    """The reader of a model with this configuration."""
    if takes_images(config):
        return Images
    return Recordings if takes_audio(config) else Texts


def processor_of(place: str, config: Any, own: Preprocess | None = None, **options: Any) -> Any:
    """The tokenizer, image processor or feature extractor of a folder or hub name.

    Parameters
    ----------
    config : of the model
    own : Preprocess, optional
        In place of an image model's preprocessor_config.json.
    """
    from transformers import (
        AutoFeatureExtractor,
        AutoImageProcessor,
        AutoTokenizer,
        BitImageProcessorPil,
    )

    kind = reader_of(config)
    if kind is not Images:
        auto = AutoTokenizer if kind is Texts else AutoFeatureExtractor
        return auto.from_pretrained(place, **options)
    if own is None:
        # torchvision scales differently, so values would depend on whether it is installed.
        return AutoImageProcessor.from_pretrained(place, backend="pil", **options)
    return BitImageProcessorPil(
        size={"shortest_edge": own.resize or own.size},
        crop_size={"height": own.size, "width": own.size},
        image_mean=list(own.mean),
        image_std=list(own.std),
        resample=3,  # bicubic, as in DINOv2, MAE and CLIP
    )
