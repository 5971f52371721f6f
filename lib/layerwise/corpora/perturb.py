"""Perturbed token sequences: repetition, randomness and length (the paper, Appendix F).

Done to each model's own token ids: a text that is decoded and encoded again is another sequence.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any

from layerwise.config.corpora import Perturb
from layerwise.errors import LayerwiseError
from layerwise.files import sha256_text


def perturb(
    ids: Sequence[int],
    how: Perturb,
    *,
    special: Collection[int],
    vocabulary: Sequence[int],
    prompt: str,
) -> list[int]:
    """A prompt's token ids, perturbed: cut, then repeated, then randomised.

    Parameters
    ----------
    ids : sequence of int
        With special tokens, which stay in their places and count for nothing.
    how : Perturb
        With one value a key.
    special : collection of int
    vocabulary : sequence of int
        The ids to draw from, see `vocabulary_of`.
    prompt : str
        The prompt's id, which names its draws.

    Raises
    ------
    LayerwiseError
        If the prompt has fewer tokens than are to be kept.
    """
    own = [token for token in ids if token not in special]
    length = len(own) if how.length is None else int(how.length)  # type: ignore[arg-type]
    if length > len(own):
        raise LayerwiseError(
            f"The prompt {prompt!r} has {len(own)} tokens, of which perturb.length would keep "
            f"{length}; ask for fewer, or raise filters.min_tokens of the corpus."
        )
    seed = f"{how.seed}/{prompt}"
    changed = repeat_tokens(own[:length], float(how.repetition or 0), seed)  # type: ignore[arg-type]
    p = float(how.randomness or 0)  # type: ignore[arg-type]
    rest = iter(randomise_tokens(changed, p, vocabulary, seed))
    # A special token stands between the same two tokens as before, or at the end.
    return [
        found for token in ids
        if (found := token if token in special else next(rest, None)) is not None
    ]  # fmt: skip


def vocabulary_of(tokenizer: Any, embeddings: int) -> tuple[list[int], frozenset[int]]:
    """The ids that a text can have, in order, and those of special tokens.

    Parameters
    ----------
    tokenizer : of transformers
    embeddings : int
        Rows of the model's embedding matrix, which may be fewer or more.
    """
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    special = frozenset(added | set(tokenizer.all_special_ids))
    known = set(tokenizer.get_vocab().values()) - special
    return sorted(i for i in known if i < embeddings), special


def repeat_tokens(ids: Sequence[int], p: float, seed: int | str) -> list[int]:
    """Replace each token, with probability `p`, by one token of the prompt.

    The token that repeats is drawn once from the prompt, as in the paper's examples (F.1): at
    p = 1 it fills the whole sequence. The paper's text could also mean a new draw at each place,
    but at p = 1 that would give a shuffled prompt and no repetition.

    Parameters
    ----------
    ids : sequence of int
        Token ids, special tokens left out.
    p : float
        Probability of each token, 0 to 1.
    seed : int or str
        Anything that names this sequence. With the same seed a larger `p` replaces the same places
        by the same token, and further ones.

    Returns
    -------
    list of int
        As many ids as came.

    Raises
    ------
    LayerwiseError
        If `p` is no probability.
    """
    draws = _draws(len(ids), p, seed)
    if not ids:
        return []
    repeated = _generator("token", seed).choice(ids)
    return [repeated if draw < p else token for token, draw in zip(ids, draws, strict=True)]


def randomise_tokens(
    ids: Sequence[int], p: float, vocab: int | Sequence[int], seed: int | str
) -> list[int]:
    """Replace each token, with probability `p`, by one drawn uniformly from the vocabulary (F.2).

    Parameters
    ----------
    ids : sequence of int
        Token ids, special tokens left out.
    p : float
        Probability of each token, 0 to 1.
    vocab : int or sequence of int
        Vocabulary size, or the ids to draw from (leave out special tokens and, where the embedding
        matrix is larger than the vocabulary, the ids that no text gives). A token may be replaced
        by itself.
    seed : int or str
        Anything that names this sequence. With the same seed a larger `p` replaces the same places
        by the same tokens, and further ones.

    Returns
    -------
    list of int
        As many ids as came.

    Raises
    ------
    LayerwiseError
        If `p` is no probability or the vocabulary is empty.
    """
    size = vocab if isinstance(vocab, int) else len(vocab)
    if size < 1:
        raise LayerwiseError("A vocabulary of no tokens came; randomise_tokens needs one or more.")
    draws = _draws(len(ids), p, seed)
    source = _generator("token", seed)
    picked = [source.randrange(size) for _ in ids]
    drawn = picked if isinstance(vocab, int) else [vocab[i] for i in picked]
    return [
        other if draw < p else token for token, other, draw in zip(ids, drawn, draws, strict=True)
    ]


def _draws(n: int, p: float, seed: int | str) -> list[float]:
    if not 0 <= p <= 1:
        raise LayerwiseError(f"p is {p!r}; accepted is a probability, from 0 to 1.")
    source = _generator("place", seed)
    return [source.random() for _ in range(n)]


def _generator(purpose: str, seed: int | str) -> random.Random:
    return random.Random(int(sha256_text(purpose, str(seed)), 16))
