"""Gram matrices of a batch's token states, and their eigenvalues, all in float64.

On a GPU a batch is one call (`card`) in a separate thread and stream (`behind`), while the pass
goes on. On a CPU torch would decompose the matrices one by one on one core; we use all cores, and
numpy, which computes a symmetric product at half the cost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]
from torch import Tensor

from layerwise.activations import card, tridiagonal

log = logging.getLogger(__name__)

# Rows from which on one reduction beats two calls of numpy.
LARGE = 32

Array = npt.NDArray[Any]


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

    def products(part: Array) -> Array:
        wide = part.astype(np.float64)
        return np.asarray(wide @ wide.transpose(0, 2, 1))

    return _spread(products, states)


def eigenvalues(stacks: Sequence[Tensor], without_first: Sequence[bool]) -> list[list[Tensor]]:
    """Eigenvalues of symmetric matrices.

    Parameters
    ----------
    stacks : sequence of Tensor, each of shape (B, R, R), float64
        All in one call, which keeps all cores busy.
    without_first : sequence of bool
        True for stacks whose eigenvalues without their first row and column are wanted, too.

    Returns
    -------
    list of list of Tensor, each of shape (B, R), float64
        Of each stack: its eigenvalues and, if wanted, those without the first row and column, of
        shape (B, R - 1). Ascending; a row and column of zeros has an eigenvalue 0 (or of the size
        of rounding).
    """
    alike: dict[tuple[int, torch.device, bool], list[int]] = {}
    for k, (stack, also) in enumerate(zip(stacks, without_first, strict=True)):
        alike.setdefault((stack.shape[-1], stack.device, also), []).append(k)
    results: dict[int, list[Tensor]] = {}
    for (_, device, also), places in alike.items():
        for k in places:
            record(stacks[k])
        together = torch.cat([stacks[k] for k in places])
        found = _on_card(together, also) if _has_kernels(device) else on_cores(together, also)
        counts = [len(stacks[k]) for k in places]
        parts = zip(*(values.split(counts) for values in found), strict=True)  # type: ignore[no-untyped-call]
        results.update(zip(places, map(list, parts), strict=True))
    return [results[k] for k in range(len(stacks))]


@cache
def _has_kernels(device: torch.device) -> bool:
    if device.type == "cpu":
        return False
    if card.available():
        return True
    log.warning("this build of torch brings no cuda-bindings: the cores compute the spectra")
    return False


def _on_card(stack: Tensor, without_first: bool) -> list[Tensor]:
    try:
        values = card.eigenvalues(stack, without_first)
    except torch.OutOfMemoryError:
        where, count = stack.device, len(stack)
        log.warning("no room on %s for %d spectra: the cores compute them", where, count)
        return on_cores(stack, without_first)
    return values


def on_cores(stack: Tensor, without_first: bool = False) -> list[Tensor]:
    """Eigenvalues of a stack by the cores, wherever it lies; as `card.eigenvalues`."""
    here, n = stack.cpu(), stack.shape[-1]
    if not without_first:
        return [_spread(np.linalg.eigvalsh, here).to(stack.device)]
    both = _spread(tridiagonal.eigenvalues if n >= LARGE else _twice, here).to(stack.device)
    return [both[:, :n], both[:, n:]]


def _twice(matrices: Array) -> Array:
    """As `tridiagonal.eigenvalues`, faster for small matrices."""
    parts = [np.linalg.eigvalsh(matrices[:, k:, k:]) for k in range(2)]
    return np.concatenate(parts, axis=1)


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
        return _one_by_one().submit(torch.inference_mode()(work))
    given = torch.cuda.Event()  # type: ignore[no-untyped-call]
    given.record(torch.cuda.current_stream(device))

    # Inference mode, device and stream are per thread.
    @torch.inference_mode()
    def task() -> None:
        stream = _stream(device)
        with torch.cuda.device(device), torch.cuda.stream(stream):
            stream.wait_event(given)
            work()
            stream.synchronize()

    return _one_by_one().submit(task)


def record(tensor: Tensor) -> None:
    """Keep the memory of another stream's tensor until the current stream's work is done."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


@cache
def _one_by_one() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="behind")


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
