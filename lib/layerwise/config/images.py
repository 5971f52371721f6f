"""Image corpora: where images come from, which are taken, and their views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, Tag

from layerwise.config.base import Positive, Section, Seed, later, one_of
from layerwise.config.corpora import Kept, Sample
from layerwise.vocabulary import Damaged, ImagePackage

Probability = Annotated[float, Field(ge=0, le=1)]


class HubImages(Section):
    """Images of a data set on the Hugging Face hub."""

    hub: str = Field(
        min_length=1,
        description="Data set on the Hugging Face hub ('owner/name'), or a local folder of one; a "
        "cached copy serves offline.",
    )
    name: str | None = Field(None, description="The data set's configuration.")
    split: str = Field("train", description="Split, such as train, validation or train[:10%].")
    revision: str | None = Field(None, description="Branch, tag or commit of the data set.")
    column: str = Field("image", description="Column that holds the images.")
    label: str | None = Field(
        None, description="Column that holds the label; null for images without one."
    )


class FolderImages(Section):
    """Images of a local folder."""

    folder: str = Field(
        min_length=1,
        description="Local folder of images. Those in a folder inside it have its name as their "
        "label (one folder a class); an image's id is its path in the folder.",
    )


class PackageImages(Section):
    """Images that come inside a Python package."""

    package: ImagePackage = Field(
        description="digits: 1,797 handwritten digits of 8 x 8 pixels, in scikit-learn.",
    )


ImageSource = Annotated[
    Annotated[HubImages, Tag("hub")]
    | Annotated[FolderImages, Tag("folder")]
    | Annotated[PackageImages, Tag("package")],
    one_of("hub", "folder", "package"),
]
"""Where the images of a corpus come from, told apart by its key."""


class ImageViews(Section):
    """Augmented copies of each image: crop, flip, jitter, grey and blur in turn (kornia), as in
    self-supervised learning."""

    n: int = Field(
        2,
        ge=0,
        le=1000,
        description="Views of each image besides the image itself; InfoNCE and DiME need 2, LiDAR "
        "as many as possible (16 in the reference). A larger number keeps the earlier ones.",
    )
    seed: Seed = Field(0, description="Another seed makes other views.")
    size: Positive = Field(
        224, le=4096, description="Side of a view in pixels, before a model's own preprocessing."
    )
    crop: float = Field(
        0.4,
        gt=0,
        le=1,
        description="Smallest share of the image's area that a view shows; 1 for no crop.",
    )
    flip: Probability = Field(
        0.5, description="Probability that left and right change places; 0 for digits and letters."
    )
    jitter: Probability = Field(
        0.4,
        description="Most that brightness, contrast and saturation change, as a share; hue by a "
        "quarter of it. 8 of 10 views are changed.",
    )
    grey: Probability = Field(0.2, description="Probability that a view has no colour.")
    blur: Probability = Field(
        0.5, description="Probability that a view is blurred, by 0.1 to 2 pixels of 224."
    )


class ImageCorpus(Kept):
    """Images and their views: ``corpora.<name>``."""

    images: ImageSource = Field(
        description="Where the images come from; exactly one of hub, folder, package."
    )
    sample: Sample = Field(default=Sample(), description="Which of the images are taken.")
    classes: int | None = Field(
        None,
        ge=2,
        description="Images of so many classes alone, which the sample's seed draws, so that a "
        "sample has enough of each for a probe; null for all.",
        json_schema_extra=later(None),
    )
    damaged: Damaged = Field(
        "error",
        description="An image that cannot be read stops the run, or is left out with its name in "
        "the log.",
    )
    views: ImageViews = Field(
        default=ImageViews(), description="Augmented copies of each image, by kornia."
    )

    # What corpora of texts have too.

    @property
    def source(self) -> HubImages | FolderImages | PackageImages:
        """Where the images come from."""
        return self.images

    @property
    def perturb(self) -> None:
        """Nothing: tokens of images are not perturbed."""
        return

    def spread(self, name: str) -> Iterator[tuple[str, ImageCorpus]]:
        """The corpora that this entry stands for, by name: itself."""
        yield name, self
