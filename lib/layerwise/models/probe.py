"""Check a model's layers with a pass over a few short prompts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from layerwise.errors import LayerwiseError
from layerwise.models import hooks
from layerwise.models.architectures import Anatomy


@torch.inference_mode()
def probe(
    name: str, model: nn.Module, anatomy: Anatomy, inputs: Mapping[str, Tensor]
) -> tuple[Anatomy, int]:
    """The anatomy, completed by a pass, and the number of tokens of each prompt.

    Parameters
    ----------
    inputs : mapping
        The model's inputs: several prompts of one length. The first is of token ids or of pixels.

    Raises
    ------
    LayerwiseError
        If the model needs other inputs, does not run its blocks once each in order, or has states
        of another shape than (batch, length, width).
    """
    layers: list[int] = []
    states: list[Tensor] = []
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []

    def note(layer: int, _: str, given: Tensor) -> None:
        layers.append(layer)
        states.append(given)

    def called(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        if given and isinstance(given[0], Tensor) and isinstance(output, Tensor):
            calls.append((module, given[0], output))

    def refused(why: str) -> LayerwiseError:
        return LayerwiseError(
            f"{name} ({type(model).__name__}) {why}; such models are not supported.",
            code="unsupported",
        )

    what, first = next(iter(inputs.items()))
    try:
        with ExitStack() as stack:
            for module in set(model.modules()) - set(anatomy.blocks.modules()):
                if not isinstance(module, nn.Identity | nn.Dropout):
                    stack.callback(module.register_forward_hook(called).remove)
            output = hooks.run(model, anatomy, inputs, note)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # unusual models fail in many ways
        detail = " ".join(str(error).split())[:200]
        raise refused(
            f"does not run on {what} alone ({type(error).__name__}: {detail})"
        ) from error
    if layers != list(range(anatomy.n_layers)):
        raise refused(
            f"does not run its {len(anatomy.blocks)} blocks once each in order ({layers})"
        )
    shapes = {tuple(given.shape) for given in states}
    batch, length = len(first), (first if first.ndim == 2 else states[0]).shape[1]
    right, turned = (batch, length, anatomy.hidden), (length, batch, anatomy.hidden)
    if shapes not in ({right}, {turned}):
        raise refused(f"has states of the shapes {sorted(shapes)} where {right} is expected")
    has_output = output is not None and tuple(output.shape) == right
    # The final norm is what turns the last block's output into the model's.
    norms = (m for m, given, made in calls if _near(given, states[-1]) and _near(made, output))
    found = replace(
        anatomy,
        time_first=shapes == {turned},
        has_output=has_output,
        final_norm=next(norms, None) if has_output else None,
    )
    return found, length


@torch.inference_mode()
def causal(
    model: nn.Module, anatomy: Anatomy, one: Mapping[str, Tensor], other: Mapping[str, Tensor]
) -> bool:
    """True if no state depends on later tokens.

    Parameters
    ----------
    one, other : mapping
        Inputs that differ only in their second half; the states of the first third of the tokens
        are compared.
    """
    states: list[Tensor] = []
    for given in (one, other):
        hooks.run(model, anatomy, given, lambda _, __, own: states.append(own.cpu()))
    half = len(states) // 2
    first, second = torch.stack(states[:half]), torch.stack(states[half:])
    third = first.shape[2] // 3
    change = (first - second).float()[:, :, :third].abs().max()
    return bool(change <= 64 * torch.finfo(first.dtype).eps * first.float().abs().max())


def _near(one: Tensor, other: Tensor | None) -> bool:
    if other is None or one.shape != other.shape:
        return False
    return torch.allclose(one.to(other.device).float(), other.float(), rtol=0.02, atol=0.02)
