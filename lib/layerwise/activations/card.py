"""Eigenvalues of a batch of symmetric matrices on an NVIDIA GPU, by kernels of our own.

cuSOLVER takes matrices of more than 32 rows one after another through torch, a millisecond each;
`symmetric.cu` gives each a block of threads. It is compiled when first used, by the compiler and
the bindings that torch's builds for CUDA bring along.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from layerwise.errors import LayerwiseError

# Of 64 to 400 rows the best of 4 to 32 warps (32 threads each) and 2 to 8 columns, or near it.
WARPS = 16  # of each matrix, at most
COLUMNS = 2  # that a thread holds at once


@cache
def available() -> bool:
    """True if CUDA kernels can be compiled and started."""
    try:
        from cuda.bindings import driver, nvrtc  # noqa: F401
    except ImportError:
        return False
    return True


def eigenvalues(matrices: Tensor, without_first: bool = False) -> list[Tensor]:
    """Eigenvalues of symmetric matrices, which may be overwritten.

    Parameters
    ----------
    matrices : Tensor, shape (B, R, R), float64, contiguous, on a CUDA device
    without_first : bool
        True to add those of the matrices without their first row and column.

    Returns
    -------
    list of Tensor, shapes (B, R) and (B, R - 1), float64
        Ascending; the error is of the size of rounding the largest.

    Raises
    ------
    torch.OutOfMemoryError
        If there is no room for the results.
    LayerwiseError
        If the kernels do not compile or start.
    """
    count, rank, _ = matrices.shape
    diagonal, off = matrices.new_empty(2, count, rank)
    results = [matrices.new_empty(count, rank - first) for first in range(1 + without_first)]
    if not diagonal.numel():
        return results
    kernels = _kernels(matrices.device.index)
    block = block_of(rank, kernels.shared_bytes)
    if block is None:
        # A matrix of thousands of rows keeps the GPU busy by itself.
        return [torch.linalg.eigvalsh(matrices[:, k:, k:]) for k in range(len(results))]
    shape = count, block.warps * 32, block.shared_bytes
    in_shared = int(block.in_shared)
    kernels.start(kernels.tridiagonalise, shape, matrices, diagonal, off, rank, in_shared)
    threads = min(256, -(-rank // 32) * 32)
    for first, values in enumerate(results):
        size = rank - first
        if size:
            tridiagonal = diagonal[:, first:], off[:, first:]
            shape = count, threads, 2 * size * 8
            kernels.start(kernels.bisect, shape, *tridiagonal, values, size, rank)
    return results


@dataclass(frozen=True)
class Block:
    """The threads of one matrix, and what they share."""

    warps: int
    in_shared: bool  # whether the matrix is in shared memory too
    shared_bytes: int


def block_of(rank: int, room: int) -> Block | None:
    """Block for a matrix of `rank` rows, if a block may share `room` bytes.

    It has as many warps as fit with their partial sums and four vectors; None if not one fits.
    """
    warps = WARPS
    while (vectors := (warps + 4) * rank * 8) > room:
        warps //= 2
        if not warps:
            return None
    whole = vectors + rank * rank * 8
    in_shared = warps == WARPS and whole <= room
    return Block(warps, in_shared, whole if in_shared else vectors)


@dataclass(frozen=True)
class _Kernels:
    """The kernels on one device."""

    context: Any
    tridiagonalise: Any
    bisect: Any
    shared_bytes: int  # that a block may have

    def start(self, kernel: Any, shape: tuple[int, int, int], first: Tensor, *others: Any) -> None:
        """Start a kernel on the current stream of its first argument's device.

        Parameters
        ----------
        shape : (int, int, int)
            Blocks, threads of each, and bytes that these share.
        """
        from cuda.bindings import driver

        # A new thread has no context yet.
        _check(driver.cuCtxSetCurrent(self.context))
        blocks, threads, shared = shape
        stream = torch.cuda.current_stream(first.device).cuda_stream
        typed = [
            (v.data_ptr(), ctypes.c_void_p) if isinstance(v, Tensor) else (v, ctypes.c_int)
            for v in (first, *others)
        ]
        arguments = tuple(zip(*typed, strict=True))
        grid = blocks, 1, 1, threads, 1, 1
        _check(driver.cuLaunchKernel(kernel, *grid, shared, stream, arguments, 0))


@cache
def _kernels(device: int) -> _Kernels:
    from cuda.bindings import driver, nvrtc

    major, minor = torch.cuda.get_device_capability(device)
    source = files("layerwise.activations").joinpath("symmetric.cu").read_bytes()
    program = _check(nvrtc.nvrtcCreateProgram(source, b"symmetric.cu", 0, [], []))
    options = [f"--gpu-architecture=sm_{major}{minor}".encode(), b"-DCOLUMNS=%d" % COLUMNS]
    _check(nvrtc.nvrtcCompileProgram(program, len(options), options))
    code = bytes(_check(nvrtc.nvrtcGetCUBINSize(program)))
    _check(nvrtc.nvrtcGetCUBIN(program, code))
    context = _check(driver.cuDevicePrimaryCtxRetain(driver.CUdevice(device)))
    _check(driver.cuCtxSetCurrent(context))
    module = _check(driver.cuModuleLoadData(code))
    tridiagonalise = _check(driver.cuModuleGetFunction(module, b"tridiagonalise"))
    bisect = _check(driver.cuModuleGetFunction(module, b"bisect"))
    room = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    most = _check(driver.cuDeviceGetAttribute(room, driver.CUdevice(device)))
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    for kernel in (tridiagonalise, bisect):
        _check(driver.cuFuncSetAttribute(kernel, attribute, most))
    return _Kernels(context, tridiagonalise, bisect, most)


def _check(answer: tuple[Any, ...]) -> Any:
    """The result of a call, without its error code."""
    error, *rest = answer
    if int(error) != 0:
        raise LayerwiseError(
            f"The GPU refused the kernels for spectra: {error!r}.", code="unsupported"
        )
    return rest[0] if rest else None
