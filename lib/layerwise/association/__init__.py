"""Association of metrics with task scores over layers, and layer selection without labels.

Here are measures of association between two curves over the layers of a model, as plain arrays.
For tidy tables, `layerwise.association.table.associate` gives the association of each metric with
the scores, and `layerwise.association.selection.select_layers` the scores of the layers that
metrics select.

=========  ==================================================================================
r          partial correlation given depth: Pearson's, of residuals on polynomials of depth
slope      percentage points per standard deviation of the metric, given depth
dcor       distance correlation (Székely et al. 2007), in [0, 1]
spearman   rank correlation, in [-1, 1]
kendall    Kendall's tau-b, in [-1, 1]
=========  ==================================================================================

Any two smooth curves over the same layers are associated to some degree. One model therefore gives
a size and no p value. `null_level` is the size that unrelated curves reach.
docs/statistics.md has the share of unrelated curves beyond it.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import scipy
from filelock import FileLock
from scipy.fft import dct, idct

Floats = npt.NDArray[np.float64]

# Fewest layers of an association.
FEWEST_LAYERS = 4
# Layers that a quadratic in depth and a metric leave two degrees of freedom.
FEWEST_GIVEN_DEPTH = 6
GIVEN_DEPTH = ("r", "slope")
N_DRAWS = 2000
N_SIGNS = 199


def strengths(measure: str, x: Floats, y: Floats) -> Floats:
    """Association of k pairs of curves, shapes (k, n) to (k,); 0 where a curve is constant.

    Distance correlations are biased upwards for few points: two independent curves of 25 layers
    reach about 0.3.
    """
    return of_features(measure, features(measure, x), features(measure, y))


def of_features(measure: str, x: Floats, y: Floats) -> Floats:
    """Association of k pairs of curves from their `features`, shapes (k, m) to (k,)."""
    cosines = np.clip((unit(x) * unit(y)).sum(axis=1), -1.0, 1.0)
    return np.asarray(np.sqrt(cosines.clip(0.0)) if measure == "dcor" else cosines)


def features(measure: str, curves: Floats) -> Floats:
    """Values that an association correlates, shape (k, m), of k curves, shape (k, n).

    Residuals given depth, ranks, the signs of all differences of two layers, or distances between
    all layers (double-centred by dcor; Székely et al. 2007, definition 3).
    """
    if measure == "r":
        return residuals(curves)
    if measure == "spearman":
        ranks = scipy.stats.rankdata(curves, axis=1)
        return np.asarray(ranks - ranks.mean(axis=1, keepdims=True))
    if measure == "kendall":
        one, other = np.triu_indices(curves.shape[1], 1)
        return np.sign(curves[:, one] - curves[:, other])
    distances = np.abs(curves[:, :, None] - curves[:, None])
    return np.array([_dcor().double_centered(of_curve).ravel() for of_curve in distances])


@cache
def _dcor() -> ModuleType:
    """dcor, imported by one process at a time.

    Its first import compiles for half a minute and keeps the result beside the package. Where two
    processes compile at once, later ones are aborted (numba's issue 10128).
    """
    spec = find_spec("dcor")
    assert spec and spec.origin
    folder = Path(spec.origin).parent
    if not os.access(folder, os.W_OK):
        folder = Path(tempfile.gettempdir())
    with FileLock(folder / "import.lock", mode=0o666):
        return import_module("dcor")


def slopes(metric: Floats, scores: Floats) -> Floats:
    """Change of each score per standard deviation of the metric, given depth.

    The regression of scores on polynomials of depth and the metric.

    Parameters
    ----------
    metric : array, shape (n,) or (t, n)
    scores : array, shape (t, n)

    Returns
    -------
    array, shape (t,)
        In units of the scores; 0 for a metric that is a polynomial of depth.
    """
    x = unit(residuals(np.atleast_2d(metric)))
    freedom = np.subtract(*_polynomials(x.shape[1]).shape)
    return np.asarray((residuals(scores) * x).sum(axis=1) / np.sqrt(freedom))


def residuals(curves: Floats) -> Floats:
    """Curves minus their regression on polynomials of depth, shape (k, n); 0 if only rounding."""
    basis = _polynomials(curves.shape[1])
    rest = curves - (curves @ basis) @ basis.T
    size, length = (np.linalg.norm(c, axis=1, keepdims=True) for c in (rest, curves))
    return np.asarray(np.where(size > 1e-10 * length, rest, 0))


def null_level(measure: str, x: Floats, y: Floats) -> float:
    """The absolute strength that 95% of curves unrelated to x, and as smooth as y, stay below.

    Such curves have the spectrum of y: its cosine coefficients with random signs, for ``r`` those
    of its residuals. For ``dcor``, both curves are random walks. The level is a reference for the
    eye and not a test.

    Parameters
    ----------
    x, y : array, shape (1, n)

    Returns
    -------
    float
        NaN for fewer layers than the measure needs.
    """
    n_layers = x.shape[1]
    if n_layers < (FEWEST_GIVEN_DEPTH if measure in GIVEN_DEPTH else FEWEST_LAYERS):
        return float("nan")
    if measure == "dcor":
        return _level_of_walks(n_layers)
    curve = residuals(y) if measure == "r" else y
    null = idct(_signs(n_layers) * dct(curve, norm="ortho"), norm="ortho")
    return float(np.quantile(np.abs(strengths(measure, x, null)), 0.95))


@lru_cache(maxsize=256)
def _level_of_walks(n_layers: int) -> float:
    """Distance correlation that 95% of pairs of random walks stay below."""
    x, y = np.cumsum(np.random.default_rng(0).normal(size=(2, N_DRAWS, n_layers)), axis=2)
    return float(np.quantile(strengths("dcor", x, y), 0.95))


@lru_cache(maxsize=256)
def _signs(n_layers: int) -> Floats:
    """Random signs, shape (N_SIGNS, n_layers)."""
    return np.random.default_rng(0).choice([-1.0, 1.0], size=(N_SIGNS, n_layers))


@lru_cache(maxsize=256)
def _polynomials(n_layers: int) -> Floats:
    """Orthonormal polynomials of depth, quadratic or (from 12 layers) cubic; a row per layer."""
    degree = 2 if n_layers < 12 else 3
    depth = np.linspace(-1.0, 1.0, n_layers)
    return np.asarray(np.linalg.qr(np.vander(depth, degree + 1, increasing=True))[0])


def unit(curves: Floats, least: float = 0.0) -> Floats:
    """Curves scaled to unit length; 0 where they are not longer than `least`."""
    size = np.linalg.norm(curves, axis=-1, keepdims=True)
    return np.asarray(np.divide(curves, size, out=np.zeros_like(curves), where=size > least))
