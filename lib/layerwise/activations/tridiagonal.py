"""Eigenvalues of symmetric matrices with and without their first row and column, on the CPU.

LAPACK reduces a matrix to a tridiagonal one, and never mixes the first row into the others. So the
tridiagonal matrix without its first row and column has the eigenvalues of the matrix without them,
and one reduction serves both. We call LAPACK by scipy's C interface: its Python interface lets no
other thread run.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def eigenvalues(matrices: Array) -> Array:
    """Eigenvalues of symmetric matrices with and without their first row and column.

    Parameters
    ----------
    matrices : array, shape (B, R, R), float64

    Returns
    -------
    array, shape (B, 2 R - 1)
        R eigenvalues of each matrix, ascending, then the R - 1 without its first row and column.

    Raises
    ------
    numpy.linalg.LinAlgError
        If they do not converge.
    """
    reduce, solve = _routine("dsytrd", 10), _routine("dsterf", 4)
    count, n, _ = matrices.shape
    # Room for work: n times LAPACK's block size, at most 64.
    sizes = np.array([n, n - 1, 64 * n], np.intc)
    whole, smaller, room = _rows(sizes)
    reduced = np.array(matrices, order="C")
    values, off = (np.empty((count, 2 * n - 1)) for _ in range(2))
    failed = np.zeros((count, 3), np.intc)
    scratch = np.empty((2, 64 * n))
    scales, work = _rows(scratch)
    for a, d, e, info in zip(*map(_rows, (reduced, values, off, failed)), strict=True):
        reduce(b"L", whole, a, whole, d, e, scales, work, room, info)
    values[:, n:], off[:, n:] = values[:, 1:n], off[:, 1:n]
    for k, size in enumerate((whole, smaller)):
        parts = values[:, k * n :], off[:, k * n :], failed[:, k + 1 :]
        for d, e, info in zip(*map(_rows, parts), strict=True):
            solve(size, d, e, info)
    if failed.any():
        raise np.linalg.LinAlgError("Eigenvalues did not converge")
    return values


def _rows(array: Array) -> list[int]:
    """Addresses of an array's rows."""
    return [array.ctypes.data + k * array.strides[0] for k in range(len(array))]


@cache
def _routine(name: str, n_arguments: int) -> Any:
    """A routine of LAPACK, which takes addresses and lets other threads run."""
    from scipy.linalg import cython_lapack

    capsule = cython_lapack.__pyx_capi__[name]
    name_of = _of_python("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object)
    address_of = _of_python(
        "PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p
    )
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_arguments)
    return kind(address_of(capsule, name_of(capsule)))


def _of_python(name: str, *kinds: Any) -> Any:
    """A function of Python's C interface, from the types of its result and arguments."""
    return ctypes.PYFUNCTYPE(*kinds)((name, ctypes.pythonapi))
