"""Find a model's layers with a pass over a few short prompts, and prove that they are right.

The blocks are a list of modules with as many calls as the configuration names layers. What the
last of them gives, through the final norm if there is one, has to be the model's output. A second
pass shows if a prompt's states depend on a longer prompt in its batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from layerwise.errors import LayerwiseError
from layerwise.models import hooks
from layerwise.models.architectures import Anatomy, Stack, dissect

# Largest relative difference of states that are the same but for a change of type.
SAME = 0.01
# Largest relative difference of states in another batch, as a multiple of the type's precision and
# at least: kernels differ with the shape of a batch. Measured: up to 1e-6 in float32.
ROUNDINGS, LEAST = 16, 1e-4
# The same for states that no other input reaches: measured up to 3e-7 in float32, 0 in bfloat16;
# of encoders at least 0.09.
STILL = 4


class Call(NamedTuple):
    """One call of a module: what it received and gave; None for what is no tensor."""

    module: nn.Module
    given: Tensor | None
    made: Tensor | None


class Reading(NamedTuple):
    """Calls that may be those of a model's blocks.

    Attributes
    ----------
    entries, exits : the calls of the modules that receive and give the states; two lists where a
        model spreads its blocks over several
    is_chain : True if the states have to be passed on from call to call unchanged
    """

    path: str
    entries: list[Call]
    exits: list[Call]
    is_chain: bool


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
    what, first = next(iter(inputs.items()))
    try:
        calls, output = _recorded(model, stack, inputs)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # unusual models fail in many ways
        detail = " ".join(str(error).split())[:200]
        raise _refused(
            who, f"does not run on {what} alone ({type(error).__name__}: {detail})"
        ) from error
    n_tokens = hooks.token_count(inputs)
    problems = []
    for reading in _readings(stack, calls):
        found = _anatomy(stack, reading, calls, output, len(first), n_tokens)
        if not isinstance(found, str):
            return found
        problems.append(found)
    if not problems:
        lists = {path: len(modules) for path, modules in stack.lists.items()}
        problems = [f"has no list of modules that run {stack.depth} times (its lists: {lists})"]
    raise _refused(who, problems[0])


@torch.inference_mode()
def batched(
    name: str,
    model: nn.Module,
    anatomy: Anatomy,
    both: list[Tensor],
    padded: Mapping[str, Tensor],
    alone: Mapping[str, Tensor],
) -> Anatomy:
    """The anatomy, with what a prompt's batch may hold.

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
    if torch.equal(both[-1][0, -1], both[-1][1, -1]):
        raise _refused(
            who,
            "gives a token the same states whatever the tokens before it are, as where its "
            f"attention has no kernel for the device ({both[0].device})",
        )
    if _differ(both, _states(model, anatomy, padded)) <= _tolerance(model):
        return anatomy
    if _differ(both, _states(model, anatomy, alone)) > _tolerance(model):
        raise _refused(who, "gives a prompt other states if it shares a batch, or at random")
    return replace(anatomy, equal_lengths=True)


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
    first, second = (_states(model, anatomy, given) for given in (one, other))
    early = slice(first[0].shape[1] // 3)
    change = _differ([own[:, early] for own in first], [own[:, early] for own in second])
    return change <= max(LEAST, STILL * _precision(model))


def _refused(who: str, why: str) -> LayerwiseError:
    return LayerwiseError(f"{who} {why}; such models are not supported.", code="unsupported")


def _recorded(
    model: nn.Module, stack: Stack, inputs: Mapping[str, Tensor]
) -> tuple[list[Call], Tensor | None]:
    """Calls of the modules in lists and of those outside of lists, and the model's output."""
    listed = {module for modules in stack.lists.values() for module in modules}
    inner = {part for module in listed for part in module.modules()} - listed
    open_calls: list[Tensor | None] = []
    calls: list[Call] = []

    # Cloned, since some models add to their states in place.
    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = args[0] if args else kwargs.get("hidden_states")
        open_calls.append(given.clone() if isinstance(given, Tensor) else None)

    def after(module: nn.Module, _: Any, output: Any) -> None:
        made = next(iter(output), None) if isinstance(output, tuple | list) else output
        made = made.clone() if isinstance(made, Tensor) else None
        calls.append(Call(module, open_calls.pop(), made))

    with ExitStack() as hooked:
        for module in set(model.modules()) - inner - {model}:
            hooked.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            hooked.callback(module.register_forward_hook(after).remove)
        output = model(**inputs, **hooks.pass_options(model))
    states = getattr(output, "last_hidden_state", None)
    return calls, states if isinstance(states, Tensor) else None


def _readings(stack: Stack, calls: list[Call]) -> Iterator[Reading]:
    """Calls that may be those of the blocks, outer lists first.

    A list has to run as often as there are layers, in order if it has a module for each. Where
    several lists of a module do, as in XLM, a block is spread over them.
    """
    by_parent: dict[str, list[tuple[str, list[int]]]] = {}
    for path, modules in stack.lists.items():
        places = [n for n, call in enumerate(calls) if call.module in set(modules)]
        run = [calls[n].module for n in places]
        if len(run) != stack.depth or len(modules) > stack.depth:
            continue
        if len(modules) < stack.depth or run == list(modules):
            by_parent.setdefault(path.rpartition(".")[0], []).append((path, places))
    for siblings in by_parent.values():
        if len(siblings) > 1:
            path, first = min(siblings, key=lambda one: one[1])
            _, last = max(siblings, key=lambda one: one[1])
            yield Reading(path, [calls[n] for n in first], [calls[n] for n in last], is_chain=True)
        for path, places in siblings:
            own = [calls[n] for n in places]
            yield Reading(path, own, own, is_chain=len(siblings) > 1)


def _anatomy(
    stack: Stack,
    reading: Reading,
    calls: list[Call],
    output: Tensor | None,
    batch: int,
    n_tokens: int | None,
) -> tuple[Anatomy, list[Tensor]] | str:
    """What `probe` returns if a reading is right, and otherwise what is wrong, as a predicate."""
    raw = [call.given for call in reading.entries] + [reading.exits[-1].made]
    shapes = {_shape(state) for state in raw}
    length = n_tokens or (*_shape(raw[0]), 0, 0)[1]
    right = (batch, length, stack.hidden)
    time_first = shapes == {(length, batch, stack.hidden)}
    # Longformer pads a batch to a multiple of its window.
    fit = {(*shape[:1], min(length, *shape[1:2]), *shape[2:]) for shape in shapes if shape}
    if not time_first and (len(shapes) > 1 or fit != {right}):
        return f"has states of the shapes {sorted(shapes)} where {right} is expected"

    def cut(state: Tensor | None) -> Tensor | None:
        if state is None or state.ndim != 3:
            return None
        return (state.transpose(0, 1) if time_first else state)[:, :length]

    states = [state for state in map(cut, raw) if state is not None]
    last, blocks = states[-1], [call.module for call in reading.entries]
    inside = {part for block in blocks for part in block.modules()}
    # What turns the last block's states into the model's output: its final norm, or, where the
    # output has another width, as in OPT-350m, a projection.
    ends = [
        call.module
        for call in calls
        if call.module not in inside
        and _same(cut(call.given), last)
        and _same(cut(call.made), output)
        and not _same(call.given, call.made, tolerance=0)
    ]
    if reading.is_chain and not all(
        _same(before.made, after.given)
        for before, after in zip(reading.exits, reading.entries[1:], strict=False)
    ):
        return f"does not pass its states on from module to module of {reading.path!r}"
    if not ends and not _same(last, output):
        return (
            "has an output that is neither the last block's nor a norm of it, so its layers "
            "are unknown"
        )
    has_output = output is not None and tuple(output.shape) == right
    anatomy = Anatomy(
        stack.kind,
        reading.path,
        tuple(blocks),
        reading.exits[-1].module,
        stack.hidden,
        final_norm=ends[0] if ends and has_output else None,
        time_first=time_first,
        has_output=has_output,
    )
    return anatomy, states


def _shape(states: Tensor | None) -> tuple[int, ...]:
    return () if states is None else tuple(states.shape)


def _same(one: Tensor | None, other: Tensor | None, tolerance: float = SAME) -> bool:
    if one is None or other is None or one.shape != other.shape:
        return False
    one, other = one.to(other.device).float(), other.float()
    return bool(torch.linalg.norm(one - other) <= tolerance * torch.linalg.norm(other))


def _states(model: nn.Module, anatomy: Anatomy, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """The states of each layer."""
    found: list[Tensor] = []
    hooks.run(model, anatomy, inputs, lambda _, __, own: found.append(own.clone()))
    return found


def _differ(both: list[Tensor], others: list[Tensor]) -> float:
    """Largest difference at a layer of the first prompt's states, relative to each token's norm,
    averaged over tokens."""
    worst = 0.0
    for one, other in zip(both, others, strict=True):
        mine, its = one[0].float(), other[0, : one.shape[1]].float()
        off = torch.linalg.norm(mine - its, dim=-1)
        worst = max(worst, float((off / torch.linalg.norm(mine, dim=-1).clamp(min=1e-30)).mean()))
    return worst


def _tolerance(model: nn.Module) -> float:
    return max(LEAST, ROUNDINGS * _precision(model))


def _precision(model: nn.Module) -> float:
    return torch.finfo(next(model.parameters()).dtype).eps
