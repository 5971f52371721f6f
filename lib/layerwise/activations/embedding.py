"""Embed texts, images, recordings or words: vectors of all layers from one pass.

The readout ``residual`` is the residual stream after each block, ``final_norm`` the stream through
the model's final norm, if it has one. At the last layer ``final_norm`` is the model's output.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from layerwise.activations import eigen, forward
from layerwise.activations.representation import (
    Packed,
    Representation,
    after,
    inside,
    pool,
    select_tokens,
)
from layerwise.config.settings import TextPart
from layerwise.errors import LayerwiseError, check_name
from layerwise.models.load import LoadedModel
from layerwise.progress import Progress
from layerwise.vocabulary import (
    BLOCK,
    FINAL_NORM,
    OUTPUT,
    POOLINGS,
    SCORED_READOUTS,
    SINK_RATIO,
    TOKENS,
)

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]


# Tokens are counted when a window begins, so memory holds the token ids of one window and the
# vectors of one batch.
WINDOW = {"cpu": 2048, "cuda": 32768}


class Word(NamedTuple):
    """A word of a sentence, or a part of a text: the characters from `start` up to `stop`.

    Of its tokens, only the `last` ones count, if that is a number.
    """

    sentence: str
    start: int
    stop: int
    last: int | None = None

    def __str__(self) -> str:
        return self.sentence[self.start : self.stop]

    def behind(self, prompt: str) -> Word:
        """The same word in the sentence with a prompt in front."""
        n = len(prompt)
        return Word(prompt + self.sentence, self.start + n, self.stop + n, self.last)


class Span(NamedTuple):
    """Tokens `start` up to `stop` of the prompt with a number; none if they are equal."""

    prompt: int
    start: int
    stop: int


def words_of(words: Sequence[str]) -> list[Word]:
    """The words of a sentence that is written with one space between words."""
    sentence = " ".join(words)
    starts = itertools.accumulate((len(word) + 1 for word in words), initial=0)
    return [Word(sentence, n, n + len(word)) for n, word in zip(starts, words, strict=False)]


def spans(loaded: LoadedModel, words: Sequence[Word]) -> tuple[list[str], list[Span]]:
    """The distinct sentences of words, and where each word's tokens are in them.

    Returns
    -------
    tuple
        Sentences in the order of first use; a span for each word, of the tokens that
        `Texts.prompts` gives of its sentence. A word beyond the longest length has none.

    Raises
    ------
    LayerwiseError
        If the tokenizer keeps no offsets.
    """
    numbers = {s: n for n, s in enumerate(dict.fromkeys(word.sentence for word in words))}
    sentences = list(numbers)
    offsets = loaded.texts.offsets(sentences)
    places = []
    for sentence, start, stop, last in words:
        of_tokens = enumerate(offsets[numbers[sentence]])
        tokens = [n for n, (b, end) in of_tokens if b < stop and start < end and b < end]
        tokens = tokens[-last:] if last else tokens
        first_and_next = (tokens[0], tokens[-1] + 1) if tokens else (0, 0)
        places.append(Span(numbers[sentence], *first_and_next))
    return sentences, places


def part_of(text: Any, part: TextPart) -> Word:
    """The part of a text, whose tokens are those that overlap it.

    Raises
    ------
    LayerwiseError
        If the text lacks a marker, or is none.
    """
    if not isinstance(text, str):
        raise LayerwiseError(
            "part: it is for texts, not for images, recordings or words; leave it out.",
            code="conflict",
        )
    start, stop = 0, len(text)
    if part.after is not None:
        start = text.rfind(part.after) + len(part.after)
    if part.before is not None:
        stop = text.find(part.before, start)
    if stop < 0 or (part.after or "") not in text:
        marker = part.before if (part.after or "") in text else part.after
        raise LayerwiseError(
            f"part: the text {text[:60]!r} has no {marker!r}; check the marker, or add it to each "
            "text.",
            code="missing",
        )
    return Word(text, start, stop, part.last)


def representations_of(
    loaded: LoadedModel, tokens: Sequence[str], poolings: Sequence[str], readouts: Sequence[str]
) -> list[Representation]:
    """Every selection of tokens with every pooling and readout, checked for a model.

    Raises
    ------
    LayerwiseError
        If the model does not have the tokens, or a name is unknown.
    """
    for what, names, allowed in (
        ("token selection", tokens, TOKENS),
        ("pooling", poolings, POOLINGS),
        ("readout", readouts, SCORED_READOUTS),
    ):
        for name in names:
            check_name(what, name, allowed)
    loaded.check_tokens(tokens)
    return [Representation(*way) for way in itertools.product(tokens, poolings, readouts)]


def embed(
    loaded: LoadedModel, texts: Sequence[Any], ways: Sequence[Representation], **options: Any
) -> Array:
    """Embed texts, images, recordings or words in memory; parameters as of `embed_into`.

    Returns
    -------
    array, shape (representations, layers, texts, D), float32
        D is the model's `LoadedModel.width`; narrower vectors end in zeros.
    """
    into = np.empty((len(ways), loaded.anatomy.n_layers, len(texts), loaded.width), np.float32)
    with Progress(len(texts), f"{loaded.name} {loaded.revision}", "text") as bar:
        for n in embed_into(loaded, texts, into, ways, **options):
            bar.update(n)
    return into


def embed_into(
    loaded: LoadedModel,
    texts: Sequence[Any],
    into: Array,
    ways: Sequence[Representation],
    *,
    prompts: Sequence[str] | None = None,
    include_prompt: bool | None = None,
    budget: int | None = None,
    sink_ratio: float = SINK_RATIO,
    part: TextPart | None = None,
) -> Iterator[int]:
    """Fill an array with the vectors of texts, images, recordings or words at every layer.

    An empty text gets the end-of-text token. A text without selected tokens (one token under
    ``drop_first``) has the zero vector. Both are counted in the log.

    A word's vector is pooled over its tokens. The model reads a sentence once for all its words,
    and tokens are selected in the whole sentence.

    Parameters
    ----------
    texts : sequence of str, of images or recordings, or of `Word`
    into : array, shape (representations, layers, texts, D), float32
    ways : sequence of Representation
        Those that the model has (`representations_of`).
    prompts : sequence of str, optional
        Prompt in front of each text; empty for none. By default that of the model's embeddings.
    include_prompt : bool, optional
        Whether the tokens of prompts count in the pooling; by default as in the model's
        embeddings. If not, special tokens in front of them
        do not either, as in sentence-transformers' Pooling.
    budget : int, optional
        Tokens in a batch, pads included.
    sink_ratio : float
        See `layerwise.activations.representation.select_tokens`.
    part : TextPart, optional
        The part of each text that is embedded as a word is.

    Yields
    ------
    int
        How many texts have been embedded since the last time.

    Raises
    ------
    LayerwiseError
        If a vector is not finite, or a text cannot be tokenized.
    """
    texts = texts if part is None else [part_of(text, part) for text in texts]
    before = [loaded.embedder.prompt] * len(texts) if prompts is None else prompts
    counts = loaded.embedder.include_prompt if include_prompt is None else include_prompt
    are_words = len(texts) > 0 and isinstance(texts[0], Word)
    windows = list(forward.windows(len(texts), WINDOW[loaded.device.type]))
    spans_of_windows: list[list[Span] | None] = [None] * len(windows)
    if are_words:
        placed = [spans(loaded, [texts[i].behind(before[i]) for i in rows]) for rows in windows]
        spans_of_windows = [window_spans for _, window_spans in placed]
        coming = loaded.prompts_ahead(sentences for sentences, _ in placed)
    else:
        coming = loaded.prompts_ahead(
            [loaded.texts.behind(before[i], texts[i]) if before[i] else texts[i] for i in rows]
            for rows in windows
        )
    skipped = set() if counts or are_words else set(before)
    lengths = {prompt: prompt_length(loaded, prompt) for prompt in skipped}
    n_empty = n_cut = n_without = 0
    for rows, window_spans, (ids, cut) in zip(windows, spans_of_windows, coming, strict=True):
        n_empty += sum(not prompt for prompt in ids)
        n_cut += sum(c > 0 for c in cut)
        n_without += sum(span.start == span.stop for span in window_spans or ())
        window = _Window(
            loaded,
            ways,
            into[:, :, rows.start : rows.stop],
            sink_ratio,
            torch.tensor([lengths[before[i]] for i in rows]) if any(lengths.values()) else None,
            window_spans,
            [texts[i] for i in rows],
        )
        forward.run(
            loaded,
            [prompt or [loaded.texts.stand_in] for prompt in ids],
            partial(_Batch, window),
            output=True,
            budget=budget,
        )
        if window.behind is not None:
            window.behind.write()
        yield len(rows)
    for n, what in (
        (n_empty, "texts without a token of their own"),
        (n_cut, f"texts cut at {loaded.max_length} tokens"),
        (n_without, "words or parts without a token, whose vectors are zero"),
    ):
        if n:
            log.warning("%s: %d of %d inputs are %s", loaded.name, n, len(texts), what)


def prompt_length(loaded: LoadedModel, prompt: str) -> int:
    """Number of tokens of a prompt, with special tokens in front and without those at its end, as
    sentence-transformers counts them."""
    if not prompt:
        return 0
    loaded.texts.refuse_chat("include_prompt: false")
    (ids,), _ = loaded.texts.prompts([prompt])
    return len(ids) - (ids[-1:] != [] and ids[-1] in loaded.texts.tokenizer.all_special_ids)


@dataclass
class _Window:
    """Texts that are tokenized together, and where their vectors go.

    Attributes
    ----------
    into : array, shape (representations, layers, n, D)
    prompts : Tensor, shape (n,), optional
        Number of first tokens of each text that do not count.
    words : list of Span, optional
        Words that are embedded in place of whole texts.
    texts : list
        What the vectors are of, for errors.
    behind : _Batch, optional
        The last batch, whose vectors are on their way from the device while the next is computed.
    """

    loaded: LoadedModel
    ways: Sequence[Representation]
    into: Array
    sink_ratio: float
    prompts: Tensor | None
    words: list[Span] | None
    texts: list[Any]
    behind: _Batch | None = None


class _Batch:
    """Vectors of one batch, on the device until the pass is over."""

    def __init__(self, window: _Window, rows: list[int]) -> None:
        self.window, self.rows = window, rows
        self.prompts = None if window.prompts is None else window.prompts[rows]
        if window.words is not None:
            place = {row: k for k, row in enumerate(rows)}
            words = [(k, span) for k, span in enumerate(window.words) if span.prompt in place]
            self.rows = [k for k, _ in words]
            self.words = torch.tensor([(place[s.prompt], s.start, s.stop) for _, s in words])
            self.longest = max(1, *(span.stop - span.start for _, span in words))
        self.layers: list[Packed] = []
        self.values: dict[tuple[int, int], Tensor] = {}

    def take(self, layer: int, sublayer: str, packed: Packed, /) -> None:
        """Pool one layer's states in every representation that reads them."""
        loaded = self.window.loaded
        if loaded.embedder.reads_layers and sublayer == BLOCK:
            self.layers.append(packed)
        last = layer == loaded.anatomy.n_layers - 1 and loaded.anatomy.output > 0
        for number, way in enumerate(self.window.ways):
            if sublayer != (OUTPUT if last and way.readout == FINAL_NORM else BLOCK):
                continue
            # The output has been through the norm.
            readout = "residual" if sublayer == OUTPUT else way.readout
            selected, prompts = self._selected(forward.read(loaded, packed, readout), way)
            pooled = pool(selected, way.pooling, prompts)
            is_output = last and (sublayer == OUTPUT or loaded.anatomy.final_norm is None)
            if loaded.embedder.modules and is_output:
                earlier = self.layers[: loaded.anatomy.n_layers - 1]
                layers = [*(self._selected(one, way)[0].states for one in earlier)]
                layers.append(selected.states)
                pooled = loaded.embedder.apply(selected.states, selected.mask, pooled, layers)
            self.values[number, layer] = pooled

    def _selected(self, states: Packed, way: Representation) -> tuple[Packed, Tensor | None]:
        """The token states that count, and the number of tokens of each prompt before them."""
        ratio = self.window.sink_ratio
        if self.window.words is not None:
            rows, starts, stops = self.words.to(states.lengths.device).T
            return inside(states, way.tokens, rows, starts, stops, self.longest, ratio), None
        if self.prompts is None:
            return select_tokens(states, way.tokens, ratio), None
        prompts = self.prompts.to(states.lengths.device)
        if way.tokens == "drop_first":  # which a prompt that does not count takes with it
            return after(states, prompts.clamp(min=1)), prompts
        return select_tokens(after(states, prompts), way.tokens, ratio), prompts

    def finish(self) -> None:
        """Start to copy the vectors, and write those of the batch before meanwhile."""
        self.copies = eigen.to_host([*self.values.values()])
        before, self.window.behind = self.window.behind, self
        if before is not None:
            before.write()

    def write(self) -> None:
        """Write the vectors to the window's array.

        Raises
        ------
        LayerwiseError
            If one is not finite.
        """
        window = self.window
        for (number, layer), values in zip(self.values, self.copies(), strict=True):
            bad = ~np.isfinite(values).all(axis=1)
            if bad.any():
                text = str(window.texts[self.rows[int(bad.argmax())]])[:60]
                raise window.loaded.not_finite(f"layer {layer} for the text {text!r}")
            into = window.into[number, layer]
            into[self.rows, : values.shape[1]] = values
            into[self.rows, values.shape[1] :] = 0
