"""Inputs of vision and audio models: decoding, preprocessing, lengths, batches.

A vision model's tokens are its patches, with class and register tokens in front of them. An audio
model's tokens are frames of some milliseconds. There are three kinds:

- Models of waveforms (Wav2Vec2, HuBERT, WavLM) and of spectrograms of any length (Wav2Vec2-BERT)
  have as many tokens as the recording is long. Batches are padded, unless that changes the states
  (`layerwise.models.probe.depends_on_batch`), as where the feature encoder is normed over time.
- Whisper's encoder reads 30 seconds, mostly silence. The tokens of the recording count, those of
  the silence behind it do not, although the others attend to them, as in training.
- AST reads patches of a spectrogram of fixed length, all of which count.

Files are decoded and preprocessed in threads while the model runs on the batch before.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerwise.config.models import Model
from layerwise.errors import LayerwiseError, first_line
from layerwise.models.architectures import Anatomy, unsupported
from layerwise.models.texts import (
    UNLIMITED,
    LazyPrompt,
    ProbeInputs,
    Reader,
    input_name,
    padded,
    reading_pool,
)
from media.audio import Recording, Samples, wav
from media.images import Picture, png
from media.settings import Preprocess

# Models of images and texts, whose image tower is their `vision_model`.
TOWERS = ("aimv2", "altclip", "chinese_clip", "clip", "metaclip_2", "siglip", "siglip2")
# Its tokens are colours of pixels, after a start token.
OF_COLOURS = "imagegpt"
# It shuffles the patches, and hides some of them.
MASKED = "vit_mae"
# Models with a vocabulary of visual tokens that take only images.
WITH_VOCABULARY = (OF_COLOURS, "beit")
# A wide, a high and a square image, which must become inputs of one shape.
SIZES = ((40, 30), (30, 40), (32, 32))

INPUTS = ("input_values", "input_features")
# Methods of models that give the number of tokens of an input.
LENGTHS = ("_get_feat_extract_output_lengths", "_get_subsampling_output_length")
# Class and distillation tokens in front of the patches.
PREFIX = {"audio-spectrogram-transformer": 2}
# Seconds of two examples, and of a longer one.
LENGTH, LONGER = 0.4, 0.8


def takes_images(config: Any) -> bool:
    """True if a model takes only images or has an image tower."""
    kind = config.model_type
    if kind in (*TOWERS, *WITH_VOCABULARY):
        return True
    shape = all(hasattr(config, name) for name in ("image_size", "patch_size", "num_channels"))
    return shape and not hasattr(config, "vocab_size") and not hasattr(config, "text_config")


def takes_audio(config: Any) -> bool:
    """True if a model takes waveforms or spectrograms."""
    return input_name(config) in INPUTS


class Images(Reader):
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
    processor_name = "image processor"
    unused = ("prompts", "max_length")

    @staticmethod
    def open_processor(name: str, preprocess: Preprocess | None, **options: Any) -> Any:
        """The image processor of a folder or hub name, or one of `preprocess`."""
        from transformers import AutoImageProcessor, BitImageProcessorPil

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

    @staticmethod
    def body(network: Any) -> Any:
        """The image tower of a model, or the model itself."""
        has_tower = network.config.model_type in TOWERS
        return getattr(network, "vision_model", network) if has_tower else network

    def __init__(self, who: str, processor: Any, _: Model, network: Any) -> None:
        config = network.config
        self.who, self.processor = who, processor
        parameter = next(network.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        self.kind = str(config.model_type)
        self.pool = reading_pool()
        self.max_length = 0
        self.time_axis = 1 if self.kind == OF_COLOURS else 2
        self.start_token = getattr(config, "vocab_size", 0) - 1
        if self.kind == MASKED:
            config.mask_ratio = 0.0
        self.patch = getattr(config, "patch_size", None)

    def prompts(self, pictures: Sequence[Picture]) -> tuple[list[LazyPrompt], list[int]]:
        """A prompt of each image, and the number of tokens cut off each: none."""
        n = self.max_length
        prompts = [LazyPrompt(partial(self.read, p), self.pool, n, n) for p in pictures]
        return prompts, [0] * len(pictures)

    def read(self, picture: Picture) -> Tensor:
        """The model's input for an image: pixels (3, H, W), or colours (T,)."""
        inputs = self.processor(images=[picture.pixels()], return_tensors="pt")
        if self.kind == OF_COLOURS:
            # As in training: the start token and all pixels except the last.
            return torch.cat([torch.tensor([self.start_token]), inputs["input_ids"][0][:-1]])
        pixels: Tensor = inputs["pixel_values"][0]
        return pixels.to(self.dtype)

    def inputs(self, prompts: Sequence[LazyPrompt]) -> dict[str, Tensor]:
        """The model's inputs for a batch."""
        return self._named(torch.stack([prompt.take() for prompt in prompts]))

    def _named(self, pixels: Tensor) -> dict[str, Tensor]:
        """The model's inputs for preprocessed images."""
        if self.kind == OF_COLOURS:
            return {"input_ids": pixels}
        if self.kind != MASKED:
            return {"pixel_values": pixels}
        # The model sorts the patches by these numbers.
        order = torch.arange(self._n_patches(pixels)).double()
        return {"pixel_values": pixels, "noise": order.expand(len(pixels), -1)}

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
        inputs = []
        for wide, high in SIZES:
            values = torch.randint(256, (high, wide, 3), generator=generator, dtype=torch.uint8)
            inputs.append(self.read(Picture("example", png(values.numpy()))))
        shapes = sorted({tuple(pixels.shape) for pixels in inputs})
        if len(shapes) > 1:
            raise LayerwiseError(
                f"{self.who}: its image processor makes {' and '.join(map(str, shapes))} of "
                "images of several sizes, where one shape is expected; give `preprocess` in the "
                "model's entry.",
                code="unsupported",
            )
        return torch.stack(inputs)

    def example(self) -> dict[str, Tensor]:
        """Inputs for three images of different shapes."""
        return self._named(self._examples())

    def probe_inputs(self) -> Iterator[ProbeInputs]:
        """Inputs that prove the layers; all images have one length."""
        yield ProbeInputs(self.example())

    def fit(self, anatomy: Anatomy, n_tokens: int) -> Anatomy:
        """The anatomy with the tokens in front of the patches, of the example's `n_tokens`."""
        self.max_length = n_tokens
        if self.kind == OF_COLOURS:
            return replace(anatomy, prefix=1)
        n_patches = self._n_patches(self._examples())
        return replace(anatomy, prefix=n_tokens - n_patches, has_class=n_tokens > n_patches)

    def facts(self) -> dict[str, Any]:
        """Settings of the inputs, for the file's record."""
        return {"max_length": self.max_length, "image_processor": _described(self.processor)}


class Recordings(Reader):
    """Converts recordings to a model's inputs.

    Parameters
    ----------
    who : str
        The model and revision, for errors.
    extractor : feature extractor of transformers
    entry : Model
        The model's config entry.
    network : Module

    Attributes
    ----------
    max_length : int
        The longest prompt in tokens; longer recordings are cut.
    """

    takes = Recording.kind
    processor_name = "feature extractor"
    unused = ("prompts", "preprocess")

    @staticmethod
    def open_processor(name: str, preprocess: Any, **options: Any) -> Any:  # noqa: ARG004
        """The feature extractor of a folder or hub name."""
        from transformers import AutoFeatureExtractor

        return AutoFeatureExtractor.from_pretrained(name, **options)

    def __init__(self, who: str, extractor: Any, entry: Model, network: Any) -> None:
        self.who, self.extractor, self.network = who, extractor, network
        self.name = input_name(network.config)
        parameter = next(network.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        self.pool = reading_pool()
        self.rate = int(extractor.sampling_rate)
        # Numbers of samples of the examples and of the longer one.
        self.sizes = round(LENGTH * self.rate), round(LONGER * self.rate)
        self.max_length = entry.max_length or UNLIMITED
        self.fixed_length: int | None = None
        self.n_frames = cache(lambda n: self._features(_noise(n))[1])
        try:
            self._measure()
        except (MemoryError, LayerwiseError):
            raise
        except Exception as error:  # unusual models and extractors fail in many ways
            raise unsupported(
                f"{who}: its feature extractor does not make spectrograms or waveforms for it "
                f"({type(error).__name__}: {first_line(error)})"
            ) from error

    def _measure(self) -> None:
        """Find the kind of the model, and the shortest and longest recording that it reads."""
        short, long = (self._features(_noise(n)) for n in self.sizes)
        self.of_waveforms = short[0].ndim == 1
        self.is_fixed = short[0].shape == long[0].shape
        # Whisper's spectrograms have time behind the frequencies.
        self.time_axis = 1 + (int(np.argmax(short[0].shape)) if self.is_fixed else 0)
        # Of patches of a spectrogram of fixed length, all count.
        self.of_patches = self.is_fixed and short[1] == long[1]
        of_silence = self.is_fixed and not self.of_patches
        self.least = 1 if of_silence else self.rate // 20
        while self.n_tokens(self.least) < 1:
            self.least *= 2
        self.most = self._most()

    def _features(self, samples: Samples) -> tuple[Tensor, int]:
        """The model's input for samples, and how many of its frames are of them."""
        inputs = self.extractor(
            samples, sampling_rate=self.rate, return_tensors="pt", return_attention_mask=True
        )
        features: Tensor = inputs[self.name][0]
        mask = inputs.get("attention_mask")
        return features.to(self.dtype), len(features) if mask is None else int(mask.sum())

    def n_tokens(self, n_samples: int) -> int:
        """Number of tokens of a recording."""
        if self.of_patches:
            return self.max_length
        n = n_samples if self.of_waveforms else self.n_frames(n_samples)
        shorten = next((f for name in LENGTHS if (f := getattr(self.network, name, None))), None)
        if shorten is None:
            return n
        shortened = shorten(torch.tensor(n))
        # Qwen2-Audio gives the length of its output, too.
        return int(shortened[0] if isinstance(shortened, tuple) else shortened)

    def _most(self) -> int:
        """Number of samples of the longest recording that the model reads."""
        most = UNLIMITED
        if self.is_fixed:  # in samples, or in frames of 10 ms
            frames = getattr(self.extractor, "max_length", 0) * self.rate // 100
            most = getattr(self.extractor, "n_samples", frames)
        if self.of_patches or self.max_length == UNLIMITED:
            return most
        n = self.least
        while n < most and self.n_tokens(n) <= self.max_length:
            n *= 2
        longer = range(min(n, most) + 1)
        return bisect_right(longer, self.max_length, lo=self.least, key=self.n_tokens) - 1

    def _n_read(self, n_samples: int) -> int:
        """Number of samples that the model reads of a recording: silence is added up to a first
        token, and what is too long is cut."""
        return min(max(n_samples, self.least), self.most)

    def prompts(self, recordings: Sequence[Recording]) -> tuple[list[LazyPrompt], list[int]]:
        """A prompt of each recording, and about how many tokens are cut off each."""
        prompts, n_cut = [], []
        for recording in recordings:
            n = recording.n_samples(self.rate)
            n_read = self._n_read(n)
            n_tokens = self.n_tokens(n_read)
            read, cost = partial(self.read, recording), self.fixed_length or n_tokens
            prompts.append(LazyPrompt(read, self.pool, n_tokens, cost, n_read))
            n_cut.append(math.ceil(n_tokens * max(0, n - n_read) / n_read))
        return prompts, n_cut

    def read(self, recording: Recording) -> Tensor:
        """The model's input for a recording: samples (n,), or a spectrogram."""
        samples = recording.samples(self.rate)
        n = self._n_read(len(samples))
        return self._features(np.pad(samples[:n], (0, max(0, n - len(samples)))))[0]

    def inputs(self, prompts: Sequence[LazyPrompt]) -> dict[str, Tensor]:
        """The model's inputs for a batch."""
        return self._padded(*(prompt.take() for prompt in prompts))

    def _padded(self, *inputs: Tensor) -> dict[str, Tensor]:
        return padded(self.name, list(inputs), self.extractor.padding_value)

    def _examples(self) -> list[Tensor]:
        """Inputs for two recordings that differ in their first half, and for a longer one."""
        n, longer = self.sizes
        further = _noise(longer)
        first, other = further[:n], further[-n:].copy()
        other[n // 2 :] = first[n // 2 :]
        files = (wav(samples, self.rate) for samples in (first, other, further))
        return [self.read(Recording("example", file)) for file in files]

    def example(self) -> dict[str, Tensor]:
        """Inputs for two recordings of one length."""
        return self._padded(*self._examples()[:2])

    def probe_inputs(self) -> Iterator[ProbeInputs]:
        """Inputs that prove the layers."""
        first, other, longer = self._examples()
        alone = None if self.is_fixed else self._padded(first)
        both = None if self.is_fixed else self._padded(first, longer)
        yield ProbeInputs(self._padded(first, other), both, alone)

    def fit(self, anatomy: Anatomy, n_tokens: int) -> Anatomy:
        """The anatomy with the tokens in front of patches, of the example's `n_tokens`.

        Raises
        ------
        LayerwiseError
            If the blocks have other tokens than the feature encoder.
        """
        expected = self.n_tokens(self.sizes[0])
        if self.is_fixed:
            self.fixed_length = n_tokens
            self.max_length = n_tokens if self.of_patches else min(self.max_length, n_tokens)
        elif n_tokens != expected:
            raise unsupported(
                f"{self.who}: its blocks have {n_tokens} states where its feature encoder makes "
                f"{expected}"
            )
        prefix = PREFIX.get(anatomy.kind)
        return replace(anatomy, prefix=prefix, has_class=prefix is not None)

    def facts(self) -> dict[str, Any]:
        """Settings of the inputs, for the file's record."""
        return {"max_length": self.max_length, "feature_extractor": _described(self.extractor)}


def _described(processor: Any) -> str:
    """Settings of a processor as JSON, without its large tables."""
    tables = ("clusters", "mel_filters")
    settings = {key: value for key, value in processor.to_dict().items() if key not in tables}
    return json.dumps(settings, sort_keys=True, default=str)


def _noise(n: int) -> Samples:
    """White noise, shape (n,)."""
    return np.random.default_rng(0).normal(0, 0.1, n).astype(np.float32)
