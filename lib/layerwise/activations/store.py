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
prefix     t, t times each: numbers of first tokens, see `places.grid`
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
norm                  layer, prompt, rank                        norm of each token state, in the
                                                                 order of the prompt, 0 beyond T
prefix_spectrum       prefix_tokens, layer, prompt, prefix       eigenvalues of the Gram matrix of
                                                                 the first t tokens, t of each t
curvature             protocol, tokens, layer, prompt            radians; NaN where there is none
curvature_angles      protocol, tokens, layer, prompt            angles in that mean: a repeated
                                                                 state has none
n_tokens              protocol, tokens, layer, view, prompt      tokens that count
states                layer, state, hidden                       states as the model gave them,
                                                                 for a reader's own analyses
state_prompt          state                                      which prompt (index) a state is of
n_cut                 view, prompt                               tokens cut off at the model's
                                                                 longest length
===================== ========================================== ==========================

Views are pooled; all else is of view 0 alone. ``spectrum`` (with ``norm``), ``curvature`` (with
``curvature_angles``) and ``prefix_spectrum`` are there if the extraction was asked for them.

Sublayers, if asked for, are groups ``sublayers/{name}`` (``mixer``, ``mlp``, …, see
`layerwise.models.architectures`) that hold ``pooled``, ``spectrum``, ``norm``,
``curvature``, ``curvature_angles`` and ``n_tokens`` as above, with the scales they need. The
embedding output has no parts: at layer 0 they are NaN, and the counts 0. The arrays above are
those of the sublayer ``block``.

What ``layer`` L holds follows from the readout: the stream after the last block
(``residual``), its last norm applied as to every layer (``final_norm``), or what the model hands
its users (``output``). The attribute ``readouts`` (JSON) says what each protocol reads: ``paper``
what the attribute ``readout`` says; ``reference`` the model's output, as the authors' code does.
What has no protocol (``norm``, ``prefix_spectrum``, ``states``) is of what ``readout`` says, also
where ``paper`` was not asked for. So at layer L ``n_tokens`` of ``drop_sinks`` may differ by
protocol. In files of version 3, which are not read any more, both read the same and ``n_tokens``
has no protocol.
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
from layerwise.errors import LayerwiseError, closest

SCHEMA = "layerwise.activations"
VERSION = 4

BLOCK = "block"
GROUP = "sublayers"

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
    sublayers: Sequence[str] = (),
    spectra: bool = True,
    curvature: bool = True,
    prefixes: Mapping[str, Sequence[int]] | None = None,
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
    sublayers : sequence of str
        Those beside 'block'.
    spectra, curvature : bool
        Whether there are arrays for them.
    prefixes : mapping from choice of tokens to numbers of tokens, optional
        Of which prefixes spectra are kept, the numbers the same for each choice.
    """
    with hdf5.create(path, SCHEMA, VERSION, attributes) as file:
        hdf5.add_scale(file, "protocol", list(protocols))
        hdf5.add_scale(file, "tokens", list(tokens))
        hdf5.add_scale(file, "layer", np.arange(n_layers))
        hdf5.add_scale(file, "view", np.arange(n_views))
        hdf5.add_scale(file, "prompt", list(prompts))
        hdf5.add_scale(file, "hidden", np.arange(hidden))
        if spectra:
            hdf5.add_scale(file, "rank", np.arange(rank))
        hdf5.add_scale(file, "state", np.arange(sum(state_lengths)))
        _add_measured(file, spectra=spectra, curvature=curvature)
        if prefixes:
            _add_prefixes(file, list(prefixes), next(iter(prefixes.values())))
        for name in sublayers:
            group = file.create_group(f"{GROUP}/{name}")
            # The same scales under a second name, so that a group opened alone has them.
            for scale in ("protocol", "tokens", "layer", "view", "prompt", "hidden", "rank"):
                if scale in file:
                    group[scale] = file[scale]
            _add_measured(group, spectra=spectra, curvature=curvature)
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


def _add_measured(group: h5py.Group, *, spectra: bool, curvature: bool) -> None:
    """Add the arrays that blocks and sublayers have alike."""
    per_prompt = ("protocol", "tokens", "layer", "prompt")
    hdf5.add_array(
        group, "pooled", ("protocol", "tokens", "layer", "view", "prompt", "hidden"), "f4",
        unit="activation", description="mean of the token states that count",
        whole=("prompt", "hidden"),
    )  # fmt: skip
    if spectra:
        hdf5.add_array(
            group, "spectrum", (*per_prompt, "rank"), "f8", unit="activation^2",
            description="eigenvalues of the token Gram matrix, largest first, 0 beyond T",
            whole=("prompt", "rank"),
        )  # fmt: skip
        hdf5.add_array(
            group, "norm", ("layer", "prompt", "rank"), "f4", unit="activation",
            description="norm of each token state, in the order of the prompt, 0 beyond T",
            whole=("prompt", "rank"),
        )  # fmt: skip
    if curvature:
        hdf5.add_array(
            group, "curvature", per_prompt, "f8", unit="radian",
            description="mean angle between successive steps; NaN where there is none",
            whole=("layer", "prompt"),
        )  # fmt: skip
        hdf5.add_array(
            group, "curvature_angles", per_prompt, "i4", unit="1",
            description="number of angles in the mean", whole=("layer", "prompt"),
        )  # fmt: skip
    hdf5.add_array(
        group, "n_tokens", ("protocol", "tokens", "layer", "view", "prompt"), "i4", unit="token",
        description="number of tokens that count", whole=("view", "prompt"),
    )  # fmt: skip


def _add_prefixes(file: h5py.File, tokens: Sequence[str], sizes: Sequence[int]) -> None:
    hdf5.add_scale(file, "prefix_tokens", list(tokens))
    hdf5.add_scale(file, "prefix", np.repeat(sizes, sizes))
    hdf5.add_array(
        file, "prefix_spectrum", ("prefix_tokens", "layer", "prompt", "prefix"), "f8",
        unit="activation^2",
        description="eigenvalues of the token Gram matrix of the first t tokens, t by t",
        whole=("prompt", "prefix"),
    )  # fmt: skip


def group_of(file: h5py.File, sublayer: str) -> h5py.Group:
    """The group that holds a sublayer's arrays: the file itself for 'block'."""
    return file if sublayer == BLOCK else file[GROUP][sublayer]


class Activations:
    """Read an activations file, one layer at a time.

    Use it as a context manager.

    Parameters
    ----------
    model, revision, corpus : str, optional
        What the file must be about.
    sublayer : str
        Whose arrays are read: 'block', the layers themselves, or one of the file's `sublayers`.

    Attributes
    ----------
    layers : range
        The layers that can be asked for: 0 … L, for sublayers 1 … L.
    sublayers : tuple of str
        What the file holds, 'block' first.
    has_spectra, has_curvature : bool
        Whether the extraction was asked for them.

    Raises
    ------
    LayerwiseError
        If the file is not a complete activations file of this schema, is about another model,
        revision or corpus than the ones asked for, or lacks the sublayer; in reading, if it was
        extracted without spectra or curvature.
    """

    def __init__(
        self,
        path: Path,
        *,
        model: str | None = None,
        revision: str | None = None,
        corpus: str | None = None,
        sublayer: str = BLOCK,
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
        self.sublayers: tuple[str, ...] = (BLOCK, *self._file.get(GROUP, ()))
        self.sublayer = sublayer
        if sublayer not in self.sublayers:
            self._file.close()
            raise LayerwiseError(
                f"{path} has no sublayer {sublayer!r}{closest(sublayer, self.sublayers)}; it "
                f"holds {', '.join(self.sublayers)}: ask for it in extract.sublayers."
            )
        self._group = group_of(self._file, sublayer)
        self.layers = range(0 if sublayer == BLOCK else 1, self.n_layers)
        self.has_spectra = "spectrum" in self._group
        self.has_norms = "norm" in self._group
        self.has_curvature = "curvature" in self._group
        self.has_prefixes = "prefix_spectrum" in self._group

    def __enter__(self) -> Activations:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _at(self, protocol: str, tokens: str, layer: int) -> tuple[int, int, int]:
        return self.protocols.index(protocol), self.tokens.index(tokens), self._level(layer)

    def _level(self, layer: int) -> int:
        return self.layers[self.layers.index(layer)]

    def _array(self, name: str, key: str) -> h5py.Dataset:
        if name not in self._group:
            raise LayerwiseError(
                f"{self.path} was extracted without {name}; set extract.{key}: true, or leave "
                "out the metrics that need it."
            )
        return self._group[name]

    def pooled(self, protocol: str, tokens: str, layer: int, view: int = 0) -> Array:
        """Pooled embeddings of one view, shape (N, D), float32."""
        return hdf5.read(self._group["pooled"], (*self._at(protocol, tokens, layer), view))

    def first(self, protocol: str, tokens: str) -> Array:
        """Pooled embeddings of the prompts at the first layer, shape (N, D), float32."""
        return self.pooled(protocol, tokens, self.layers[0])

    def last(self, protocol: str, tokens: str) -> Array:
        """Pooled embeddings of the prompts at the last layer, shape (N, D), float32."""
        return self.pooled(protocol, tokens, self.layers[-1])

    def views(self, protocol: str, tokens: str, layer: int) -> Array:
        """Pooled embeddings of all views, shape (V + 1, N, D), float32; 0 is the original."""
        return hdf5.read(self._group["pooled"], self._at(protocol, tokens, layer))

    def spectrum(self, protocol: str, tokens: str, layer: int) -> Array:
        """Eigenvalues of each prompt's token Gram matrix, shape (N, R), float64.

        Largest magnitude first, zero-padded; those of ``reference`` may be negative.
        """
        array = self._array("spectrum", "spectra")
        return hdf5.read(array, self._at(protocol, tokens, layer))

    def curvature(self, protocol: str, tokens: str, layer: int) -> Array:
        """Curvature of each prompt in radians, shape (N,), float64; NaN where there is none."""
        array = self._array("curvature", "curvature")
        return hdf5.read(array, self._at(protocol, tokens, layer))

    def n_tokens(self, protocol: str, tokens: str, layer: int, view: int = 0) -> Array:
        """Number of tokens that count in each prompt, shape (N,)."""
        at = (*self._at(protocol, tokens, layer), view)
        return hdf5.read(self._group["n_tokens"], at)

    def norms(self, layer: int) -> Array:
        """Norm of each token state, shape (N, R), float32; 0 beyond a prompt's tokens."""
        return hdf5.read(self._array("norm", "spectra"), self._level(layer))

    def prefixes(self, tokens: str, layer: int) -> dict[int, Array]:
        """Spectra of the first t tokens of each prompt, by t: shape (N, t), largest first.

        All 0 where a prompt has fewer tokens. None of a choice of tokens without prefixes.
        """
        array = self._array("prefix_spectrum", "prefixes")
        choices = list(self._file["prefix_tokens"].asstr()[:])
        if tokens not in choices:
            return {}
        sizes = self._file["prefix"][:]
        found = hdf5.read(array, (choices.index(tokens), self._level(layer)))
        return {int(t): found[:, sizes == t] for t in dict.fromkeys(sizes)}

    def states(self, layer: int) -> list[Array]:
        """Token states after a block of the first K prompts, each of shape (T, D), float32."""
        owner = hdf5.read(self._file["state_prompt"], slice(None))
        states = hdf5.read(self._file["states"], layer)
        if owner.size == 0:
            return []
        return np.split(states, np.flatnonzero(np.diff(owner)) + 1)
