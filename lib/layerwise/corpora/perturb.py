"""Perturbed token sequences: repetition, randomness and length (the paper, Appendix F).

Applied to each model's own token ids: a text that is decoded and encoded again is another
sequence.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any

from layerwise.config.corpora import Perturb
from layerwise.errors import LayerwiseError
from layerwise.io.files import sha256_text


def perturb(
    ids: Sequence[int],
    how: Perturb,
    *,
    special: Collection[int],
    vocabulary: Sequence[int],
    prompt: str,
) -> list[int]:
    """Perturb a prompt's token ids: cut, then repeat, then randomise.

    Parameters
    ----------
    ids : sequence of int
        With special tokens, which stay in their places and do not count.
    how : Perturb
        With one value a key.
    special : collection of int
    vocabulary : sequence of int
        The ids to draw from, see `vocabulary_of`.
    prompt : str
        The prompt's id, which seeds its draws.

    Raises
    ------
    LayerwiseError
        If the prompt has fewer tokens than are to be kept.
    """
    words = [token for token in ids if token not in special]
    length = len(words) if how.length is None else int(how.length)  # type: ignore[arg-type]
    if length > len(words):
        raise LayerwiseError(
            f"The prompt {prompt!r} has {len(words)} tokens, and perturb.length asks for "
            f"{length}; ask for fewer, or raise filters.min_tokens of the corpus.",
            code="too_few",
        )
    seed = f"{how.seed}/{prompt}"
    words = repeat_tokens(words[:length], float(how.repetition or 0), seed)  # type: ignore[arg-type]
    words = randomise_tokens(words, float(how.randomness or 0), vocabulary, seed)  # type: ignore[arg-type]
    rest = iter(words)
    # A special token stands between the same two tokens as before, or at the end.
    in_place = (token if token in special else next(rest, None) for token in ids)
    return [token for token in in_place if token is not None]


def vocabulary_of(tokenizer: Any, embeddings: int) -> tuple[list[int], frozenset[int]]:
    """Return the ids that a text can have, in order, and those of special tokens.

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

    With the same seed a larger `p` replaces the same places by the same token, and further ones.
    """
    repeated = [_generator("token", seed).choice(ids)] * len(ids) if ids else []
    return _replaced(ids, repeated, p, seed)


def randomise_tokens(
    ids: Sequence[int], p: float, vocabulary: Sequence[int], seed: int | str
) -> list[int]:
    """Replace each token, with probability `p`, by one drawn uniformly from the vocabulary (F.2).

    A token may be replaced by itself. With the same seed a larger `p` replaces the same places by
    the same tokens, and further ones.
    """
    source = _generator("token", seed)
    return _replaced(ids, [source.choice(vocabulary) for _ in ids], p, seed)


def _replaced(ids: Sequence[int], others: list[int], p: float, seed: int | str) -> list[int]:
    source = _generator("place", seed)
    pairs = zip(ids, others, strict=True)
    return [other if source.random() < p else token for token, other in pairs]


def _generator(purpose: str, seed: int | str) -> random.Random:
    return random.Random(int(sha256_text(purpose, str(seed)), 16))
