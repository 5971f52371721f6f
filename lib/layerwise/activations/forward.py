"""One forward pass per batch, with every layer's states handed over as the pass reaches them.

A CPU is fastest with small batches (about 1,024 tokens, more for a narrow model), a GPU with large
ones, and padding is wasted work on both. So prompts are sorted by length. A batch ends where its
padded size would exceed the budget. It ends earlier, from a quarter of the budget or `ENOUGH`
tokens on, where padding would exceed `SLACK`. Prompts are read in windows to bound the memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from layerwise.activations.representation import Packed, pack
from layerwise.errors import LayerwiseError, closest
from layerwise.io.files import memory_fault
from layerwise.models import hooks
from layerwise.models.load import DTYPES, LoadedModel, Prompt
from layerwise.models.states import States
from layerwise.models.texts import LazyPrompt
from layerwise.vocabulary import BLOCK, OUTPUT

log = logging.getLogger(__name__)

BUDGET = {"cpu": 1024, "cuda": 65536}

# Numbers in a batch's states that a CPU can take before they crowd its cache: of a narrow model
# they are more tokens, and its small operations are mostly the cost of being called.
IN_CACHE = 2**18

# Largest share of padding, and number of tokens that keeps any device busy.
SLACK = 0.03
ENOUGH = 4096

# Results of a window stay in memory until they are written, while the next window is computed. A
# window of a GPU has to hold several of its large batches, also with several protocols and
# selections of tokens: with a fifth of this, those took twice as long on an H100.
WINDOW_BYTES = {"cpu": 32 * 2**20, "cuda": 512 * 2**20}


def budget_of(device: str, hidden: int) -> int:
    """Tokens in a batch on a device ('cpu' or 'cuda'), where the config names no number."""
    return max(BUDGET[device], IN_CACHE // hidden if device == "cpu" else 0)


def batches(
    lengths: Sequence[int], budget: int, groups: Sequence[int] | None = None
) -> Iterator[list[int]]:
    """Indices of each batch, longest prompts first.

    Parameters
    ----------
    lengths : sequence of int
        Tokens in each prompt.
    budget : int
        The most tokens in a batch, pads included; a longer prompt goes alone.
    groups : sequence of int, optional
        Prompts of different groups share no batch.
    """
    groups = [0] * len(lengths) if groups is None else groups
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], -groups[i]))
    batch: list[int] = []
    tokens, enough = 0, min(budget // 4, ENOUGH)
    for index in order:
        if batch:
            padded = lengths[batch[0]] * (len(batch) + 1)
            pads = padded - tokens - lengths[index]
            is_full = padded > budget or (tokens >= enough and pads > SLACK * padded)
            if is_full or groups[index] != groups[batch[0]]:
                yield batch
                batch, tokens = [], 0
        batch.append(index)
        tokens += lengths[index]
    if batch:
        yield batch


def windows(total: int, size: int) -> Iterator[range]:
    """Successive ranges of at most `size` that cover ``range(total)``."""
    for start in range(0, total, size):
        yield range(start, min(start + size, total))


class Taker(Protocol):
    """Consumer of one batch; its results count only after `finish`."""

    def take(self, layer: int, sublayer: str, packed: Packed, /) -> None:
        """Take the states of a layer; layer 0 has only the sub-layer 'block'. 'output' comes last,
        after the last layer's 'block'."""

    def finish(self) -> None:
        """Called after the pass. A batch that ran out of memory never gets here."""


def read(loaded: LoadedModel, packed: Packed, readout: str) -> Packed:
    """A layer's states under a readout of the model, without the dimensions that its entry drops.

    Parameters
    ----------
    readout : {'residual', 'final_norm', 'output'}
        The stream after block l, or the final norm applied to it. The states of the last layer
        under ``output`` are passed on by `run`.
    """
    anatomy, dropped = loaded.anatomy, loaded.entry.drop_dimensions
    if readout == "final_norm" and anatomy.final_norm is not None:
        states = packed.states if packed.streams is None else packed.streams
        states = anatomy.read_out(states.to(DTYPES[loaded.dtype]))
        packed = pack(states, packed.lengths, prefix=packed.prefix)
    if not dropped:
        return packed
    states = packed.states.clone()
    states[..., list(dropped)] = 0
    return Packed(states, packed.lengths, packed.prefix)


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
    limit = budget or budget_of(loaded.device.type, anatomy.hidden)
    groups = [anatomy.group(getattr(p, "extent", len(p))) for p in ids]
    queue = list(batches([getattr(p, "cost", len(p)) for p in ids], limit, groups))
    queue.reverse()
    largest = max((len(batch) for batch in queue), default=0)
    while queue:
        batch = queue.pop()
        if len(batch) > largest:
            queue += [batch[largest:], batch[:largest]]
            continue
        try:
            for prompt in (ids[i] for upcoming in (batch, *queue[-1:]) for i in upcoming):
                if isinstance(prompt, LazyPrompt):
                    prompt.begin()
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
    has_pads = int(lengths.min()) < longest
    inputs = loaded.inputs(prompts)
    (lengths,) = hooks.on(loaded.device, {"lengths": lengths}).values()
    prefix = loaded.anatomy.prefix or 0

    def hand_over(layer: int, sublayer: str, states: Tensor) -> None:
        # A model spread over several devices hands its layers over on each.
        where = states.device
        # Whisper's encoder has states of the silence behind all recordings.
        states = states[:, :longest]
        streams = states if states.ndim == 4 else None
        if streams is not None:
            which = loaded.entry.stream
            states = streams.float().mean(2) if which == "mean" else streams[:, :, which]
        packed = pack(states, lengths.to(where), prefix=prefix, has_pads=has_pads)
        packed = packed if streams is None else replace(packed, streams=streams)
        taker.take(layer, sublayer, packed)

    if isinstance(loaded.reader, States):
        for layer, given in enumerate(inputs["states"]):
            hand_over(layer, BLOCK, given)
        taker.finish()
        return
    # The caller's autocast would change the type that the model computes in.
    with torch.autocast(loaded.device.type, enabled=False):
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


class FirstTokenAttention:
    """Takes the attention weights of the passes inside its context, as they go.

    Meanwhile the model runs with eager attention, the only one that returns its weights.

    Parameters
    ----------
    loaded : LoadedModel
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self._first: list[Tensor] = []
        self._undo = ExitStack()

    def __enter__(self) -> FirstTokenAttention:
        model: Any = self.loaded.model
        self._undo.callback(model.set_attn_implementation, model.config._attn_implementation)
        model.set_attn_implementation("eager")
        blocks = self.loaded.anatomy.blocks
        for module in {inner for block in blocks for inner in block.modules()}:
            self._undo.callback(module.register_forward_hook(self._saw).remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _saw(self, module: nn.Module, _: Any, output: Any) -> None:
        weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        if not isinstance(weights, Tensor) or weights.ndim != 4:
            return
        # Hyper-connections mix streams by square matrices; compressed keys are no tokens.
        mixes_streams = "HyperConnection" in type(module).__name__
        if weights.shape[-1] == weights.shape[-2] and not mixes_streams:
            self._first[:] = [weights[..., 0].float()]

    def start(self) -> None:
        """Begin a batch: forget what one that ran out of memory has left."""
        self._first.clear()

    def take(self, packed: Packed) -> Tensor | None:
        """Mean over the queries of the block that has just run, pads left out.

        Returns
        -------
        Tensor, shape (B, H), or None
            NaN for prompts of one token; None if the block has no attention.
        """
        if not self._first:
            return None
        weights = self._first.pop()
        total = (weights * packed.mask[:, None]).sum(dim=-1)
        # A single token attends to itself alone.
        return total / torch.where(packed.lengths > 1, packed.lengths, torch.nan)[:, None]

    @torch.inference_mode()
    def n_heads(self) -> int:
        """The most heads of a block, from a short pass; 0 if no block has attention."""
        loaded, counts = self.loaded, [0]

        def count(*_: Any) -> None:
            counts.extend(weights.shape[1] for weights in self._first)
            self._first.clear()

        with self:
            hooks.run(loaded.model, loaded.anatomy, loaded.example(), count)
        if not any(counts):
            log.warning(
                "%s has no attention weights; its file has no attention to the first token",
                loaded.name,
            )
        return max(counts)
