"""One forward pass per batch, with every layer's states handed over as the pass reaches them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from layerwise.activations import batches
from layerwise.activations.representation import Packed, pack
from layerwise.errors import LayerwiseError, closest
from layerwise.io.files import memory_fault
from layerwise.models import hooks
from layerwise.models.load import DTYPES, LoadedModel, Prompt
from layerwise.vocabulary import OUTPUT

log = logging.getLogger(__name__)


class Taker(Protocol):
    """Consumer of one batch; its results count only after `finish`."""

    def take(self, layer: int, sublayer: str, packed: Packed, /) -> None:
        """Take the states of a layer; layer 0 has only the sub-layer 'block'. 'output' comes last,
        after the last layer's 'block'."""

    def finish(self) -> None:
        """Called after the pass. A batch that ran out of memory never gets here."""


def read(loaded: LoadedModel, packed: Packed, readout: str) -> Packed:
    """A layer's states under a readout of the model.

    Parameters
    ----------
    readout : {'residual', 'final_norm', 'output'}
        The stream after block l, or the final norm applied to it. The states of the last layer
        under ``output`` are passed on by `run`.
    """
    norm = loaded.anatomy.final_norm
    if readout != "final_norm" or norm is None:
        return packed
    states = packed.states.to(DTYPES[loaded.dtype])
    return pack(norm(states), packed.lengths, prefix=packed.prefix)


def check_readout(loaded: LoadedModel, readout: str) -> None:
    """Make sure that a model has a readout.

    Raises
    ------
    LayerwiseError
        If not; the message says which it has.
    """
    there = loaded.anatomy.readouts
    if readout not in there:
        raise LayerwiseError(
            f"readout is {readout!r}{closest(readout, there)}, but {loaded.name} (architecture "
            f"{loaded.anatomy.kind!r}) has {' and '.join(there)} alone.",
            code="unknown_name",
        )


def run(
    loaded: LoadedModel,
    ids: Sequence[Prompt],
    start: Callable[[list[int]], Taker],
    *,
    sublayers: Sequence[str] = (),
    output: bool = False,
    budget: int | None = None,
) -> None:
    """Run prompts through the model and hand each layer's states to the batch's taker.

    Memory holds one layer of one batch. Running out of memory halves the batch and goes on with
    batches of that size.

    Parameters
    ----------
    ids : sequence of token id lists, or of images or recordings
    start : callable
        Makes the taker of a batch from the indices of its prompts.
    sublayers : sequence of str
        Sub-layers that are passed on in addition to 'block'.
    output : bool
        True to pass on the model's output, too, as the last layer's sub-layer 'output'.
    budget : int, optional
        Tokens in a batch; by default what suits the device.

    Raises
    ------
    LayerwiseError
        If a prompt has no token, or memory does not hold one prompt.
    """
    empty = [i for i, prompt in enumerate(ids) if not prompt]
    if empty:
        raise LayerwiseError(
            f"{len(empty)} prompts have no token under {loaded.name}'s tokenizer (the first is "
            f"number {empty[0]}); remove blank texts from the corpus.",
            code="too_few",
        )
    anatomy = loaded.anatomy
    limit = budget or batches.budget_of(loaded.device.type, anatomy.hidden)
    sizes = [getattr(p, "extent", len(p)) for p in ids] if anatomy.equal_lengths else None
    queue = list(batches.cut([getattr(p, "cost", len(p)) for p in ids], limit, sizes))
    queue.reverse()
    largest = max((len(batch) for batch in queue), default=0)
    while queue:
        batch = queue.pop()
        if len(batch) > largest:
            queue += [batch[largest:], batch[:largest]]
            continue
        try:
            for upcoming in (batch, *queue[-1:]):
                loaded.begin([ids[i] for i in upcoming])
            _forward(loaded, [ids[i] for i in batch], start(batch), sublayers, output)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            if len(batch) == 1:
                raise LayerwiseError(
                    f"{loaded.name} does not fit one prompt of {len(ids[batch[0]])} tokens into "
                    f"the memory of {loaded.device}; shorten max_length, use a larger device, or "
                    "set device_map: auto for this model to spread it over several.",
                    code="no_memory",
                ) from error
            largest = len(batch) // 2
            log.warning("out of memory with %d prompts; going on with %d", len(batch), largest)
            queue.append(batch)
        else:
            continue
        # Only here, after the exception and what it holds are gone, is the memory free.
        if loaded.device.type == "cuda":
            torch.cuda.empty_cache()


def out_of_memory(error: BaseException) -> bool:
    """True for an error that says that memory ran out, a CUDA library's too."""
    return memory_fault(error) or "ALLOC_FAILED" in str(error)


@torch.inference_mode()
def _forward(
    loaded: LoadedModel,
    prompts: list[Prompt],
    taker: Taker,
    sublayers: Sequence[str],
    output: bool,
) -> None:
    lengths = torch.tensor([len(p) for p in prompts])
    longest = int(lengths.max())
    pads = (torch.arange(longest) >= lengths[:, None]).flatten().nonzero()[:, 0]
    inputs = loaded.inputs(prompts)
    lengths, pads = lengths.to(loaded.device), pads.to(loaded.device)
    prefix = loaded.anatomy.prefix or 0

    def hand_over(layer: int, sublayer: str, states: Tensor) -> None:
        # A model spread over several devices hands its layers over on each.
        where = states.device
        # Whisper's encoder has states of the silence behind all recordings.
        states = states[:, :longest]
        packed = pack(states, lengths.to(where), pads=pads.to(where), prefix=prefix)
        taker.take(layer, sublayer, packed)

    states = hooks.run(
        loaded.model,
        loaded.anatomy,
        inputs,
        hand_over,
        sublayers=sublayers,
        ablate=loaded.entry.ablate,
    )
    if output and states is not None:
        hand_over(loaded.anatomy.n_layers - 1, OUTPUT, states)
    taker.finish()
