"""Properties of a prompt from its text, without a model or tokenizer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

WORD = re.compile(r"\w+(?:['’]\w+)*")
MARKUP = re.compile(r"[\[\]{}<>|=*_#@\\/~^`]|&\w+;")
# Commonest function words of English: running English text has 35 to 50 in 100 words of them.
_ENGLISH = """
    the of and to in a is that it was for on as with he be by at his are this from or had not
    but have they which an were their has been its who she her will more would when there if
    no can all we you i him them than into other so what up out about over after also one two
    """
ENGLISH = frozenset(_ENGLISH.split())

# Property: what it is, for people.
LABELS = {
    "words": "number of words",
    "type_token": "type-token ratio",
    "repetition": "repeated pairs of words",
    "first_word": "commonness of the first word",
    "english": "English function words",
    "not_ascii": "letters beyond ASCII",
    "markup": "characters of markup",
    "digits": "digits",
    "capitals": "words with a capital",
}


def properties(texts: Sequence[str]) -> pd.DataFrame:
    """Properties of each text; shares are of 0 to 1, and 0 for a text without words.

    Returns
    -------
    DataFrame
        A row a text; columns `LABELS`: ``words``, a number; ``type_token``, distinct words over
        words; ``repetition``, share of neighbouring pairs of words that came before in the text;
        ``first_word``, log of how many of the texts begin with the same word; the rest shares of
        words or of characters.
    """
    words = [WORD.findall(t) for t in texts]
    folded = [[w.casefold() for w in ws] for ws in words]
    first = Counter(ws[0] for ws in folded if ws)
    return pd.DataFrame(
        {
            "words": [len(ws) for ws in words],
            "type_token": [len(set(ws)) / max(1, len(ws)) for ws in folded],
            "repetition": [_repeated(ws) for ws in folded],
            "first_word": [float(np.log(first[ws[0]])) if ws else 0.0 for ws in folded],
            "english": [sum(w in ENGLISH for w in ws) / max(1, len(ws)) for ws in folded],
            "not_ascii": [_share(t, lambda c: c.isalpha() and not c.isascii()) for t in texts],
            "markup": [len(MARKUP.findall(t)) / max(1, len(t)) for t in texts],
            "digits": [_share(t, str.isdigit) for t in texts],
            "capitals": [sum(w[0].isupper() for w in ws) / max(1, len(ws)) for ws in words],
        }
    )


def _repeated(words: Sequence[str]) -> float:
    pairs = list(pairwise(words))
    return 1 - len(set(pairs)) / len(pairs) if pairs else 0.0


def _share(text: str, of: Callable[[str], bool]) -> float:
    return sum(map(of, text)) / max(1, len(text))
