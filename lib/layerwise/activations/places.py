"""Places along a prompt: after how many tokens prefixes end.

Beside what computes at them, so that whoever reads a file needs no torch.
"""

from __future__ import annotations


def grid(longest: int) -> list[int]:
    """Places along a prompt, from 1 to at most `longest` tokens: powers of √2, rounded.

    1, 2, 3, 4, 6, 8, 11, 16, …: their cubes sum to 0.5 to 1.6 times T³, and an eigenvalue problem
    costs about the cube of its size.
    """
    places = range(2 * int(longest).bit_length() + 1)
    return [t for t in dict.fromkeys(round(2 ** (k / 2)) for k in places) if t <= longest]


def prefix_sizes(longest: int) -> list[int]:
    """The numbers of tokens of prefixes: `grid` without a single token, whose entropy is 0."""
    return grid(longest)[1:]
