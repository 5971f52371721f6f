"""Views: copies of a prompt with typing errors, made by nlpaug.

SplitAug, RandomCharAug and KeyboardAug in sequence, each with p = 0.3 of the words (and, for the
latter two, of the characters of those words), as the paper's Appendix D says. Two things differ
from calling the library as printed there, both by config: its cap of ten words (and of ten
characters a word), which disturbs long prompts less than short ones, is lifted (``cap: 10`` gives
it back); and RandomCharAug's action is *substitute*, its default, unless several are named.

Each view hangs on the seed, the prompt's id and text and the view's number, on nothing else: not
on the number of views, the order of prompts, the number of processes or the corpus' name.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from layerwise.corpora.table import Corpus
from layerwise.errors import LayerwiseError, closest
from layerwise.files import sha256_text
from layerwise.progress import Progress

log = logging.getLogger(__name__)

ACTIONS = ("insert", "substitute", "swap", "delete")
ATTEMPTS = 50
# A process takes some 4 s to import nlpaug: as long as it takes to augment this much text.
CHARACTERS_PER_PROCESS = 2_000_000
BATCH = 16


@dataclass(frozen=True)
class ViewSettings:
    """How views are made.

    Raises
    ------
    LayerwiseError
        If a value is not accepted.
    """

    n: int = 2
    """Number of views of each prompt, besides the prompt itself."""
    seed: int = 0
    p: float = 0.3
    """Share of words, and of characters within such a word, that are changed; over 0, up to 1."""
    cap: int | None = None
    """Most words, and characters a word, that one augmenter changes; None for no cap."""
    actions: tuple[str, ...] = ("substitute",)
    """What RandomCharAug may do; one is drawn for each view."""
    on_failure: Literal["error", "drop"] = "error"
    """A prompt without `n` distinct views: an error, or left out."""

    def __post_init__(self) -> None:
        if type(self.n) is not int or self.n < 0:
            raise LayerwiseError(f"views.n is {self.n!r}; accepted is a whole number from 0.")
        if type(self.seed) is not int:
            raise LayerwiseError(f"views.seed is {self.seed!r}; accepted is a whole number.")
        if isinstance(self.p, bool) or not isinstance(self.p, int | float) or not 0 < self.p <= 1:
            raise LayerwiseError(f"views.p is {self.p!r}; accepted is a number over 0, up to 1.")
        if self.cap is not None and (type(self.cap) is not int or self.cap < 1):
            raise LayerwiseError(
                f"views.cap is {self.cap!r}; accepted is a whole number from 1, or null for none."
            )
        if not self.actions:
            raise LayerwiseError(f"views.actions is empty; accepted are {', '.join(ACTIONS)}.")
        for action in self.actions:
            _check_choice("views.actions", action, ACTIONS)
        _check_choice("views.on_failure", self.on_failure, ("error", "drop"))

    @classmethod
    def from_config(cls, given: Mapping[str, Any]) -> ViewSettings:
        """Settings from a mapping of the config; what is not given has its default.

        Raises
        ------
        LayerwiseError
            If a key is unknown or a value not accepted.
        """
        known = [f.name for f in fields(cls)]
        for key in given:
            if key not in known:
                raise LayerwiseError(
                    f"views.{key} is no setting{closest(key, known)}; accepted are "
                    f"{', '.join(known)}."
                )
        values = dict(given)
        if "actions" in values:
            if isinstance(values["actions"], str) or not isinstance(values["actions"], Sequence):
                raise LayerwiseError(
                    f"views.actions is {values['actions']!r}; accepted is a list of "
                    f"{', '.join(ACTIONS)}."
                )
            values["actions"] = tuple(values["actions"])
        return cls(**values)


def _check_choice(key: str, value: object, accepted: Sequence[str]) -> None:
    if value not in accepted:
        raise LayerwiseError(
            f"{key} has {value!r}{closest(str(value), accepted)}; accepted are "
            f"{', '.join(accepted)}."
        )


class Augmenter:
    """Makes views; importing nlpaug (4 s) and reading its keyboard happen once, here."""

    def __init__(self, settings: ViewSettings) -> None:
        from layerwise.corpora import typos

        self.settings = settings
        self._steps = {
            action: typos.sequence(settings.p, settings.cap, action)
            for action in set(settings.actions)
        }
        self._respace = typos.respace

    def views(self, prompt_id: str, text: str) -> list[str] | None:
        """The views of a prompt; None if it has not enough distinct ones.

        No two are equal, and none equals the prompt, nor the prompt with the spaces around
        punctuation that nlpaug's tokenizer leaves.

        Returns
        -------
        list of str or None
            `settings.n` texts, none blank.
        """
        taken = {text, text.strip(), self._respace(text)}
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
            # nlpaug draws from both of these generators, and takes no other.
            random.seed(int(key[:32], 16))
            np.random.seed(int(key[32:40], 16))  # noqa: NPY002
            view = text
            action = self.settings.actions[int(key[40:], 16) % len(self.settings.actions)]
            for step in self._steps[action]:
                view = step(view)
            if view.strip() and view not in taken:
                return view
        return None


@contextmanager
def untouched_random_state() -> Iterator[None]:
    """Give `random` and numpy's global generator back as they were."""
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
        Most processes to use; fewer where the corpus is too small to be worth their start.

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
        for prompt_id, made in _in_order(prompts, settings, processes):
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
    prompts: Sequence[tuple[str, str]], settings: ViewSettings, processes: int
) -> Iterable[tuple[str, list[str] | None]]:
    if processes == 1:
        augmenter = Augmenter(settings)
        for prompt_id, text in prompts:
            yield prompt_id, augmenter.views(prompt_id, text)
        return
    # Spawned, not forked: the caller may hold threads (torch, arrow), which a fork can deadlock.
    pool = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_set_up,
        initargs=(settings,),
    )
    try:
        yield from pool.map(_work, prompts, chunksize=BATCH)
    except BrokenProcessPool as error:
        raise LayerwiseError(
            "A process that makes views was killed, most likely for want of memory; give fewer "
            "threads or more memory."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_augmenter: Augmenter | None = None


def _set_up(settings: ViewSettings) -> None:
    global _augmenter
    _augmenter = Augmenter(settings)


def _work(prompt: tuple[str, str]) -> tuple[str, list[str] | None]:
    if _augmenter is None:
        raise RuntimeError("the process was not set up")
    return prompt[0], _augmenter.views(*prompt)
