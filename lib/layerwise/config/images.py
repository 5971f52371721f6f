"""Image corpora: the source of the images, their selection, and their views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, Tag

from layerwise.config.corpora import HubData, Kept, Sample
from layerwise.section import Positive, Probability, Section, Seed, one_of


class HubImages(HubData):
    """Images of a data set on the Hugging Face hub."""

    column: str = "image"
    """Column that holds the images."""
    label: str | None = None
    """Column that holds the labels; null for none."""


class FolderImages(Section):
    """Images of a local folder."""

    folder: str = Field(min_length=1)
    """Local folder of images. The folder that an image lies in, inside this one, is its label; its
    path is its id."""


class PackageImages(Section):
    """Images that come in a Python package."""

    package: Literal["digits"]
    """digits: 1,797 handwritten digits of 8 x 8 pixels, in scikit-learn."""


ImageSource = Annotated[
    Annotated[HubImages, Tag("hub")]
    | Annotated[FolderImages, Tag("folder")]
    | Annotated[PackageImages, Tag("package")],
    one_of("hub", "folder", "package"),
]
"""The source of a corpus of images."""


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


class ImageCorpus(Kept):
    """Images and their views: ``corpora.<name>``."""

    images: ImageSource
    """Source of the images: one of hub, folder, package."""
    sample: Sample = Sample()
    """Sample of the images."""
    classes: int | None = Field(None, ge=2)
    """Restrict to this many classes, drawn with the sample's seed; null for all."""
    damaged: Literal["error", "drop"] = "error"
    """Stop at an image that cannot be read, or drop it and log its id."""
    views: ImageViews = ImageViews()
    """Augmented copies of each image."""

    # The same attributes as corpora of texts.

    @property
    def source(self) -> HubImages | FolderImages | PackageImages:
        """The source of the images."""
        return self.images

    @property
    def perturb(self) -> None:
        """None: perturbations are of tokens of text."""
        return

    def spread(self, name: str) -> Iterator[tuple[str, ImageCorpus]]:
        """The corpora of this entry, by name: itself."""
        yield name, self
