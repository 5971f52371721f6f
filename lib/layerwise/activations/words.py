"""Words in sentences, and their tokens.

A word's tokens are those that share a character with it, by the tokenizer's offsets. A token that
spans two words belongs to both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from layerwise.models.load import LoadedModel


class Word(NamedTuple):
    """A word of a sentence: the characters from `start` up to `stop`."""

    sentence: str
    start: int
    stop: int

    def __str__(self) -> str:
        return self.sentence[self.start : self.stop]

    def behind(self, prompt: str) -> Word:
        """The same word in the sentence with a prompt in front."""
        n = len(prompt)
        return Word(prompt + self.sentence, self.start + n, self.stop + n)


class Span(NamedTuple):
    """Tokens `start` up to `stop` of the prompt with a number; none if they are equal."""

    prompt: int
    start: int
    stop: int


def words_of(words: Sequence[str]) -> list[Word]:
    """The words of a sentence that is written with one space between words."""
    sentence = " ".join(words)
    found, start = [], 0
    for word in words:
        found.append(Word(sentence, start, start + len(word)))
        start += len(word) + 1
    return found


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
    found = []
    for sentence, start, stop in words:
        number = numbers[sentence]
        touching = [
            place
            for place, (begin, end) in enumerate(offsets[number])
            if begin < stop and end > start and end > begin
        ]
        span = (touching[0], touching[-1] + 1) if touching else (0, 0)
        found.append(Span(number, *span))
    return sentences, found
