"""Extract every layer of a model on a corpus, all views, one forward pass each, into one file."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import torch

from layerwise.activations import batches, forward, layout, readout
from layerwise.activations.readout import PROTOCOLS, Packed
from layerwise.errors import LayerwiseError
from layerwise.files import provenance
from layerwise.models.load import LoadedModel
from layerwise.progress import Progress

log = logging.getLogger(__name__)

# Results of one window wait in memory until they are written as one slab.
WINDOW_BYTES = 256 * 2**20

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Plan:
    """What is to be kept of the pass.

    Attributes
    ----------
    tokens : choices of which tokens count, of `layerwise.activations.readout.TOKENS`
    readout : 'residual' or 'final_norm'
    keep_states : of how many prompts, from the first, the token states themselves are kept
    budget : tokens in a batch; None for what suits the device
    """

    tokens: tuple[str, ...] = ("all", "drop_first")
    readout: str = "residual"
    keep_states: int = 2
    budget: int | None = None


def extract(
    loaded: LoadedModel,
    *,
    corpus: str,
    prompts: Sequence[str],
    views: Sequence[Sequence[str]],
    plan: Plan,
    target: Path,
    attributes: Mapping[str, Any],
) -> None:
    """Write the activations file of one model at one revision on one corpus.

    Parameters
    ----------
    prompts : sequence of str, length N
        Ids of the prompts.
    views : sequence of V + 1 sequences of N texts
        View 0 is the prompt itself.
    attributes : mapping
        Further provenance (the corpus' hash, the seed, …).

    Raises
    ------
    LayerwiseError
        If a prompt has no tokens, a state is not finite, or memory or disk do not suffice.
    """
    tokenised = [loaded.tokenize(list(texts)) for texts in views]
    ids = [t[0] for t in tokenised]
    n_cut = np.array([t[1] for t in tokenised])
    if n_cut.any():
        log.warning(
            "%d of %d texts are longer than %s takes (%d tokens) and were cut",
            int((n_cut > 0).sum()), n_cut.size, loaded.name, loaded.max_length,
        )  # fmt: skip
    lengths = [[len(p) for p in view] for view in ids]
    n, n_layers, hidden = len(prompts), loaded.anatomy.n_layers, loaded.anatomy.hidden
    rank = max(lengths[0], default=0)
    state_lengths = lengths[0][: plan.keep_states]

    record = provenance(
        **{
            "model": loaded.name,
            "revision": loaded.revision,
            "corpus": corpus,
            "weights_sha256": loaded.weights,
            "dtype": loaded.dtype,
            "device": str(loaded.device),
            "readout": plan.readout,
            "special_tokens": loaded.special_tokens,
            "sink_ratio": readout.SINK_RATIO,
            **attributes,
        }
    )
    per_prompt = len(PROTOCOLS) * len(plan.tokens) * n_layers * (hidden * 4 + rank * 8)
    window = max(32, min(n, WINDOW_BYTES // max(1, per_prompt)))
    with (
        layout.create(
            target, protocols=PROTOCOLS, tokens=plan.tokens, n_layers=n_layers,
            n_views=len(views), prompts=prompts, hidden=hidden, rank=rank,
            state_lengths=state_lengths, attributes=record,
        ) as file,
        Progress(sum(map(sum, lengths)), f"{loaded.name} {loaded.revision}", "token") as bar,
    ):  # fmt: skip
        file["n_cut"][:] = n_cut
        offsets = np.concatenate([[0], np.cumsum(state_lengths, dtype=int)])
        for view, view_ids in enumerate(ids):
            for part in batches.windows(n, window):
                slab = _Slab(loaded, plan, view, part, rank, prompts, state_lengths)
                forward.run(
                    loaded, [view_ids[i] for i in part], slab.consume,
                    budget=plan.budget, done=bar.update,
                )  # fmt: skip
                slab.write(file, offsets)


class _Slab:
    """The results of one window of one view, for all layers, until they are written."""

    def __init__(
        self,
        loaded: LoadedModel,
        plan: Plan,
        view: int,
        part: range,
        rank: int,
        prompts: Sequence[str],
        state_lengths: Sequence[int],
    ) -> None:
        self.loaded, self.plan, self.view, self.part = loaded, plan, view, part
        self.prompts, self.state_lengths = prompts, state_lengths
        n_layers, hidden = loaded.anatomy.n_layers, loaded.anatomy.hidden
        shape = (len(PROTOCOLS), len(plan.tokens), n_layers, len(part))
        self.pooled = np.empty((*shape, hidden), np.float32)
        self.n_tokens = np.empty(shape[1:], np.int32)
        # Only the prompt itself has a spectrum and a curvature; its views are pooled.
        self.deep = view == 0
        if self.deep:
            self.spectrum = np.zeros((*shape, rank))
            self.curvature = np.full(shape, np.nan)
            self.angles = np.zeros(shape, np.int32)
        self.states: dict[tuple[int, int], Array] = {}

    def consume(self, layer: int, packed: Packed, rows: list[int]) -> None:
        """Reduce one layer's states of one batch; `rows` are indices into the window."""
        packed = forward.read(self.loaded, packed, self.plan.readout)
        for choice, tokens in enumerate(self.plan.tokens):
            chosen = readout.choose(packed, tokens)
            mean = readout.pooled(chosen)
            unit = readout.normalised(chosen, mean)
            self.pooled[0, choice, layer, rows] = mean.cpu().numpy()
            self.pooled[1, choice, layer, rows] = readout.pooled(unit).cpu().numpy()
            self.n_tokens[choice, layer, rows] = chosen.lengths.cpu().numpy()
            self._check(choice, layer, rows)
            if self.deep:
                self._spectra(choice, layer, chosen, unit, rows)
        if self.deep:
            for place, row in enumerate(rows):
                prompt = self.part[row]
                if prompt < len(self.state_lengths):
                    kept = packed.states[place, : self.state_lengths[prompt]]
                    self.states[layer, prompt] = kept.cpu().numpy()

    def _spectra(
        self, choice: int, layer: int, chosen: Packed, unit: Packed, rows: list[int]
    ) -> None:
        matrix = readout.gram(chosen)
        spectra = (
            readout.paper_spectrum(matrix),
            readout.signed_spectrum(readout.reference_gram(matrix, chosen)),
        )
        curvatures = (readout.step_curvature(chosen), readout.state_curvature(unit))
        width = matrix.shape[1]
        for protocol in range(len(PROTOCOLS)):
            values = spectra[protocol].cpu().numpy()
            self.spectrum[protocol, choice, layer, rows, :width] = values
            curvature, angles = curvatures[protocol]
            self.curvature[protocol, choice, layer, rows] = curvature.cpu().numpy()
            self.angles[protocol, choice, layer, rows] = angles.cpu().numpy()

    def _check(self, choice: int, layer: int, rows: list[int]) -> None:
        finite = np.isfinite(self.pooled[0, choice, layer, rows]).all(axis=1)
        if not finite.all():
            prompt = self.prompts[self.part[rows[int(np.argmin(finite))]]]
            raise LayerwiseError(
                f"{self.loaded.name} at {self.loaded.revision!r} gives NaN or infinity at layer "
                f"{layer} for prompt {prompt!r} (view {self.view}) in {self.loaded.dtype}; "
                "try dtype: float32, or check the weights."
            )

    def write(self, file: h5py.File, offsets: Array) -> None:
        """Write the window's results to their place in the file."""
        where = slice(self.part.start, self.part.stop)
        file["pooled"][:, :, :, self.view, where] = self.pooled
        file["n_tokens"][:, :, self.view, where] = self.n_tokens
        if self.deep:
            file["spectrum"][:, :, :, where] = self.spectrum
            file["curvature"][:, :, :, where] = self.curvature
            file["curvature_angles"][:, :, :, where] = self.angles
        for (layer, prompt), states in self.states.items():
            file["states"][layer, offsets[prompt] : offsets[prompt + 1]] = states


def set_threads(threads: int) -> None:
    """Give torch `threads` CPU threads; everything else of ours runs in one."""
    torch.set_num_threads(threads)
