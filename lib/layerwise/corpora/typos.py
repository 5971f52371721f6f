"""nlpaug's three augmenters, as plain functions from text to text.

Importing this module imports nlpaug, and with it torch and transformers: some 4 s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import nlpaug.augmenter.char as nac
import nlpaug.augmenter.word as naw
from nlpaug.util.text.tokenizer import Tokenizer

# nlpaug searches the rest of the text for each word, so its time grows with the square of the
# length: 0.1 s for 10,000 characters, minutes for a megabyte.
PIECE = 20_000
SPACE = re.compile(r"\s+")


class _Places(list[int]):
    """A list of positions with fast membership tests.

    nlpaug asks for every word whether its position is in this list. With a plain list and without
    the cap, the time would grow with the square of the prompt's length.
    """

    def __init__(self, places: Iterable[int]) -> None:
        super().__init__(places)
        self._members = frozenset(self)

    def __contains__(self, place: object) -> bool:
        return place in self._members


class _RandomCharAug(nac.RandomCharAug):  # type: ignore[misc]
    def _get_aug_idxes(self, *arguments: Any, **keywords: Any) -> _Places:
        return _Places(super()._get_aug_idxes(*arguments, **keywords))


class _KeyboardAug(nac.KeyboardAug):  # type: ignore[misc]
    def _get_aug_idxes(self, *arguments: Any, **keywords: Any) -> _Places:
        return _Places(super()._get_aug_idxes(*arguments, **keywords))


def sequence(p: float, cap: int | None, action: str) -> list[Callable[[str], str]]:
    """SplitAug, RandomCharAug with `action`, and KeyboardAug, to be applied in this order.

    Parameters
    ----------
    p : float
        Share of words, and of the characters of a word; not 0, which the library reads as 0.3.
    cap : int or None
        Most words, and characters a word; None for no cap. The library's own is 10.
    action : str
        ``insert``, ``substitute``, ``swap`` or ``delete``.
    """
    characters = {
        "aug_char_p": p, "aug_word_p": p, "aug_char_max": cap, "aug_word_max": cap,
    }  # fmt: skip
    augmenters = (
        naw.SplitAug(aug_p=p, aug_max=cap),
        _RandomCharAug(action=action, **characters),
        _KeyboardAug(**characters),
    )
    return [_as_function(augmenter, whole=cap is not None) for augmenter in augmenters]


def _as_function(augmenter: Any, whole: bool) -> Callable[[str], str]:
    def apply(text: str) -> str:
        # A list of one text, or of none where there is nothing to augment.
        made: list[str] = augmenter.augment(text)
        return made[0] if made else text

    # A share of the words can be taken piece by piece; a cap holds for the whole text.
    return apply if whole else lambda text: " ".join(map(apply, pieces(text)))


def pieces(text: str, size: int = PIECE) -> list[str]:
    """The text split at whitespace into pieces of about `size` characters; words stay whole."""
    if len(text) <= size:
        return [text]
    cut: list[str] = []
    start = 0
    while start < len(text):
        found = SPACE.search(text, start + size)
        end = found.end() if found else len(text)
        cut.append(text[start:end].strip())
        start = end
    return cut


def respace(text: str) -> str:
    """The text as nlpaug gives it back when it changes no word."""
    return str(Tokenizer.reverse_tokenizer(Tokenizer.tokenizer(text)))
