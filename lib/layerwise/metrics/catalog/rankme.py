"""RankMe: the effective rank of the prompts' embeddings."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas import uncertainty
from layerwise.metrics.formulas.arrays import Array, UndefinedMetricError, check_matrix
from layerwise.metrics.formulas.entropy import effective_ranks
from layerwise.metrics.formulas.spectra import SampleSpectrum
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, metric


def rankme(X: npt.ArrayLike) -> float:
    """``exp(H(σ / Σσ))`` over the singular values σ of pooled embeddings (Garrido et al. 2023).

    Without the 1e-7 that they add to each share.

    Parameters
    ----------
    X : array, shape (N, D)
        Pooled embeddings of N prompts. Computed in float64.

    Returns
    -------
    float
        1 to min(N, D).

    Raises
    ------
    UndefinedMetricError
        If every embedding is zero.

    Examples
    --------
    >>> round(rankme(np.eye(5)), 6)
    5.0
    """
    return _of_spectrum(SampleSpectrum.of(check_matrix(X)))


def _of_spectrum(spectrum: SampleSpectrum) -> float:
    if not spectrum.values.any():
        raise UndefinedMetricError("Every pooled embedding is zero.")
    return float(effective_ranks(spectrum.values))


@metric(
    name="rankme",
    label="RankMe",
    unit="",
    direction=1,
    range="1 to min(N, D)",
    source="Garrido et al. 2023; Roy & Vetterli 2007",
    inputs=("pooled",),
    function=rankme,
    min_prompts=2,
    note="Without the 1e-7 that Garrido et al. add to each share.",
)
def compute(layer: Layer) -> Iterator[Overall]:
    """``exp(H(σ / Σσ))`` over the singular values of the N x D pooled embeddings."""
    spectrum = layer.pooled_spectrum
    value = _of_spectrum(spectrum)
    stderr = uncertainty.from_leave_one_out(without_each(spectrum))
    yield Overall(value, stderr, len(layer.pooled))


def without_each(spectrum: SampleSpectrum) -> Array:
    """RankMe with one row left out each, all of one decomposition, shape (N,).

    A derivative by weights would not do: where N < D each prompt brings a singular value of its
    own, and half of the error is in those jumps. Instead, with Σσ and Σσ log σ written as
    integrals over the resolvent,

        λ^½ = 1/π ∫ e^{x/2} λ / (λ + e^x) dx,   λ^½ log λ = 1/π ∫ x e^{x/2} λ / (λ + e^x) dx,

    (the second is the first's derivative by the exponent), what row n takes with it follows from
    the block inverse: ``tr K(K+t)⁻¹`` falls by ``[K(K+t)⁻²]_nn / [(K+t)⁻¹]_nn``. The trapezoidal
    rule in x is exact to 1e-8 at a step of 1 (the integrands are analytic within ±π).

    Returns
    -------
    array, shape (N,)
        NaN where nothing but zeros is left.
    """
    top = spectrum.values[0]
    values = spectrum.values[spectrum.values > 0] / top
    shares = spectrum.energy[:, : len(values)] / (top * values)
    x = np.arange(-44.0, 34.0)
    t = np.exp(x)
    inverse = 1 / (values[:, None] + t)
    outside = np.maximum(1 - shares.sum(axis=1), 0.0)[:, None] / t
    falls = shares @ (values[:, None] * inverse**2) / (shares @ inverse + outside)
    sigma = np.sqrt(values)
    total = sigma.sum() - falls @ np.sqrt(t) / math.pi
    logs = 2 * (sigma * np.log(sigma)).sum() - falls @ (x * np.sqrt(t)) / math.pi
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.exp(np.log(total) - logs / total / 2))
