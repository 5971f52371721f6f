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
from layerwise.activations.readout import Packed
from layerwise.errors import LayerwiseError, closest
from layerwise.models.load import LoadedModel
from layerwise.progress import Progress
from layerwise.tasks.layout import Reading

log = logging.getLogger(__name__)

POOLINGS = ("mean", "last_token", "cls")

# write(start, stop, embeddings of shape (R, L + 1, stop - start, D))
Writer = Callable[[int, int, npt.NDArray[Any]], None]


def embed(
    loaded: LoadedModel,
    texts: Sequence[str],
    write: Writer,
    *,
    readings: Sequence[Reading],
    budget: int | None = None,
) -> None:
    """Embed texts at every layer, under every reading asked for, from one pass.

    A text without any token (an empty one, under a tokenizer without special tokens) is given
    the end-of-text token, and counted in the log. A text of which no token counts (one token
    under ``drop_first``) has the zero vector.

    Parameters
    ----------
    texts : sequence of str
    write : callable
        Called with successive slabs of shape (R, L + 1, n, D), float32.
    readings : R ways to read an embedding: which tokens count, how they are pooled (their mean,
        the last, or the first: ``cls``), and from which readout

    Raises
    ------
    LayerwiseError
        If a state is not finite, or a pooling or readout is unknown.
    """
    for reading in readings:
        if reading.pooling not in POOLINGS:
            raise LayerwiseError(
                f"pooling is {reading.pooling!r}{closest(reading.pooling, POOLINGS)}; "
                f"accepted are {', '.join(POOLINGS)}."
            )
    n_layers, hidden = loaded.anatomy.n_layers, loaded.anatomy.hidden
    per_text = len(readings) * n_layers * hidden * 4
    window = max(32, batches.WINDOW_BYTES[loaded.device.type] // per_text)
    parts = list(batches.windows(len(texts), window))
    tokenised = loaded.tokenize_ahead([texts[i] for i in part] for part in parts)
    n_empty = n_cut = 0
    with Progress(len(texts), f"{loaded.name} {loaded.revision}", "text") as bar:
        for part, (ids, cut) in zip(parts, tokenised, strict=True):
            empty = [i for i, prompt in enumerate(ids) if not prompt]
            for index in empty:
                ids[index] = [loaded.tokenizer.eos_token_id or loaded.tokenizer.pad_token_id]
            n_empty += len(empty)
            n_cut += sum(c > 0 for c in cut)
            # In a function of its own, so that two slabs are never in memory.
            slab = _embed_window(loaded, ids, readings, budget)
            _check(loaded, slab, [texts[i] for i in part])
            write(part.start, part.stop, slab)
            del slab
            bar.update(len(part))
    if n_empty:
        log.warning("%d of %d texts have no token of their own", n_empty, len(texts))
    if n_cut:
        log.warning(
            "%d of %d texts are longer than %d tokens and were cut",
            n_cut, len(texts), loaded.max_length,
        )  # fmt: skip


def _embed_window(
    loaded: LoadedModel,
    ids: list[list[int]],
    readings: Sequence[Reading],
    budget: int | None,
) -> npt.NDArray[Any]:
    """Embeddings of some texts, shape (R, L + 1, n, D), float32."""
    shape = (len(readings), loaded.anatomy.n_layers, len(ids), loaded.anatomy.hidden)
    slab = np.empty(shape, np.float32)
    forward.run(loaded, ids, lambda rows: _Batch(loaded, readings, slab, rows), budget=budget)
    return slab


class _Batch:
    """One batch's embeddings, on the device until the pass is over."""

    def __init__(
        self,
        loaded: LoadedModel,
        readings: Sequence[Reading],
        slab: npt.NDArray[Any],
        rows: list[int],
    ) -> None:
        self.loaded, self.readings, self.slab, self.rows = loaded, readings, slab, rows
        self.layers: dict[int, Tensor] = {}

    def take(self, layer: int, _: str, packed: Packed, /) -> None:
        """Pool one layer's states, under every reading."""
        values = []
        for reading in self.readings:
            read = forward.read(self.loaded, packed, reading.readout)
            values.append(_pool(readout.choose(read, reading.tokens), reading.pooling))
        self.layers[layer] = torch.stack(values)

    def finish(self) -> None:
        """Move the embeddings to the slab."""
        for layer, values in self.layers.items():
            self.slab[:, layer, self.rows] = values.cpu().numpy()


def _pool(packed: Packed, pooling: str) -> Tensor:
    if pooling == "mean" or packed.states.shape[1] == 0:
        return readout.pooled(packed)
    if pooling == "cls":
        return packed.states[:, 0]
    rows = torch.arange(len(packed.lengths), device=packed.lengths.device)
    return packed.states[rows, (packed.lengths - 1).clamp(min=0)]


def _check(loaded: LoadedModel, slab: npt.NDArray[Any], texts: Sequence[str]) -> None:
    bad = np.argwhere(~np.isfinite(slab).all(axis=(0, 3)))
    if bad.size:
        layer, text = bad[0]
        raise LayerwiseError(
            f"{loaded.name} at {loaded.revision!r} gives NaN or infinity at layer {layer} for the "
            f"text {texts[text][:60]!r} in {loaded.dtype}; try dtype: float32, or check the "
            "weights."
        )
