"""Input of a metric: one layer of an activations file, or of arrays in memory.

Arrays are read when first used, since most metrics need few of them, and are shared by the
metrics of a layer. Prompts without selected tokens (one token, ``drop_first``) are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas.arrays import (
    Array,
    Mask,
    UndefinedMetricError,
    as_numpy,
    check_matrix,
)
from layerwise.metrics.formulas.spectra import (
    covariance_spectrum,
    gram_spectrum,
    significant,
)

if TYPE_CHECKING:
    from layerwise.activations.store import Activations
    from layerwise.config.metrics import MetricsSettings

Floats = npt.NDArray[Any]
Counts = npt.NDArray[np.int64]
T = TypeVar("T")


class Arrays:
    """Arrays in memory, with the interface of an activations file.

    They are the same for every protocol, token selection and layer.

    Parameters
    ----------
    views : array, shape (V + 1, N, D) or (N, D)
        Pooled embeddings; entry 0 is the prompt itself, the others its augmented views.
    norms : array, shape (N, R), optional
        Norm of each token state, 0 beyond a prompt's tokens.
    attention : array, shape (N, H), optional
        Mean attention of each head to the first token.
    spectra : array, shape (N, R), optional
        Eigenvalues of each prompt's token Gram matrix, zero-padded.
    curvature : array, shape (N,), optional
        In radians, NaN where a prompt has none.
    n_tokens : array, shape (V + 1, N), optional
        Tokens that count, of each view of each prompt; 1 by default.
    ends : two arrays, shape (N, D), optional
        Pooled embeddings of the first and of the last layer.
    prompts : sequence of N str, optional
        The prompts' ids; 0, 1, … by default.
    """

    def __init__(
        self,
        views: npt.ArrayLike,
        *,
        spectra: npt.ArrayLike | None = None,
        norms: npt.ArrayLike | None = None,
        attention: npt.ArrayLike | None = None,
        curvature: npt.ArrayLike | None = None,
        n_tokens: npt.ArrayLike | None = None,
        ends: Sequence[npt.ArrayLike] | None = None,
        prompts: Sequence[str] | None = None,
    ) -> None:
        array = as_numpy(views)
        self._views = array[None] if array.ndim == 2 else array
        self.n_views, n, self.hidden = self._views.shape
        self._spectra, self._curvature, self._ends = spectra, curvature, ends
        self._norms, self._attention = norms, attention
        self._counts = np.ones((self.n_views, n)) if n_tokens is None else as_numpy(n_tokens)
        self.prompts = tuple(map(str, range(n)) if prompts is None else prompts)
        self.has_spectra, self.has_curvature = spectra is not None, curvature is not None
        self.has_norms, self.has_attention = norms is not None, attention is not None

    def pooled(self, protocol: str, tokens: str, layer: int, view: int = 0) -> Floats:  # noqa: ARG002
        """Pooled embeddings of one view, shape (N, D)."""
        return np.asarray(self._views[view])

    def views(self, *_: object) -> Floats:
        """Pooled embeddings of all views, shape (V + 1, N, D)."""
        return self._views

    def spectrum(self, *_: object) -> Floats:
        """Eigenvalues of each prompt's token Gram matrix, shape (N, R)."""
        return as_numpy(self._spectra)

    def norms(self, *_: object) -> Floats:
        """Norm of each token state, shape (N, R)."""
        return as_numpy(self._norms)

    def attention(self, *_: object) -> Floats:
        """Mean attention of each head to the first token, shape (N, H)."""
        return as_numpy(self._attention)

    def curvature(self, *_: object) -> Floats:
        """Curvature of each prompt in radians, shape (N,)."""
        return as_numpy(self._curvature)

    def n_tokens(self, protocol: str, tokens: str, layer: int, view: int = 0) -> Floats:  # noqa: ARG002
        """Number of tokens that count in each prompt, shape (N,)."""
        return np.asarray(self._counts[view])

    def first(self, *_: object) -> Floats:
        """Pooled embeddings of the first layer, shape (N, D)."""
        return self._end(0)

    def last(self, *_: object) -> Floats:
        """Pooled embeddings of the last layer, shape (N, D)."""
        return self._end(-1)

    def _end(self, which: int) -> Floats:
        if self._ends is None:
            raise UndefinedMetricError("the arrays are of one layer only.")
        return as_numpy(self._ends[which])


# Inputs, with the prompts that have a row in them.
ROWS = {
    "pooled": "kept",
    "first": "kept",
    "last": "kept",
    "pair": "kept_in_pair",
    "views": "kept_in_views",
    "spectra": "",
    "norms": "",
    "curvature": "",
}


class Layer:
    """One layer with one protocol and one token selection.

    Parameters
    ----------
    reader : Activations or Arrays
    settings : MetricsSettings, optional
    protocol : str
        ``paper`` or ``reference``.
    tokens : str
        Token selection.
    index : int
        Layer.
    errors : bool
        True to compute standard errors; NaN otherwise.
    """

    def __init__(
        self,
        reader: Activations | Arrays,
        settings: MetricsSettings | None = None,
        protocol: str = "paper",
        tokens: str = "all",
        index: int = 0,
        *,
        errors: bool = True,
    ) -> None:
        if settings is None:
            from layerwise.config.metrics import MetricsSettings

            settings = MetricsSettings()
        self.settings, self.protocol, self.tokens, self.index = settings, protocol, tokens, index
        self.errors = errors
        self.prompts: tuple[str, ...] = reader.prompts
        self.hidden: int = reader.hidden
        self.n_views: int = reader.n_views - 1
        """Number V of augmented views."""
        self._reader = reader
        self._at = (protocol, tokens, index)
        self._memo: dict[str, Any] = {}

    def without(self, left_out: Mask) -> Layer:
        """The same layer without some prompts (N,); reuses the arrays already read."""
        stay = ~left_out
        part = Layer(self._reader, self.settings, *self._at, errors=False)
        part.prompts = tuple(name for name, kept in zip(self.prompts, stay, strict=True) if kept)
        part.__dict__["counts"] = self.counts[:, stay]
        for name, rows in ROWS.items():
            if name in self.__dict__:
                chosen = stay[getattr(self, rows)] if rows else stay
                array = self.__dict__[name]
                part.__dict__[name] = (
                    tuple(view[chosen] for view in array)
                    if name == "pair"
                    else array[:, chosen]
                    if name == "views"
                    else array[chosen]
                )
        return part

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
        each = [self._reader.n_tokens(*self._at, view) for view in views]
        return np.stack(each).astype(np.int64)

    @property
    def n_tokens(self) -> Counts:
        """Tokens that count, of each prompt, shape (N,)."""
        return np.asarray(self.counts[0])

    @property
    def kept(self) -> Mask:
        """Prompts with selected tokens, shape (N,)."""
        return np.asarray(self.counts[0] > 0)

    @property
    def kept_in_views(self) -> Mask:
        """Prompts with selected tokens in every view, shape (N,)."""
        return np.asarray((self.counts > 0).all(axis=0))

    @property
    def kept_in_pair(self) -> Mask:
        """Prompts with selected tokens in both views of `pair`, shape (N,)."""
        return np.asarray((self.counts[list(self.pair_views)] > 0).all(axis=0))

    @property
    def pair_views(self) -> tuple[int, int]:
        """Numbers of the two views in `pair`; 0 is the prompt itself."""
        return (1, 2) if self.n_views >= 2 else (0, 1)

    @cached_property
    def pooled(self) -> Array:
        """Pooled embeddings of the prompts, shape (M, D), float64; M prompts are kept."""
        return self._matrix(self._reader.pooled(*self._at), self.kept)

    @cached_property
    def pooled_spectrum(self) -> Array:
        """Eigenvalues of the Gram matrix of the pooled embeddings, those of rounding 0."""
        return significant(gram_spectrum(self.pooled))

    @cached_property
    def covariance_spectrum(self) -> Array:
        """Eigenvalues of N times the covariance of the pooled embeddings."""
        return covariance_spectrum(self.pooled)

    @cached_property
    def first(self) -> Array:
        """Pooled embeddings of the first layer, the same prompts as `pooled`."""
        return self._matrix(self._reader.first(self.protocol, self.tokens), self.kept)

    @cached_property
    def last(self) -> Array:
        """Pooled embeddings of the last layer, the same prompts as `pooled`."""
        return self._matrix(self._reader.last(self.protocol, self.tokens), self.kept)

    @cached_property
    def pair(self) -> tuple[Array, Array]:
        """Two views of the prompts, each of shape (M, D).

        The first two augmented views, as in the paper; the prompt and its augmented view where
        there is only one.
        """
        a, b = (self._reader.pooled(*self._at, view) for view in self.pair_views)
        return self._matrix(a, self.kept_in_pair), self._matrix(b, self.kept_in_pair)

    @cached_property
    def views(self) -> npt.NDArray[np.floating[Any]]:
        """The augmented views, shape (V, M, D), in the precision they are stored in."""
        views = self._reader.views(*self._at)[1:]
        if not self.kept_in_views.all():
            views = views[:, self.kept_in_views]
        for view in views:
            check_matrix(view, self.prompts)
        return np.asarray(views)

    @cached_property
    def spectra(self) -> Array:
        """Eigenvalues of each prompt's token Gram matrix, shape (N, R), float64."""
        self._refuse_absent("spectra", self._reader.has_spectra)
        return check_matrix(self._reader.spectrum(*self._at), self.prompts)

    @cached_property
    def norms(self) -> Array:
        """Norm of each token state, shape (N, R), float64; 0 beyond a prompt's tokens."""
        self._refuse_absent("norms", self._reader.has_norms, setting="spectra")
        return check_matrix(self._reader.norms(self.index), self.prompts)

    @cached_property
    def attention(self) -> Array | None:
        """Mean attention of each head to the first token, shape (N, H), float64.

        None if it was not extracted, or the model is not causal.
        """
        if not self._reader.has_attention:
            return None
        return np.asarray(self._reader.attention(self.index), dtype=np.float64)

    @cached_property
    def curvature(self) -> Array:
        """Curvature of each prompt in radians, shape (N,); NaN where there is none."""
        self._refuse_absent("curvature", self._reader.has_curvature)
        return np.asarray(self._reader.curvature(*self._at), dtype=np.float64)

    @staticmethod
    def _refuse_absent(name: str, held: bool, setting: str = "") -> None:
        if not held:
            raise UndefinedMetricError(
                f"the data have no {name}, since they were extracted with "
                f"{setting or name}: false."
            )

    def _matrix(self, array: Floats, kept: Mask) -> Array:
        names = tuple(n for n, k in zip(self.prompts, kept, strict=True) if k)
        if not names:
            raise UndefinedMetricError("No prompt has a token that counts.")
        return check_matrix(array[kept], names)
