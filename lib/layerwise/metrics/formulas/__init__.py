"""Formulas behind metrics: functions on arrays that are float64, finite and of the right shape."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError

Array: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]


class UndefinedMetricError(LayerwiseError):
    """The metric has no value on these data; the message says why.

    The tables leave such a row out and log the reason; in a notebook the sentence is raised.
    """

    code = "undefined"


def as_numpy(values: Any) -> npt.NDArray[Any]:
    """A numpy array from one, from nested lists, or from a torch tensor of any type."""
    # Tensors are known by what they can do: importing torch takes seconds.
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values)


def check_matrix(Z: npt.ArrayLike, names: tuple[str, ...] | None = None) -> Array:
    """`Z` as a float64 matrix of at least one row and column, all finite.

    Parameters
    ----------
    Z : array, shape (N, D)
    names : tuple of N str, optional
        What the rows are called in the error.

    Raises
    ------
    LayerwiseError
        If it is not a matrix, is empty, or a row has NaN or infinity: the message names the row.
    """
    matrix = as_numpy(Z).astype(np.float64, copy=False)
    if matrix.ndim != 2 or matrix.size == 0:
        raise LayerwiseError(
            f"A matrix with one vector a row is wanted, got an array of shape {matrix.shape}.",
            code="wrong_shape",
        )
    finite = np.atleast_1d(np.isfinite(matrix).all(axis=1))
    if not finite.all():
        row = int(np.argmin(finite))
        who = f"prompt {names[row]!r}" if names else f"row {row}"
        raise LayerwiseError(
            f"NaN or infinity in {who} ({int((~finite).sum())} of {len(finite)} rows have some); "
            "extract in float32, or leave the row out.",
            code="not_finite",
        )
    return matrix
