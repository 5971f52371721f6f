"""Check a model's layers with a pass over a few short prompts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from layerwise.errors import LayerwiseError
from layerwise.models import hooks
from layerwise.models.architectures import Anatomy
from layerwise.models.images import position_embeddings

log = logging.getLogger(__name__)

# Different numbers, which show whether batch and length are swapped.
BATCH, LENGTH = 2, 5


def example_texts(model: nn.Module, device: torch.device) -> dict[str, Tensor]:
    """Two prompts of five tokens."""
    known = len(model.get_input_embeddings().weight)  # type: ignore[operator]
    tokens = torch.arange(1, 1 + BATCH * LENGTH, device=device).view(BATCH, LENGTH) % known
    return {"input_ids": tokens}


@torch.inference_mode()
def probe(
    name: str, model: nn.Module, anatomy: Anatomy, inputs: Mapping[str, Tensor], length: int | None
) -> tuple[Anatomy, int]:
    """The anatomy, completed by a pass, and the number of tokens of each prompt.

    Parameters
    ----------
    inputs : mapping
        The model's inputs: several prompts of one length.
    length : int, optional
        Expected number of tokens of the prompts; None if only the pass shows it.

    Raises
    ------
    LayerwiseError
        If the model needs other inputs, does not run its blocks once each in order, or has states
        of another shape than (batch, length, width).
    """
    seen: list[tuple[int, tuple[int, ...]]] = []
    last: list[Tensor] = []

    def note(layer: int, _: str, states: Tensor) -> None:
        seen.append((layer, tuple(states.shape)))
        last[:] = [states]

    try:
        with ExitStack() as stack:
            hooks.attach(anatomy, name, (), note, stack)
            output = states_out(model(**inputs, **pass_options(model)))
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # unusual models fail in many ways
        takes = "images" if length is None else "token ids"
        raise LayerwiseError(
            f"{name} ({type(model).__name__}) does not run on {takes} alone "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]}); such models are "
            "not supported."
        ) from error
    if [layer for layer, _ in seen] != list(range(anatomy.n_layers)):
        raise LayerwiseError(
            f"{name} ({type(model).__name__}) does not run its {anatomy.n_layers - 1} blocks once "
            f"each in order (it runs {[layer for layer, _ in seen]}); such models are not "
            "supported."
        )
    batch = len(next(iter(inputs.values())))
    shapes = {shape for _, shape in seen}
    if length is None:
        first = seen[0][1]
        length = first[1] if len(first) > 1 else 0
    right = (batch, length, anatomy.hidden)
    turned = (length, batch, anatomy.hidden)
    if shapes not in ({right}, {turned}):
        raise LayerwiseError(
            f"{name} ({type(model).__name__}) has states of the shapes {sorted(shapes)} for "
            f"{batch} prompts of {length} tokens, where (prompts, tokens, width) = {right} is "
            "expected at every layer; such models are not supported."
        )
    has_output = output is not None and tuple(output.shape) == right
    final_norm = anatomy.final_norm
    if final_norm is not None and has_output and not _near(final_norm(last[0]), output):
        log.warning(
            "%s: what its module %s gives is not what the model hands out, so it is not taken "
            "for its last norm",
            name,
            type(final_norm).__name__,
        )
        final_norm = None
    found = replace(
        anatomy, time_first=shapes == {turned}, has_output=has_output, final_norm=final_norm
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
    last: list[Tensor] = []
    for given in (one, other):
        with ExitStack() as stack:
            hooks.attach(anatomy, "", (), lambda _, __, states: last.append(states.cpu()), stack)
            model(**given, **pass_options(model))
    first, second = (torch.stack(p) for p in (last[: len(last) // 2], last[len(last) // 2 :]))
    third = first.shape[2] // 3
    change = (first - second).float()[:, :, :third].abs().max()
    return bool(change <= 64 * torch.finfo(first.dtype).eps * first.float().abs().max())


def _near(one: Tensor, other: Tensor | None) -> bool:
    if other is None or one.shape != other.shape:
        return False
    return torch.allclose(one.to(other.device).float(), other.float(), rtol=0.02, atol=0.02)


def pass_options(model: nn.Module) -> dict[str, Any]:
    """Arguments of every pass in addition to its inputs."""
    config: Any = model.config
    return {
        **({"use_cache": False} if "use_cache" in config.to_dict() else {}),
        **position_embeddings(model),
    }


def states_out(output: Any) -> Tensor | None:
    """The model's output: ``last_hidden_state`` of transformers."""
    states = getattr(output, "last_hidden_state", None)
    return states if isinstance(states, Tensor) else None
