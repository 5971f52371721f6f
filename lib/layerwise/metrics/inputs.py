"""What a metric sees of one layer: the arrays of one protocol and one choice of tokens.

Arrays are read when first asked for and only then, since most metrics need few of them. Prompts
of which no token counts under the choice (a one-token prompt, ``drop_first``) are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from layerwise.metrics.registry import Array, UndefinedMetricError
from layerwise.metrics.settings import Settings
from layerwise.metrics.spectra import SampleSpectrum, centred, check_matrix

if TYPE_CHECKING:
    from layerwise.activations.layout import Activations

Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
T = TypeVar("T")


def _missing(name: str, remedy: str = "") -> Callable[[], Array]:
    def read() -> Array:
        raise UndefinedMetricError(f"the data at hand have no {name}{remedy}.")

    return read


@dataclass
class Source:
    """Where the arrays of a layer come from: one function each, called at most once.

    Attributes
    ----------
    views : from nothing to an array, shape (V + 1, N, D); entry 0 is the prompt itself
    spectra : shape (N, R); eigenvalues of each prompt's token Gram matrix, zero-padded
    curvature : shape (N,); in radians, NaN where a prompt has none
    view : from an index to the pooled embeddings of that view, shape (N, D)
    first, last : shape (N, D); pooled embeddings of the first and the last layer
    """

    view: Callable[[int], Array]
    views: Callable[[], Array] = field(default_factory=lambda: _missing("augmented views"))
    spectra: Callable[[], Array] = field(default_factory=lambda: _missing("spectra"))
    curvature: Callable[[], Array] = field(default_factory=lambda: _missing("curvature"))
    first: Callable[[], Array] = field(default_factory=lambda: _missing("first layer"))
    last: Callable[[], Array] = field(default_factory=lambda: _missing("last layer"))


@dataclass
class LayerInputs:
    """The inputs of every metric for one layer, protocol and choice of tokens.

    Attributes
    ----------
    protocol : str
        ``paper`` or ``reference``.
    settings : Settings
    names : tuple of N str
        The prompts' ids.
    counts : array, shape (V + 1, N)
        Tokens that count, of each view of each prompt.
    n_hidden : int
        D.
    """

    protocol: str
    settings: Settings
    names: tuple[str, ...]
    counts: Counts
    n_hidden: int
    source: Source
    _memo: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_views(
        cls, views: npt.ArrayLike, settings: Settings | None = None, protocol: str = "paper"
    ) -> LayerInputs:
        """From pooled embeddings alone, for a notebook: shape (V + 1, N, D) or (N, D)."""
        array = np.asarray(views, dtype=np.float64)
        array = array[None] if array.ndim == 2 else array
        n_views, n, hidden = array.shape
        return cls(
            protocol,
            settings or Settings(),
            tuple(map(str, range(n))),
            np.ones((n_views, n), dtype=np.int64),
            hidden,
            Source(view=lambda v: np.asarray(array[v]), views=lambda: array),
        )

    @property
    def n_views(self) -> int:
        """Number V of augmented views."""
        return len(self.counts) - 1

    def subset(self, prompts: npt.NDArray[np.int64]) -> LayerInputs:
        """The same layer, of some prompts only (indices)."""
        chosen = np.arange(len(self.names))[prompts]
        source = replace(
            self.source,
            view=lambda v: self.source.view(v)[chosen],
            views=lambda: self.source.views()[:, chosen],
            spectra=lambda: self.source.spectra()[chosen],
            curvature=lambda: self.source.curvature()[chosen],
            first=lambda: self.source.first()[chosen],
            last=lambda: self.source.last()[chosen],
        )
        return replace(
            self,
            names=tuple(self.names[i] for i in chosen),
            counts=self.counts[:, chosen],
            source=source,
            _memo={},
        )

    def once(self, what: str, make: Callable[[], T]) -> T:
        """The result of `make`, kept under a name for metrics that share it."""
        if what not in self._memo:
            self._memo[what] = make()
        made: T = self._memo[what]
        return made

    @cached_property
    def kept(self) -> Mask:
        """Prompts of which some token counts, shape (N,)."""
        return np.asarray(self.counts[0] > 0)

    @cached_property
    def kept_in_views(self) -> Mask:
        """Prompts of which some token counts in every view, shape (N,)."""
        return np.asarray((self.counts > 0).all(axis=0))

    @cached_property
    def n_tokens(self) -> Counts:
        """Tokens that count, of each prompt, shape (N,)."""
        return np.asarray(self.counts[0])

    @cached_property
    def pooled(self) -> Array:
        """Pooled embeddings of the prompts, shape (M, D), float64; M prompts are kept."""
        return self._matrix(self.source.view(0), self.kept)

    @cached_property
    def first(self) -> Array:
        """Pooled embeddings of the first layer, the same prompts as `pooled`."""
        return self._matrix(self.source.first(), self.kept)

    @cached_property
    def last(self) -> Array:
        """Pooled embeddings of the last layer, the same prompts as `pooled`."""
        return self._matrix(self.source.last(), self.kept)

    @cached_property
    def pair(self) -> tuple[Array, Array]:
        """Two views of the prompts, each of shape (M, D).

        The first two augmented views with the setting ``pair: augmented``, as the paper has it;
        the prompt and its first augmented view with ``original``, and where there is only one.
        """
        a, b = self.pair_views
        kept = self.kept_in_pair
        return self._matrix(self.source.view(a), kept), self._matrix(self.source.view(b), kept)

    @property
    def pair_views(self) -> tuple[int, int]:
        """Which two views `pair` holds; 0 is the prompt itself."""
        return (1, 2) if self.settings.pair == "augmented" and self.n_views >= 2 else (0, 1)

    @cached_property
    def kept_in_pair(self) -> Mask:
        """Prompts of which some token counts in both views of `pair`, shape (N,)."""
        return np.asarray((self.counts[list(self.pair_views)] > 0).all(axis=0))

    @cached_property
    def views(self) -> npt.NDArray[np.floating]:
        """The augmented views, shape (V, M, D), in the precision they are stored in."""
        views = self.source.views()[1:]
        if not self.kept_in_views.all():
            views = views[:, self.kept_in_views]
        for view in views:
            check_matrix(view, self.names)
        return np.asarray(views)

    @cached_property
    def spectra(self) -> Array:
        """Eigenvalues of each prompt's token Gram matrix, shape (N, R), float64."""
        return check_matrix(self.source.spectra(), self.names)

    @cached_property
    def curvature(self) -> Array:
        """Curvature of each prompt in radians, shape (N,); NaN where there is none."""
        return np.asarray(self.source.curvature(), dtype=np.float64)

    @cached_property
    def pooled_spectrum(self) -> SampleSpectrum:
        """Spectrum of the pooled embeddings as they are."""
        return SampleSpectrum.of(self.pooled)

    @cached_property
    def covariance_spectrum(self) -> SampleSpectrum:
        """Spectrum of the centred pooled embeddings: N times their covariance."""
        return SampleSpectrum.of(centred(self.pooled))

    def _matrix(self, array: Array, kept: Mask) -> Array:
        names = tuple(n for n, k in zip(self.names, kept, strict=True) if k)
        if not names:
            raise UndefinedMetricError("No prompt has a token that counts.")
        return check_matrix(array[kept], names)


def from_file(
    activations: Activations,
    protocol: str,
    tokens: str,
    layer: int,
    settings: Settings,
    ends: tuple[Callable[[], Array], Callable[[], Array]],
) -> LayerInputs:
    """The inputs of one layer of an activations file; nothing is read before it is needed.

    Of a file extracted without spectra or curvature, the metrics that need them are not defined.
    """

    def spectra() -> Array:
        return activations.spectrum(protocol, tokens, layer)

    def curvature() -> Array:
        return activations.curvature(protocol, tokens, layer)

    def absent(name: str) -> Callable[[], Array]:
        return _missing(name, f", since they were extracted with {name}: false")

    counts = np.stack(
        [activations.n_tokens(tokens, layer, view) for view in range(activations.n_views)]
    )
    return LayerInputs(
        protocol,
        settings,
        activations.prompts,
        counts.astype(np.int64),
        activations.hidden,
        Source(
            view=lambda v: activations.pooled(protocol, tokens, layer, v),
            views=lambda: activations.views(protocol, tokens, layer),
            spectra=spectra if activations.has_spectra else absent("spectra"),
            curvature=curvature if activations.has_curvature else absent("curvature"),
            first=ends[0],
            last=ends[1],
        ),
    )
