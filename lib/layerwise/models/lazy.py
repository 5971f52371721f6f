"""Prompts of images and recordings, which are read in threads while the model runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property

import torch
from torch import Tensor


class LazyPrompt:
    """A prompt that is read when needed: a sequence of the model's tokens.

    Parameters
    ----------
    read : callable
        Decodes and preprocesses the prompt.
    pool : ThreadPoolExecutor
        See `reading_pool`.
    n_tokens : int
    extent : int
        Length of the model's input for it, where equal numbers of tokens can have several.
    cost : int, optional
        Number of tokens that the model computes for it, if not `n_tokens`.
    """

    def __init__(
        self,
        read: Callable[[], Tensor],
        pool: ThreadPoolExecutor,
        n_tokens: int,
        *,
        extent: int = 0,
        cost: int | None = None,
    ) -> None:
        self.read, self.pool, self.n_tokens, self.extent = read, pool, n_tokens, extent
        self.cost = cost or n_tokens

    def __len__(self) -> int:
        return self.n_tokens

    @cached_property
    def reading(self) -> Future[Tensor]:
        """The model's input, read in a thread from the first use on."""
        return self.pool.submit(self.read)

    def take(self) -> Tensor:
        """The model's input. A second call reads it again."""
        made = self.reading.result()
        del self.reading
        return made


def reading_pool() -> ThreadPoolExecutor:
    """Threads that decode and preprocess prompts."""
    return ThreadPoolExecutor(max(1, torch.get_num_threads()), "reading")
