"""A pass through a model, with hooks that hand over each block's output and its sub-layers'."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from layerwise.config.models import Ablation
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
    ablate: Sequence[Ablation] = (),
) -> Tensor | None:
    """Run a batch, and hand over each layer's states as the pass reaches them.

    Parameters
    ----------
    sublayers : sequence of str
        Some of `Anatomy.sublayers`; 'block' is always handed over.
    ablate : sequence of Ablation
        Parts whose output is set to zero for some tokens.

    Returns
    -------
    Tensor or None
        The model's output: ``last_hidden_state`` of transformers.

    Raises
    ------
    LayerwiseError
        In the first pass, if a pre-norm block's sub-layers do not add up to its output.
    """

    n_tokens = token_count(inputs)
    layer = 0

    def give(layer: int, sublayer: str, states: Tensor) -> None:
        states = states.transpose(0, 1) if anatomy.time_first else states
        # Longformer pads a batch to a multiple of its window.
        hand_over(layer, sublayer, states[:, :n_tokens])

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal layer
        give(layer, BLOCK, stream(args, kwargs))
        layer += 1

    def after(_: nn.Module, __: Any, output: Any) -> None:
        if layer == len(anatomy.blocks):
            give(layer, BLOCK, first_tensor(output))

    inner = [name for name in sublayers if name != BLOCK]
    with ExitStack() as stack:
        for block in dict.fromkeys(anatomy.blocks):
            stack.callback(block.register_forward_pre_hook(before, with_kwargs=True).remove)
        # Before those of sub-layers, which so see what is left.
        for one in ablate:
            _silence(anatomy, one, lambda: layer, stack)
        for block in dict.fromkeys(anatomy.blocks):
            if inner:
                _look_inside(anatomy, block, inner, lambda: layer, give, stack)
        stack.callback(anatomy.last.register_forward_hook(after).remove)
        states = getattr(model(**inputs, **pass_options(model)), "last_hidden_state", None)
        return states if isinstance(states, Tensor) else None


def token_count(inputs: Mapping[str, Tensor]) -> int | None:
    """Number of tokens of a batch of token ids; None for other inputs, whose tokens the model
    makes."""
    first = next(iter(inputs.values()))
    return None if first.is_floating_point() else first.shape[1]


def pass_options(model: nn.Module) -> dict[str, Any]:
    """Arguments of every pass in addition to its inputs."""
    config: Any = model.config
    options = {"use_cache": False} if hasattr(config, "use_cache") else {}
    # For images of another size than in training.
    if "interpolate_pos_encoding" in inspect.signature(model.forward).parameters:
        options["interpolate_pos_encoding"] = True
    return options


def _silence(
    anatomy: Anatomy, ablation: Ablation, running: Callable[[], int], stack: ExitStack
) -> None:
    """Put hooks on a block that set what one of its parts adds to zero."""
    block = anatomy.blocks[ablation.layer - 1]
    module = block.get_submodule(getattr(anatomy.parts[ablation.layer - 1], ablation.part))
    shape = torch.Size()

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal shape
        shape = stream(args, kwargs).shape

    def leave(_: nn.Module, __: Any, output: Any) -> Any:
        if running() != ablation.layer:  # a block may run several times
            return output
        states = first_tensor(output).clone()
        # Some MLPs work on (B * T, D).
        tokens = states.view(shape).transpose(0, 1) if anatomy.time_first else states.view(shape)
        tokens[:, : 1 if ablation.token == "first" else None] = 0
        return states if isinstance(output, Tensor) else (states, *output[1:])

    stack.callback(block.register_forward_pre_hook(enter, with_kwargs=True).remove)
    stack.callback(module.register_forward_hook(leave).remove)


def _look_inside(
    anatomy: Anatomy,
    block: nn.Module,
    wanted: Sequence[str],
    running: Callable[[], int],
    hand_over: HandOver,
    stack: ExitStack,
) -> None:
    """Put hooks on the sub-layers of a block; `running` gives the layer that is computed."""
    seen: dict[str, Tensor] = {}

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Copied, here and below, because some blocks add to their sub-layers' outputs in place.
        seen["input"] = stream(args, kwargs).clone()

    def leave(_: nn.Module, __: Any, output: Any) -> None:
        layer = running()
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
    for name, path in anatomy.parts[anatomy.blocks.index(block)].named().items():

        def saw(_: nn.Module, __: Any, output: Any, name: str = name) -> None:
            states = first_tensor(output)
            if not isinstance(states, Tensor) or states.numel() != seen["input"].numel():
                raise _unfit(anatomy, running(), f"{name} has states of another shape")
            # Some MLPs work on (B * T, D).
            seen[name] = states.clone().view_as(seen["input"])

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
        raise _unfit(
            anatomy, layer, f"input + mixer + MLP is off by {float(off / size):.0%} of its change"
        )


def _unfit(anatomy: Anatomy, layer: int, why: str) -> LayerwiseError:
    return LayerwiseError(
        f"The sub-layers of the architecture {anatomy.kind!r} do not add up to its block at layer "
        f"{layer}: {why}; correct its entry in lib/layerwise/models/sublayers.yaml, or ask for no "
        "extract.sublayers.",
        code="unsupported",
    )


def first_tensor(output: Any) -> Tensor:
    """A module's output, or the first entry of it if there are several."""
    return output if isinstance(output, Tensor) else output[0]


def stream(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The inputs of a block."""
    states: Tensor = args[0] if args else kwargs["hidden_states"]
    return states
