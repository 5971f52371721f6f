"""A pass through a model, with hooks that hand over each block's output and its sub-layers'."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from layerwise.errors import LayerwiseError
from layerwise.models.architectures import BLOCK, SUBLAYERS, Anatomy

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
                _Inside(anatomy, layer, inner, give).attach(stack)

            def after(_: nn.Module, __: Any, output: Any, layer: int = layer) -> None:
                give(layer, BLOCK, first_tensor(output))

            stack.callback(block.register_forward_hook(after).remove)
        return states_out(model(**inputs, **pass_options(model)))


def pass_options(model: nn.Module) -> dict[str, Any]:
    """Arguments of every pass in addition to its inputs."""
    config: Any = model.config
    options = {"use_cache": False} if hasattr(config, "use_cache") else {}
    # For images of another size than in training.
    if "interpolate_pos_encoding" in inspect.signature(model.forward).parameters:
        options["interpolate_pos_encoding"] = True
    return options


def states_out(output: Any) -> Tensor | None:
    """The states that a model returns."""
    states = getattr(output, "last_hidden_state", None)
    return states if isinstance(states, Tensor) else None


@dataclass
class _Inside:
    """The hooks of one block, and the states seen since the block began."""

    anatomy: Anatomy
    layer: int
    wanted: Sequence[str]
    hand_over: HandOver
    seen: dict[str, Tensor] = field(default_factory=dict)

    def attach(self, stack: ExitStack) -> None:
        """Put the hooks on."""
        block = self.anatomy.blocks[self.layer - 1]
        stack.callback(block.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
        for name, path in self.anatomy.parts[self.layer - 1].named().items():
            module = block.get_submodule(path)
            stack.callback(module.register_forward_hook(self._saw(name)).remove)
        stack.callback(block.register_forward_hook(self._leave).remove)

    def _enter(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Copied, here and below, because some blocks add to their sub-layers' outputs in place.
        self.seen = {"input": _stream(args, kwargs).clone()}

    def _saw(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            # Some MLPs work on (B * T, D).
            self.seen[name] = first_tensor(output).clone().view_as(self.seen["input"])

        return hook

    def _leave(self, _: nn.Module, __: Any, output: Any) -> None:
        seen, before = self.seen, self.seen["input"]
        if "mixer_residual" not in seen:  # pre-norm
            seen["mixer_residual"] = before + seen["mixer"]
            # Only once, because it synchronises the device.
            if self.layer not in self.anatomy.added_up:
                self._check(first_tensor(output))
                self.anatomy.added_up.add(self.layer)
        for name in SUBLAYERS:
            if name in self.wanted:
                self.hand_over(self.layer, name, seen[name])
        self.seen = {}

    def _check(self, output: Tensor) -> None:
        summed = self.seen["mixer_residual"]
        if "mlp" in self.seen:
            summed = summed + self.seen["mlp"]
        change = (output - self.seen["input"]).float()
        off = torch.linalg.vector_norm((summed - output).float())
        # Relative to what the block adds, since a sink in the stream would hide any error. In a
        # large stream, low precision rounds what a block adds, so the stream counts too.
        size = torch.linalg.vector_norm(change)
        rounding = torch.finfo(output.dtype).eps * torch.linalg.vector_norm(output.float())
        if off > TOLERANCE * size + 4 * rounding:
            raise LayerwiseError(
                f"The sub-layers of the architecture {self.anatomy.kind!r} do not add up to its "
                f"block at layer {self.layer}: input + mixer + MLP is off by "
                f"{float(off / size):.0%} of the block's change; correct its line in PARTS in "
                "lib/layerwise/models/architectures.py, or ask for no extract.sublayers.",
                code="unsupported",
            )


def first_tensor(output: Any) -> Tensor:
    """A module's output, or the first entry of it if there are several."""
    return output if isinstance(output, Tensor) else output[0]


def _stream(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    stream: Tensor = args[0] if args else kwargs["hidden_states"]
    return stream
