"""An image: its bytes, and how they become pixels.

Whatever a file holds becomes 8-bit RGB: a grey image has three equal channels, transparent parts
are shown on white, CMYK and palettes are converted, 16-bit grey is divided by 257, an orientation
in EXIF is applied, and of an animation the first frame counts. 32-bit and floating-point values,
which have no agreed white, are refused, and so are damaged files.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from layerwise.corpora.media import Medium, UnreadableError
from layerwise.errors import first_line

if TYPE_CHECKING:
    from PIL import Image


# Formats that Pillow reads without further programs.
FORMATS = "bmp gif jpeg jpg jp2 pbm pgm png ppm tif tiff webp"


@dataclass(frozen=True)
class Picture(Medium):
    """An image of a corpus, or a view of one; see `layerwise.corpora.media.Medium`."""

    kind = column = "image"
    feature = "Image"
    suffixes = tuple(f".{name}" for name in FORMATS.split())

    def measures(self) -> dict[str, Any]:
        """Width and height in pixels."""
        width, height = decode(self.data, self.name).size
        return {"width": width, "height": height}

    def pixels(self) -> Image.Image:
        """Return its pixels, 8-bit RGB; raises as `decode`."""
        image = decode(self.data, self.name)
        if not self.drawn:
            return image
        from layerwise.corpora import image_views

        return image_views.apply(image, self.drawn)


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
