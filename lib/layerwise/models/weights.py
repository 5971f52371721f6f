"""What a model's weights are, as a hash; and which checkpoints of a sweep have the same ones.

Pythia's step0 and step1 are equal on the hub, and more of its branches were wrong over time: two
revisions with one hash are one model, whatever they are called.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

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


@dataclass(frozen=True)
class Checkpoint:
    """The weights that a file was made with."""

    model: str
    revision: str
    dtype: str
    sha256: str


def checkpoint_of(path: Path) -> Checkpoint:
    """What a file of activations or embeddings says of the weights it was made with.

    Raises
    ------
    LayerwiseError
        If it is not such a file.
    """
    import h5py

    try:
        with h5py.File(path) as file:
            attributes = dict(file.attrs)
        return Checkpoint(
            *(str(attributes[k]) for k in ("model", "revision", "dtype", "weights_sha256"))
        )
    except (OSError, KeyError) as error:
        raise LayerwiseError(
            f"{path} does not say which weights it was made with ({error}); delete it and run "
            "snakemake again."
        ) from error


def same_weights(checkpoints: Iterable[Checkpoint]) -> list[Sequence[Checkpoint]]:
    """Groups of two or more different revisions of one model whose weights are equal.

    Revisions stand in the order they came in; so do the groups.
    """
    distinct = list(dict.fromkeys(checkpoints))
    order = {checkpoint: place for place, checkpoint in enumerate(distinct)}

    def weights(checkpoint: Checkpoint) -> tuple[str, str, str]:
        return checkpoint.model, checkpoint.dtype, checkpoint.sha256

    groups = [tuple(g) for _, g in groupby(sorted(distinct, key=weights), key=weights)]
    return sorted((g for g in groups if len(g) > 1), key=lambda g: order[g[0]])
