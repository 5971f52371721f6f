"""Hash of a model's weights."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from layerwise.errors import LayerwiseError

if TYPE_CHECKING:
    from torch import nn


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over all parameters and buffers: names, shapes, types, bytes.

    Raises
    ------
    LayerwiseError
        If some of them are not on any device (they did not fit).
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
