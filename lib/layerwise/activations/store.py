"""The activations file: every layer of one model at one checkpoint on one corpus.

``results/activations/{model}/{revision}/{corpus}.h5``

Each dimension is a dimension scale of its name, which holds its labels: see `SCALES`.

Arrays: see `ARRAYS`. Views are pooled; all else is of view 0 alone. Arrays that are not of `BASE`
are there if a metric needs them (`array`), and ``token_states`` (of the layers ``token_layer``,
each as in ``norm``) if the extraction was asked for them. The attribute ``drop_dimensions`` (JSON)
lists dimensions that were set to 0. Of a model with several residual streams, ``stream`` says
which is read (``mean`` or a number) of how many (``streams``). Of one whose blocks run more than
once, ``blocks`` and ``passes`` (JSON) have the block and the number of its pass
for each layer from 1.

Sublayers, if asked for, are groups ``sublayers/{name}`` (``mixer``, ``mlp``, …, see
`layerwise.models.architectures`) that hold the same arrays but ``prefix_spectrum``, with the
scales they need. The embedding output has no parts: at layer 0 they are NaN, and the counts 0. The
arrays of the file itself are those of the sublayer ``block``.

``layer`` L depends on the readout: the stream after the last block (``residual``), the final norm
applied to it as to every layer (``final_norm``), or the model's output (``output``). The attribute
``readouts`` (JSON) has the readout of each protocol: that of the attribute ``readout`` for
``paper``, the model's output for ``reference``, as in the authors' code. Arrays without a protocol
(``norm``, ``prefix_spectrum``) use ``readout``. So at layer L ``n_tokens`` of ``drop_sinks`` may
differ by protocol.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import h5py
import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError, check_name, closest
from layerwise.io import hdf5
from layerwise.vocabulary import BLOCK

SCHEMA = "layerwise.activations"
VERSION = 6

GROUP = "sublayers"

if TYPE_CHECKING:
    from torch import Tensor

    from layerwise.activations.representation import Packed

Array = npt.NDArray[Any]
Compute = TypeVar("Compute", bound="Callable[[Packed], Tensor]")

# Descriptions of the dimensions.
SCALES = {
    "protocol": "formulas: paper (as printed) or reference (as in the authors' code of 2025)",
    "tokens": "which tokens of a prompt count",
    "layer": "0 (embedding output) to L (last block)",
    "view": "0 (the prompt itself), 1 to V (its augmented copies)",
    "prompt": "id of the prompt in the corpus",
    "hidden": "0 to D - 1: coordinates of a state",
    "rank": "0 to R - 1, R the largest token count of any prompt",
    "prefix_tokens": "tokens whose prefixes have spectra",
    "prefix": "t, t times each: numbers of first tokens",
    "token_layer": "layers whose token states are kept",
    "token": "ids of all tokens of all prompts, one prompt after the other; -1 if not of text",
    "offset": "where each prompt begins along token, and where the last one ends",
    "head": "0 to H - 1: attention heads",
    "top": "0 to 3: the largest dimensions of a prompt, largest first",
}


@dataclass(frozen=True)
class ArraySpec:
    """An array of the file; a chunk holds all of its last two dimensions.

    Attributes
    ----------
    dims : tuple of str
    dtype, unit, description : str
    empty : float
        What stands where nothing was computed.
    compute : callable, optional
        From the states of a batch at a layer (`layerwise.activations.representation.Packed`) to a
        tensor over the array's dimensions, without tokens and layer. None for arrays that
        `layerwise.activations` computes by ways of their own.
    costly : bool
        True if the pass is slower for it: metrics that need it are computed where they are named.
    """

    dims: tuple[str, ...]
    dtype: str
    unit: str
    description: str
    empty: float = np.nan
    compute: Callable[[Packed], Tensor] | None = None
    costly: bool = False

    def add_to(self, group: h5py.Group, name: str) -> h5py.Dataset:
        """Create the array in a file or in the group of a sublayer."""
        text = {"unit": self.unit, "description": self.description}
        return hdf5.add_array(group, name, self.dims, self.dtype, **text, whole=self.dims[-2:])


_SETTING = ("protocol", "tokens", "layer")
ARRAYS = {
    "pooled": ArraySpec(
        (*_SETTING, "view", "prompt", "hidden"),
        "f4",
        "activation",
        "mean of the token states that count",
    ),
    "n_tokens": ArraySpec(
        (*_SETTING, "view", "prompt"), "i4", "token", "number of tokens that count", 0
    ),
    # Largest magnitude first; those of `reference`, of the clamped matrix, are signed. They are
    # computed in float64: rounded to float32, no entropy moves by more than 1e-6.
    "spectrum": ArraySpec(
        (*_SETTING, "prompt", "rank"),
        "f4",
        "activation^2",
        "eigenvalues of the token Gram matrix, largest first, 0 beyond T",
        0,
    ),
    "norm": ArraySpec(
        ("layer", "prompt", "rank"),
        "f4",
        "activation",
        "norm of each token state, in the order of the prompt; NaN beyond T",
        compute=lambda packed: packed.norms,
    ),
    "curvature": ArraySpec(
        (*_SETTING, "prompt"),
        "f8",
        "radian",
        "mean angle between successive steps; NaN where there is none",
    ),
    "prefix_spectrum": ArraySpec(
        ("prefix_tokens", "layer", "prompt", "prefix"),
        "f4",
        "activation^2",
        "eigenvalues of the token Gram matrix of the first t tokens, t by t",
        0,
    ),
    "first_token_attention": ArraySpec(
        ("layer", "prompt", "head"),
        "f4",
        "",
        "mean over queries of a head's attention to the first token; NaN where there is none",
        costly=True,
    ),
}
BASE = ("pooled", "n_tokens", "spectrum", "norm", "curvature")
"""The arrays of every file."""
# Dimensions of each prompt that arrays over ``top`` have.
LARGEST = 4


def array(**declared: Any) -> Callable[[Compute], Compute]:
    """Let a file keep what the decorated function computes of the states at each layer.

    The array has the function's name. A metric that lists it among its inputs reads it as
    ``layer["name"]``, and the extraction then keeps it.

    Parameters
    ----------
    **declared
        `dims`, `dtype`, `unit`, `description` and perhaps `empty` of `ArraySpec`. Of the
        dimensions, ``tokens`` may come first (one value for each selection of tokens, whose states
        alone the function gets), then ``layer`` and ``prompt``; ``rank`` (a value for each token)
        or ``top`` may come last.

    Raises
    ------
    ValueError
        If another function has the name: a mistake of the author, raised at import.
    """

    def register(compute: Compute) -> Compute:
        name, taken = compute.__name__, ARRAYS.get(compute.__name__)
        if taken and getattr(taken.compute, "__module__", "") != compute.__module__:
            raise ValueError(f"{name} is already the name of an array")
        ARRAYS[name] = ArraySpec(**declared, compute=compute)
        return compute

    return register


TOKEN_STATES = ArraySpec(
    ("token_layer", "token", "hidden"),
    "f4",
    "activation",
    "state of each token; those of prompt i are from offset[i] up to offset[i + 1]",
)


@dataclass(frozen=True)
class TokenStates:
    """Token states that a file keeps.

    Attributes
    ----------
    layers : sequence of int
    offsets : array, shape (N + 1,)
        Where each prompt begins among all tokens.
    ids : array
        Ids of all tokens.
    dtype : str
        f4 or f2.
    """

    layers: Sequence[int]
    offsets: Array
    ids: Array
    dtype: str

    def add_to(self, file: h5py.File) -> None:
        """Add the array ``token_states``, and its labels."""
        add_scale(file, "token_layer", self.layers)
        add_scale(file, "token", self.ids)
        add_scale(file, "offset", self.offsets)
        replace(TOKEN_STATES, dtype=self.dtype).add_to(file, "token_states")


def add_scale(file: h5py.File, name: str, values: Any) -> None:
    """Add a dimension of `SCALES` with its labels."""
    hdf5.add_scale(file, name, values, SCALES[name])


def grid(longest: int) -> list[int]:
    """Positions along a prompt, from 1 to at most `longest` tokens: powers of √2, rounded.

    1, 2, 3, 4, 6, 8, 11, 16, …: their cubes sum to 0.5 to 1.6 times T³, and an eigenvalue problem
    costs about the cube of its size.
    """
    steps = range(2 * int(longest).bit_length() + 1)
    return [t for t in dict.fromkeys(round(2 ** (k / 2)) for k in steps) if t <= longest]


def prefix_sizes(longest: int) -> list[int]:
    """Numbers of tokens of prefixes: `grid` without a single token, whose entropy is 0."""
    return grid(longest)[1:]


# The labels of each dimension of a file.
Labels = Mapping[str, Sequence[Any]]


def array_names(
    labels: Labels, sublayers: Sequence[str], arrays: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Sublayer and name of each of some arrays that a file with these labels can hold."""
    for sublayer, name in itertools.product((BLOCK, *sublayers), arrays):
        dims = ARRAYS[name].dims
        of_blocks = not {"prefix", "head"}.isdisjoint(dims)
        if labels.keys() >= set(dims) and (sublayer == BLOCK or not of_blocks):
            yield sublayer, name


@contextmanager
def create(
    path: Path,
    labels: Labels,
    attributes: Mapping[str, Any],
    sublayers: Sequence[str] = (),
    arrays: Sequence[str] = BASE,
    base: Path | None = None,
) -> Iterator[h5py.File]:
    """Create the file with all its arrays, to be filled window by window.

    Parameters
    ----------
    sublayers : sequence of str
        Sub-layers in addition to 'block'.
    arrays : sequence of str
        The arrays to fill.
    base : Path, optional
        A file of the same labels, whose other arrays the new one has as well.
    """
    with hdf5.create(path, SCHEMA, VERSION, attributes, base) as file:
        for scale, values in labels.items():
            if scale not in file:
                add_scale(file, scale, values)
        for sublayer, name in array_names(labels, sublayers, arrays):
            group = file if sublayer == BLOCK else file.require_group(f"{GROUP}/{sublayer}")
            for scale in ARRAYS[name].dims:
                # Hard links to the scales, for readers that open only this group.
                if scale not in group:
                    group[scale] = file[scale]
            ARRAYS[name].add_to(group, name)
        yield file


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
    arrays : frozenset of str
        The arrays that the file has.
    labels : dict
        The stream that layers are of, for each row of a table, of a model that has several.
    lacks : set of str
        Inputs of metrics that say nothing: those of tokens, where a prompt has one vector.

    Raises
    ------
    LayerwiseError
        If the file is not a complete activations file of this schema, is about another model,
        revision or corpus than the ones asked for, or lacks the sublayer.
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
        about = {"model": model, "revision": revision, "corpus": corpus}
        expected = {key: value for key, value in about.items() if value is not None}
        self._file = hdf5.open_checked(path, SCHEMA, VERSION, expected)
        self.path = Path(path)
        self.attributes: dict[str, Any] = hdf5.attributes(self._file)
        self.model = str(self.attributes["model"])
        self.revision = str(self.attributes["revision"])
        self.corpus = str(self.attributes["corpus"])
        has_streams = "stream" in self.attributes
        self.labels = {"stream": str(self.attributes["stream"])} if has_streams else {}
        self.lacks = frozenset(str(self.attributes.get("lacks", "")).split())
        with hdf5.readable(path):
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
                f"holds {', '.join(self.sublayers)}: ask for it in extract.sublayers.",
                code="unknown_name",
            )
        self.layers = range(0 if sublayer == BLOCK else 1, self.n_layers)
        with hdf5.readable(path):
            self._group = group_of(self._file, sublayer)
            self.arrays = frozenset(self._group)

    def __enter__(self) -> Activations:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _read(self, name: str, *index: int) -> Array:
        """An array of the file at the first of its dimensions."""
        with hdf5.readable(self.path):
            return np.asarray(self._group[name][index])

    def _check_kept(self, name: str) -> None:
        if name not in self.arrays:
            raise LayerwiseError(
                f"{self.path} was extracted without {name}; ask for it in extract.arrays, or "
                "leave out what needs it.",
                code="missing",
            )

    def _layer(self, layer: int) -> int:
        check_name("layer", layer, self.layers)
        return layer

    def _at(self, protocol: str, tokens: str, layer: int) -> tuple[int, int, int]:
        """Indices of a protocol, a token selection and a layer, which the file must hold."""
        check_name("protocol", protocol, self.protocols)
        check_name("token selection", tokens, self.tokens)
        return self.protocols.index(protocol), self.tokens.index(tokens), self._layer(layer)

    def pooled(self, protocol: str, tokens: str, layer: int, view: int = 0) -> Array:
        """Pooled embeddings of one view, shape (N, D), float32."""
        return self._read("pooled", *self._at(protocol, tokens, layer), view)

    def views(self, protocol: str, tokens: str, layer: int) -> Array:
        """Pooled embeddings of all views, shape (V + 1, N, D), float32; 0 is the original."""
        return self._read("pooled", *self._at(protocol, tokens, layer))

    def spectrum(self, protocol: str, tokens: str, layer: int) -> Array:
        """Eigenvalues of each prompt's token Gram matrix, shape (N, R), float64.

        Largest magnitude first, zero-padded; those of ``reference`` may be negative.
        """
        return self._read("spectrum", *self._at(protocol, tokens, layer)).astype(np.float64)

    def curvature(self, protocol: str, tokens: str, layer: int) -> Array:
        """Curvature of each prompt in radians, shape (N,), float64; NaN where there is none."""
        return self._read("curvature", *self._at(protocol, tokens, layer))

    def n_tokens(self, protocol: str, tokens: str, layer: int, view: int = 0) -> Array:
        """Number of tokens that count in each prompt, shape (N,)."""
        return self._read("n_tokens", *self._at(protocol, tokens, layer), view)

    def norms(self, layer: int) -> Array:
        """Norm of each token state, shape (N, R), float32; NaN beyond a prompt's tokens."""
        return self._read("norm", self._layer(layer))

    def array(self, name: str, tokens: str, layer: int) -> Array:
        """One of `ARRAYS` that the file keeps, of a layer's prompts, shape (N, …)."""
        self._check_kept(name)
        check_name("token selection", tokens, self.tokens)
        selection = [self.tokens.index(tokens)] * (ARRAYS[name].dims[0] == "tokens")
        return self._read(name, *selection, self._layer(layer))

    def prefixes(self, tokens: str, layer: int) -> dict[int, Array]:
        """Spectra of the first t tokens of each prompt, by t: shape (N, t), largest first.

        All 0 where a prompt has fewer tokens. None of a choice of tokens without prefixes.
        """
        self._check_kept("prefix_spectrum")
        with hdf5.readable(self.path):
            choices = list(self._file["prefix_tokens"].asstr()[:])
            sizes = self._file["prefix"][:]
        if tokens not in choices:
            return {}
        of_layer = choices.index(tokens), self._layer(layer)
        spectra = self._read("prefix_spectrum", *of_layer).astype(np.float64)
        return {int(t): spectra[:, sizes == t] for t in dict.fromkeys(sizes)}
