"""Changed copies of texts: views with typing errors or other units, and perturbed tokens.

Views have typing errors, made by nlpaug.

SplitAug, RandomCharAug and KeyboardAug in sequence, each with p = 0.3 of the words (and, for the
latter two, of the characters of those words), as the paper's Appendix D prints. All else is the
library's default: at most ten words, and ten characters a word, are changed (so that long prompts
are changed less than short ones; ``cap: null`` lifts that), and RandomCharAug substitutes.

Where `units` is set, as for proteins, units of a text are replaced by others of the same text.

A view depends on the seed, the prompt's id and text and the view's number, and on nothing else:
not on the number of views, the order of prompts, the number of processes or the corpus' name.

Perturbations (repetition, randomness, length; the paper's Appendix E) are applied to each model's
own token ids: a text that is decoded and encoded again is another sequence.
"""

from __future__ import annotations

import logging
import math
import random
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed  # type: ignore[import-untyped]

from layerwise.config.corpora import Perturb, ViewSettings
from layerwise.errors import LayerwiseError
from layerwise.io.files import sha256_text
from layerwise.progress import Progress
from layerwise.project import require

log = logging.getLogger(__name__)

ATTEMPTS = 50
# A process takes some 4 s to import nlpaug: as long as it takes to augment this much text.
CHARACTERS_PER_PROCESS = 2_000_000


@lru_cache(maxsize=16)
def augmenters(p: float, action: str) -> list[Any]:
    """SplitAug, RandomCharAug with `action`, and KeyboardAug, to be applied in this order.

    Parameters
    ----------
    p : float
        Share of words, and of the characters of a word, 0 to 1; nlpaug reads 0 as 0.3.
    action : str
        ``insert``, ``substitute``, ``swap`` or ``delete``.
    """
    nac = require("nlpaug.augmenter.char", "workflow")
    naw = require("nlpaug.augmenter.word", "workflow")

    shares = {"aug_char_p": p, "aug_word_p": p}  # of at most 10, nlpaug's default
    return [
        naw.SplitAug(aug_p=p),
        nac.RandomCharAug(action=action, **shares),
        nac.KeyboardAug(**shares),
    ]


def respaced(text: str) -> str:
    """Return the text as nlpaug does when it changes no word, with spaces around punctuation."""
    Tokenizer = require("nlpaug.util.text.tokenizer", "workflow").Tokenizer
    return str(Tokenizer.reverse_tokenizer(Tokenizer.tokenizer(text)))


def views_of(settings: ViewSettings, prompt_id: str, text: str) -> list[str] | None:
    """Make the views of a prompt.

    No two are equal, and none equals the prompt, as it is or with nlpaug's spaces.

    Returns
    -------
    list of str or None
        `settings.n` texts, none blank; None if there are too few distinct ones.
    """
    taken = {text, text.strip()}
    if settings.units is None:
        taken.add(respaced(text))
    views: list[str] = []
    with untouched_random_state():
        for number in range(1, settings.n + 1):
            attempts = (
                _view(settings, prompt_id, text, number, attempt) for attempt in range(ATTEMPTS)
            )
            view = next((v for v in attempts if v.strip() and v not in taken), None)
            if view is None:
                return None
            taken.add(view)
            views.append(view)
    return views


def _view(settings: ViewSettings, prompt_id: str, text: str, number: int, attempt: int) -> str:
    key = sha256_text("view", "0", prompt_id, text, str(number), str(attempt))
    if settings.units is not None:
        return with_other_units(text, settings.units, settings.p, int(key[:16], 16))
    # nlpaug draws from these two global generators.
    random.seed(int(key[:32], 16))
    np.random.seed(int(key[32:40], 16))  # noqa: NPY002
    action = settings.actions[int(key[40:], 16) % len(settings.actions)]
    for augmenter in augmenters(settings.p, action):
        # A list of one text, or of none where there is nothing to augment.
        text = next(iter(augmenter.augment(text)), text)
    return text


def with_other_units(text: str, pattern: str, p: float, seed: int) -> str:
    """Replace a share p of a text's units, at least one, by units drawn from the same text.

    Parameters
    ----------
    pattern : str
        Regular expression of a unit. What it does not match stays.
    p : float
        Share of the units, 0 to 1.

    Examples
    --------
    >>> with_other_units("A C D E F G", "[A-Z]", 0.3, seed=0)
    'A C D A A G'
    """
    spans = [match.span() for match in re.finditer(pattern, text)]
    if not spans:
        return text
    rng = np.random.default_rng(seed)
    n = max(1, round(p * len(spans)))
    changed = set(rng.choice(len(spans), size=n, replace=False).tolist())
    drawn = rng.integers(len(spans), size=len(spans)).tolist()
    parts, end = [], 0
    for number, (start, stop) in enumerate(spans):
        source = slice(*spans[drawn[number]]) if number in changed else slice(start, stop)
        parts += [text[end:start], text[source]]
        end = stop
    return "".join([*parts, text[end:]])


@contextmanager
def untouched_random_state() -> Iterator[None]:
    """Restore the states of `random` and numpy's global generator at the end."""
    state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)  # noqa: NPY002


def augment(prompts: pd.DataFrame, settings: ViewSettings, processes: int = 1) -> pd.DataFrame:
    """Make the views of a corpus' prompts.

    Parameters
    ----------
    prompts : DataFrame
        Columns ``prompt_id`` and ``text``.
    processes : int
        Most processes to use; a small corpus takes fewer.

    Returns
    -------
    DataFrame
        Columns ``prompt_id``, ``view`` (1 … V), ``text``, in the order of the prompts.

    Raises
    ------
    LayerwiseError
        If a prompt has too few distinct views and ``on_failure`` is ``error``.
    """
    rows: list[tuple[str, int, str]] = []
    ids, texts = prompts["prompt_id"].to_list(), prompts["text"].to_list()
    work = settings.n * sum(map(len, texts))
    processes = max(1, min(processes, math.ceil(work / CHARACTERS_PER_PROCESS)))
    calls = (delayed(views_of)(settings, *prompt) for prompt in zip(ids, texts, strict=True))
    made = Parallel(processes, return_as="generator")(calls)
    with Progress(len(ids), "augmenting", "prompts") as bar:
        for prompt_id, text, views in zip(ids, texts, made, strict=True):
            bar.update()
            if views is not None:
                rows += ((prompt_id, number, view) for number, view in enumerate(views, start=1))
                continue
            problem = f"The prompt {prompt_id!r} ({text[:40]!r}) lacks {settings.n} distinct views"
            if settings.on_failure == "error":
                changed = (
                    "words of four letters or more" if settings.units is None else "its units"
                )
                raise LayerwiseError(
                    f"{problem}: augmenters change {changed}; raise filters.min_tokens, lower "
                    "views.n, or set views.on_failure to 'drop'.",
                    code="too_few",
                )
            log.warning("%s; dropped", problem)
    return pd.DataFrame(rows, columns=["prompt_id", "view", "text"])


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
    seed = f"0/{prompt}"
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

    The token that repeats is drawn once from the prompt, as in the paper's examples (E.1):
    at p = 1 it fills the whole sequence. The paper's text could also mean a new draw at each
    place, but at p = 1 that would give a shuffled prompt and no repetition.

    With the same seed a larger `p` replaces the same places by the same token, and further ones.
    """
    repeated = [_generator("token", seed).choice(ids)] * len(ids) if ids else []
    return _replaced(ids, repeated, p, seed)


def randomise_tokens(
    ids: Sequence[int], p: float, vocabulary: Sequence[int], seed: int | str
) -> list[int]:
    """Replace each token, with probability `p`, by one drawn uniformly from the vocabulary (E.2).

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
