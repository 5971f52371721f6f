"""Views: copies of a prompt with typing errors, made by nlpaug.

SplitAug, RandomCharAug and KeyboardAug in sequence, each with p = 0.3 of the words (and, for the
latter two, of the characters of those words), as the paper's Appendix D prints. All else is the
library's default: at most ten words, and ten characters a word, are changed (so that long prompts
are disturbed less than short ones; ``cap: null`` lifts that), and RandomCharAug substitutes.

A view depends on the seed, the prompt's id and text and the view's number, and on nothing else:
not on the number of views, the order of prompts, the number of processes or the corpus' name.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import random
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

import numpy as np

from layerwise.config.corpora import ViewSettings
from layerwise.corpora import chat
from layerwise.corpora.table import Corpus
from layerwise.errors import LayerwiseError
from layerwise.files import sha256_text
from layerwise.progress import Progress

log = logging.getLogger(__name__)

ATTEMPTS = 50
# A process takes some 4 s to import nlpaug: as long as it takes to augment this much text.
CHARACTERS_PER_PROCESS = 2_000_000
BATCH = 16


class Augmenter:
    """Makes views; importing nlpaug (4 s) and reading its keyboard happen once, here."""

    def __init__(self, settings: ViewSettings, *, is_chat: bool = False) -> None:
        from layerwise.corpora import typos

        self.settings = settings
        # Of a chat the contents alone are augmented, one after the other.
        self._through = chat.each_content if is_chat else (lambda text, step: step(text))
        self._steps = {
            action: typos.sequence(settings.p, settings.cap, action)
            for action in set(settings.actions)
        }
        self._respace = typos.respace

    def views(self, prompt_id: str, text: str) -> list[str] | None:
        """The views of a prompt; None if there are too few distinct ones.

        No two are equal, and none equals the prompt, or the prompt with the spaces that nlpaug's
        tokenizer puts around punctuation.

        Returns
        -------
        list of str or None
            `settings.n` texts, none blank.
        """
        taken = {text, text.strip(), self._through(text, self._respace)}
        made: list[str] = []
        with untouched_random_state():
            for number in range(1, self.settings.n + 1):
                view = self._distinct(prompt_id, text, number, taken)
                if view is None:
                    return None
                taken.add(view)
                made.append(view)
        return made

    def _distinct(self, prompt_id: str, text: str, number: int, taken: set[str]) -> str | None:
        for attempt in range(ATTEMPTS):
            key = sha256_text(
                "view", str(self.settings.seed), prompt_id, text, str(number), str(attempt)
            )
            # nlpaug draws from these two global generators.
            random.seed(int(key[:32], 16))
            np.random.seed(int(key[32:40], 16))  # noqa: NPY002
            view = text
            action = self.settings.actions[int(key[40:], 16) % len(self.settings.actions)]
            for step in self._steps[action]:
                view = self._through(view, step)
            if view.strip() and view not in taken:
                return view
        return None


@contextmanager
def untouched_random_state() -> Iterator[None]:
    """Restore the states of `random` and numpy's global generator at the end."""
    state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)  # noqa: NPY002


def augment(corpus: Corpus, settings: ViewSettings, processes: int = 1) -> list[list[str] | None]:
    """Views of all prompts of a corpus, in its order.

    Parameters
    ----------
    processes : int
        Most processes to use; fewer for a corpus too small to be worth starting them.

    Returns
    -------
    list
        Per prompt its `settings.n` views; None where it was dropped.

    Raises
    ------
    LayerwiseError
        If a prompt cannot be augmented and is not to be dropped; the message names it.
    """
    if settings.n == 0:
        return [[] for _ in corpus.texts]
    prompts = list(zip(corpus.prompt_ids, corpus.texts, strict=True))
    work = settings.n * sum(map(len, corpus.texts))
    processes = min(processes, max(1, math.ceil(work / CHARACTERS_PER_PROCESS)), len(prompts))
    result: list[list[str] | None] = []
    with Progress(len(prompts), f"augmenting {corpus.name}", "prompts") as progress:
        for prompt_id, made in _in_order(prompts, settings, corpus.is_chat, processes):
            if made is None:
                _fail(corpus, prompt_id, corpus.texts[len(result)], settings)
            result.append(made)
            progress.update()
    return result


def _fail(corpus: Corpus, prompt_id: str, text: str, settings: ViewSettings) -> None:
    said = (
        f"The prompt {prompt_id!r} of {corpus.name!r} ({text[:40]!r}) has no {settings.n} "
        f"distinct views after {ATTEMPTS} attempts each"
    )
    if settings.on_failure == "error":
        raise LayerwiseError(
            f"{said}: augmenters change words of four letters or more; raise filters.min_tokens, "
            "lower views.n, or set views.on_failure to 'drop'."
        )
    log.warning("%s; dropped", said)


def _in_order(
    prompts: Sequence[tuple[str, str]], settings: ViewSettings, is_chat: bool, processes: int
) -> Iterable[tuple[str, list[str] | None]]:
    if processes == 1:
        augmenter = Augmenter(settings, is_chat=is_chat)
        for prompt_id, text in prompts:
            yield prompt_id, augmenter.views(prompt_id, text)
        return
    # Spawned, not forked: the caller may hold threads (torch, arrow), which a fork can deadlock.
    pool = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_set_up,
        initargs=(settings, is_chat),
    )
    try:
        yield from pool.map(_work, prompts, chunksize=BATCH)
    except BrokenProcessPool as error:
        raise LayerwiseError(
            "A process that makes views was killed, most likely because memory ran out; give "
            "fewer threads or more memory."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_augmenter: Augmenter | None = None


def _set_up(settings: ViewSettings, is_chat: bool) -> None:
    global _augmenter
    _augmenter = Augmenter(settings, is_chat=is_chat)


def _work(prompt: tuple[str, str]) -> tuple[str, list[str] | None]:
    if _augmenter is None:
        raise RuntimeError("the process was not set up")
    return prompt[0], _augmenter.views(*prompt)
