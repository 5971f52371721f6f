"""Input of a metric: one layer of an activations file.

Arrays are read when first used, since most metrics need few of them, and are shared by the
metrics of a layer. Prompts without selected tokens (one token, ``drop_first``) are left out.

Under the protocol ``reference`` embeddings are centred over all prompts of a view and scaled to
unit length. The released code centres over a batch whose size depended on the GPU, which can't be
repeated.

The standard error of a mean over prompts is their standard deviation over the root of n. Any other
metric is computed again on ten parts of the prompts, each without a random third of them, and the
standard deviation of these values times √2 is its error (the delete-d jackknife, Shao & Wu 1989).
Of 120 prompts or more a part leaves out four of twelve blocks of one size, so that a metric can
add up the blocks' sums.

On 30 to 300 simulated prompts the error is 0.8 to 1.05 times the spread over fresh prompts for
most metrics, 0.7 to 0.95 times for InfoNCE, and up to 1.6 times for LiDAR, DiME, TwoNN and α-ReQ
(docs/statistics.md). To leave out fewer prompts overstates it where a value is not smooth
in them (TwoNN 1.6, LiDAR 1.4 for tenths); to leave out more understates it where a value grows
with their number (RankMe 0.4 for halves).

Prompts are taken as independent draws. The errors say nothing about training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas import (
    Array,
    Mask,
    UndefinedMetricError,
    check_matrix,
    covariance_spectrum,
    embedding_spectrum,
    unit_centred,
)

if TYPE_CHECKING:
    from layerwise.activations.store import Activations
    from layerwise.config.settings import MetricsSettings

# Most memory for the augmented views of a layer at once, and for all arrays as they were read.
VIEWS_BYTES = 2**28
KEPT_BYTES = 2**28
EMBEDDINGS = ("pooled", "views")
Counts = npt.NDArray[np.int64]
T = TypeVar("T")


PARTS = 10
BLOCKS = 12
# Of fewer prompts each is a block by itself.
FEWEST = 10 * BLOCKS


@dataclass(frozen=True)
class Parts:
    """The parts of a layer's prompts on which metrics are computed again.

    Attributes
    ----------
    blocks : int array, shape (N,)
        Random block of each prompt: 0 to B - 1, B for those that remain, -1 for prompts without
        selected tokens.
    held : bool array, shape (PARTS, B + 1)
        Blocks of each part; no part if fewer than two prompts have tokens.
    """

    blocks: npt.NDArray[np.intp]
    held: Mask

    @property
    def members(self) -> Mask:
        """Prompts of each part, shape (PARTS, N)."""
        return np.asarray(self.held[:, self.blocks] & (self.blocks >= 0))

    def among(self, places: npt.NDArray[np.intp]) -> Mask:
        """`members` of the prompts in these places; no part if one has fewer than two of them."""
        members = self.members[:, places]
        return members if members.sum(axis=1).min(initial=2) >= 2 else members[:0]

    def stderr(self, values: Array) -> float:
        """Standard error of a metric from its values on the parts; NaN if there is none."""
        if len(values) < 2:
            return math.nan
        n, held = (self.blocks >= 0).sum(), self.members[0].sum()
        return float(math.sqrt(held / (n - held)) * np.std(values, ddof=1))


class Layer:
    """One layer with one protocol and one token selection.

    Parameters
    ----------
    reader : Activations
    settings : MetricsSettings, optional
    protocol : str
        ``paper`` or ``reference``.
    tokens : str
        Token selection.
    index : int
        Layer.

    Attributes
    ----------
    prompts : tuple of str, length N
    hidden : int
    n_views : int
        Number V of augmented views.
    lacks : frozenset of str
        Inputs of metrics that are not there.
    """

    def __init__(
        self,
        reader: Activations,
        settings: MetricsSettings | None = None,
        protocol: str = "paper",
        tokens: str = "all",
        index: int = 0,
    ) -> None:
        if settings is None:
            from layerwise.config.settings import MetricsSettings

            settings = MetricsSettings()
        self.settings, self.protocol, self.tokens, self.index = settings, protocol, tokens, index
        self.prompts: tuple[str, ...] = reader.prompts
        self.hidden: int = reader.hidden
        self.n_views: int = reader.n_views - 1
        self.lacks: frozenset[str] = reader.lacks
        self.arrays: frozenset[str] = reader.arrays
        self._reader, self._at = reader, (protocol, tokens, index)
        self._rows: Any = slice(None)
        self._arrays: dict[tuple[Any, ...], npt.NDArray[Any]] = {}
        self._memo: dict[str, Any] = {}

    def subset(self, rows: npt.NDArray[np.intp]) -> Layer:
        """The same layer with the prompts in these rows; shares what was read."""
        subset = Layer(self._reader, self.settings, *self._at)
        subset._rows = np.arange(len(self._reader.prompts))[self._rows][rows]
        subset._arrays = self._arrays
        subset.prompts = tuple(self.prompts[row] for row in rows)
        return subset

    @cached_property
    def parts(self) -> Parts:
        """The parts of the layer, the same for all its metrics."""
        rows, rng = np.flatnonzero(self.has_tokens), np.random.default_rng(self.settings.seed)
        count, size = (BLOCKS, len(rows) // BLOCKS) if len(rows) >= FEWEST else (len(rows), 1)
        blocks = np.full(len(self.prompts), -1)
        blocks[rng.permutation(rows)] = np.minimum(np.arange(len(rows)) // size, count)
        held = np.ones((PARTS if count > 1 else 0, count + 1), dtype=bool)
        for in_part in held:
            in_part[rng.permutation(count)[: max(1, count // 3)]] = False
        return Parts(blocks, held)

    def on_parts(self) -> Iterator[Layer]:
        """The layer with the prompts of each part; none for one prompt."""
        for members in self.parts.members:
            yield self.subset(np.flatnonzero(members))

    def sample(self, most: int) -> Layer:
        """The layer with a random sample of at most so many prompts."""
        n = len(self.prompts)
        if n <= most:
            return self
        rng = np.random.default_rng(self.settings.seed)
        return self.subset(np.sort(rng.choice(n, most, replace=False)))

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return the result of `make`, kept under a name for the metrics that share it."""
        if name not in self._memo:
            self._memo[name] = make()
        result: T = self._memo[name]
        return result

    @cached_property
    def counts(self) -> Counts:
        """Tokens that count, of each view of each prompt, shape (V + 1, N)."""
        views = range(self.n_views + 1)
        return np.stack([self._read("n_tokens", *self._at, v) for v in views]).astype(np.int64)

    @property
    def n_tokens(self) -> Counts:
        """Tokens that count, of each prompt, shape (N,)."""
        return np.asarray(self.counts[0])

    @property
    def has_tokens(self) -> Mask:
        """Prompts with selected tokens, shape (N,)."""
        return np.asarray(self.counts[0] > 0)

    @property
    def kept_in_pair(self) -> Mask:
        """Prompts with selected tokens in both views of `pair`, shape (N,)."""
        return np.asarray((self.counts[list(self._pair)] > 0).all(axis=0))

    @cached_property
    def pooled(self) -> Array:
        """Pooled embeddings of the prompts, shape (M, D), float64; M prompts are kept."""
        return self._matrix(self._read("pooled", *self._at), self.has_tokens)

    @cached_property
    def pooled_spectrum(self) -> Array:
        """Eigenvalues of the Gram matrix of the pooled embeddings, those of rounding 0."""
        return embedding_spectrum(self.pooled)

    @cached_property
    def covariance_spectrum(self) -> Array:
        """Eigenvalues of N times the covariance of the pooled embeddings."""
        return covariance_spectrum(self.pooled)

    def end(self, number: int) -> Array:
        """Pooled embeddings of the first (0) or the last (-1) layer, the prompts of `pooled`."""
        layer = self._reader.layers[number]
        return self._matrix(self._read("pooled", *self._at[:2], layer), self.has_tokens)

    @property
    def pair(self) -> tuple[Array, Array]:
        """Two views of the prompts, each of shape (M, D).

        The first two augmented views, as in the paper; the prompt and its augmented view where
        there is only one.
        """
        a, b = (self._read("pooled", *self._at, view) for view in self._pair)
        return self._matrix(a, self.kept_in_pair), self._matrix(b, self.kept_in_pair)

    @property
    def kept_in_views(self) -> Mask:
        """Prompts with selected tokens in every view, shape (N,)."""
        return np.asarray((self.counts > 0).all(axis=0))

    @cached_property
    def views(self) -> npt.NDArray[np.floating[Any]]:
        """The augmented views, shape (V, M, D), in the precision they are stored in."""
        return self._finite(self._read("views", *self._at, axis=1)[1:, self.kept_in_views])

    def groups_of_views(self) -> Iterator[npt.NDArray[np.floating[Any]]]:
        """The augmented views, all at once or, if they are large, read one by one: (K, M, D)."""
        if self.n_views * len(self.prompts) * self.hidden * 4 <= VIEWS_BYTES:
            yield self.views
            return
        for view in range(1, self.n_views + 1):
            array = self._read("pooled", *self._at, view)
            yield self._finite(_rows(array, self.kept_in_views)[None])

    def _finite(self, views: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not np.isfinite(views).all():
            for view in views:
                check_matrix(view, tuple(np.array(self.prompts)[self.kept_in_views]))
        return views

    @cached_property
    def spectra(self) -> Array:
        """Eigenvalues of each prompt's token Gram matrix, shape (N, R), float64."""
        return check_matrix(self._read("spectrum", *self._at), self.prompts)

    @cached_property
    def norms(self) -> Array:
        """Norm of each token state, shape (N, R), float64; NaN beyond a prompt's tokens."""
        norms = self._read("norms", self.index).astype(np.float64)
        beyond = np.logical_and.accumulate(np.isnan(norms)[:, ::-1], axis=1)[:, ::-1]
        check_matrix(np.where(beyond, 0.0, norms), self.prompts)
        return norms

    def __getitem__(self, name: str) -> Array:
        """An array that the metric lists among its inputs, shape (N, …), float64."""
        return self._read("array", name, self.tokens, self.index).astype(np.float64)

    @cached_property
    def curvature(self) -> Array:
        """Curvature of each prompt in radians, shape (N,); NaN where there is none."""
        return self._read("curvature", *self._at).astype(np.float64)

    @property
    def _pair(self) -> tuple[int, int]:
        return (1, 2) if self.n_views >= 2 else (0, 1)

    def _read(self, name: str, *at: Any, axis: int = 0) -> npt.NDArray[Any]:
        """This layer's prompts of an array of the file, read once for all parts if it is small."""
        key = name, *at
        array = self._arrays.get(key)
        if array is None:
            array = getattr(self._reader, name)(*at)
            if self.protocol == "reference" and name in EMBEDDINGS:
                array = self._unit_centred(array)
            if sum(read.nbytes for read in self._arrays.values()) + array.nbytes <= KEPT_BYTES:
                self._arrays[key] = array
        return np.asarray(array[(slice(None),) * axis + (self._rows,)])

    def _unit_centred(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The embeddings of each view, shape (N, D) or (V, N, D), as `unit_centred` has them."""
        if array.ndim == 3:
            return np.stack([self._unit_centred(view) for view in array])
        return unit_centred(check_matrix(array, self._reader.prompts)).astype(array.dtype)

    def _matrix(self, array: npt.NDArray[Any], rows: Mask) -> Array:
        if not rows.any():
            raise UndefinedMetricError("No prompt has a token that counts.")
        return check_matrix(_rows(array, rows), tuple(np.array(self.prompts)[rows]))


def _rows(array: npt.NDArray[Any], rows: Mask) -> npt.NDArray[Any]:
    """The rows that are kept. If all are, the array itself: a copy takes as much memory again."""
    return array if rows.all() else array[rows]
