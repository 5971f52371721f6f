"""The results of one window of prompts, for all layers, from the pass to the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from layerwise.activations import eigen, forward
from layerwise.activations import store as layout
from layerwise.activations.places import prefix_sizes
from layerwise.activations.reduce import Needs, Reduced, decompose, reduce
from layerwise.activations.representation import Packed
from layerwise.errors import LayerwiseError
from layerwise.models.architectures import BLOCK, OUTPUT
from layerwise.models.failures import not_finite
from layerwise.models.load import LoadedModel

Array = npt.NDArray[Any]

# Arrays that there are once, of the readout that is kept, and their axis of layers.
ONCE = {"norm": 0, "prefix_spectrum": 1}

# Matrices that wait for their eigenvalues: many at once keep all cores busy to the end.
WAITING_BYTES = {"cpu": 64 * 2**20, "cuda": 2**30}
# Devices whose passes wait for the spectra; elsewhere the spectra are computed beside them.
AT_ONCE = {"cpu"}


class Slab:
    """The results of one window of one view, for all layers, until they are written.

    Only the prompt itself (view 0) has spectrum, curvature and states; its views are pooled.

    Parameters
    ----------
    readouts : mapping
        What each protocol reads.
    kept_readout : str
        What is read of the states that are kept, and of what is in `ONCE`.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        needs: Needs,
        readouts: Mapping[str, str],
        kept_readout: str,
        sublayers: Sequence[str],
        part: range,
        view: int,
        prompts: Sequence[str],
        rank: int,
        state_lengths: Sequence[int],
    ) -> None:
        self.loaded, self.part, self.view = loaded, part, view
        self.readouts, self.kept_readout = readouts, kept_readout
        self.prompts, self.state_lengths = prompts, state_lengths
        deep = view == 0
        self.needs = needs if deep else replace(
            needs, spectra=False, norms=False, curvature=False, prefixes=False
        )  # fmt: skip
        self.inner = replace(self.needs, prefixes=False)
        self.with_once = self.needs.norms or self.needs.prefixes
        n_layers, hidden = loaded.anatomy.n_layers, loaded.anatomy.hidden
        self.arrays: dict[str, dict[str, Array]] = {}
        for sublayer in (BLOCK, *sublayers):
            shape = (len(needs.protocols), len(needs.tokens), n_layers, len(part))
            made: dict[str, Array] = {
                "pooled": np.full((*shape, hidden), np.nan, np.float32),
                "n_tokens": np.zeros(shape, np.int32),
            }
            if self.needs.spectra:
                made["spectrum"] = np.zeros((*shape, rank))
            if self.needs.norms:
                made["norm"] = np.zeros((n_layers, len(part), rank), np.float32)
            if self.needs.prefixes and sublayer == BLOCK:
                kinds = len(needs.prefix_tokens)
                made["prefix_spectrum"] = np.zeros((kinds, *shape[2:], sum(prefix_sizes(rank))))
            if self.needs.curvature:
                made["curvature"] = np.full(shape, np.nan)
                made["curvature_angles"] = np.zeros(shape, np.int32)
            if sublayer != BLOCK:
                # A sublayer is of a block: the embedding output has none.
                for name in made.keys() & {"spectrum", "norm"}:
                    made[name][(slice(None),) * ONCE.get(name, 2) + (0,)] = np.nan
            self.arrays[sublayer] = made
        self.states: dict[tuple[int, int], Array] = {}
        self.behind: Future[None] | None = None

    def collect(self, batch: Batch) -> None:
        """Take in a batch's results: beside the next one's pass, where the device does not compute
        the spectra at once."""
        device = self.loaded.device
        if device.type in AT_ONCE:
            batch.collect()
            return
        # Two batches' results are all that the device's memory holds.
        self.wait()
        self.behind = eigen.behind(batch.collect, device)

    def wait(self) -> None:
        """Until the results of all batches so far are there."""
        behind, self.behind = self.behind, None
        _result(behind, self.loaded)

    def due(self, layer: int, handed: str) -> dict[str, list[str]]:
        """What is read of the states that the pass hands over, and by which protocols.

        Parameters
        ----------
        handed : {'block', 'output'}
            The stream after the layer, or what the model hands its users.
        """
        found: dict[str, list[str]] = {}
        if self.with_once or (self.view == 0 and self.state_lengths):
            found[self.read_at(layer, self.kept_readout)] = []
        for protocol in self.needs.protocols:
            found.setdefault(self.read_at(layer, self.readouts[protocol]), []).append(protocol)
        return {r: p for r, p in found.items() if (r == OUTPUT) == (handed == OUTPUT)}

    def read_at(self, layer: int, readout: str) -> str:
        """What a readout reads at a layer: below the last one `output` is the stream as it is."""
        last = layer == self.loaded.anatomy.n_layers - 1
        return "residual" if readout == OUTPUT and not last else readout

    def start(self, rows: list[int]) -> Batch:
        """The taker of a batch; `rows` are indices into the window."""
        return Batch(self, rows)

    def write(self, file: h5py.File) -> None:
        """Write the window's results, which must be there (`wait`), to their place in the file."""
        where = slice(self.part.start, self.part.stop)
        for sublayer, arrays in self.arrays.items():
            group = layout.group_of(file, sublayer)
            group["pooled"][:, :, :, self.view, where] = arrays["pooled"]
            group["n_tokens"][:, :, :, self.view, where] = arrays["n_tokens"]
            for name in arrays.keys() - {"pooled", "n_tokens"}:
                before = (slice(None),) * ONCE.get(name, 2)
                group[name][(*before, slice(None), where)] = arrays[name]
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
        self.sizes: list[tuple[int, str, Tensor]] = []
        self.at_work: Future[None] | None = None

    def take(self, layer: int, sublayer: str, packed: Packed) -> None:
        """Reduce one layer's states."""
        slab = self.slab
        if sublayer not in (BLOCK, OUTPUT):
            self._measure(layer, sublayer, packed)
            self._reduce(layer, sublayer, packed, slab.inner)
            return
        for readout, protocols in slab.due(layer, sublayer).items():
            read = forward.read(slab.loaded, packed, readout)
            self._measure(layer, sublayer, read)
            needs = replace(slab.needs, protocols=tuple(protocols))
            if readout == slab.read_at(layer, slab.kept_readout):
                self._keep(layer, read)
                if protocols or slab.with_once:
                    self._reduce(layer, BLOCK, read, needs)
            else:
                self._reduce(layer, BLOCK, read, replace(needs, norms=False, prefixes=False))

    def _reduce(self, layer: int, sublayer: str, packed: Packed, needs: Needs) -> None:
        reduced = reduce(packed, needs)
        self.reduced.append((sublayer, layer, reduced))
        self.waiting.append(reduced)
        if sum(r.waiting_bytes for r in self.waiting) > WAITING_BYTES[packed.states.device.type]:
            self._decompose()

    def _keep(self, layer: int, packed: Packed) -> None:
        slab = self.slab
        for place, row in enumerate(self.rows if slab.view == 0 else ()):
            prompt = slab.part[row]
            if prompt < len(slab.state_lengths):
                # A copy: the pass may go on to write into the stream itself.
                kept = packed.states[place, : slab.state_lengths[prompt]].clone()
                self.states[layer, prompt] = kept

    def finish(self) -> None:
        """The pass is over; its results may not be there yet."""
        self._decompose()
        self.slab.collect(self)

    def collect(self) -> None:
        """Move the results to the window's arrays."""
        _result(self.at_work, self.slab.loaded)
        places = {protocol: k for k, protocol in enumerate(self.slab.needs.protocols)}
        for sublayer, layer, reduced in self.reduced:
            arrays = self.slab.arrays[sublayer]
            for name, values in reduced.arrays.items():
                found = values.cpu().numpy()
                if name in ONCE:
                    at: tuple[Any, ...] = (*(slice(None),) * ONCE[name], layer, self.rows)
                    arrays[name][(*at, slice(found.shape[-1]))] = found
                    continue
                for k, protocol in enumerate(reduced.protocols):
                    into = arrays[name][places[protocol]]
                    if name == "n_tokens":
                        into[:, layer, self.rows] = found
                    elif name == "spectrum":
                        into[:, layer, self.rows, : found.shape[-1]] = found[k]
                    else:
                        into[:, layer, self.rows] = found[k]
        for key, states in self.states.items():
            self.slab.states[key] = states.cpu().numpy()

    def _decompose(self) -> None:
        # Before: numpy refuses what is not finite.
        self._check()
        waiting, self.waiting = self.waiting, []
        device = self.slab.loaded.device
        if device.type in AT_ONCE:
            decompose(waiting)
            return
        # What waits and what is at work is all that memory holds.
        _result(self.at_work, self.slab.loaded)
        self.at_work = eigen.behind(partial(decompose, waiting), device)

    def _measure(self, layer: int, sublayer: str, packed: Packed) -> None:
        """Note the largest entry of each prompt: NaN or infinite if one is."""
        largest = torch.linalg.vector_norm(packed.states, ord=torch.inf, dim=(1, 2))
        self.sizes.append((layer, sublayer, largest))

    def _check(self) -> None:
        """Refuse states that are not finite; all at once, since the device has to wait for it."""
        sizes, self.sizes = self.sizes, []
        if not sizes:
            return
        finite = torch.stack([s.to(sizes[0][2].device) for *_, s in sizes]).isfinite()
        if bool(finite.all()):
            return
        place, row = finite.logical_not().nonzero()[0].tolist()
        layer, sublayer, _ = sizes[place]
        slab = self.slab
        prompt = slab.prompts[slab.part[self.rows[row]]]
        part = "" if sublayer == BLOCK else f" ({sublayer})"
        raise LayerwiseError(
            not_finite(
                slab.loaded.name, slab.loaded.revision, slab.loaded.dtype,
                f"layer {layer}{part} for prompt {prompt!r} (view {slab.view})",
            )
        )  # fmt: skip


def _result(work: Future[None] | None, loaded: LoadedModel) -> None:
    """Wait for what is done beside the pass."""
    if work is None:
        return
    try:
        work.result()
    except (MemoryError, RuntimeError) as error:
        if not forward.out_of_memory(error):
            raise
        # Not as it came: it would be taken for the next batch's, and that one cut in two.
        raise LayerwiseError(
            f"{loaded.device} has no room for the spectra beside the pass; lower "
            "extract.batch_tokens."
        ) from error
