"""Mean attention of each head to a prompt's first token, in causal models."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from layerwise.activations import forward
from layerwise.activations.representation import Packed
from layerwise.models.load import LoadedModel, Prompt
from layerwise.vocabulary import BLOCK

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]


def first_token_attention(
    loaded: LoadedModel, ids: Sequence[Prompt], budget: int | None = None
) -> Array | None:
    """Run prompts with eager attention, the only implementation that returns its weights.

    Parameters
    ----------
    ids : sequence of token id lists
    budget : int, optional
        Tokens in a batch.

    Returns
    -------
    array, shape (L + 1, N, H), float32, or None
        Mean over a prompt's T queries of their attention to its first token; NaN for the embedding
        output, blocks without attention and prompts of one token. None if no block has attention.
    """
    first: list[Tensor] = []
    found: dict[tuple[int, int], Array] = {}

    def saw(_: nn.Module, __: Any, output: Any) -> None:
        weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        if isinstance(weights, Tensor) and weights.ndim == 4:
            first[:] = [weights[..., 0].float()]

    with ExitStack() as stack:
        stack.enter_context(_eager(loaded.model))
        for module in {part for block in loaded.anatomy.blocks for part in block.modules()}:
            stack.callback(module.register_forward_hook(saw).remove)
        forward.run(loaded, ids, lambda rows: _Batch(first, found, rows), budget=budget)
    if not found:
        log.warning(
            "%s has no attention weights; its file has no attention to the first token",
            loaded.name,
        )
        return None
    heads = max(map(len, found.values()))
    attention = np.full((loaded.anatomy.n_layers, len(ids), heads), np.nan, np.float32)
    for (layer, prompt), means in found.items():
        attention[layer, prompt, : len(means)] = means
    return attention


@contextmanager
def _eager(model: Any) -> Iterator[None]:
    """Switch to eager attention and back."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


class _Batch:
    """Averages the attention that each block of a batch leaves in `first`."""

    def __init__(
        self, first: list[Tensor], found: dict[tuple[int, int], Array], rows: list[int]
    ) -> None:
        self.first, self.found, self.rows = first, found, rows

    def take(self, layer: int, sublayer: str, packed: Packed, /) -> None:
        """Average over a block's queries, pads left out."""
        if sublayer != BLOCK or not self.first:
            return
        (weights,) = self.first
        self.first.clear()
        total = (weights * packed.mask[:, None]).sum(dim=-1)
        # A single token attends to itself alone.
        lengths = torch.where(packed.lengths > 1, packed.lengths, torch.nan)
        means = (total / lengths[:, None]).cpu().numpy()
        self.found |= {(layer, row): own for row, own in zip(self.rows, means, strict=True)}

    def finish(self) -> None:
        """Nothing waits for the end of the pass."""
