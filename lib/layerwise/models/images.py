"""How a vision model takes images: which models do, preprocessing, the inputs of a batch.

A vision model's tokens are its patches, with class and register tokens in front of them. An image
is decoded and preprocessed in threads of its own, while the batch before it is in the pass.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from layerwise.config.models import Model, Preprocess
from layerwise.corpora.images import Picture
from layerwise.errors import LayerwiseError, first_line
from layerwise.io.files import sha256_text
from layerwise.models.source import Location

# config.model_type of models of image and text -> where the tower of images is.
TOWERS = {
    "aimv2": "vision_model", "altclip": "vision_model", "chinese_clip": "vision_model",
    "clip": "vision_model", "metaclip_2": "vision_model", "siglip": "vision_model",
    "siglip2": "vision_model",
}  # fmt: skip
# Of those whose configuration has a vocabulary (of visual tokens), those that take images alone.
WITH_VOCABULARY = ("beit",)
# They leave out some patches, at random unless told otherwise.
MASKS = ("vit_mae",)
# Their tokens are the colours of pixels, with a start token in front.
OF_COLOURS = ("imagegpt",)
# A wide, a high and a square image: what all become must be of one shape.
EXAMPLES = ((40, 30), (30, 40), (32, 32))


def takes_images(config: Any) -> bool:
    """Whether a model takes images alone, or has a tower that does."""
    kind = config.model_type
    if kind in (*TOWERS, *OF_COLOURS, *WITH_VOCABULARY):
        return True
    shape = all(hasattr(config, name) for name in ("image_size", "patch_size", "num_channels"))
    return shape and not hasattr(config, "vocab_size") and not hasattr(config, "text_config")


def tower(network: Any) -> Any:
    """The part of a model that takes images."""
    path = TOWERS.get(network.config.model_type)
    return network if path is None else getattr(network, path, network)


class Pixels:
    """An image as a prompt: as many tokens as the model makes of it, read when it is needed."""

    def __init__(self, picture: Picture, images: Images) -> None:
        self.picture, self.images = picture, images
        self._read: Future[Tensor] | None = None

    def __len__(self) -> int:
        return self.images.n_tokens

    def start(self) -> None:
        """Begin to read it, beside other work."""
        if self._read is None:
            self._read = self.images.pool.submit(self.images.read, self.picture)

    def take(self) -> Tensor:
        """What the model is given of it. A second call reads it again."""
        self.start()
        assert self._read is not None
        reading, self._read = self._read, None
        return reading.result()


class Images:
    """Turns images into a model's inputs.

    Parameters
    ----------
    who : str
        The model and revision, for errors.
    processor : of transformers
    entry : Model
        The model's config entry.
    network : Module
        The model, or its tower of images.
    dtype : torch.dtype
        Of the pixels that it is given.

    Attributes
    ----------
    n_tokens : int
        Tokens of an image; 0 until the model ran once.
    """

    def __init__(
        self, who: str, processor: Any, entry: Model, network: Any, dtype: torch.dtype
    ) -> None:
        config = network.config
        self.who, self.processor, self.dtype = who, processor, dtype
        self.kind = str(config.model_type)
        self.pool = ThreadPoolExecutor(max(1, torch.get_num_threads()), "images")
        self.n_tokens = 0
        self.start_token = None
        if self.kind in OF_COLOURS and entry.special_tokens:
            # As in its training: the start token, and all pixels but the last.
            self.start_token = int(config.vocab_size) - 1
        self.mask_ratio = entry.mask_ratio
        if self.kind in MASKS:
            config.mask_ratio = entry.mask_ratio
        elif entry.mask_ratio:
            raise LayerwiseError(
                f"{who}: mask_ratio is {entry.mask_ratio:g}, but an architecture {self.kind!r} "
                f"masks nothing; it is for {', '.join(MASKS)} alone."
            )
        self.patch = getattr(config, "patch_size", None)

    def read(self, picture: Picture) -> Tensor:
        """What the model is given of an image: pixels (3, H, W), or a colour for each (T,)."""
        given = self.processor(images=[picture.pixels()], return_tensors="pt")
        if self.kind in OF_COLOURS:
            colours: Tensor = given["input_ids"][0]
            if self.start_token is None:
                return colours
            start = torch.tensor([self.start_token])
            return torch.cat([start, colours[: len(colours) - 1]])
        pixels: Tensor = given["pixel_values"][0]
        return pixels.to(self.dtype)

    def inputs(self, prompts: Sequence[Pixels]) -> dict[str, Tensor]:
        """The model's inputs of a batch."""
        given = torch.stack([prompt.take() for prompt in prompts])
        return self.named(given, [prompt.picture.name for prompt in prompts])

    def named(self, given: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """The model's inputs of preprocessed images of these ids."""
        if self.kind in OF_COLOURS:
            return {"input_ids": given}
        if self.kind not in MASKS:
            return {"pixel_values": given}
        # The patches of the smallest numbers are kept, in the order of the numbers.
        n = self.n_patches(given)
        order = torch.arange(n).double()
        if self.mask_ratio:
            order = torch.stack([_drawn(name, n) for name in names])
            kept = order.argsort(dim=1)[:, : int(n * (1 - self.mask_ratio))].sort(dim=1).values
            order = torch.full((len(names), n), float(n)).double()
            order.scatter_(1, kept, torch.arange(kept.shape[1]).double().expand_as(kept))
        return {"pixel_values": given, "noise": order.expand(len(names), n)}

    def n_patches(self, given: Tensor) -> int:
        """The patches of images of shape (B, 3, H, W); of colours, shape (B, T), the pixels."""
        if given.ndim == 2:
            return given.shape[1] - (self.start_token is not None)
        high, wide = self.patch if isinstance(self.patch, list | tuple) else (self.patch,) * 2
        return int(given.shape[2] // high) * int(given.shape[3] // wide)

    def n_shown(self, given: Tensor) -> int:
        """The patches that the model does not leave out."""
        return int(self.n_patches(given) * (1 - self.mask_ratio))

    def example(self) -> Tensor:
        """Three images, preprocessed.

        Raises
        ------
        LayerwiseError
            If they become of several shapes, or the processor does not take them.
        """
        from layerwise.corpora.images import png

        generator = torch.Generator().manual_seed(0)
        made = []
        for wide, high in EXAMPLES:
            values = torch.randint(256, (high, wide, 3), generator=generator, dtype=torch.uint8)
            picture = Picture("example", png(values.numpy()), None, "")
            try:
                made.append(self.read(picture))
            except LayerwiseError:
                raise
            except Exception as error:  # whatever an unusual processor stumbles over
                raise LayerwiseError(
                    f"{self.who}: its image processor does not take an image "
                    f"({type(error).__name__}: {first_line(error)}); give `preprocess` in the "
                    "model's entry."
                ) from error
        shapes = sorted({tuple(one.shape) for one in made})
        if len(shapes) > 1:
            raise LayerwiseError(
                f"{self.who}: its image processor makes {' and '.join(map(str, shapes))} of "
                "images of several sizes, where one shape is expected; give `preprocess` in the "
                "model's entry."
            )
        return torch.stack(made)

    def halves(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Inputs of two images whose upper halves are equal."""
        one, other = self.example()[:2]
        along = 0 if one.ndim == 1 else 1
        half = one.shape[along] // 2
        upper, _ = one.split([half, one.shape[along] - half], dim=along)
        _, lower = other.split([half, one.shape[along] - half], dim=along)
        mixed = torch.cat([upper, lower], dim=along)
        return self.named(one[None], ["one"]), self.named(mixed[None], ["one"])

    def described(self) -> str:
        """The preprocessing as JSON, for the file's record."""
        settings = {k: v for k, v in self.processor.to_dict().items() if k != "clusters"}
        settings["mask_ratio"] = self.mask_ratio
        return json.dumps(settings, sort_keys=True, default=str)


def processor_of(location: Location, entry: Model, options: Mapping[str, Any]) -> Any:
    """The image processor: as the model's entry says, or as its preprocessor_config.json does.

    Raises
    ------
    LayerwiseError
        If there is neither.
    """
    import transformers

    own = entry.preprocess
    if own is not None:
        return _processor(own)
    try:
        # Values must not depend on whether torchvision is installed, which scales otherwise.
        return transformers.AutoImageProcessor.from_pretrained(
            location.name, backend="pil", **options
        )
    except OSError as error:
        if "preprocessor_config.json" not in str(error):
            raise
        raise LayerwiseError(
            f"{location.name} has no preprocessor_config.json, which says how images are scaled "
            "and normalised; put it there, or say so in the model's entry, as in preprocess: "
            "{size: 224, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}."
        ) from error


def _processor(own: Preprocess) -> Any:
    from transformers import BitImageProcessorPil

    return BitImageProcessorPil(
        size={"shortest_edge": own.resize or own.size},
        crop_size={"height": own.size, "width": own.size},
        image_mean=list(own.mean),
        image_std=list(own.std),
        resample=3,  # bicubic, as in DINOv2, MAE and CLIP
    )


def _drawn(name: str, n: int) -> Tensor:
    """Numbers for an image's patches, the same in every batch."""
    seed = int(sha256_text("mask", name)[:15], 16)
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def position_embeddings(network: nn.Module) -> dict[str, bool]:
    """What a pass is told where images are of another size than the model was trained on."""
    import inspect

    known = inspect.signature(network.forward).parameters
    return {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in known else {}
