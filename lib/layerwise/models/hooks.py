"""A pass through a model, with hooks that hand over each block's output and its sub-layers'."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from layerwise.errors import LayerwiseError
from layerwise.models.architectures import Anatomy
from layerwise.vocabulary import BLOCK, SUBLAYERS

# hand_over(layer, sublayer, states of shape (B, T, D))
HandOver = Callable[[int, str, Tensor], None]

# Largest relative difference of input + mixer + mlp from a pre-norm block's output. Rounding in
# bfloat16 stays below it; a block with a scaled or missing summand does not.
TOLERANCE = 0.05


def run(
    model: nn.Module,
    anatomy: Anatomy,
    inputs: Mapping[str, Tensor],
    hand_over: HandOver,
    *,
    sublayers: Sequence[str] = (),
) -> Tensor | None:
    """Run a batch, and hand over each layer's states as the pass reaches them.

    Parameters
    ----------
    sublayers : sequence of str
        Some of `Anatomy.sublayers`; 'block' is always handed over.

    Returns
    -------
    Tensor or None
        The model's output: ``last_hidden_state`` of transformers.

    Raises
    ------
    LayerwiseError
        In the first pass, if a pre-norm block's sub-layers do not add up to its output.
    """

    def give(layer: int, sublayer: str, states: Tensor) -> None:
        hand_over(layer, sublayer, states.transpose(0, 1) if anatomy.time_first else states)

    def embedded(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        give(0, BLOCK, _stream(args, kwargs))

    inner = [name for name in sublayers if name != BLOCK]
    with ExitStack() as stack:
        first = anatomy.blocks[0].register_forward_pre_hook(embedded, with_kwargs=True)
        stack.callback(first.remove)
        for layer, block in enumerate(anatomy.blocks, start=1):
            if inner:
                _look_inside(anatomy, layer, inner, give, stack)

            def after(_: nn.Module, __: Any, output: Any, layer: int = layer) -> None:
                give(layer, BLOCK, first_tensor(output))

            stack.callback(block.register_forward_hook(after).remove)
        states = getattr(model(**inputs, **pass_options(model)), "last_hidden_state", None)
        return states if isinstance(states, Tensor) else None


def pass_options(model: nn.Module) -> dict[str, Any]:
    """Arguments of every pass in addition to its inputs."""
    config: Any = model.config
    options = {"use_cache": False} if hasattr(config, "use_cache") else {}
    # For images of another size than in training.
    if "interpolate_pos_encoding" in inspect.signature(model.forward).parameters:
        options["interpolate_pos_encoding"] = True
    return options


def _look_inside(
    anatomy: Anatomy, layer: int, wanted: Sequence[str], hand_over: HandOver, stack: ExitStack
) -> None:
    """Put hooks on the sub-layers of a block."""
    block = anatomy.blocks[layer - 1]
    seen: dict[str, Tensor] = {}

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Copied, here and below, because some blocks add to their sub-layers' outputs in place.
        seen["input"] = _stream(args, kwargs).clone()

    def leave(_: nn.Module, __: Any, output: Any) -> None:
        if "mixer_residual" not in seen:  # pre-norm
            seen["mixer_residual"] = seen["input"] + seen["mixer"]
            # Only once, because it synchronises the device.
            if layer not in anatomy.added_up:
                _check(anatomy, layer, seen, first_tensor(output))
                anatomy.added_up.add(layer)
        for name in SUBLAYERS:
            if name in wanted:
                hand_over(layer, name, seen[name])
        seen.clear()

    stack.callback(block.register_forward_pre_hook(enter, with_kwargs=True).remove)
    for name, path in anatomy.parts[layer - 1].named().items():

        def saw(_: nn.Module, __: Any, output: Any, name: str = name) -> None:
            # Some MLPs work on (B * T, D).
            seen[name] = first_tensor(output).clone().view_as(seen["input"])

        stack.callback(block.get_submodule(path).register_forward_hook(saw).remove)
    stack.callback(block.register_forward_hook(leave).remove)


def _check(anatomy: Anatomy, layer: int, seen: Mapping[str, Tensor], output: Tensor) -> None:
    """Refuse a pre-norm block whose sub-layers do not add up to its output."""
    summed = seen["mixer_residual"] + seen.get("mlp", 0)
    change = (output - seen["input"]).float()
    off = torch.linalg.vector_norm((summed - output).float())
    # Relative to what the block adds, since a sink in the stream would hide any error. In a
    # large stream, low precision rounds what a block adds, so the stream counts too.
    size = torch.linalg.vector_norm(change)
    rounding = torch.finfo(output.dtype).eps * torch.linalg.vector_norm(output.float())
    if off > TOLERANCE * size + 4 * rounding:
        raise LayerwiseError(
            f"The sub-layers of the architecture {anatomy.kind!r} do not add up to its block at "
            f"layer {layer}: input + mixer + MLP is off by {float(off / size):.0%} of the block's "
            "change; correct its line in PARTS in lib/layerwise/models/architectures.py, or ask "
            "for no extract.sublayers.",
            code="unsupported",
        )


def first_tensor(output: Any) -> Tensor:
    """A module's output, or the first entry of it if there are several."""
    return output if isinstance(output, Tensor) else output[0]


def _stream(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    stream: Tensor = args[0] if args else kwargs["hidden_states"]
    return stream
