"""Cut prompts into batches by length and token budget.

A CPU is fastest with small batches (about 1,024 tokens), a GPU with large ones; pads are wasted
work on either. So prompts are sorted by length and cut where the padded size would pass the
budget, or earlier where a quarter of it is reached and pads would be more than `SLACK`. Work
goes window by window, so that memory does not grow with the number of prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

BUDGET = {"cpu": 1024, "cuda": 65536}

# Pads as a share of a batch.
SLACK = 0.04

# Results of one window wait in memory until they are written as one slab.
WINDOW_BYTES = 256 * 2**20


def cut(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices of each batch, longest prompts first.

    Parameters
    ----------
    lengths : sequence of int
        Tokens in each prompt.
    budget : int
        The most tokens in a batch, pads included; a longer prompt goes alone.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batch: list[int] = []
    tokens = 0
    for index in order:
        if batch:
            padded = lengths[batch[0]] * (len(batch) + 1)
            pads = padded - tokens - lengths[index]
            if padded > budget or (tokens * 4 >= budget and pads > SLACK * padded):
                yield batch
                batch, tokens = [], 0
        batch.append(index)
        tokens += lengths[index]
    if batch:
        yield batch


def windows(total: int, size: int) -> Iterator[range]:
    """Successive ranges of at most `size` that cover ``range(total)``."""
    for start in range(0, total, size):
        yield range(start, min(start + size, total))
