"""Run a model once on two short prompts, to see that its layers are what the rest expects."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from layerwise.activations import hooks
from layerwise.errors import LayerwiseError
from layerwise.models.architectures import Anatomy

log = logging.getLogger(__name__)

# Different from each other, so that states whose batch and length are swapped show.
BATCH, LENGTH = 2, 5


@torch.inference_mode()
def probe(name: str, model: nn.Module, anatomy: Anatomy, device: torch.device) -> Anatomy:
    """The anatomy, with what only a pass can tell.

    Raises
    ------
    LayerwiseError
        If the model does not run on token ids alone, its blocks are not run one after another,
        each once, or its states are not of shape (batch, length, width).
    """
    seen: list[tuple[int, tuple[int, ...]]] = []
    last: list[Tensor] = []

    def note(layer: int, _: str, states: Tensor) -> None:
        seen.append((layer, tuple(states.shape)))
        last[:] = [states]

    known = len(model.get_input_embeddings().weight)  # type: ignore[operator]
    tokens = torch.arange(1, 1 + BATCH * LENGTH, device=device).view(BATCH, LENGTH) % known
    try:
        with ExitStack() as stack:
            hooks.attach(anatomy, name, (), note, stack)
            output = states_out(model(input_ids=tokens, **pass_options(model)))
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever an unusual model's code stumbles over
        raise LayerwiseError(
            f"{name} ({type(model).__name__}) does not run on token ids alone "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]}); such models are "
            "not supported."
        ) from error
    if [layer for layer, _ in seen] != list(range(anatomy.n_layers)):
        raise LayerwiseError(
            f"{name} ({type(model).__name__}) does not run its {anatomy.n_layers - 1} blocks one "
            f"after another, each once (it runs {[layer for layer, _ in seen]}), so its layers "
            "cannot be told apart; such models are not supported."
        )
    right = (BATCH, LENGTH, anatomy.hidden)
    turned = (LENGTH, BATCH, anatomy.hidden)
    shapes = {shape for _, shape in seen}
    if shapes not in ({right}, {turned}):
        raise LayerwiseError(
            f"{name} ({type(model).__name__}) has states of the shapes {sorted(shapes)} for "
            f"{BATCH} prompts of {LENGTH} tokens, where (prompts, tokens, width) = {right} is "
            "expected at every layer; such models are not supported."
        )
    has_output = output is not None and tuple(output.shape) == right
    final_norm = anatomy.final_norm
    if final_norm is not None and has_output and not _near(final_norm(last[0]), output):
        log.warning(
            "%s: what its module %s gives is not what the model hands out, so it is not taken "
            "for its last norm", name, type(final_norm).__name__,
        )  # fmt: skip
        final_norm = None
    return replace(
        anatomy, time_first=shapes == {turned}, has_output=has_output, final_norm=final_norm
    )


@torch.inference_mode()
def causal(model: nn.Module, anatomy: Anatomy, device: torch.device) -> bool:
    """Whether no token's states depend on the tokens after it, as two short prompts show."""
    last: list[Tensor] = []
    known = len(model.get_input_embeddings().weight)  # type: ignore[operator]
    tokens = torch.arange(1, 1 + 2 * LENGTH, device=device)[None] % known
    other = tokens.clone()
    other[:, LENGTH:] = tokens[:, LENGTH:].flip(1)
    for given in (tokens, other):
        with ExitStack() as stack:
            hooks.attach(anatomy, "", (), lambda _, __, states: last.append(states.cpu()), stack)
            model(input_ids=given, **pass_options(model))
    one, two = (torch.stack(p) for p in (last[: len(last) // 2], last[len(last) // 2 :]))
    change = (one - two).float()[:, :, :LENGTH].abs().max()
    return bool(change <= 64 * torch.finfo(one.dtype).eps * one.float().abs().max())


def _near(one: Tensor, other: Tensor | None) -> bool:
    if other is None or one.shape != other.shape:
        return False
    return torch.allclose(one.to(other.device).float(), other.float(), rtol=0.02, atol=0.02)


def pass_options(model: nn.Module) -> dict[str, Any]:
    """What every pass is given beside the tokens."""
    config: Any = model.config
    return {"use_cache": False} if "use_cache" in config.to_dict() else {}


def states_out(output: Any) -> Tensor | None:
    """The states that a model hands its users: transformers' ``last_hidden_state``."""
    states = getattr(output, "last_hidden_state", None)
    return states if isinstance(states, Tensor) else None
