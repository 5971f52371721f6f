"""An image: its bytes, how they become pixels, and its views.

Whatever a file holds becomes 8-bit RGB: a grey image has three equal channels, transparent parts
are shown on white, CMYK and palettes are converted, 16-bit grey is divided by 257, an orientation
in EXIF is applied, and of an animation the first frame counts. 32-bit and floating-point values,
which have no agreed white, are refused, and so are damaged files.

Views are cropped, flipped, jittered, grey and blurred by kornia, and scaled by Pillow. The
parameters of a view are drawn once and stored (`draw_views`); it is made each time it is read
(`apply_view`), so that views take no room. The parameters depend on the seed, the image's id and
bytes, the view's number and the settings, and on nothing else.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd

from layerwise.errors import first_line
from layerwise.io.files import sha256_text
from layerwise.progress import Progress
from layerwise.project import require
from media.settings import ImageCorpus, ImageViews, Preprocess
from media.sources import FileMedium, UnreadableError

if TYPE_CHECKING:
    from PIL import Image


# Formats that Pillow reads without further programs.
FORMATS = "bmp gif jpeg jpg jp2 pbm pgm png ppm tif tiff webp"


@dataclass(frozen=True)
class Picture(FileMedium):
    """An image of a corpus, or a view of one; see `layerwise.corpora.prompts.Medium`."""

    kind = column = "image"
    objects = "PIL images"
    task_types = (
        "Any2AnyRetrieval",
        "ImageClassification",
        "ImageClustering",
        "VisualSTS(eng)",
        "VisualSTS(multi)",
    )
    corpus = ImageCorpus
    preprocess = Preprocess
    feature = "Image"
    suffixes = tuple(f".{name}" for name in FORMATS.split())

    def measures(self) -> dict[str, Any]:
        """Width and height in pixels."""
        width, height = decode(self.data, self.name).size
        return {"width": width, "height": height}

    @classmethod
    def draw_views(cls, table: pd.DataFrame, settings: ImageViews) -> pd.DataFrame:
        """As the function `draw_views`."""
        return draw_views(table, settings)

    @classmethod
    def of_object(cls, name: str, item: Any) -> Self | None:
        """A prompt of a PIL image, as a PNG file that loses nothing, or of a path."""
        from PIL import Image, ImageOps

        if not isinstance(item, Image.Image):
            return super().of_object(name, item)
        upright = ImageOps.exif_transpose(item)
        if upright.mode in ("CMYK", "YCbCr", "HSV", "LAB"):  # PNG does not have them
            upright = upright.convert("RGB")
        file = io.BytesIO()
        upright.save(file, "PNG")
        return cls(name, file.getvalue())

    @classmethod
    def reader_of(cls, config: Any) -> Any:
        """`media.models.Images`, for a model that takes only images or has an image tower."""
        from media.models import Images, takes_images

        return Images if takes_images(config) else None

    def pixels(self) -> Image.Image:
        """Return its pixels, 8-bit RGB; raises as `decode`."""
        image = decode(self.data, self.name)
        return apply_view(image, self.drawn) if self.drawn else image


def decode(data: bytes, name: str) -> Image.Image:
    """Decode an image file to 8-bit RGB.

    Parameters
    ----------
    data : bytes
        In any format that Pillow reads.
    name : str
        The image's id, for errors.

    Raises
    ------
    UnreadableError
        If it is damaged, cut off, no image, above Pillow's limit of pixels, or holds values
        without an agreed white.
    """
    from PIL import Image, ImageOps

    try:
        image: Image.Image = Image.open(io.BytesIO(data))
        # Pillow opens a 16-bit PGM as 32 bits, scaled to 65,535.
        deep = image.mode.startswith("I;16") or (image.format == "PPM" and image.mode == "I")
        if image.mode in ("I", "F") and not deep:
            raise ValueError("it holds 32-bit values, which have no agreed white")
        image.load()
        image = ImageOps.exif_transpose(image)
        if deep:
            values = np.asarray(image).astype(np.uint16)
            image = Image.fromarray(np.round(values / 257).astype(np.uint8))
        if image.mode == "La":  # which Pillow converts in two steps only
            image = image.convert("LA")
        if image.has_transparency_data:
            transparent = image.convert("RGBA")
            white = Image.new("RGBA", transparent.size, "white")
            image = Image.alpha_composite(white, transparent)
        return image.convert("RGB")
    except MemoryError:
        raise
    except Exception as error:  # a damaged file fails in any way in any of Pillow's readers
        raise UnreadableError(
            f"The image {name!r} cannot be read ({first_line(error)}); fetch or copy it again, or "
            "set damaged: drop."
        ) from error


def png(values: Any) -> bytes:
    """Encode an 8-bit array of pixels as a PNG file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


# Standard deviation of the blur, from and to, for a side of 224 pixels, as in SimCLR.
SIDE, LEAST, MOST = 224, 0.1, 2.0
# Smallest share of an image that a crop shows; jitter of brightness, contrast, saturation and hue.
SMALLEST, JITTER = 0.4, (0.4, 0.4, 0.4, 0.1)
# Probabilities of views with jitter, without colours, and blurred.
JITTERED, GREY, BLURRED = 0.8, 0.2, 0.5
# The step that makes a square of an image; one of them.
FIRST = ("resize", "crop")


def draw_views(images: pd.DataFrame, settings: ImageViews) -> pd.DataFrame:
    """Draw the parameters of the views of a corpus' images.

    Parameters
    ----------
    images : DataFrame
        Table of the corpus.

    Returns
    -------
    DataFrame
        Columns ``prompt_id``, ``view`` (1 … V) and ``drawn``: the view's ``size`` and the drawn
        parameters of each step, as JSON.
    """
    import torch

    rows = []
    steps = _steps_of(settings)
    of_view = torch.Size((1, 3, settings.size, settings.size))
    with torch.random.fork_rng(devices=[]), Progress(len(images), "drawing", "image") as bar:
        columns = (images[name] for name in ("prompt_id", "sha256", "width", "height"))
        for prompt_id, sha256, width, height in zip(*columns, strict=True):
            shape = torch.Size((1, 3, height, width))
            for view in range(1, settings.n + 1):
                key = sha256_text("view", "0", prompt_id, sha256, str(view))
                # kornia draws from the global generator of the CPU.
                torch.default_generator.manual_seed(int(key[:15], 16))
                drawn = {}
                for name, step in steps.items():
                    parameters = step.forward_parameters(shape if name in FIRST else of_view)
                    drawn[name] = {k: v.tolist() for k, v in parameters.items()}
                record = json.dumps({"size": settings.size, "steps": drawn})
                rows.append((prompt_id, view, record))
            bar.update()
    return pd.DataFrame(rows, columns=["prompt_id", "view", "drawn"])


def apply_view(image: Image.Image, drawn: str) -> Image.Image:
    """Make a view of an image.

    Parameters
    ----------
    image : PIL image, 8-bit RGB
    drawn : str
        Parameters, as `draw_views` gives them.
    """
    import torch
    from PIL import Image

    record = json.loads(drawn)
    side, drawn_steps = record["size"], record["steps"]
    # The box is kornia's; it would scale without antialiasing, and the whole image as floats.
    ((first, _, last, _),) = drawn_steps.pop(next(iter(drawn_steps)))["src"]
    box = (*first, last[0] + 1, last[1] + 1)
    image = image.crop(box).resize((side, side), Image.Resampling.BILINEAR)
    values = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] / 255
    # Probabilities and ranges are among the drawn parameters.
    steps = _steps_of(ImageViews(size=side))
    with torch.inference_mode():
        for name, parameters in drawn_steps.items():
            tensors = {k: torch.tensor(v) for k, v in parameters.items()}
            values = steps[name](values, params=tensors)
    pixels = (values[0].clamp(0, 1) * 255).round().to(torch.uint8)
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def _steps_of(settings: ImageViews) -> dict[str, Any]:
    """kornia's modules, which remember what they did last: each caller needs its own."""
    aug = require("kornia.augmentation", "images")

    side = settings.size
    # Kernel: a tenth of the side, odd.
    width = side // 20 * 2 + 1
    sigma = (LEAST * side / SIDE, MOST * side / SIDE)
    return {
        "crop": aug.RandomResizedCrop((side, side), scale=(SMALLEST, 1.0)),
        "flip": aug.RandomHorizontalFlip(p=settings.flip),
        "jitter": aug.ColorJitter(*JITTER, p=JITTERED),
        "grey": aug.RandomGrayscale(p=GREY),
        "blur": aug.RandomGaussianBlur((width, width), sigma, p=BLURRED),
    }
