"""Corpora of images and of recordings: their sources, their selection, and their views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, Tag, model_validator

from layerwise.config.corpora import HubData, Kept, Sample
from layerwise.section import Positive, Probability, Section, Seed, ends_with, one_of
from layerwise.vocabulary import TABLES


class HubMedia(HubData):
    """Images or recordings of a data set on the Hugging Face hub."""

    column: str
    """Column that holds them."""
    label: str | None = None
    """Column that holds the labels; null for none."""


class HubImages(HubMedia):
    """Images of a data set on the Hugging Face hub."""

    column: str = "image"
    """Column that holds the images."""


class HubRecordings(HubMedia):
    """Recordings of a data set on the Hugging Face hub."""

    column: str = "audio"
    """Column that holds the recordings."""


class FolderMedia(Section):
    """Images or recordings of a local folder."""

    folder: str = Field(min_length=1)
    """Local folder of images or recordings. The folder that a file lies in, inside this one, is
    its label; its path is its id."""
    labels: Annotated[str, ends_with(*TABLES)] | None = None
    """Local file with columns file (a path in the folder) and label, in place of subfolders as
    labels. Files that it does not name are left out."""


class PackageImages(Section):
    """Images that come in a Python package."""

    package: Literal["digits"]
    """digits: 1,797 handwritten digits of 8 x 8 pixels, in scikit-learn."""


ImageSource = Annotated[
    Annotated[HubImages, Tag("hub")]
    | Annotated[FolderMedia, Tag("folder")]
    | Annotated[PackageImages, Tag("package")],
    one_of("hub", "folder", "package"),
]
"""The source of a corpus of images."""

AudioSource = Annotated[
    Annotated[HubRecordings, Tag("hub")] | Annotated[FolderMedia, Tag("folder")],
    one_of("hub", "folder"),
]
"""The source of a corpus of recordings."""

MediaSource = HubMedia | FolderMedia | PackageImages


class ImageViews(Section):
    """Augmented copies of each image: crop, flip, jitter, grey and blur in turn (kornia), as in
    self-supervised learning."""

    n: int = Field(2, ge=0, le=1000)
    """Views of each image. InfoNCE and DiME need 2, LiDAR gains from more (16 in the reference). A
    larger number keeps the earlier views."""
    seed: Seed = 0
    """Seed of the views."""
    size: Positive = Field(224, le=4096)
    """Side of a view in pixels, before a model's own preprocessing."""
    crop: float = Field(0.4, gt=0, le=1)
    """Smallest share of the image's area that a view shows; 1 for no crop."""
    flip: Probability = 0.5
    """Probability of a horizontal flip; use 0 for digits and letters."""
    jitter: Probability = 0.4
    """Largest relative change of brightness, contrast and saturation, and four times that of hue;
    80% of the views are changed."""
    grey: Probability = 0.2
    """Probability of a grey view."""
    blur: Probability = 0.5
    """Probability of a blurred view (0.1 to 2 pixels of 224)."""


class AudioViews(Section):
    """Augmented copies of each recording: shift, gain and white noise in turn."""

    n: int = Field(2, ge=0, le=1000)
    """Views of each recording. InfoNCE and DiME need 2, LiDAR gains from more (16 in the
    reference). A larger number keeps the earlier views."""
    seed: Seed = 0
    """Seed of the views."""
    shift: Probability = 0.1
    """Largest shift in time, as a share of the recording; what leaves it at one end enters at the
    other. 0 for no shift."""
    gain: float = Field(6.0, ge=0, le=60)
    """Largest change of the level, up or down, in dB; 0 for none."""
    snr: tuple[float, float] | None = (10.0, 30.0)
    """Smallest and largest signal-to-noise ratio in dB; null for no noise."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.snr is not None and self.snr[0] > self.snr[1]:
            raise ValueError(f"snr: expected [smallest, largest], got {list(self.snr)}")
        return self


class MediaCorpus(Kept):
    """Settings that corpora of images and of recordings share."""

    sample: Sample = Sample()
    """Sample of the images or recordings."""
    classes: int | None = Field(None, ge=2)
    """Restrict to this many classes, drawn with the sample's seed; null for all."""
    damaged: Literal["error", "drop"] = "error"
    """Stop at a file that cannot be read, or drop it and log its id."""

    # The same attributes as corpora of texts.

    @property
    def perturb(self) -> None:
        """None: perturbations are of tokens of text."""
        return

    def spread(self, name: str) -> Iterator[tuple[str, Self]]:
        """The corpora of this entry, by name: itself."""
        yield name, self


class ImageCorpus(MediaCorpus):
    """Images and their views: ``corpora.<name>``."""

    images: ImageSource
    """Source of the images: one of hub, folder, package."""
    views: ImageViews = ImageViews()
    """Augmented copies of each image."""

    @property
    def source(self) -> MediaSource:
        """The source of the images."""
        return self.images


class AudioCorpus(MediaCorpus):
    """Recordings and their views: ``corpora.<name>``."""

    audio: AudioSource
    """Source of the recordings: one of hub, folder."""
    views: AudioViews = AudioViews()
    """Augmented copies of each recording."""

    @property
    def source(self) -> MediaSource:
        """The source of the recordings."""
        return self.audio
