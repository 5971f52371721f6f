"""Similarity of sentences by their tokens, at every layer: BERTScore beside the pooled cosine.

Greedy matching (Zhang et al. 2020, arXiv 1904.09675): each token of one sentence is matched with
the most similar token of the other, by cosine. Recall is the mean over the reference's tokens,
precision over the candidate's, F1 their harmonic mean; with idf, a token counts by
``log((N + 1) / (n + 1))``, n of the N references having it. As in the authors' package, special
tokens have no weight of their own but can be matched, and nothing is rescaled.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from layerwise.activations import batches, forward
from layerwise.activations.representation import SINK_RATIO, Packed, counted
from layerwise.config.token_tasks import MATCHES
from layerwise.errors import LayerwiseError
from layerwise.models.architectures import BLOCK, OUTPUT
from layerwise.models.failures import not_finite
from layerwise.models.load import LoadedModel
from layerwise.progress import Progress

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]

MEASURES = ("mean", *MATCHES)

# Tokens of a batch of pairs that share texts, where the config names no number: more than is
# quickest for a batch, since each text that fits is a text that is not run again.
TOGETHER = 16_384


def similarities(
    loaded: LoadedModel,
    references: Sequence[str],
    candidates: Sequence[str],
    *,
    tokens: Sequence[str],
    readouts: Sequence[str],
    budget: int | None = None,
    sink_ratio: float = SINK_RATIO,
) -> Floats:
    """Similarity of each pair at each layer, all layers and readings from one pass.

    Pairs that share texts run each of them once, as far as one batch holds them.

    Parameters
    ----------
    references, candidates : sequences of n texts
    tokens : sequence of str
        Which tokens count: as `layerwise.activations.representation.choose` has them.
    readouts : sequence of str
        Those of `loaded.anatomy.readouts` to read.
    sink_ratio : float
        See `layerwise.activations.representation.choose`.

    Returns
    -------
    array, shape (tokens, readouts, measures, layers, n)
        In the order of `MEASURES`; in [-1, 1]. Pairs of which nothing is left have 0.

    Raises
    ------
    LayerwiseError
        If memory does not hold one pair, a state is not finite, or the model lacks a readout or
        has no such tokens.
    """
    loaded.check_tokens(tokens)
    for readout in readouts:
        forward.check_readout(loaded, readout)
    texts = list(dict.fromkeys([*references, *candidates]))
    place = {text: i for i, text in enumerate(texts)}
    pairs = [(place[a], place[b]) for a, b in zip(references, candidates, strict=True)]
    ids, cut = loaded.tokenize(texts)
    idf = _document_frequencies(loaded, [ids[one] for one, _ in pairs])
    ids = [own or [loaded.stand_in] for own in ids]
    shape = (len(tokens), len(readouts), len(MEASURES), loaded.anatomy.n_layers, len(pairs))
    found = np.zeros(shape)
    limit = budget or batches.budget_of(loaded.device.type, loaded.anatomy.hidden)
    queue = batches_of(pairs, list(map(len, ids)), limit, budget or max(limit, TOGETHER))
    with Progress(len(pairs), f"{loaded.name} {loaded.revision}", "pair") as bar:
        while queue:
            rows = queue.pop()
            here = list(dict.fromkeys(text for row in rows for text in pairs[row]))
            at = {text: i for i, text in enumerate(here)}
            own = torch.tensor([[at[text] for text in pairs[row]] for row in rows])
            batch = _Batch(
                loaded, [ids[text] for text in here], own, idf, tokens, readouts, limit, sink_ratio
            )  # fmt: skip
            too_large = False
            try:
                forward.run_batch(
                    loaded, [ids[text] for text in here], batch, output=OUTPUT in readouts
                )
            except (MemoryError, RuntimeError) as error:
                if not forward.out_of_memory(error):
                    raise
                too_large = True
            if not too_large:
                found[..., rows] = batch.values
                bar.update(len(rows))
                continue
            # Only here, after the exception and what it holds are gone, is the memory free.
            del batch
            if len(rows) == 1:
                lengths = " and ".join(str(len(ids[text])) for text in pairs[rows[0]])
                raise LayerwiseError(
                    f"{loaded.name} does not fit a pair of {lengths} tokens into the memory of "
                    f"{loaded.device}; shorten max_length, or use a larger device."
                )
            queue += [rows[len(rows) // 2 :], rows[: len(rows) // 2]]
            if loaded.device.type == "cuda":
                torch.cuda.empty_cache()
    if not np.isfinite(found).all():
        layer = int(np.argwhere(~np.isfinite(found))[0][3])
        raise LayerwiseError(
            not_finite(loaded.name, loaded.revision, loaded.dtype, f"layer {layer} for a pair")
        )
    n_cut = sum(cut[one] + cut[other] > 0 for one, other in pairs)
    if n_cut:
        log.warning("%d of %d pairs have a text that was cut", n_cut, len(pairs))
    return found


def batches_of(
    pairs: Sequence[tuple[int, int]], lengths: Sequence[int], budget: int, together: int
) -> list[list[int]]:
    """Pairs that go through the model together, so that each of their texts is run once.

    Pairs that share texts, directly or by way of others, are put together; a text is run again
    only where they are more than a batch.

    Parameters
    ----------
    pairs : sequence of pairs of places of texts
    lengths : sequence of int
        Tokens of each text.
    budget, together : int
        The most tokens in a batch, pads included, of pairs that share nothing, and of pairs that
        do; a longer pair goes alone.
    """
    n = len(lengths)
    edges = coo_array((np.ones(len(pairs)), tuple(np.array(pairs).reshape(-1, 2).T)), shape=(n, n))
    group = connected_components(edges, directed=False)[1]
    longest = np.zeros(n, dtype=int)
    np.maximum.at(longest, group, lengths)
    order = sorted(
        range(len(pairs)),
        key=lambda row: (-longest[group[pairs[row][0]]], group[pairs[row][0]], pairs[row]),
    )
    found: list[list[int]] = []
    texts: set[int] = set()
    for row in order:
        own = set(pairs[row])
        most = together if texts & own else budget
        if not found or len(texts | own) * max(lengths[text] for text in texts | own) > most:
            found.append([])
            texts = set()
        found[-1].append(row)
        texts |= own
    return found


def _document_frequencies(loaded: LoadedModel, references: Sequence[Sequence[int]]) -> Tensor:
    """Inverse document frequency of each token, shape (vocabulary,); special tokens have 0."""
    counts = Counter(token for ids in references for token in set(ids))
    n = len(loaded.model.get_input_embeddings().weight)  # type: ignore[operator]
    idf = torch.full((n,), math.log(len(references) + 1))
    for token, count in counts.items():
        idf[token] = math.log((len(references) + 1) / (count + 1))
    idf[[i for i in loaded.tokenizer.all_special_ids if i < n]] = 0
    return idf


class _Batch:
    """One batch: some texts, and the places (n, 2) of the references and candidates in it."""

    def __init__(
        self,
        loaded: LoadedModel,
        ids: list[list[int]],
        pairs: Tensor,
        idf: Tensor,
        tokens: Sequence[str],
        readouts: Sequence[str],
        budget: int,
        sink_ratio: float,
    ) -> None:
        self.loaded, self.tokens, self.readouts = loaded, tokens, readouts
        self.sink_ratio = sink_ratio
        longest = max(map(len, ids))
        special = set(loaded.tokenizer.all_special_ids)
        weights = torch.zeros(2, len(ids), longest)
        for row, prompt in enumerate(ids):
            weights[0, row, : len(prompt)] = torch.tensor(
                [float(t not in special) for t in prompt]
            )
            weights[1, row, : len(prompt)] = idf[torch.tensor(prompt)]
        self.weights = weights
        shape = (len(tokens), len(readouts), len(MEASURES), loaded.anatomy.n_layers, len(pairs))
        self.values = np.zeros(shape)
        self.pairs = torch.split(pairs, max(1, budget // (2 * longest)))  # compared together

    def take(self, layer: int, sublayer: str, packed: Packed, /) -> None:
        """Compare the pairs at one layer, under every reading that it is of."""
        last = layer == self.loaded.anatomy.n_layers - 1
        for place, readout in enumerate(self.readouts):
            wanted = OUTPUT if last and readout == OUTPUT else BLOCK
            if sublayer != wanted:
                continue
            if not last and readout == OUTPUT and "residual" in self.readouts:
                continue  # the same; see `finish`
            read = forward.read(self.loaded, packed, readout)
            for k, tokens in enumerate(self.tokens):
                counts = counted(read, tokens, self.sink_ratio)
                weights = self.weights.to(counts.device) * counts
                alike = [
                    compare(read.states[rows], counts[rows], weights[:, rows])
                    for rows in (part.T.flatten().to(counts.device) for part in self.pairs)
                ]
                self.values[k, place, :, layer] = torch.cat(alike, dim=1).cpu()

    def finish(self) -> None:
        """Below the last layer, what the model hands out is the residual stream."""
        if OUTPUT in self.readouts and "residual" in self.readouts:
            here, there = self.readouts.index(OUTPUT), self.readouts.index("residual")
            self.values[:, here, :, :-1] = self.values[:, there, :, :-1]


def compare(states: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
    """The similarity of pairs by each of `MEASURES`.

    Parameters
    ----------
    states : Tensor, shape (2B, T, D)
        References, then candidates.
    counts : Tensor of bool, shape (2B, T)
        The tokens that can be matched, and of which the pooled embedding is the mean.
    weights : Tensor, shape (2, 2B, T)
        What each token counts for: plain, and by idf.

    Returns
    -------
    Tensor, shape (measures, B)
    """
    # In double precision: where all texts lie close together, rounding would rank them.
    pooled = (states * counts[..., None]).sum(dim=1).double()  # cosine knows no length
    one, other = torch.nn.functional.normalize(pooled, dim=-1).chunk(2)
    found = [(one * other).sum(dim=-1)]
    first, second = torch.nn.functional.normalize(states, dim=-1).chunk(2)
    alike = first @ second.transpose(1, 2)
    can_first, can_second = counts.chunk(2)
    recalls = alike.masked_fill(~can_second[:, None, :], -torch.inf).amax(dim=2)
    precisions = alike.masked_fill(~can_first[:, :, None], -torch.inf).amax(dim=1)
    for weight in weights:
        of_first, of_second = weight.chunk(2)
        recall, precision = _mean(recalls, of_first), _mean(precisions, of_second)
        total = precision + recall
        f1 = torch.where(total > 0, 2 * precision * recall / torch.where(total > 0, total, 1), 0)
        found += [precision, recall, f1]
    return torch.stack([f.double() for f in found])


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean of each row; 0 where nothing has weight, or nothing could be matched."""
    total = weights.sum(dim=1)
    known = torch.where(weights > 0, values, 0)
    mean = (known * weights).sum(dim=1) / torch.where(total > 0, total, 1)
    return torch.where(torch.isneginf(mean), 0, mean)
