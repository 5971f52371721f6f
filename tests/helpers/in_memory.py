"""Arrays in memory, read by metrics like an activations file."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas import as_numpy
from layerwise.metrics.registry import Metric, all_metrics

Floats = npt.NDArray[Any]


class Arrays:
    """Arrays in memory, with the interface of an activations file.

    They are the same for every protocol and token selection; the layer is 0.

    Parameters
    ----------
    views : array, shape (V + 1, N, D) or (N, D)
        Pooled embeddings; entry 0 is the prompt itself, the others its augmented views.
    norms : array, shape (N, R), optional
        Norm of each token state, NaN beyond a prompt's tokens.
    first_token_attention : array, shape (N, H), optional
        Mean attention of each head to the first token.
    spectrum : array, shape (N, R), optional
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

    lacks: frozenset[str] = frozenset()

    def __init__(
        self,
        views: npt.ArrayLike,
        *,
        n_tokens: npt.ArrayLike | None = None,
        ends: Sequence[npt.ArrayLike] = ((), ()),
        prompts: Sequence[str] | None = None,
        **arrays: npt.ArrayLike,
    ) -> None:
        array = as_numpy(views)
        self._views = array[None] if array.ndim == 2 else array
        self.n_views, n, self.hidden = self._views.shape
        self._counts = np.ones((self.n_views, n)) if n_tokens is None else as_numpy(n_tokens)
        self.prompts = tuple(map(str, range(n)) if prompts is None else prompts)
        self.arrays = frozenset(arrays)
        self._arrays = {name: as_numpy(values) for name, values in arrays.items()}
        self.layers, self._ends = range(-1, 2), ends
        for name, values in {"views": self._views, **arrays}.items():
            found = as_numpy(values)
            setattr(self, name, lambda *_, found=found: found)

    def array(self, name: str, tokens: str, layer: int) -> Floats:
        """One of the arrays by its name in files."""
        return self._arrays[name]

    def pooled(self, protocol: str, tokens: str, layer: int, view: int = 0) -> Floats:
        """Pooled embeddings of one view, shape (N, D); layers -1 and 1 are the ends."""
        return as_numpy(self._ends[int(layer > 0)]) if layer else np.asarray(self._views[view])

    def n_tokens(self, protocol: str, tokens: str, layer: int, view: int = 0) -> Floats:
        """Number of tokens that count in each prompt, shape (N,)."""
        return np.asarray(self._counts[view])


def get(name: str) -> Metric:
    """The metric of that name."""
    return all_metrics()[name]
