"""One forward pass per batch, with every layer's states handed over as the pass reaches them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from layerwise.activations import batches
from layerwise.activations.readout import Packed, pack
from layerwise.errors import LayerwiseError
from layerwise.models.load import DTYPES, LoadedModel

log = logging.getLogger(__name__)

# consume(layer, states of the batch, indices of the batch's prompts)
Consumer = Callable[[int, Packed, list[int]], None]


def read(loaded: LoadedModel, packed: Packed, readout: str) -> Packed:
    """A layer's states under a readout.

    Parameters
    ----------
    readout : {'residual', 'final_norm'}
        The stream after block l as it is, or with the model's last norm applied to it.

    Raises
    ------
    LayerwiseError
        If the model has no last norm of its own, or the readout is another.
    """
    if readout == "residual":
        return packed
    norm = loaded.anatomy.final_norm
    if readout != "final_norm" or norm is None:
        raise LayerwiseError(
            f"readout is {readout!r}, but {loaded.name} has only "
            f"{'residual' if norm is None else 'residual and final_norm'}."
        )
    states = packed.states.to(DTYPES[loaded.dtype])
    return pack(norm(states), packed.lengths)


def run(
    loaded: LoadedModel,
    ids: Sequence[Sequence[int]],
    consume: Consumer,
    *,
    budget: int | None = None,
    done: Callable[[int], None] | None = None,
) -> None:
    """Run prompts through the model and hand each layer's states to `consume`.

    Memory holds one layer of one batch. Pads stand on the right and are zeroed before they are
    handed over. On a GPU, running out of memory halves the batch and tries again.

    Parameters
    ----------
    ids : sequence of token id lists
    budget : int, optional
        Tokens in a batch; by default what suits the device.
    done : callable, optional
        Called with the number of tokens of each finished batch.

    Raises
    ------
    LayerwiseError
        If a prompt has no token, or memory does not hold one prompt.
    """
    empty = [i for i, prompt in enumerate(ids) if not prompt]
    if empty:
        raise LayerwiseError(
            f"{len(empty)} prompts have no token under {loaded.name}'s tokenizer (the first is "
            f"number {empty[0]}); remove blank texts from the corpus."
        )
    limit = budget or batches.BUDGET[loaded.device.type]
    queue = list(batches.cut([len(prompt) for prompt in ids], limit))
    queue.reverse()
    while queue:
        batch = queue.pop()
        try:
            _forward(loaded, [ids[i] for i in batch], batch, consume)
        except torch.OutOfMemoryError as error:
            if len(batch) == 1:
                raise LayerwiseError(
                    f"{loaded.name} does not fit one prompt of {len(ids[batch[0]])} tokens into "
                    f"the memory of {loaded.device}; shorten max_length or use a larger device."
                ) from error
            torch.cuda.empty_cache()
            half = len(batch) // 2
            log.warning("out of memory with %d prompts; going on with %d", len(batch), half)
            queue += [batch[half:], batch[:half]]
            continue
        if done is not None:
            done(sum(len(ids[i]) for i in batch))


@torch.inference_mode()
def _forward(
    loaded: LoadedModel,
    prompts: list[Sequence[int]],
    indices: list[int],
    consume: Consumer,
) -> None:
    lengths = torch.tensor([len(p) for p in prompts])
    longest = int(lengths.max())
    pad = int(loaded.tokenizer.pad_token_id)
    tokens = torch.full((len(prompts), longest), pad)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt)
    tokens = tokens.to(loaded.device)
    sizes = lengths.to(loaded.device)
    # Without pads no mask is needed, which lets attention take its fastest path.
    padded = int(lengths.min()) < longest
    mask = (torch.arange(longest, device=loaded.device)[None] < sizes[:, None]) if padded else None

    def hand_over(layer: int, states: Tensor) -> None:
        consume(layer, pack(states, sizes), indices)

    def before_first(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hand_over(0, args[0] if args else kwargs["hidden_states"])

    def after(layer: int) -> Callable[..., None]:
        def hook(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
            hand_over(layer, output if isinstance(output, Tensor) else output[0])

        return hook

    with ExitStack() as stack:
        blocks = loaded.anatomy.blocks
        handle = blocks[0].register_forward_pre_hook(before_first, with_kwargs=True)
        stack.callback(handle.remove)
        for number, block in enumerate(blocks, start=1):
            stack.callback(block.register_forward_hook(after(number)).remove)
        inputs: dict[str, Any] = {"input_ids": tokens}
        if mask is not None:
            inputs["attention_mask"] = mask.long()
        config: Any = loaded.model.config
        if "use_cache" in config.to_dict():
            inputs["use_cache"] = False
        loaded.model(**inputs)
