"""Mean attention of each head to a prompt's first token, in causal models."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from layerwise.activations.representation import Packed
from layerwise.models.load import LoadedModel

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]


class FirstTokenAttention:
    """Takes the attention weights of the passes inside its context, as they go.

    Meanwhile the model runs with eager attention, the only one that returns its weights.

    Parameters
    ----------
    loaded : LoadedModel
    n : int
        Number of prompts.
    """

    def __init__(self, loaded: LoadedModel, n: int) -> None:
        self.loaded, self.n = loaded, n
        self._first: list[Tensor] = []
        self._found: dict[tuple[int, int], Array] = {}
        self._undo = ExitStack()

    def __enter__(self) -> FirstTokenAttention:
        model: Any = self.loaded.model
        self._undo.callback(model.set_attn_implementation, model.config._attn_implementation)
        model.set_attn_implementation("eager")
        blocks = self.loaded.anatomy.blocks
        for module in {part for block in blocks for part in block.modules()}:
            self._undo.callback(module.register_forward_hook(self._saw).remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _saw(self, _: nn.Module, __: Any, output: Any) -> None:
        weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        if isinstance(weights, Tensor) and weights.ndim == 4:
            self._first[:] = [weights[..., 0].float()]

    def start(self) -> None:
        """Begin a batch: forget what one that ran out of memory has left."""
        self._first.clear()

    def take(self, packed: Packed) -> Tensor | None:
        """Mean over the queries of the block that has just run, pads left out.

        Returns
        -------
        Tensor, shape (B, H), or None
            NaN for prompts of one token; None if the block has no attention.
        """
        if not self._first:
            return None
        weights = self._first.pop()
        total = (weights * packed.mask[:, None]).sum(dim=-1)
        # A single token attends to itself alone.
        return total / torch.where(packed.lengths > 1, packed.lengths, torch.nan)[:, None]

    def put(self, layer: int, prompts: Sequence[int], means: Array) -> None:
        """Keep the means of a layer's prompts."""
        self._found |= {(layer, row): own for row, own in zip(prompts, means, strict=True)}

    def values(self) -> Array | None:
        """All means, shape (L + 1, N, H), float32; None if no block has attention.

        NaN for the embedding output, blocks without attention and prompts of one token.
        """
        if not self._found:
            log.warning(
                "%s has no attention weights; its file has no attention to the first token",
                self.loaded.name,
            )
            return None
        heads = max(map(len, self._found.values()))
        values = np.full((self.loaded.anatomy.n_layers, self.n, heads), np.nan, np.float32)
        for (layer, prompt), means in self._found.items():
            values[layer, prompt, : len(means)] = means
        return values
