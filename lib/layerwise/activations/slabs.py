"""The results of one window of prompts, for all layers, from the pass to the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from layerwise.activations import forward, layout
from layerwise.activations.readout import Packed
from layerwise.activations.reduce import Needs, Reduced, decompose, reduce
from layerwise.errors import LayerwiseError
from layerwise.models.architectures import BLOCK, OUTPUT
from layerwise.models.failures import not_finite
from layerwise.models.load import LoadedModel

Array = npt.NDArray[Any]

# Matrices that wait for their eigenvalues: many at once keep all cores busy to the end.
WAITING_BYTES = {"cpu": 64 * 2**20, "cuda": 2**30}


class Slab:
    """The results of one window of one view, for all layers, until they are written.

    Only the prompt itself (view 0) has spectrum, curvature and states; its views are pooled.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        needs: Needs,
        readout: str,
        sublayers: Sequence[str],
        part: range,
        view: int,
        prompts: Sequence[str],
        rank: int,
        state_lengths: Sequence[int],
    ) -> None:
        self.loaded, self.readout, self.part, self.view = loaded, readout, part, view
        self.prompts, self.state_lengths = prompts, state_lengths
        deep = view == 0
        self.needs = needs if deep else Needs(needs.protocols, needs.tokens, False, False)
        n_layers, hidden = loaded.anatomy.n_layers, loaded.anatomy.hidden
        self.arrays: dict[str, dict[str, Array]] = {}
        for sublayer in (BLOCK, *sublayers):
            shape = (len(needs.protocols), len(needs.tokens), n_layers, len(part))
            made = {
                "pooled": np.full((*shape, hidden), np.nan, np.float32),
                "n_tokens": np.zeros(shape[1:], np.int32),
            }
            if self.needs.spectra:
                made["spectrum"] = np.zeros((*shape, rank))
            if self.needs.curvature:
                made["curvature"] = np.full(shape, np.nan)
                made["curvature_angles"] = np.zeros(shape, np.int32)
            if sublayer != BLOCK and "spectrum" in made:
                # A sublayer is of a block: the embedding output has none.
                made["spectrum"][:, :, 0] = np.nan
            self.arrays[sublayer] = made
        self.states: dict[tuple[int, int], Array] = {}

    def start(self, rows: list[int]) -> Batch:
        """The taker of a batch; `rows` are indices into the window."""
        return Batch(self, rows)

    def write(self, file: h5py.File) -> None:
        """Write the window's results to their place in the file."""
        where = slice(self.part.start, self.part.stop)
        for sublayer, arrays in self.arrays.items():
            group = layout.group_of(file, sublayer)
            group["pooled"][:, :, :, self.view, where] = arrays["pooled"]
            group["n_tokens"][:, :, self.view, where] = arrays["n_tokens"]
            for name in arrays.keys() - {"pooled", "n_tokens"}:
                group[name][:, :, :, where] = arrays[name]
        offsets = np.concatenate([[0], np.cumsum(self.state_lengths, dtype=int)])
        for (layer, prompt), states in self.states.items():
            file["states"][layer, offsets[prompt] : offsets[prompt + 1]] = states


class Batch:
    """One batch's results, on the device until the pass is over."""

    def __init__(self, slab: Slab, rows: list[int]) -> None:
        self.slab, self.rows = slab, rows
        self.reduced: list[tuple[str, int, Reduced]] = []
        self.waiting: list[Reduced] = []
        self.states: dict[tuple[int, int], Tensor] = {}

    def take(self, layer: int, sublayer: str, packed: Packed) -> None:
        """Reduce one layer's states."""
        slab = self.slab
        if slab.readout == OUTPUT and layer == slab.loaded.anatomy.n_layers - 1:
            if sublayer == BLOCK:
                return  # in its place comes what the model hands out
            sublayer = BLOCK if sublayer == OUTPUT else sublayer
        if sublayer == BLOCK:
            packed = forward.read(slab.loaded, packed, slab.readout)
        self._check(layer, sublayer, packed)
        reduced = reduce(packed, slab.needs)
        self.reduced.append((sublayer, layer, reduced))
        self.waiting.append(reduced)
        if sum(r.waiting_bytes for r in self.waiting) > WAITING_BYTES[packed.states.device.type]:
            self._decompose()
        if slab.view == 0 and sublayer == BLOCK:
            for place, row in enumerate(self.rows):
                prompt = slab.part[row]
                if prompt < len(slab.state_lengths):
                    # A copy: the pass may go on to write into the stream itself.
                    kept = packed.states[place, : slab.state_lengths[prompt]].clone()
                    self.states[layer, prompt] = kept

    def finish(self) -> None:
        """Move the results to the window's arrays: only now does the device have to wait."""
        self._decompose()
        for sublayer, layer, reduced in self.reduced:
            arrays = self.slab.arrays[sublayer]
            for name, values in reduced.arrays.items():
                found = values.cpu().numpy()
                into = arrays[name]
                if name == "n_tokens":
                    into[:, layer, self.rows] = found
                elif name == "spectrum":
                    into[:, :, layer, self.rows, : found.shape[-1]] = found
                else:
                    into[:, :, layer, self.rows] = found
        for key, states in self.states.items():
            self.slab.states[key] = states.cpu().numpy()

    def _decompose(self) -> None:
        decompose(self.waiting)
        self.waiting = []

    def _check(self, layer: int, sublayer: str, packed: Packed) -> None:
        finite = torch.isfinite(packed.states.sum(dim=(1, 2)))
        if bool(finite.all()):
            return
        # A sum of huge but finite states may overflow; the states themselves decide.
        finite = torch.isfinite(packed.states).all(dim=2).all(dim=1)
        if not bool(finite.all()):
            slab = self.slab
            prompt = slab.prompts[slab.part[self.rows[int(finite.int().argmin())]]]
            part = "" if sublayer == BLOCK else f" ({sublayer})"
            raise LayerwiseError(
                not_finite(
                    slab.loaded.name, slab.loaded.revision, slab.loaded.dtype,
                    f"layer {layer}{part} for prompt {prompt!r} (view {slab.view})",
                )
            )  # fmt: skip
