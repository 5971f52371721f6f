"""Inputs of vision models: models that take images, preprocessing, batches.

A vision model's tokens are its patches, with class and register tokens in front of them. An image
is decoded and preprocessed in threads while the model runs on the batch before.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from layerwise.config.models import Model
from layerwise.corpora.images import Picture, png
from layerwise.errors import LayerwiseError
from layerwise.models.architectures import Anatomy
from layerwise.models.lazy import LazyPrompt, reading_pool

# Models of images and texts, whose image tower is their `vision_model`.
TOWERS = ("aimv2", "altclip", "chinese_clip", "clip", "metaclip_2", "siglip", "siglip2")
# Its tokens are colours of pixels, after a start token.
OF_COLOURS = "imagegpt"
# It shuffles the patches, and hides some of them.
MASKED = "vit_mae"
# Models with a vocabulary of visual tokens that take only images.
WITH_VOCABULARY = (OF_COLOURS, "beit")
# A wide, a high and a square image, which must become inputs of one shape.
EXAMPLES = ((40, 30), (30, 40), (32, 32))


def takes_images(config: Any) -> bool:
    """True if a model takes only images or has an image tower."""
    kind = config.model_type
    if kind in (*TOWERS, *WITH_VOCABULARY):
        return True
    shape = all(hasattr(config, name) for name in ("image_size", "patch_size", "num_channels"))
    return shape and not hasattr(config, "vocab_size") and not hasattr(config, "text_config")


def tower(network: Any) -> Any:
    """The image tower of a model, or the model itself."""
    known = network.config.model_type in TOWERS
    return getattr(network, "vision_model", network) if known else network


class Images:
    """Converts images to a model's inputs.

    Parameters
    ----------
    who : str
        The model and revision, for errors.
    processor : of transformers
    network : Module
        The model, or its image tower.

    Attributes
    ----------
    max_length : int
        Tokens of an image; 0 before the first pass.
    """

    takes = Picture.kind

    def __init__(self, who: str, processor: Any, _: Model, network: Any) -> None:
        config = network.config
        self.who, self.processor = who, processor
        parameter = next(network.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        self.kind = str(config.model_type)
        self.pool = reading_pool()
        self.max_length = 0
        self.start_token = getattr(config, "vocab_size", 0) - 1
        if self.kind == MASKED:
            config.mask_ratio = 0.0
        self.patch = getattr(config, "patch_size", None)

    def prompts(self, pictures: Sequence[Picture]) -> tuple[list[LazyPrompt], list[int]]:
        """A prompt of each image, and the number of tokens cut off each: none."""
        prompts = [LazyPrompt(partial(self.read, p), self.pool, self.max_length) for p in pictures]
        return prompts, [0] * len(pictures)

    def read(self, picture: Picture) -> Tensor:
        """The model's input for an image: pixels (3, H, W), or colours (T,)."""
        given = self.processor(images=[picture.pixels()], return_tensors="pt")
        if self.kind == OF_COLOURS:
            # As in training: the start token and all pixels except the last.
            return torch.cat([torch.tensor([self.start_token]), given["input_ids"][0][:-1]])
        pixels: Tensor = given["pixel_values"][0]
        return pixels.to(self.dtype)

    def inputs(self, prompts: Sequence[LazyPrompt]) -> dict[str, Tensor]:
        """The model's inputs for a batch."""
        return self._named(torch.stack([prompt.take() for prompt in prompts]))

    def _named(self, given: Tensor) -> dict[str, Tensor]:
        """The model's inputs for preprocessed images."""
        if self.kind == OF_COLOURS:
            return {"input_ids": given}
        if self.kind != MASKED:
            return {"pixel_values": given}
        # The model sorts the patches by these numbers.
        order = torch.arange(self._n_patches(given)).double()
        return {"pixel_values": given, "noise": order.expand(len(given), -1)}

    def _n_patches(self, pixels: Tensor) -> int:
        """The patches of images, shape (B, 3, H, W)."""
        high, wide = self.patch if isinstance(self.patch, list | tuple) else (self.patch,) * 2
        return int(pixels.shape[2] // high) * int(pixels.shape[3] // wide)

    def _examples(self) -> Tensor:
        """Three images, preprocessed.

        Raises
        ------
        LayerwiseError
            If their shapes differ.
        """
        generator = torch.Generator().manual_seed(0)
        made = []
        for wide, high in EXAMPLES:
            values = torch.randint(256, (high, wide, 3), generator=generator, dtype=torch.uint8)
            made.append(self.read(Picture("example", png(values.numpy()))))
        shapes = sorted({tuple(one.shape) for one in made})
        if len(shapes) > 1:
            raise LayerwiseError(
                f"{self.who}: its image processor makes {' and '.join(map(str, shapes))} of "
                "images of several sizes, where one shape is expected; give `preprocess` in the "
                "model's entry.",
                code="unsupported",
            )
        return torch.stack(made)

    def example(self) -> dict[str, Tensor]:
        """Inputs for three images of different shapes."""
        return self._named(self._examples())

    def neighbours(self) -> None:
        """None: all images have one length."""

    def halves(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Inputs for two images with equal upper halves."""
        one, other = self._examples()[:2]
        along = 0 if one.ndim == 1 else 1
        half, n = one.shape[along] // 2, one.shape[along]
        parts = [one.narrow(along, 0, half), other.narrow(along, half, n - half)]
        mixed = torch.cat(parts, dim=along)
        return self._named(one[None]), self._named(mixed[None])

    def fit(self, anatomy: Anatomy, n_tokens: int) -> Anatomy:
        """The anatomy with the tokens in front of the patches, of the example's `n_tokens`."""
        self.max_length = n_tokens
        if self.kind == OF_COLOURS:
            return replace(anatomy, prefix=1)
        n_patches = self._n_patches(self._examples())
        return replace(anatomy, prefix=n_tokens - n_patches, has_class=n_tokens > n_patches)

    def facts(self) -> dict[str, Any]:
        """Settings of the inputs, for the file's record."""
        settings = {k: v for k, v in self.processor.to_dict().items() if k != "clusters"}
        described = json.dumps(settings, sort_keys=True, default=str)
        return {"max_length": self.max_length, "image_processor": described}
