"""The activations file: every layer of one model at one checkpoint on one corpus.

``results/activations/{model}/{revision}/{corpus}.h5``

Dimensions (each a dimension scale of that name, holding its labels):

========== ========================================================================
protocol   ``paper``, ``reference``: how token states are normalised before all else
tokens     ``all``, ``drop_first``, ``drop_sinks``: which tokens of a prompt count
layer      0 (embedding output) to L (last block)
view       0 (the prompt itself), 1 … V (its augmented copies)
prompt     the prompt's id in the corpus
hidden     0 … D-1
rank       0 … R-1, R the largest token count of any prompt
state      0 … S-1, the tokens of the first K prompts one after another
========== ========================================================================

Arrays:

===================== ========================================== ==========================
pooled                protocol, tokens, layer, view, prompt,     mean of a prompt's token states
                      hidden
spectrum              protocol, tokens, layer, prompt, rank      eigenvalues of the prompt's T x T
                                                                 token Gram matrix, largest
                                                                 magnitude first, 0 beyond T
                                                                 (``reference``: of the clamped
                                                                 Gram matrix, signed)
curvature             protocol, tokens, layer, prompt            radians; NaN where there is none
curvature_angles      protocol, tokens, layer, prompt            number of angles in that mean
n_tokens              tokens, layer, view, prompt                tokens that count
states                layer, state, hidden                       states as the model gave them
state_prompt          state                                      which prompt (index) a state is of
n_cut                 view, prompt                               tokens cut off at the model's
                                                                 longest length
===================== ========================================== ==========================

Views are pooled; spectrum, curvature and states are of view 0 alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from layerwise import hdf5

SCHEMA = "layerwise.activations"
VERSION = 1

Array = npt.NDArray[Any]


@contextmanager
def create(
    path: Path,
    *,
    protocols: Sequence[str],
    tokens: Sequence[str],
    n_layers: int,
    n_views: int,
    prompts: Sequence[str],
    hidden: int,
    rank: int,
    state_lengths: Sequence[int],
    attributes: Mapping[str, Any],
) -> Iterator[h5py.File]:
    """Create the file with all its arrays, to be filled slab by slab.

    Parameters
    ----------
    n_layers : int
        L + 1, the embedding output included.
    n_views : int
        V + 1, the prompt itself included.
    rank : int
        The largest token count of any prompt.
    state_lengths : sequence of int
        Token counts of the first K prompts, whose states are kept.
    """
    with hdf5.create(path, SCHEMA, VERSION, attributes) as file:
        hdf5.add_scale(file, "protocol", list(protocols))
        hdf5.add_scale(file, "tokens", list(tokens))
        hdf5.add_scale(file, "layer", np.arange(n_layers))
        hdf5.add_scale(file, "view", np.arange(n_views))
        hdf5.add_scale(file, "prompt", list(prompts))
        hdf5.add_scale(file, "hidden", np.arange(hidden))
        hdf5.add_scale(file, "rank", np.arange(rank))
        hdf5.add_scale(file, "state", np.arange(sum(state_lengths)))
        per_prompt = ("protocol", "tokens", "layer", "prompt")
        hdf5.add_array(
            file, "pooled", ("protocol", "tokens", "layer", "view", "prompt", "hidden"), "f4",
            unit="activation", description="mean of the token states that count",
            whole=("prompt", "hidden"),
        )  # fmt: skip
        hdf5.add_array(
            file, "spectrum", (*per_prompt, "rank"), "f8", unit="activation^2",
            description="eigenvalues of the token Gram matrix, largest first, 0 beyond T",
            whole=("prompt", "rank"), compress=True,
        )  # fmt: skip
        hdf5.add_array(
            file, "curvature", per_prompt, "f8", unit="radian",
            description="mean angle between successive steps; NaN where there is none",
            whole=("layer", "prompt"),
        )  # fmt: skip
        hdf5.add_array(
            file, "curvature_angles", per_prompt, "i4", unit="1",
            description="number of angles in the mean", whole=("layer", "prompt"),
        )  # fmt: skip
        hdf5.add_array(
            file, "n_tokens", ("tokens", "layer", "view", "prompt"), "i4", unit="token",
            description="number of tokens that count", whole=("view", "prompt"),
        )  # fmt: skip
        hdf5.add_array(
            file, "states", ("layer", "state", "hidden"), "f4", unit="activation",
            description="token states of the first prompts", whole=("state", "hidden"),
        )  # fmt: skip
        owner = hdf5.add_array(
            file, "state_prompt", ("state",), "i4", unit="1",
            description="index of the prompt that a state belongs to", whole=("state",),
        )  # fmt: skip
        owner[:] = np.repeat(np.arange(len(state_lengths)), state_lengths)
        hdf5.add_array(
            file, "n_cut", ("view", "prompt"), "i4", unit="token",
            description="tokens cut off at the model's longest length", whole=("view", "prompt"),
        )  # fmt: skip
        yield file


class Activations:
    """Read an activations file, one layer at a time.

    Use it as a context manager.

    Raises
    ------
    LayerwiseError
        If the file is not a complete activations file of this schema, or is about another
        model, revision or corpus than the ones asked for.
    """

    def __init__(
        self,
        path: Path,
        *,
        model: str | None = None,
        revision: str | None = None,
        corpus: str | None = None,
    ) -> None:
        wanted = {"model": model, "revision": revision, "corpus": corpus}
        expected = {k: v for k, v in wanted.items() if v is not None}
        self._file = hdf5.open_checked(path, SCHEMA, VERSION, expected)
        self.path = Path(path)
        self.attributes: dict[str, Any] = dict(self._file.attrs)
        self.model = str(self.attributes["model"])
        self.revision = str(self.attributes["revision"])
        self.corpus = str(self.attributes["corpus"])
        self.protocols: tuple[str, ...] = tuple(self._file["protocol"].asstr()[:])
        self.tokens: tuple[str, ...] = tuple(self._file["tokens"].asstr()[:])
        self.prompts: tuple[str, ...] = tuple(self._file["prompt"].asstr()[:])
        self.n_layers = int(self._file["layer"].shape[0])
        self.n_views = int(self._file["view"].shape[0])
        self.hidden = int(self._file["hidden"].shape[0])

    def __enter__(self) -> Activations:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _at(self, protocol: str, tokens: str) -> tuple[int, int]:
        return self.protocols.index(protocol), self.tokens.index(tokens)

    def pooled(self, protocol: str, tokens: str, layer: int, view: int = 0) -> Array:
        """Pooled embeddings of one view, shape (N, D), float32."""
        return hdf5.read(self._file["pooled"], (*self._at(protocol, tokens), layer, view))

    def views(self, protocol: str, tokens: str, layer: int) -> Array:
        """Pooled embeddings of all views, shape (V + 1, N, D), float32; 0 is the original."""
        return hdf5.read(self._file["pooled"], (*self._at(protocol, tokens), layer))

    def spectrum(self, protocol: str, tokens: str, layer: int) -> Array:
        """Eigenvalues of each prompt's token Gram matrix, shape (N, R), float64.

        Largest magnitude first, zero-padded; those of ``reference`` may be negative.
        """
        return hdf5.read(self._file["spectrum"], (*self._at(protocol, tokens), layer))

    def curvature(self, protocol: str, tokens: str, layer: int) -> Array:
        """Curvature of each prompt in radians, shape (N,), float64; NaN where there is none."""
        return hdf5.read(self._file["curvature"], (*self._at(protocol, tokens), layer))

    def n_tokens(self, tokens: str, layer: int, view: int = 0) -> Array:
        """Number of tokens that count in each prompt, shape (N,)."""
        return hdf5.read(self._file["n_tokens"], (self.tokens.index(tokens), layer, view))

    def states(self, layer: int) -> list[Array]:
        """Token states of the first K prompts, each of shape (T, D), float32."""
        owner = hdf5.read(self._file["state_prompt"], slice(None))
        states = hdf5.read(self._file["states"], layer)
        if owner.size == 0:
            return []
        return np.split(states, np.flatnonzero(np.diff(owner)) + 1)
