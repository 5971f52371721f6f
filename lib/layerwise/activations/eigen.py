"""Gram matrices of a batch's token states, their eigenvalues and curvature, all in float64.

Curvature is the mean angle between successive steps ``v_k = z_{k+1} - z_k`` of a prompt's path
through the states (Hosseini & Fedorenko 2023), or, in the released code, through the centred
states of unit length. The angles follow from inner products of tokens that are at most two apart.

On a GPU a batch is one call (`card`) in a separate thread and stream (`behind`), while the pass
goes on. On a CPU torch would decompose the matrices one by one on one core; we use all cores, and
numpy, which computes a symmetric product at half the cost.

Eigenvalues of a batch of symmetric matrices on an NVIDIA GPU, by kernels of our own.

cuSOLVER takes matrices of more than 32 rows one after another through torch, a millisecond each;
`symmetric.cu` gives each a block of threads. It is compiled when first used, by the compiler and
the bindings that torch's builds for CUDA bring along.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]
from torch import Tensor

from layerwise.errors import LayerwiseError

log = logging.getLogger(__name__)

# A relative difference of states below this is float32 rounding and has no direction. After the 30
# layers of SmolLM2, rounding is up to 1e-5 for a repeated token; tokens of a text differ by 0.4 or
# more.
ROUNDING = 1e-4

Array = npt.NDArray[Any]

# Works on what a device was given so far, one piece after another.
BEHIND = ThreadPoolExecutor(1, thread_name_prefix="behind")


def gram(states: Tensor) -> Tensor:
    """``Z Zᵀ`` of each prompt.

    Parameters
    ----------
    states : Tensor, shape (B, T, D)
        Zero where a pad stands.

    Returns
    -------
    Tensor, shape (B, T, T), float64
        Zero where a pad takes part.
    """
    if states.device.type != "cpu" or len(states) < torch.get_num_threads():
        wide = states.double()
        return wide @ wide.transpose(1, 2)

    def products(some: Array) -> Array:
        wide = some.astype(np.float64)
        return np.asarray(wide @ wide.transpose(0, 2, 1))

    return _spread(products, states)


def eigenvalues(matrices: Tensor, without_first: bool = False) -> list[Tensor]:
    """Eigenvalues of symmetric matrices, which may be overwritten.

    Parameters
    ----------
    matrices : Tensor, shape (B, R, R), float64
        Many in one call keep all cores busy.
    without_first : bool
        True to add those of the matrices without their first row and column.

    Returns
    -------
    list of Tensor, shapes (B, R) and (B, R - 1), float64
        Ascending; a row and column of zeros has an eigenvalue 0 (or of the size of rounding).
    """
    compute = eigenvalues_on_card if _has_kernels(matrices.device) else on_cores
    return compute(matrices, without_first)


@cache
def _has_kernels(device: torch.device) -> bool:
    if device.type == "cpu":
        return False
    if available():
        return True
    log.warning("this build of torch brings no cuda-bindings: the cores compute the spectra")
    return False


def on_cores(stack: Tensor, without_first: bool = False) -> list[Tensor]:
    """Eigenvalues of a stack by the cores, wherever it lies; as `eigenvalues_on_card`."""
    work = with_and_without_first if without_first else np.linalg.eigvalsh
    n = stack.shape[-1]
    values = _spread(work, stack.cpu()).to(stack.device)
    return [values[:, :n], values[:, n:]] if without_first else [values]


def behind(work: Callable[[], None], device: torch.device) -> Future[None]:
    """Do work on what a device was given so far, while the device is given more.

    Parameters
    ----------
    work : callable
        Must hold on to the tensors that it reads until the device has read them, or `record` them.
        Done in the order of the calls.

    Returns
    -------
    Future
        Done when the device is.
    """
    if device.type != "cuda":
        return BEHIND.submit(torch.inference_mode()(work))
    so_far = torch.cuda.Event()  # type: ignore[no-untyped-call]
    so_far.record(torch.cuda.current_stream(device))

    # Inference mode, device and stream are per thread.
    @torch.inference_mode()
    def task() -> None:
        stream = _stream(device)
        with torch.cuda.device(device), torch.cuda.stream(stream):
            stream.wait_event(so_far)
            work()
            stream.synchronize()

    return BEHIND.submit(task)


def to_host(tensors: Sequence[Tensor]) -> Callable[[], list[Array]]:
    """Start to copy tensors to the host's memory, those of a GPU to pinned memory.

    Returns
    -------
    callable
        Waits for the copies, and gives them.
    """
    copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    copied = [torch.cuda.current_stream(device).record_event() for device in devices]

    def arrays() -> list[Array]:
        for event in copied:
            event.synchronize()
        return [copy.numpy() for copy in copies]

    return arrays


def record(tensor: Tensor) -> None:
    """Keep the memory of another stream's tensor until the current stream's work is done."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _spread(work: Callable[[Array], Array], stack: Tensor) -> Tensor:
    """Do `work` on as many parts of a stack as torch has threads.

    Each has one BLAS thread: the BLAS library's own threads would go on spinning for a while and
    slow the forward pass down by half.
    """
    # Stacks, not matrix by matrix: numpy lets other threads run only during longer calls.
    parts = np.array_split(stack.numpy(), max(1, min(torch.get_num_threads(), len(stack))))
    with _blas().limit(limits=1):
        others = [_pool(len(parts) - 1).submit(work, part) for part in parts[1:]]
        first = work(parts[0])
        done = np.concatenate([first, *(o.result() for o in others)]) if others else first
        return torch.from_numpy(done)


@cache
def _blas() -> ThreadpoolController:
    # Scipy has a BLAS library of its own, and only those that are loaded are limited.
    import scipy.linalg.blas  # noqa: F401

    return ThreadpoolController().select(user_api="blas")


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="eigen")


def with_and_without_first(matrices: Array) -> Array:
    """Eigenvalues of symmetric matrices with and without their first row and column, on the CPU.

    LAPACK reduces a matrix to a tridiagonal one, and never mixes the first row into the others. So
    the tridiagonal matrix without its first row and column has the eigenvalues of the matrix
    without them, and one reduction serves both. We call LAPACK by scipy's C interface: its Python
    interface lets no other thread run. Two reductions make an extraction of a small model with and
    without the first token take 14% longer, and of SmolLM2 7% (`benchmarks/bench_extract.py`).

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
    whole, smaller, room = _addresses(sizes)
    reduced = np.array(matrices, order="C")
    values, off = (np.empty((count, 2 * n - 1)) for _ in range(2))
    failed = np.zeros((count, 3), np.intc)
    scratch = np.empty((2, 64 * n))
    scales, work = _addresses(scratch)
    for a, d, e, info in zip(*map(_addresses, (reduced, values, off, failed)), strict=True):
        reduce(b"L", whole, a, whole, d, e, scales, work, room, info)
    values[:, n:], off[:, n:] = values[:, 1:n], off[:, 1:n]
    for k, size in enumerate((whole, smaller)):
        parts = values[:, k * n :], off[:, k * n :], failed[:, k + 1 :]
        for d, e, info in zip(*map(_addresses, parts), strict=True):
            solve(size, d, e, info)
    if failed.any():
        raise np.linalg.LinAlgError("Eigenvalues did not converge")
    return values


def _addresses(array: Array) -> list[int]:
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


def token_products(states: Tensor) -> list[Tensor]:
    """Inner products of tokens 0, 1 and 2 apart, in float64.

    Parameters
    ----------
    states : Tensor, shape (B, T, D)

    Returns
    -------
    list of Tensor, shapes (B, T), (B, T - 1), (B, T - 2)
        The first three diagonals of the token Gram matrix.
    """
    wide = states.double()
    length = wide.shape[1]
    return [torch.linalg.vecdot(wide[:, k:], wide[:, : max(0, length - k)]) for k in range(3)]


def diagonals(gram: Tensor) -> list[Tensor]:
    """The same inner products as views of the Gram matrix, shape (B, T, T)."""
    return [torch.diagonal(gram, k, 1, 2) for k in range(3)]


def curvature(
    products: Sequence[Tensor], lengths: Tensor, rounding: Tensor | None = None
) -> Tensor:
    """Curvature from `token_products`: as the paper prints it, or as the released code has it.

    The released code takes centred unit rows and the *absolute* cosine. Next to a zero step its
    angle is 0, and so is the curvature of one or two tokens.

    Parameters
    ----------
    products : sequence of Tensor
        In the released code, of centred states of unit norm; 0 for those without a direction.
    lengths : Tensor, shape (B,)
    rounding : Tensor, shape (B, T), optional
        Given for the released code's: squared differences of each row below this are rounding.

    Returns
    -------
    Tensor, shape (B,), float64
        Radians. NaN for a prompt without two successive steps that have a direction; in the
        released code, 0 to π/2, NaN for a prompt without tokens.
    """
    squares, beside, apart = products
    floor = squares * ROUNDING**2 if rounding is None else rounding
    steps = squares[:, :-1] + squares[:, 1:] - 2 * beside
    moves = steps > torch.maximum(floor[:, :-1], floor[:, 1:])
    dots = beside[:, 1:] + beside[:, :-1] - squares[:, 1:-1] - apart
    positions = torch.arange(dots.shape[1], device=dots.device)
    is_defined = (positions < lengths[:, None] - 2) & moves[:, 1:] & moves[:, :-1]
    cosine = dots / (steps[:, 1:] * steps[:, :-1]).sqrt()
    if rounding is not None:
        cosine = cosine.abs()
    total = cosine.clamp(-1, 1).arccos().masked_fill(~is_defined, 0).sum(dim=1)
    if rounding is None:
        return total / is_defined.sum(dim=1)
    return (total / (lengths - 2).clamp(min=1)).masked_fill(lengths == 0, torch.nan)


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


def eigenvalues_on_card(matrices: Tensor, without_first: bool = False) -> list[Tensor]:
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
