"""Embed texts, or words in their sentences: every text once, all layers and all token choices from
one pass."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from layerwise.activations import batches, forward
from layerwise.activations.representation import (
    POOLINGS,
    SINK_RATIO,
    Packed,
    after,
    choose,
    inside,
    pool,
)
from layerwise.activations.words import Span, Word, spans
from layerwise.errors import LayerwiseError, closest
from layerwise.models.architectures import BLOCK, OUTPUT
from layerwise.models.failures import not_finite
from layerwise.models.load import LoadedModel, Prompt
from layerwise.progress import Progress
from layerwise.tasks.layout import Reading, first_stored

log = logging.getLogger(__name__)

Slabs = list[npt.NDArray[Any]]

# write(start, stop, for each reading its embeddings of shape (layers, stop - start, D))
Writer = Callable[[int, int, Slabs], None]


def embed(
    loaded: LoadedModel,
    texts: Sequence[Any],
    write: Writer,
    *,
    readings: Sequence[Reading],
    budget: int | None = None,
    prompts: Sequence[str] | None = None,
    include_prompt: bool = True,
    sink_ratio: float = SINK_RATIO,
) -> None:
    """Embed texts at every layer, under every reading asked for, from one pass.

    A text without any token (an empty one, under a tokenizer without special tokens) is given
    the end-of-text token, and counted in the log. A text of which no token counts (one token
    under ``drop_first``) has the zero vector.

    A word's vector is pooled from its tokens alone; the model reads the whole sentence, which is
    run once for all its words that follow one another. Which tokens count is decided over the
    sentence: ``drop_first`` leaves out the sentence's first token.

    Parameters
    ----------
    texts : sequence of str, of images, or of `layerwise.activations.words.Word`
    write : callable
        Called with successive texts' embeddings: for each reading an array of shape
        (layers, n, D), float32, of the layers from `layerwise.tasks.layout.first_stored` on.
    readings : R representations (see `layerwise.activations.representation`), of readouts
        that the model has (see `those_it_has`)
    prompts : sequence of str, optional
        What stands in front of each text; empty for nothing.
    include_prompt : bool
        Whether a prompt's tokens count. If not, those in front of it (BOS, CLS) don't either, as
        in sentence-transformers' Pooling; all of them are still there for the model to read.
    sink_ratio : float
        See `layerwise.activations.representation.choose`.

    Raises
    ------
    LayerwiseError
        If a state is not finite, or a pooling or readout is unknown.
    """
    loaded.check_tokens(r.tokens for r in readings)
    for reading in readings:
        forward.check_readout(loaded, reading.readout)
        if reading.pooling not in POOLINGS:
            raise LayerwiseError(
                f"pooling is {reading.pooling!r}{closest(reading.pooling, POOLINGS)}; "
                f"accepted are {', '.join(POOLINGS)}."
            )
    n_layers, hidden = loaded.anatomy.n_layers, loaded.anatomy.hidden
    n_stored = sum(n_layers - first for first in first_stored(readings, n_layers))
    per_text = n_stored * hidden * 4
    window = max(32, batches.WINDOW_BYTES[loaded.device.type] // per_text)
    parts = list(batches.windows(len(texts), window))
    before = [""] * len(texts) if prompts is None else prompts
    of_words = len(texts) > 0 and isinstance(texts[0], Word)
    in_front = not (include_prompt or of_words)
    lengths = {p: prompt_length(loaded, p) for p in set(before)} if in_front else {}
    what = "word" if of_words else "text"
    n_run = n_empty = n_cut = n_without = 0
    if of_words:
        placed = [spans(loaded, [texts[i].behind(before[i]) for i in part]) for part in parts]
        coming = loaded.prompts_ahead(sentences for sentences, _ in placed)
    else:
        coming = loaded.prompts_ahead(
            [before[i] + texts[i] if before[i] else texts[i] for i in part] for part in parts
        )
    with Progress(len(texts), f"{loaded.name} {loaded.revision}", what) as bar:
        for number, (part, (ids, cut)) in enumerate(zip(parts, coming, strict=True)):
            empty = [i for i, prompt in enumerate(ids) if not prompt]
            for index in empty:
                ids[index] = [loaded.stand_in]
            n_run += len(ids)
            n_empty += len(empty)
            n_cut += sum(c > 0 for c in cut)
            # In a function of its own, so that two slabs are never in memory.
            own = [lengths[before[i]] for i in part] if any(lengths.values()) else None
            words = placed[number][1] if of_words else None
            n_without += sum(span.start == span.stop for span in words or ())
            slabs = _embed_window(loaded, ids, readings, budget, sink_ratio, own, words)
            _check(loaded, slabs, [texts[i] for i in part])
            write(part.start, part.stop, slabs)
            del slabs
            bar.update(len(part))
    if n_empty:
        log.warning("%d of %d texts have no token of their own", n_empty, n_run)
    if n_cut:
        log.warning(
            "%d of %d texts are longer than %d tokens and were cut",
            n_cut, n_run, loaded.max_length,
        )  # fmt: skip
    if n_without:
        log.warning(
            "%d of %d words have no token, as their sentences are cut at %d tokens or the "
            "tokenizer drops them: their vectors are zero",
            n_without, len(texts), loaded.max_length,
        )  # fmt: skip


def prompt_length(loaded: LoadedModel, prompt: str) -> int:
    """How many of the first tokens are a prompt's, as sentence-transformers counts them: those of
    the prompt alone, special ones in front included, one at its end not."""
    if not prompt:
        return 0
    ((ids,), _) = loaded.tokenize([prompt])
    return len(ids) - (ids[-1:] != [] and ids[-1] in loaded.tokenizer.all_special_ids)


def those_it_has(loaded: LoadedModel, readings: Sequence[Reading]) -> tuple[Reading, ...]:
    """The readings that a model has: one without a last norm of its own (BERT) lacks one readout.

    The others are named in the log, as the sublayers are that a model lacks.

    Raises
    ------
    LayerwiseError
        If none is left.
    """
    there = loaded.anatomy.readouts
    absent = dict.fromkeys(r.readout for r in readings if r.readout not in there)
    left = tuple(r for r in readings if r.readout in there)
    if not left:
        raise LayerwiseError(
            f"{loaded.name} (architecture {loaded.anatomy.kind!r}) has no readout "
            f"{' and no '.join(absent)}, and no other is asked for; it has {', '.join(there)}: "
            "add one of them to readouts."
        )
    if absent:
        log.warning(
            "%s (architecture %r) has no readout %s; its file holds %s",
            loaded.name, loaded.anatomy.kind, " and no ".join(absent),
            ", ".join(dict.fromkeys(r.readout for r in left)),
        )  # fmt: skip
    return left


def _embed_window(
    loaded: LoadedModel,
    ids: Sequence[Prompt],
    readings: Sequence[Reading],
    budget: int | None,
    sink_ratio: float,
    prompts: list[int] | None = None,
    words: Sequence[Span] | None = None,
) -> Slabs:
    """Embeddings of some texts, or words: of each reading, shape (layers, n, D), float32.

    Parameters
    ----------
    prompts : list of int, optional
        How many of each text's first tokens don't count.
    words : sequence of Span, optional
        The words to embed in place of whole texts.
    """
    n_layers, hidden = loaded.anatomy.n_layers, loaded.anatomy.hidden
    slabs = [
        np.empty((n_layers - first, len(ids if words is None else words), hidden), np.float32)
        for first in first_stored(readings, n_layers)
    ]

    def start(rows: list[int]) -> _Batch:
        if words is None:
            return _Batch(loaded, readings, slabs, rows, sink_ratio, prompts)
        place = {row: k for k, row in enumerate(rows)}
        mine = [k for k, span in enumerate(words) if span.prompt in place]
        own = torch.tensor([(place[words[k].prompt], *words[k][1:]) for k in mine])
        return _Batch(loaded, readings, slabs, mine, sink_ratio, None, own)

    forward.run(
        loaded, ids, start, output=any(r.readout == OUTPUT for r in readings), budget=budget
    )
    return slabs


class _Batch:
    """One batch's embeddings, on the device until the pass is over."""

    def __init__(
        self,
        loaded: LoadedModel,
        readings: Sequence[Reading],
        slabs: Slabs,
        rows: list[int],
        sink_ratio: float,
        prompts: list[int] | None,
        words: Tensor | None = None,
    ) -> None:
        self.loaded, self.readings, self.slabs, self.rows = loaded, readings, slabs, rows
        self.prompts = None if prompts is None else torch.tensor([prompts[i] for i in rows])
        self.words = words
        self.sink_ratio = sink_ratio
        self.first = first_stored(readings, loaded.anatomy.n_layers)
        self.values: dict[tuple[int, int], Tensor] = {}

    def take(self, layer: int, sublayer: str, packed: Packed, /) -> None:
        """Pool one layer's states, under every reading that they are of."""
        last = layer == self.loaded.anatomy.n_layers - 1
        for place, reading in enumerate(self.readings):
            wanted = OUTPUT if last and reading.readout == OUTPUT else BLOCK
            if layer >= self.first[place] and sublayer == wanted:
                read = forward.read(self.loaded, packed, reading.readout)
                self.values[place, layer] = self._pooled(read, reading)

    def _pooled(self, read: Packed, reading: Reading) -> Tensor:
        if self.words is not None:
            rows, starts, stops = self.words.to(read.lengths.device).T
            chosen = inside(read, reading.tokens, rows, starts, stops, self.sink_ratio)
            return pool(chosen, reading.pooling)
        if self.prompts is None:
            return pool(self._chosen(read, reading), reading.pooling)
        prompts = self.prompts.to(read.lengths.device)
        if reading.tokens == "drop_first":  # which a prompt that does not count takes with it
            chosen = after(read, prompts.clamp(min=1))
        else:
            chosen = self._chosen(after(read, prompts), reading)
        return pool(chosen, reading.pooling, prompts)

    def _chosen(self, read: Packed, reading: Reading) -> Packed:
        return choose(read, reading.tokens, self.sink_ratio)

    def finish(self) -> None:
        """Move the embeddings to the slabs."""
        for (place, layer), values in self.values.items():
            self.slabs[place][layer - self.first[place], self.rows] = values.cpu().numpy()


def _check(loaded: LoadedModel, slabs: Slabs, texts: Sequence[Any]) -> None:
    for slab in slabs:
        bad = np.argwhere(~np.isfinite(slab).all(axis=2))
        if not bad.size:
            continue
        place, text = bad[0]
        layer = loaded.anatomy.n_layers - len(slab) + place
        raise LayerwiseError(
            not_finite(
                loaded.name, loaded.revision, loaded.dtype,
                f"layer {layer} for the text {str(texts[text])[:60]!r}",
            )
        )  # fmt: skip
