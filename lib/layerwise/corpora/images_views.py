"""Views of an image: crop, flip, jitter, grey and blur, by kornia; scaled by Pillow.

What a view does is drawn once and kept (`draw`), with every number; it is carried out each time
the view is read (`carry_out`), so that views take no room. What is drawn depends on the seed, the
image's id and bytes, the view's number and the settings, and on nothing else.
"""

from __future__ import annotations

import json
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from layerwise.config.images import ImageViews
from layerwise.files import sha256_text

if TYPE_CHECKING:
    from PIL import Image

# Of a side of so many pixels, as SimCLR has them: the blur's standard deviation, from and to.
SIDE, LEAST, MOST = 224, 0.1, 2.0
JITTERED = 0.8

_steps = threading.local()


def draw(name: str, sha256: str, size: tuple[int, int], settings: ImageViews) -> list[str]:
    """What each of an image's views does to it.

    Parameters
    ----------
    name, sha256 : str
        The image's id, and the hash of its bytes.
    size : (int, int)
        Its width and height.

    Returns
    -------
    list of str
        ``settings.n`` records as JSON: ``size`` of the view, and for each step its name and all
        that was drawn for it.
    """
    import torch

    made = []
    shape = torch.Size((1, 3, size[1], size[0]))
    of_view = torch.Size((1, 3, settings.size, settings.size))
    with torch.random.fork_rng(devices=[]):
        for number in range(1, settings.n + 1):
            key = sha256_text("view", str(settings.seed), name, sha256, str(number))
            # kornia draws from the global generator of the CPU; torch.manual_seed seeds GPUs too.
            torch.default_generator.manual_seed(int(key[:15], 16))
            drawn = {}
            for step, does in _steps_of(settings).items():
                if step == ("resize" if settings.crop < 1 else "crop"):
                    continue
                first = step in ("resize", "crop")
                given = does.forward_parameters(shape if first else of_view)
                drawn[step] = {k: v.tolist() for k, v in given.items()}
            made.append(json.dumps({"size": settings.size, "steps": drawn}))
    return made


def carry_out(image: Image.Image, drawn: str) -> Image.Image:
    """A view of an image.

    Parameters
    ----------
    image : PIL image, 8-bit RGB
    drawn : str
        As `draw` gives it.
    """
    import numpy as np
    import torch
    from PIL import Image

    record = json.loads(drawn)
    side, steps = record["size"], record["steps"]
    # The box is kornia's; it would scale without antialiasing, and the whole image as floats.
    ((first, _, last, _),) = steps.pop("crop" if "crop" in steps else "resize")["src"]
    box = (*first, last[0] + 1, last[1] + 1)
    image = image.crop(box).resize((side, side), Image.Resampling.BILINEAR)
    values = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] / 255
    with torch.inference_mode():
        known = _by_thread(side)
        for step, given in steps.items():
            values = known[step](values, params={k: torch.tensor(v) for k, v in given.items()})
    seen = (values[0].clamp(0, 1) * 255).round().to(torch.uint8)
    return Image.fromarray(seen.permute(1, 2, 0).numpy())


def _by_thread(size: int) -> dict[str, Any]:
    """Steps of this thread's own: kornia's modules remember what they did last."""
    if getattr(_steps, "size", None) != size:
        # Probabilities and ranges are in what was drawn.
        _steps.size, _steps.made = size, _made(ImageViews(size=size))
    found: dict[str, Any] = _steps.made
    return found


@lru_cache(maxsize=4)
def _steps_of(settings: ImageViews) -> dict[str, Any]:
    return _made(settings)


def _made(settings: ImageViews) -> dict[str, Any]:
    import kornia.augmentation as aug

    side, jitter = settings.size, settings.jitter
    # A tenth of the side, odd.
    width = side // 20 * 2 + 1
    sigma = (LEAST * side / SIDE, MOST * side / SIDE)
    return {
        "resize": aug.Resize((side, side)),
        "crop": aug.RandomResizedCrop((side, side), scale=(settings.crop, 1.0)),
        "flip": aug.RandomHorizontalFlip(p=settings.flip),
        "jitter": aug.ColorJitter(jitter, jitter, jitter, jitter / 4, p=JITTERED),
        "grey": aug.RandomGrayscale(p=settings.grey),
        "blur": aug.RandomGaussianBlur((width, width), sigma, p=settings.blur),
    }
