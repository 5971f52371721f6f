"""Hashes of a model's weights."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from layerwise.errors import LayerwiseError

if TYPE_CHECKING:
    from torch import nn


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over all parameters and buffers: names, shapes, types, bytes.

    Raises
    ------
    LayerwiseError
        If some of them found no room on the devices.
    """
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.is_meta:
            raise LayerwiseError(
                f"{type(model).__name__} does not fit into the memory of the visible GPUs "
                f"together ({name} was left over); use more of them, or a smaller dtype."
            )
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(flat.numpy().data)
    return digest.hexdigest()


def likeness(one: Sequence[float], other: Sequence[float]) -> float:
    """Cosine of two samples of `sample_of`, in [-1, 1]; 0 where they are of different lengths.

    The same embeddings in half precision or quantised to four bits have 0.99 and more, those of
    another model about 0.
    """
    if len(one) != len(other) or not one:
        return 0.0
    product = sum(a * b for a, b in zip(one, other, strict=True))
    norms = math.sqrt(sum(a * a for a in one) * sum(b * b for b in other))
    return product / norms if norms else 0.0


def sample_of(model: nn.Module, n: int = 128) -> list[float]:
    """Some of a model's token embeddings, at places that depend on their shape alone.

    They tell a model in whatever dtype, file or number of blocks, where `weights_hash` tells
    equal bytes; so do they a model and what was tuned from it.

    Returns
    -------
    list of n floats; empty for a model without token embeddings
    """
    try:
        table: Any = model.get_input_embeddings()  # type: ignore[operator]
        weight = table.weight
    except (AttributeError, NotImplementedError):
        return []
    if weight.ndim != 2:
        return []
    rows, columns = weight.shape
    # Primes, so that no row or column comes twice before most have come once. Rows beyond the
    # first thousands may be pads of the vocabulary, of which files have different numbers.
    places = [((17 + 37 * k) % min(rows, 8192), (131 * k) % columns) for k in range(n)]
    found = weight[[row for row, _ in places], [column for _, column in places]]
    return [float(value) for value in found.detach().float().cpu()]
