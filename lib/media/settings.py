"""The settings of corpora of images and of recordings, and of image processors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, Tag, model_validator

from layerwise.config.corpora import HubData, Kept, Sample, Views
from layerwise.section import Positive, Probability, Section, ends_with, one_of
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
    Annotated[HubImages, Tag("{hub}")]
    | Annotated[FolderMedia, Tag("{folder}")]
    | Annotated[PackageImages, Tag("{package}")],
    one_of("hub", "folder", "package"),
]
"""The source of a corpus of images."""

AudioSource = Annotated[
    Annotated[HubRecordings, Tag("{hub}")] | Annotated[FolderMedia, Tag("{folder}")],
    one_of("hub", "folder"),
]
"""The source of a corpus of recordings."""

MediaSource = HubMedia | FolderMedia | PackageImages


class ImageViews(Views):
    """Augmented copies of each image, as in self-supervised learning: in turn a crop, a flip,
    jitter of the colours, grey and blur (kornia; docs/your-images.md has their sizes)."""

    size: Positive = Field(224, le=4096)
    """Side of a view in pixels, before a model's own preprocessing."""
    flip: Probability = 0.5
    """Probability of a horizontal flip; use 0 for digits and letters."""


class AudioViews(Views):
    """Augmented copies of each recording: a shift in time by up to a tenth, a gain of up to 6 dB
    and white noise in turn."""

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
    @abstractmethod
    def source(self) -> MediaSource:
        """The source of the prompts."""

    @property
    def perturb(self) -> None:
        """None: perturbations are of tokens of text."""
        return

    def spread(self, name: str) -> Iterator[tuple[str, Self]]:
        """The corpora of this entry, by name: itself."""
        yield name, self


class ImageCorpus(MediaCorpus):
    """Images and their views: ``corpora.<name>``."""

    source_key: ClassVar[str] = "images"
    stage: ClassVar[str] = "images"

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

    source_key: ClassVar[str] = "audio"
    stage: ClassVar[str] = "audio"

    audio: AudioSource
    """Source of the recordings: one of hub, folder."""
    views: AudioViews = AudioViews()
    """Augmented copies of each recording."""

    @property
    def source(self) -> MediaSource:
        """The source of the recordings."""
        return self.audio


Channels = tuple[float, float, float]


class Preprocess(Section):
    """Scaling and normalisation of a vision model's images."""

    size: int = Field(ge=1, le=8192)
    """Side in pixels of the square crop."""
    resize: int | None = Field(None, ge=1, le=8192)
    """Shorter side in pixels that images are scaled to first; null for size."""
    mean: Channels = (0.485, 0.456, 0.406)
    """Mean of each channel, for values of 0 to 1; ImageNet's."""
    std: Channels = (0.229, 0.224, 0.225)
    """Standard deviation of each channel; ImageNet's."""
