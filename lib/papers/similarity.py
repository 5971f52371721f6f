"""Similarity of all layers of models and checkpoints: linear CKA and RSA.

One pass over the pooled embeddings that activations files hold: each layer becomes a prompts x
prompts matrix once, and every pair of layers is compared through these.

============= ====================================================================================
cka_debiased  linear CKA (Kornblith et al. 2019) from unbiased HSIC (Song et al. 2012; Nguyen et
              al. 2021): 0 on average for unrelated layers; may be below 0
rsa           Spearman correlation of the dissimilarities of all pairs of prompts, 1 - Pearson's r
              of their embeddings (Kriegeskorte et al. 2008)
============= ====================================================================================

Standard errors are jackknives over prompts, exact for CKA; those of RSA keep the ranks.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import rankdata

from layerwise.activations.store import Activations
from layerwise.association import unit
from layerwise.errors import LayerwiseError

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]

MOST_PROMPTS = 1000  # matrices of all layers are held at once: 8 MB a layer and measure
FEWEST_PROMPTS = 5


class Compared(NamedTuple):
    """Similarity of the layers of one model with those of another; arrays of shape (L, M)."""

    value: Floats
    stderr: Floats


def grams(embeddings: Floats) -> Floats:
    """Centred linear Gram matrices, shape (L, N, D) to (L, N, N)."""
    centred = embeddings - embeddings.mean(axis=1, keepdims=True)
    return np.asarray(centred @ centred.swapaxes(1, 2))


def ranked(embeddings: Floats) -> Floats:
    """Ranks of the dissimilarities of all pairs of prompts, centred, 0 on the diagonal.

    Shape (L, N, D) to (L, N, N).
    """
    scaled = unit(embeddings - embeddings.mean(axis=2, keepdims=True))
    upper = np.triu_indices(embeddings.shape[1], 1)
    rank = rankdata(1 - (scaled @ scaled.swapaxes(1, 2))[:, *upper], axis=1)
    ranks = np.zeros((len(scaled), *2 * embeddings.shape[1:2]))
    ranks[:, *upper] = rank - rank.mean(axis=1, keepdims=True)
    return ranks + ranks.swapaxes(1, 2)


def _sums(K: Floats, L: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Sums for HSIC of two sets of matrices without diagonals, shapes (a, N, N) and (b, N, N).

    Products of entries, products of row sums, and products of totals; and the number of prompts.
    With all prompts first, then with each left out: shape (N + 1, a, b).
    """
    # Of each prompt: its row in K times its row in L, shape (N, a, b).
    by_prompt = K.transpose(1, 0, 2) @ L.transpose(1, 2, 0)
    rows_K, rows_L = K.sum(axis=2), L.sum(axis=2)
    entries, rows = by_prompt.sum(axis=0), rows_K @ rows_L.T
    # Without prompt i, row j of K sums to rows_K[j] - K[i, j]; the products follow from those of
    # both terms, and row i itself is subtracted.
    rows_without = (
        rows
        - rows_K.T[:, :, None] * rows_L.T[:, None, :]
        - (K @ rows_L.T).transpose(1, 0, 2)
        - (L @ rows_K.T).transpose(1, 2, 0)
        + by_prompt
    )
    # Without prompt i, both its row and its column are missing.
    totals_K, totals_L = (
        np.vstack([sums.sum(axis=1), sums.sum(axis=1) - 2 * sums.T]) for sums in (rows_K, rows_L)
    )
    n = K.shape[1]
    return (
        np.concatenate([entries[None], entries - 2 * by_prompt]),
        np.concatenate([rows[None], rows_without]),
        totals_K[:, :, None] * totals_L[:, None, :],
        np.r_[float(n), np.full(n, n - 1.0)][:, None, None],
    )


def _hsic(K: Floats, L: Floats) -> Floats:
    """Unbiased HSIC of all pairs on all prompts, then without each; shape (N + 1, a, b)."""
    products, rows, totals, n = _sums(K, L)
    biased = products + totals / ((n - 1) * (n - 2)) - 2 * rows / (n - 2)
    return np.asarray(biased / (n * (n - 3)))


def _compared(covariance: Callable[[Floats, Floats], Floats], X: Floats, Y: Floats) -> Compared:
    """Correlations from covariances, with the jackknife over prompts."""
    variances_X, variances_Y = (
        np.stack([covariance(m, m)[:, 0, 0] for m in Z[:, None]], axis=1) for Z in (X, Y)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.sqrt(variances_X[:, :, None] * variances_Y[:, None, :])
        correlations = covariance(X, Y) / scale
    value, without = np.clip(correlations[0], -1.0, 1.0), correlations[1:]
    return Compared(value, np.sqrt((len(without) - 1) * without.var(axis=0)))


def cka_debiased(K: Floats, L: Floats) -> Compared:
    """Linear CKA from unbiased HSIC of all pairs; K and L as `grams` makes them."""
    hollow = 1 - np.eye(K.shape[1])
    return _compared(_hsic, K * hollow, L * hollow)


def rsa(Q: Floats, R: Floats) -> Compared:
    """Correlation of ranked dissimilarities of all pairs; Q and R as `ranked` makes them."""
    return _compared(_covariance, Q, R)


def _covariance(Q: Floats, R: Floats) -> Floats:
    products, _, totals, n = _sums(Q, R)
    pairs = n * (n - 1)
    return np.asarray(products / pairs - totals / pairs**2)


def table(files: Sequence[Activations], tokens: Sequence[str] | None = None) -> pd.DataFrame:
    """Similarity of all layers of each file with those of itself and of each later file.

    Parameters
    ----------
    files : sequence of Activations
        On one corpus. Of the protocol ``paper``, or the only one there is.
    tokens : sequence of str, optional
        Choices of tokens; by default those that all files hold.

    Returns
    -------
    DataFrame
        model, revision, other_model, other_revision, corpus, protocol, tokens, layer, other_layer,
        depth, other_depth, measure, value, stderr, n; on the first `MOST_PROMPTS` prompts that
        have an embedding in all files.

    Raises
    ------
    LayerwiseError
        If the files are on several corpora or other prompts, or too few prompts are left.
    """
    first = files[0]
    for file in files:
        if file.corpus != first.corpus or file.prompts != first.prompts:
            raise LayerwiseError(
                f"{file.path} and {first.path} hold other prompts, and layers are compared on the "
                "same; extract both on one corpus.",
                code="mismatch",
            )
    shared = [t for t in first.tokens if all(t in f.tokens for f in files)]
    frames = [frame for choice in tokens or shared for frame in _similarities(files, choice)]
    similarities = pd.concat(frames)
    undefined = similarities["value"].isna()
    if undefined.any():
        log.warning("%d values are left out: a layer's embeddings are all equal", undefined.sum())
    return similarities[~undefined].reset_index(drop=True)


def _similarities(files: Sequence[Activations], tokens: str) -> Iterator[pd.DataFrame]:
    """Both measures of each pair of files, for one choice of tokens."""
    protocol = "paper" if "paper" in files[0].protocols else files[0].protocols[0]
    embeddings = [
        np.stack([f.pooled(protocol, tokens, layer) for layer in f.layers]) for f in files
    ]
    complete = np.all([np.isfinite(e).all(axis=(0, 2)) for e in embeddings], axis=0)
    rows = np.flatnonzero(complete)[:MOST_PROMPTS]
    if len(rows) < FEWEST_PROMPTS:
        raise LayerwiseError(
            f"{len(rows)} prompts of {files[0].corpus} have an embedding at every layer, and "
            f"similarity needs {FEWEST_PROMPTS}; raise corpora.….sample.n.",
            code="too_few",
        )
    if len(rows) < len(complete):
        log.warning("%d of %d prompts are compared", len(rows), len(complete))
    of_rows = (np.asarray(e[:, rows], dtype=np.float64) for e in embeddings)
    matrices = [(f, grams(e), ranked(e)) for f, e in zip(files, of_rows, strict=True)]
    pairs = itertools.combinations_with_replacement(matrices, 2)
    for (one, one_grams, one_ranks), (other, other_grams, other_ranks) in pairs:
        measures = {"cka_debiased": cka_debiased(one_grams, other_grams)}
        measures["rsa"] = rsa(one_ranks, other_ranks)
        for measure, similarity in measures.items():
            layer, other_layer = map(np.ravel, np.indices(similarity.value.shape))
            yield pd.DataFrame(
                {
                    "model": one.model,
                    "revision": one.revision,
                    "other_model": other.model,
                    "other_revision": other.revision,
                    "corpus": one.corpus,
                    "protocol": protocol,
                    "tokens": tokens,
                    "layer": layer,
                    "other_layer": other_layer,
                    "depth": layer / max(1, one.n_layers - 1),
                    "other_depth": other_layer / max(1, other.n_layers - 1),
                    "measure": measure,
                    "value": similarity.value.ravel(),
                    "stderr": similarity.stderr.ravel(),
                    "n": len(rows),
                }
            )
