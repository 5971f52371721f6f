"""Find a model's layers with a pass over a few short prompts, and prove that they are right.

The blocks are a list of modules with as many calls as the configuration names layers. What the
last of them gives, through the final norm if there is one, has to be the model's output. A second
pass shows if a prompt's states depend on a longer prompt in its batch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from layerwise.errors import LayerwiseError
from layerwise.models import hooks
from layerwise.models.architectures import Anatomy, Layout, Stack, dissect, unsupported
from layerwise.models.texts import Reader

# Largest relative difference of states that are the same but for a change of type.
SAME = 0.01
# Largest relative difference of states in another batch, as a multiple of the type's precision and
# at least: kernels differ with the shape of a batch. Measured: up to 1e-6 in float32.
ROUNDINGS, LEAST = 16, 1e-4
# The same for states that no other input reaches: measured up to 3e-7 in float32, 0 in bfloat16;
# of encoders at least 0.09.
STILL = 4
# The most modules between the last block and the output.
MOST_ENDS = 4


class Call(NamedTuple):
    """One call of a module: its input and output; None for what is no tensor."""

    module: nn.Module
    input: Tensor | None
    output: Tensor | None


class Candidate(NamedTuple):
    """Calls that may be those of a model's blocks.

    Attributes
    ----------
    entries, exits : the calls of the modules that receive and give the states; two lists where a
        model spreads its blocks over several
    must_chain : True if the states have to be passed on from call to call unchanged
    """

    path: str
    entries: list[Call]
    exits: list[Call]
    must_chain: bool


class Skipping(nn.Module):
    """What a model does after its blocks, where that is more than modules.

    A copy of the model, with its weights but without its blocks, runs on any tokens: in place of
    what a block gives it gets the states.
    """

    def __init__(self, model: nn.Module, blocks: Sequence[nn.Module], layout: Layout) -> None:
        super().__init__()
        self.given, self.layout = _Given(), layout
        shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self.model = copy.deepcopy(model, {**shared, **{id(b): self.given for b in blocks}})

    def forward(self, tensor: Tensor) -> Tensor:
        """The output for states as they are between blocks."""
        self.given.tensor = tensor
        batch, length = self.layout.states(tensor).shape[:2]
        ids = torch.zeros((batch, length), dtype=torch.long, device=tensor.device)
        options = hooks.pass_options(self.model, length)
        return cast("Tensor", self.model(input_ids=ids, **options).last_hidden_state)


class _Given(nn.Module):
    """Gives a tensor, whatever it gets."""

    tensor: Tensor

    def forward(self, *_: Any, **__: Any) -> Tensor:
        return self.tensor


class _MisfitError(Exception):
    """Calls are not those of the blocks; says why as a predicate."""


def find_layers(name: str, model: nn.Module, reader: Reader) -> Anatomy:
    """The model's layers, proved with all probe inputs of its reader."""
    equal_lengths, device = False, reader.device
    with torch.autocast(device.type, enabled=False):
        for inputs in reader.probe_inputs():
            anatomy, states = probe(name, model, hooks.on(device, inputs.equal))
            if inputs.padded and inputs.alone:
                padded, alone = hooks.on(device, inputs.padded), hooks.on(device, inputs.alone)
                equal_lengths |= depends_on_batch(name, model, anatomy, states, padded, alone)
    # The layers are proved for every input; the anatomy is that of the last.
    return reader.fit(replace(anatomy, equal_lengths=equal_lengths), states[0].shape[1])


@torch.inference_mode()
def probe(
    name: str, model: nn.Module, inputs: Mapping[str, Tensor]
) -> tuple[Anatomy, list[Tensor]]:
    """The model's anatomy, and each layer's states of the inputs, shape (B, T, D).

    Parameters
    ----------
    inputs : mapping
        The model's inputs: several prompts of one length. The main one comes first.

    Raises
    ------
    LayerwiseError
        If the model needs other inputs, has no such blocks, or the states of its last layer are
        not its output.
    """
    who, stack = f"{name} ({type(model).__name__})", dissect(model)
    try:
        calls, output = _recorded(model, stack, inputs)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # unusual models fail in many ways
        detail = " ".join(str(error).split())[:200]
        raise unsupported(
            f"{who} does not run on {next(iter(inputs))} alone ({type(error).__name__}: {detail})"
        ) from error
    if output is not None and not bool(output.isfinite().all()):
        raise LayerwiseError(
            f"{who} gives NaN or infinity in {str(output.dtype).removeprefix('torch.')} on a few "
            "tokens; try dtype: float32, or check the weights.",
            code="not_finite",
        )
    problems = []
    for candidate in _candidates(stack, calls):
        try:
            return _proved_anatomy(model, stack, candidate, calls, output, inputs)
        except _MisfitError as misfit:
            problems.append(str(misfit))
    if not problems:
        lists = {path: len(modules) for path, modules in stack.lists.items()}
        problems = [f"has no list of modules that run {stack.depth} times (its lists: {lists})"]
    raise unsupported(f"{who} {problems[0]}")


@torch.inference_mode()
def depends_on_batch(
    name: str,
    model: nn.Module,
    anatomy: Anatomy,
    both: list[Tensor],
    padded: Mapping[str, Tensor],
    alone: Mapping[str, Tensor],
) -> bool:
    """True if a prompt's states change with a longer prompt in its batch.

    Parameters
    ----------
    both : list of Tensor
        Each layer's states of two prompts of one length that differ only in their first token.
    padded : mapping
        The first of them in a batch with a longer one.
    alone : mapping
        The first of them.

    Raises
    ------
    LayerwiseError
        If tokens do not depend on each other, or a prompt's states depend on another prompt of the
        same length.
    """
    who = f"{name} ({type(model).__name__})"
    if torch.equal(both[-1][0, 1], both[-1][1, 1]):
        raise unsupported(
            f"{who} gives a token the same states whatever the tokens before it are, as where its "
            f"attention has no kernel for the device ({both[0].device})"
        )
    if _differ(both, _states(model, anatomy, padded)) <= _tolerance(model):
        return False
    if _differ(both, _states(model, anatomy, alone)) > _tolerance(model):
        raise unsupported(f"{who} gives a prompt other states if it shares a batch, or at random")
    return True


@torch.inference_mode()
def causal(model: nn.Module, anatomy: Anatomy, inputs: Mapping[str, Tensor], axis: int) -> bool:
    """True if no state depends on later tokens.

    Parameters
    ----------
    inputs : mapping
        The model's inputs for some prompts; the main one comes first. With its second half
        reversed, the states of the first third of the tokens are compared.
    axis : int
        The main input's axis of time.
    """
    name, values = next(iter(inputs.items()))
    if values.is_floating_point():  # noise, since of silence each half is the same
        values = torch.randn(values.shape, generator=torch.Generator().manual_seed(0)).to(values)
    start, end = values.tensor_split(2, axis)
    both = (values, torch.cat([start, end.flip(axis)], axis))
    first, second = (_states(model, anatomy, {**inputs, name: one}) for one in both)
    early = slice(math.ceil(first[0].shape[1] / 3))
    change = _differ([layer[:, early] for layer in first], [layer[:, early] for layer in second])
    return change <= _tolerance(model, STILL)


def _recorded(
    model: nn.Module, stack: Stack, inputs: Mapping[str, Tensor]
) -> tuple[list[Call], Tensor | None]:
    """Calls of the modules in lists and of those outside of lists, and the model's output."""
    listed = {module for modules in stack.lists.values() for module in modules}
    inner = {inside for module in listed for inside in module.modules()} - listed
    received: list[Tensor | None] = []
    calls: list[Call] = []

    # Cloned, since some models add to their states in place.
    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states = args[0] if args else kwargs.get("hidden_states")
        received.append(states.clone() if isinstance(states, Tensor) else None)

    def after(module: nn.Module, _: Any, output: Any) -> None:
        states = next(iter(output), None) if isinstance(output, tuple | list) else output
        states = states.clone() if isinstance(states, Tensor) else None
        calls.append(Call(module, received.pop(), states))

    with ExitStack() as hooked:
        for module in set(model.modules()) - inner - {model}:
            hooked.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            hooked.callback(module.register_forward_hook(after).remove)
        options = hooks.pass_options(model, hooks.token_count(inputs))
        output = model(**inputs, **options)
    states = getattr(output, "last_hidden_state", None)
    return calls, states if isinstance(states, Tensor) else None


def _candidates(stack: Stack, calls: list[Call]) -> Iterator[Candidate]:
    """Calls that may be those of the blocks, outer lists first.

    A list has to run as often as there are layers, in order if it has a module for each. Where
    several lists of a module do, as in XLM, a block is spread over them.
    """
    by_parent: dict[str, list[tuple[str, list[int]]]] = {}
    for path, modules in stack.lists.items():
        numbers = [n for n, call in enumerate(calls) if call.module in set(modules)]
        order = [calls[n].module for n in numbers]
        if len(order) != stack.depth or len(modules) > stack.depth:
            continue
        if len(modules) < stack.depth or order == list(modules):
            by_parent.setdefault(path.rpartition(".")[0], []).append((path, numbers))
    for siblings in by_parent.values():
        if len(siblings) > 1:
            # The first list is the one that is called first.
            path, first = min(siblings, key=lambda sibling: sibling[1])
            _, last = max(siblings, key=lambda sibling: sibling[1])
            entries, exits = ([calls[n] for n in numbers] for numbers in (first, last))
            yield Candidate(path, entries, exits, must_chain=True)
        for path, numbers in siblings:
            runs = [calls[n] for n in numbers]
            yield Candidate(path, runs, runs, must_chain=len(siblings) > 1)
    # Loops: lists of one kind of block that take turns.
    kinds: dict[frozenset[type], list[str]] = {}
    for path, modules in stack.lists.items():
        kinds.setdefault(frozenset(map(type, modules)), []).append(path)
    for paths in kinds.values():
        turns = {module for path in paths for module in stack.lists[path]}
        runs = [call for call in calls if call.module in turns]
        if len(paths) > 1 and len(turns) < len(runs) == stack.depth:
            yield Candidate(paths[0], runs, runs, must_chain=False)


def _proved_anatomy(
    model: nn.Module,
    stack: Stack,
    candidate: Candidate,
    calls: list[Call],
    output: Tensor | None,
    inputs: Mapping[str, Tensor],
) -> tuple[Anatomy, list[Tensor]]:
    """The anatomy of a candidate and each layer's states, if the last of them lead to the output.

    Raises
    ------
    _MisfitError
        If not.
    """
    received = [call.input for call in candidate.entries] + [candidate.exits[-1].output]
    batch, n_tokens = len(next(iter(inputs.values()))), hooks.token_count(inputs)
    layout = _layout(stack, received, batch, n_tokens)
    # None is refused by `_layout`; the test is for mypy.
    states = [layout.states(tensor, n_tokens) for tensor in received if tensor is not None]
    blocks = tuple(call.module for call in candidate.entries)
    if candidate.must_chain and not all(
        _same(before.output, after.input)
        for before, after in zip(candidate.exits, candidate.entries[1:], strict=False)
    ):
        raise _MisfitError(
            f"does not pass its states on from module to module of {candidate.path!r}"
        )
    unproved = _MisfitError(
        "has an output that is neither the last block's nor made of it by modules behind it, so "
        "its layers are unknown"
    )
    if output is None:
        raise unproved
    paths = {module: path for path, module in model.named_modules()}
    anatomy = Anatomy(
        kind=stack.kind,
        path=candidate.path,
        blocks=blocks,
        last=candidate.exits[-1].module,
        hidden=stack.hidden,
        names=tuple(paths[block] for block in blocks),
        final_norm=_final_modules(calls, blocks, states[-1], received[-1], output),
        layout=layout,
        output=output.shape[-1],
    )
    several = layout.streams > 1
    if several and anatomy.final_norm is None:
        anatomy = replace(anatomy, final_norm=Skipping(model, blocks, layout))
    # Of one stream, `_final_modules` has compared what it returns with the output already.
    last = anatomy.read_out(states[-1]) if several else states[-1]
    if (several or anatomy.final_norm is None) and not _same(last, output):
        raise unproved
    return anatomy, states


def _layout(
    stack: Stack, received: list[Tensor | None], batch: int, n_tokens: int | None
) -> Layout:
    """The axes that the states of all blocks have.

    Parameters
    ----------
    n_tokens : int or None
        Tokens of each prompt; None if the model makes them.
    """
    shapes = {() if states is None else tuple(states.shape) for states in received}
    shape, first = next(iter(shapes)), received[0]
    if len(shapes) == 1 and len(shape) in (3, 4) and first is not None:
        length = n_tokens or shape[1]
        is_usual = shape[0] == batch and shape[1] >= length
        # Time first: of texts alone, of which the probe has fewer than each has tokens.
        if shape == (n_tokens, batch, stack.hidden):
            return Layout((1, 0, 2))
        if shape[2:] == (stack.hidden,) and is_usual:
            return Layout()
        if len(shape) == 4 and shape[3] == stack.hidden:
            if is_usual:
                return Layout((0, 1, 2, 3), shape[2])
            if shape[1:3] == (batch, length):
                return Layout((1, 2, 0, 3), shape[0])
        if len(shape) == 3 and is_usual and not shape[2] % stack.hidden:
            folded = Layout((0, 1, 2), shape[2] // stack.hidden, is_folded=True)
            # Streams begin as copies of the embeddings; what does not may be of another kind.
            states = folded.states(first)
            if bool((states == states[:, :, :1]).all()):
                return folded
    raise _MisfitError(
        f"has states of the shapes {sorted(shapes)} where {(batch, n_tokens, stack.hidden)} is "
        "expected"
    )


def _final_modules(
    calls: list[Call],
    blocks: tuple[nn.Module, ...],
    states: Tensor,
    raw_states: Tensor | None,
    output: Tensor,
) -> nn.Module | None:
    """The modules that turn the last block's states into the model's output, one after another:
    its final norm, a norm and a projection, a mixture of streams and a norm.

    Parameters
    ----------
    states, raw_states : Tensor
        The last block's states as (B, T, D), and in the layout that the model passes on.
    """
    inside = {module for block in blocks for module in block.modules()}
    outside = [
        call
        for call in calls
        if call.module not in inside and not _same(call.input, call.output, tolerance=0)
    ]

    def is_same(before: Tensor | None, after: Tensor | None) -> bool:
        """True if both are one tensor, but for pads."""
        if before is None or after is None or min(before.ndim, after.ndim) < 3:
            return False
        return _same(before[:, : after.shape[1]], after)

    chains = [[call] for call in outside if is_same(call.output, output)]
    for _ in range(MOST_ENDS):
        for chain in chains:
            if is_same(chain[0].input, states) or is_same(chain[0].input, raw_states):
                modules = [call.module for call in chain]
                return modules[0] if len(modules) == 1 else nn.Sequential(*modules)
        chains = [
            [call, *chain]
            for chain in chains
            for call in outside
            if is_same(call.output, chain[0].input)
        ]
    return None


def _same(one: Tensor | None, other: Tensor | None, tolerance: float = SAME) -> bool:
    if one is None or other is None or one.shape != other.shape:
        return False
    one, other = one.to(other.device).float(), other.float()
    return bool(torch.linalg.norm(one - other) <= tolerance * torch.linalg.norm(other))


def _states(model: nn.Module, anatomy: Anatomy, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """The states of each layer."""
    layers: list[Tensor] = []
    hooks.run(model, anatomy, inputs, lambda _, __, states: layers.append(states.clone()))
    return layers


def _differ(both: list[Tensor], others: list[Tensor]) -> float:
    """Largest difference at a layer of the first prompt's states, relative to each token's norm,
    averaged over tokens."""
    worst = 0.0
    for one, other in zip(both, others, strict=True):
        mine, its = one[0].float(), other[0, : one.shape[1]].float()
        off = torch.linalg.norm(mine - its, dim=-1)
        worst = max(worst, float((off / torch.linalg.norm(mine, dim=-1).clamp(min=1e-30)).mean()))
    return worst


def _tolerance(model: nn.Module, roundings: int = ROUNDINGS) -> float:
    return max(LEAST, roundings * torch.finfo(next(model.parameters()).dtype).eps)
