"""Standard errors over prompts.

The error of a mean over prompts is their standard deviation over the root of n. Any other metric
is computed again on ten parts of the prompts, each without a random third of them, and the
standard deviation of these values times √2 is its error (the delete-d jackknife, Shao & Wu 1989).
Of 120 prompts or more a part leaves out four of twelve blocks of one size, so that a metric can
add up the blocks' sums.

On 30 to 300 simulated prompts the error is 0.8 to 1.05 times the spread over fresh prompts for
most metrics, 0.7 to 0.95 times for InfoNCE, and up to 1.6 times for LiDAR, DiME, TwoNN and α-ReQ
(docs/statistics.md). To leave out fewer prompts overstates it where a value is not smooth
in them (TwoNN 1.6, LiDAR 1.4 for tenths); to leave out more understates it where a value grows
with their number (RankMe 0.4 for halves).

Prompts are taken as independent draws. The errors say nothing about training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas import Array, Mask
from layerwise.metrics.layer import Layer

PARTS = 10
BLOCKS = 12
# Of fewer prompts each is a block by itself.
FEWEST = 10 * BLOCKS


@dataclass(frozen=True)
class Parts:
    """The parts of a layer's prompts on which metrics are computed again.

    Attributes
    ----------
    blocks : int array, shape (N,)
        Random block of each prompt: 0 to B - 1, B for those that remain, -1 for prompts without
        selected tokens.
    held : bool array, shape (PARTS, B + 1)
        Blocks of each part; no part if fewer than two prompts have tokens.
    """

    blocks: npt.NDArray[np.intp]
    held: Mask

    @property
    def members(self) -> Mask:
        """Prompts of each part, shape (PARTS, N)."""
        return np.asarray(self.held[:, self.blocks] & (self.blocks >= 0))

    def among(self, places: npt.NDArray[np.intp]) -> Mask:
        """`members` of the prompts in these places; no part if one has fewer than two of them."""
        members = self.members[:, places]
        return members if members.sum(axis=1).min(initial=2) >= 2 else members[:0]


def of_mean(values: Array) -> float:
    """Standard error of the mean of independent values; NaN for fewer than two."""
    n = len(values)
    return float(np.std(values, ddof=1) / math.sqrt(n)) if n > 1 else math.nan


def _sizes(n: int) -> tuple[int, int, int]:
    """Number of blocks of n prompts, prompts in a block, and blocks that a part leaves out."""
    blocks, size = (BLOCKS, n // BLOCKS) if n >= FEWEST else (n, 1)
    return blocks, size, max(1, blocks // 3)


def parts_of(layer: Layer) -> Parts:
    """The parts of a layer, the same for all its metrics."""

    def draw() -> Parts:
        rows = np.flatnonzero(layer.has_tokens)
        count, size, out = _sizes(len(rows))
        rng = np.random.default_rng(layer.settings.seed)
        blocks = np.full(len(layer.prompts), -1)
        blocks[rng.permutation(rows)] = np.minimum(np.arange(len(rows)) // size, count)
        held = np.ones((PARTS if count > 1 else 0, count + 1), dtype=bool)
        for in_part in held:
            in_part[rng.permutation(count)[:out]] = False
        return Parts(blocks, held)

    return layer.once("parts", draw)


def parts(layer: Layer) -> Iterator[Layer]:
    """The layer with the prompts of each part; none for one prompt."""
    for members in parts_of(layer).members:
        yield layer.subset(np.flatnonzero(members))


def of_parts(values: Array, n: int) -> float:
    """Standard error of a metric of n prompts from its values on `parts`; NaN if there is none."""
    _, size, out = _sizes(n)
    scale = math.sqrt((n - size * out) / (size * out))
    return float(scale * np.std(values, ddof=1)) if len(values) > 1 else math.nan
