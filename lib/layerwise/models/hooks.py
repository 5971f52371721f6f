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
from layerwise.models.architectures import Anatomy, start_afresh
from layerwise.vocabulary import BLOCK, SUBLAYERS

# hand_over(layer, sublayer, states of shape (B, T, D)), or (B, T, streams, D)
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
    wanted = [name for name in sublayers if name != BLOCK]
    current = _Pass(anatomy, token_count(inputs), hand_over, bool(wanted or ablate))
    with ExitStack() as stack:
        for block in dict.fromkeys(anatomy.blocks):
            stack.callback(block.register_forward_pre_hook(current.enter, with_kwargs=True).remove)
        # Before the hooks of sub-layers, which so see what is left.
        for ablation in ablate:
            _silence(current, ablation, stack)
        for block in dict.fromkeys(anatomy.blocks if wanted else ()):
            _look_inside(current, block, wanted, stack)
        stack.callback(anatomy.last.register_forward_hook(current.leave).remove)
        options = pass_options(model, current.n_tokens)
        states = getattr(model(**inputs, **options), "last_hidden_state", None)
        return states if isinstance(states, Tensor) else None


class _Pass:
    """A pass: the layer that is computed, and what its block has received."""

    input: Tensor

    def __init__(
        self, anatomy: Anatomy, n_tokens: int | None, hand_over: HandOver, keeps_input: bool
    ) -> None:
        self.anatomy, self.n_tokens, self.hand_over = anatomy, n_tokens, hand_over
        self.keeps_input, self.layer = keeps_input, 0

    def give(self, sublayer: str, states: Tensor) -> None:
        """Hand over states of the layer."""
        self.hand_over(self.layer, sublayer, self.anatomy.layout.states(states, self.n_tokens))

    def enter(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A block begins: what it receives is the layer before it."""
        states = args[0] if args else kwargs["hidden_states"]
        self.give(BLOCK, states)
        if self.keeps_input:  # copied because some blocks add to it in place
            self.input = states.clone()
        self.layer += 1

    def leave(self, _: nn.Module, __: Any, output: Any) -> None:
        """The last block ends, which may run several times."""
        if self.layer == len(self.anatomy.blocks):
            self.give(BLOCK, first_tensor(output))


def token_count(inputs: Mapping[str, Tensor]) -> int | None:
    """Number of tokens of a batch of token ids; None for other inputs, whose tokens the model
    makes."""
    first = next(iter(inputs.values()))
    return None if first.is_floating_point() else first.shape[1]


def pass_options(model: nn.Module, n_tokens: int | None) -> dict[str, Any]:
    """Arguments of every pass in addition to its inputs; earlier passes leave no trace."""
    config: Any = model.config
    if n_tokens is not None:
        start_afresh(model, n_tokens)
    options = {"use_cache": False} if hasattr(config, "use_cache") else {}
    # For images of another size than in training.
    if "interpolate_pos_encoding" in inspect.signature(model.forward).parameters:
        options["interpolate_pos_encoding"] = True
    return options


def _silence(current: _Pass, ablation: Ablation, stack: ExitStack) -> None:
    """Put a hook on a block that sets what one of its parts adds to zero."""
    anatomy, number = current.anatomy, ablation.layer - 1
    path = getattr(anatomy.parts[number], ablation.part)

    def leave(_: nn.Module, __: Any, output: Any) -> Any:
        if current.layer != ablation.layer:  # a block may run several times
            return output
        states = first_tensor(output).clone()
        # Some MLPs work on (B * T, D).
        tokens = anatomy.layout.states(states.view(current.input.shape))
        tokens[:, : 1 if ablation.token == "first" else None] = 0
        return states if isinstance(output, Tensor) else (states, *output[1:])

    module = anatomy.blocks[number].get_submodule(path)
    stack.callback(module.register_forward_hook(leave).remove)


def _look_inside(
    current: _Pass, block: nn.Module, wanted: Sequence[str], stack: ExitStack
) -> None:
    """Put hooks on the sub-layers of a block."""
    anatomy = current.anatomy
    parts = anatomy.parts[anatomy.blocks.index(block)]
    seen: dict[str, Tensor] = {}

    def leave(_: nn.Module, __: Any, output: Any) -> None:
        if parts.mixer_residual is None:  # pre-norm
            seen["mixer_residual"] = current.input + seen["mixer"]
            # Only once, because it synchronises the device.
            if current.layer not in anatomy.added_up:
                _check(current, seen, first_tensor(output))
                anatomy.added_up.add(current.layer)
        for name in SUBLAYERS:
            if name in wanted:
                current.give(name, seen[name])
        seen.clear()

    for name, path in parts.named().items():

        def saw(_: nn.Module, __: Any, output: Any, name: str = name) -> None:
            states = first_tensor(output)
            if not isinstance(states, Tensor) or states.numel() != current.input.numel():
                raise _unfit(current, f"{name} has states of another shape")
            # Some MLPs work on (B * T, D). Copied because some blocks add to it in place.
            seen[name] = states.clone().view_as(current.input)

        stack.callback(block.get_submodule(path).register_forward_hook(saw).remove)
    stack.callback(block.register_forward_hook(leave).remove)


def _check(current: _Pass, seen: Mapping[str, Tensor], output: Tensor) -> None:
    """Refuse a pre-norm block whose sub-layers do not add up to its output."""
    summed = seen["mixer_residual"] + seen.get("mlp", 0)
    off = torch.linalg.vector_norm((summed - output).float())
    # Relative to what the block adds, since a sink in the stream would hide any error. In a
    # large stream, low precision rounds what a block adds, so the stream counts too.
    size = torch.linalg.vector_norm((output - current.input).float())
    rounding = torch.finfo(output.dtype).eps * torch.linalg.vector_norm(output.float())
    if off > TOLERANCE * size + 4 * rounding:
        raise _unfit(
            current, f"input + mixer + MLP is off by {float(off / size):.0%} of its change"
        )


def _unfit(current: _Pass, why: str) -> LayerwiseError:
    return LayerwiseError(
        f"The sub-layers of the architecture {current.anatomy.kind!r} do not add up to its block "
        f"at layer {current.layer}: {why}; correct its entry in "
        "lib/layerwise/models/sublayers.yaml, or ask for no extract.sublayers.",
        code="unsupported",
    )


@torch.inference_mode()
def check_ablations(
    who: str,
    network: nn.Module,
    anatomy: Anatomy,
    ablate: Sequence[Ablation],
    example: Mapping[str, Tensor],
) -> None:
    """Refuse ablations of parts that the model does not have, or does not add to its stream."""
    for number, ablation in enumerate(ablate):
        if ablation.layer >= anatomy.n_layers:
            raise LayerwiseError(
                f"{who}: ablate[{number}].layer: it has {anatomy.n_layers - 1} blocks, not "
                f"{ablation.layer}.",
                code="out_of_range",
            )
        if getattr(anatomy.parts[ablation.layer - 1], ablation.part) is None:
            raise LayerwiseError(
                f"{who}: ablate[{number}].part: its block {ablation.layer} has no "
                f"{ablation.part}.",
                code="unsupported",
            )
        # That its parts add up is checked in the first pass that reads them.
        run(network, anatomy, example, lambda *_: None, sublayers=[ablation.part])


def first_tensor(output: Any) -> Tensor:
    """A module's output, or the first entry of it if there are several."""
    return output if isinstance(output, Tensor) else output[0]


def on(device: torch.device, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A model's inputs on a device; a GPU is not waited for, so copies are of pinned memory."""
    pinned = {
        name: tensor.pin_memory() if device.type == "cuda" and not tensor.is_cuda else tensor
        for name, tensor in inputs.items()
    }
    return {name: tensor.to(device, non_blocking=True) for name, tensor in pinned.items()}
