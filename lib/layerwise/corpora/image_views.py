"""Views of an image: crop, flip, jitter, grey and blur, by kornia; scaled by Pillow.

The parameters of a view are drawn once and stored (`draw`); the view is made each time it is read
(`apply`), so that views take no room. The parameters depend on the seed, the image's id and bytes,
the view's number and the settings, and on nothing else.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

from layerwise.config.corpora import ImageViews
from layerwise.extras import require
from layerwise.io.files import sha256_text
from layerwise.progress import Progress

# Standard deviation of the blur, from and to, for a side of 224 pixels, as in SimCLR.
SIDE, LEAST, MOST = 224, 0.1, 2.0
JITTERED = 0.8
# The step that makes a square of an image; one of them.
FIRST = ("resize", "crop")


def draw(images: pd.DataFrame, settings: ImageViews) -> pd.DataFrame:
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
    rows = []
    steps = _steps_of(settings)
    of_view = torch.Size((1, 3, settings.size, settings.size))
    with torch.random.fork_rng(devices=[]), Progress(len(images), "drawing", "image") as bar:
        columns = (images[name] for name in ("prompt_id", "sha256", "width", "height"))
        for prompt_id, sha256, width, height in zip(*columns, strict=True):
            shape = torch.Size((1, 3, height, width))
            for view in range(1, settings.n + 1):
                key = sha256_text("view", str(settings.seed), prompt_id, sha256, str(view))
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


def apply(image: Image.Image, drawn: str) -> Image.Image:
    """Make a view of an image.

    Parameters
    ----------
    image : PIL image, 8-bit RGB
    drawn : str
        Parameters, as `draw` gives them.
    """
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

    side, jitter = settings.size, settings.jitter
    # Kernel: a tenth of the side, odd.
    width = side // 20 * 2 + 1
    sigma = (LEAST * side / SIDE, MOST * side / SIDE)
    first = {"resize": aug.Resize((side, side))}
    if settings.crop < 1:
        first = {"crop": aug.RandomResizedCrop((side, side), scale=(settings.crop, 1.0))}
    return {
        **first,
        "flip": aug.RandomHorizontalFlip(p=settings.flip),
        "jitter": aug.ColorJitter(jitter, jitter, jitter, jitter / 4, p=JITTERED),
        "grey": aug.RandomGrayscale(p=settings.grey),
        "blur": aug.RandomGaussianBlur((width, width), sigma, p=settings.blur),
    }
