"""An image: its bytes or where they are, and how they become pixels.

Whatever a file holds becomes 8-bit RGB: a grey image has three equal channels, transparent parts
are shown on white, CMYK and palettes are converted, 16-bit grey is divided by 257, an orientation
in EXIF is carried out, and of an animation the first frame counts. What has no such reading is
refused by name: 32-bit and floating-point values, which have no agreed white, damaged files, and
images of more pixels than are allowed.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from layerwise.errors import LayerwiseError, first_line
from layerwise.files import sha256_bytes

if TYPE_CHECKING:
    from PIL import Image

SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
NO_WHITE = ("I", "F")


class UnreadableError(LayerwiseError):
    """An image that cannot be read, or is not to be."""


@dataclass(frozen=True)
class Picture:
    """An image of a corpus, or a view of one.

    Attributes
    ----------
    name : str
        Its id, for messages.
    data : bytes or None
        Of its file, in whatever format; None for one that lies at `path`.
    path : str or None
    sha256 : str
        Of the file's bytes.
    drawn : str
        What a view does to it (`layerwise.corpora.images_views`); empty for the image itself.
    """

    name: str
    data: bytes | None
    path: str | None
    sha256: str
    drawn: str = ""

    def content(self) -> bytes:
        """The bytes of its file.

        Raises
        ------
        UnreadableError
            If the file is not there any more, or is another than it was.
        """
        if self.data is not None:
            return self.data
        found = read_file(str(self.path), self.name)
        if sha256_bytes(found) != self.sha256:
            raise UnreadableError(
                f"The image {self.name!r} ({self.path}) is not the one that the corpus was made "
                "of; put it back, or delete the corpus' file and run again."
            )
        return found

    def pixels(self) -> Image.Image:
        """Its pixels, 8-bit RGB.

        Raises
        ------
        UnreadableError
            As `content` and `decode`.
        """
        image = decode(self.content(), self.name)
        if not self.drawn:
            return image
        from layerwise.corpora import images_views

        return images_views.carry_out(image, self.drawn)


def read_file(path: str, name: str) -> bytes:
    """The bytes of an image's file.

    Raises
    ------
    UnreadableError
        If it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UnreadableError(
            f"The image {name!r} cannot be read: {path}: {error.strerror}."
        ) from error


def decode(data: bytes, name: str, max_pixels: int | None = None) -> Image.Image:
    """The pixels of an image file, 8-bit RGB.

    Parameters
    ----------
    data : bytes
        In any format that Pillow reads.
    name : str
        The image's id, for errors.
    max_pixels : int, optional
        Most pixels that it may have. This is looked at before they are decoded.

    Raises
    ------
    UnreadableError
        If it is damaged, cut off, too large, no image, or holds values without an agreed white.
    """
    from PIL import Image, ImageOps

    # The size is checked here, against the config's own limit.
    Image.MAX_IMAGE_PIXELS = None
    try:
        image: Image.Image = Image.open(io.BytesIO(data))
        n = image.width * image.height
        if max_pixels is not None and n > max_pixels:
            raise UnreadableError(
                f"The image {name!r} has {image.width} x {image.height} pixels, more than "
                f"max_pixels ({max_pixels:,}); raise that, or set damaged: drop."
            )
        # Pillow opens a 16-bit PGM as 32 bits, scaled to 65,535.
        deep = image.mode in SIXTEEN_BITS or (image.format == "PPM" and image.mode == "I")
        if image.mode in NO_WHITE and not deep:
            raise UnreadableError(
                f"The image {name!r} holds 32-bit values (Pillow's mode {image.mode!r}), "
                "which have no agreed white; convert it to 8 or 16 bits."
            )
        image.load()
        return _rgb(ImageOps.exif_transpose(image), deep=deep)
    except (LayerwiseError, MemoryError):
        raise
    except Exception as error:  # a damaged file fails in any way in any of Pillow's readers
        raise UnreadableError(
            f"The image {name!r} cannot be read ({first_line(error) or type(error).__name__}); "
            "fetch or copy it again, or set damaged: drop."
        ) from error


def _rgb(image: Image.Image, *, deep: bool) -> Image.Image:
    from PIL import Image

    if deep:
        values = np.asarray(image).astype(np.uint16)
        image = Image.fromarray(np.round(values / 257).astype(np.uint8))
    if image.mode in ("La", "RGBa"):  # channels multiplied by their transparency
        image = image.convert("RGBA" if image.mode == "RGBa" else "LA")
    if image.mode in ("LA", "RGBA", "PA") or "transparency" in image.info:
        see_through = image.convert("RGBA")
        white = Image.new("RGBA", see_through.size, "white")
        image = Image.alpha_composite(white, see_through)
    return image if image.mode == "RGB" else image.convert("RGB")
