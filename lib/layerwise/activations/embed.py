"""Embed texts: every text once, all layers and all token choices from one pass."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from layerwise.activations import batches, forward, readout
from layerwise.activations.extract import WINDOW_BYTES
from layerwise.activations.readout import Packed
from layerwise.errors import LayerwiseError
from layerwise.models.load import LoadedModel
from layerwise.progress import Progress

log = logging.getLogger(__name__)

POOLINGS = ("mean", "last_token", "cls")

# write(start, stop, embeddings of shape (C, L + 1, stop - start, D))
Writer = Callable[[int, int, npt.NDArray[Any]], None]


def embed(
    loaded: LoadedModel,
    texts: Sequence[str],
    write: Writer,
    *,
    tokens: Sequence[str] = ("all", "drop_first"),
    pooling: str = "mean",
    readout_name: str = "residual",
    budget: int | None = None,
) -> None:
    """Embed texts at every layer.

    A text without any token (an empty one, under a tokenizer without special tokens) is given
    the end-of-text token, and counted in the log. A text of which no token counts (one token
    under ``drop_first``) has the zero vector.

    Parameters
    ----------
    texts : sequence of str
    write : callable
        Called with successive slabs of shape (C, L + 1, n, D), float32.
    tokens : choices of which tokens count, C of them
    pooling : {'mean', 'last_token', 'cls'}
        Over the tokens that count: their mean, the last, or the first.

    Raises
    ------
    LayerwiseError
        If a state is not finite, or the pooling is unknown.
    """
    if pooling not in POOLINGS:
        raise LayerwiseError(f"pooling is {pooling!r}; accepted are {', '.join(POOLINGS)}.")
    ids, cut = loaded.tokenize(list(texts))
    empty = [i for i, prompt in enumerate(ids) if not prompt]
    for index in empty:
        ids[index] = [loaded.tokenizer.eos_token_id or loaded.tokenizer.pad_token_id]
    if empty:
        log.warning("%d of %d texts have no token of their own", len(empty), len(ids))
    if any(cut):
        log.warning(
            "%d of %d texts are longer than %d tokens and were cut",
            sum(c > 0 for c in cut), len(ids), loaded.max_length,
        )  # fmt: skip
    n_layers, hidden = loaded.anatomy.n_layers, loaded.anatomy.hidden
    per_text = len(tokens) * n_layers * hidden * 4
    window = max(32, WINDOW_BYTES // per_text)
    with Progress(sum(map(len, ids)), f"{loaded.name} {loaded.revision}", "token") as bar:
        for part in batches.windows(len(ids), window):
            slab = np.empty((len(tokens), n_layers, len(part), hidden), np.float32)

            def consume(
                layer: int, packed: Packed, rows: list[int], slab: npt.NDArray[Any] = slab
            ) -> None:
                for choice, name in enumerate(tokens):
                    values = _pool(readout.choose(packed, name), pooling)
                    slab[choice, layer, rows] = values.cpu().numpy()

            forward.run(
                loaded, [ids[i] for i in part], consume,
                readout=readout_name, budget=budget, done=bar.update,
            )  # fmt: skip
            bad = ~np.isfinite(slab).all(axis=(0, 1, 3))
            if bad.any():
                text = texts[part[int(np.argmax(bad))]]
                layer = int(np.argmax(~np.isfinite(slab[:, :, np.argmax(bad)]).all(axis=(0, 2))))
                raise LayerwiseError(
                    f"{loaded.name} at {loaded.revision!r} gives NaN or infinity at layer {layer} "
                    f"for the text {text[:60]!r} in {loaded.dtype}; try dtype: float32."
                )
            write(part.start, part.stop, slab)


def _pool(packed: Packed, pooling: str) -> Tensor:
    if pooling == "mean":
        return readout.pooled(packed)
    if pooling == "cls":
        return packed.states[:, 0]
    rows = torch.arange(len(packed.lengths), device=packed.lengths.device)
    return packed.states[rows, (packed.lengths - 1).clamp(min=0)]
