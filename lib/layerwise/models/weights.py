"""What a model's weights are, as a hash and by a sample, and whether they are whole."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
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


# What follows goes by transformers' loading info. transformers fills what it does not find with
# random numbers and leaves aside what it has no place for, with a warning at most: a file that
# has lost a tensor would give values that look like any other.


def misfits(found: Mapping[str, Any]) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Tensors of another shape than the config asks for: name, their shape, the config's."""
    return sorted(
        (name, tuple(came), tuple(wanted))
        for name, came, wanted in found.get("mismatched_keys") or ()
    )


def missing(found: Mapping[str, Any], *, encoder_alone: bool) -> list[str]:
    """Tensors that the model has and its files lack.

    Parameters
    ----------
    encoder_alone : bool
        Whether the decoder is left aside, which checkpoints of encoders don't have.
    """
    apart = ("decoder.",) if encoder_alone else ()
    return sorted(
        name
        for name in found.get("missing_keys") or ()
        # Nothing is read off poolers; language models of BERT's kind come without one.
        if "pooler" not in name and not name.startswith(apart)
    )


def beyond(found: Mapping[str, Any], path: str, blocks: int) -> list[str]:
    """Tensors of blocks that the files have and the model, of so many `blocks`, does not.

    Others may well be left over: a head, or buffers of an older transformers.
    """
    place = re.compile(rf"(?:^|\.){re.escape(path)}\.(\d+)\.")
    return sorted(
        name
        for name in found.get("unexpected_keys") or ()
        if (match := place.search(name)) and int(match[1]) >= blocks
    )


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
