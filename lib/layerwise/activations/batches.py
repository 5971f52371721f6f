"""Cut prompts into batches by length and token budget.

A CPU is fastest with small batches (about 1,024 tokens, more for a narrow model), a GPU with large
ones, and padding is wasted work on both. So prompts are sorted by length. A batch ends where its
padded size would exceed the budget. It ends earlier, from a quarter of the budget or `ENOUGH`
tokens on, where padding would exceed `SLACK`. Prompts are read in windows to bound the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

BUDGET = {"cpu": 1024, "cuda": 65536}

# Numbers in a batch's states that a CPU can take before they crowd its cache: of a narrow model
# they are more tokens, and its small operations are mostly the cost of being called.
IN_CACHE = 2**18

# Largest share of padding, and number of tokens that keeps any device busy.
SLACK = 0.03
ENOUGH = 4096

# Results of a window stay in memory until they are written, while the next window is computed. The
# large batches of a GPU need large windows.
WINDOW_BYTES = {"cpu": 32 * 2**20, "cuda": 512 * 2**20}


def budget_of(device: str, hidden: int) -> int:
    """Tokens in a batch, where the config names no number.

    Parameters
    ----------
    device : {'cpu', 'cuda'}
    hidden : int
        The model's width.
    """
    usual = BUDGET[device]
    return max(usual, IN_CACHE // hidden) if device == "cpu" else usual


def cut(
    lengths: Sequence[int], budget: int, equal: Sequence[int] | None = None
) -> Iterator[list[int]]:
    """Indices of each batch, longest prompts first.

    Parameters
    ----------
    lengths : sequence of int
        Tokens in each prompt.
    budget : int
        The most tokens in a batch, pads included; a longer prompt goes alone.
    equal : sequence of int, optional
        For batches without padding: a size of each prompt's input, the same throughout a batch.
    """
    sizes = lengths if equal is None else equal
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], -sizes[i]))
    batch: list[int] = []
    tokens, enough = 0, min(budget // 4, ENOUGH)
    for index in order:
        if batch:
            padded = lengths[batch[0]] * (len(batch) + 1)
            pads = padded - tokens - lengths[index]
            is_full = padded > budget or (tokens >= enough and pads > SLACK * padded)
            if is_full or (equal is not None and sizes[index] != sizes[batch[0]]):
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
