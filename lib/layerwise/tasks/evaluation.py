"""Run mteb's own evaluation of a loaded task, with the same result every time.

A task of mteb's has random states that an evaluation advances (a clustering draws its samples from
one), and some code draws from Python's and numpy's global states. mteb itself evaluates a fresh
task once. To give every layer that same run, `Seeds` records the states of the loaded task and
restores them before each evaluation.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from layerwise.tasks.eager import eager_columns

Scores = dict[str, dict[str, Any]]

# Texts are looked up, so the batch size changes nothing; mteb's bars would fill the log.
ENCODE = {"batch_size": 1024, "show_progress_bar": False}


class Seeds:
    """The random states of a loaded task."""

    def __init__(self, task: Any) -> None:
        self._task = task
        # States, not generators: a copy of those takes as long as scoring a small STS task.
        self._own = task.rng_state.getstate(), task.np_rng.bit_generator.state

    def restore(self) -> None:
        """Restore the states; the global ones to what they are when a task has been made."""
        own, numpys = self._own
        self._task.rng_state.setstate(own)
        self._task.np_rng.bit_generator.state = numpys
        random.seed(self._task.seed)
        np.random.seed(self._task.seed)  # noqa: NPY002  (mteb's own seeding)


def evaluate(task: Any, encoder: Any) -> dict[str, Scores]:
    """Evaluate an encoder on every split and subset of a loaded task, as `mteb.evaluate` does.

    Returns
    -------
    dict
        Scores of mteb's evaluators by split and subset, ``main_score`` among them.
    """
    import sklearn

    found: dict[str, Scores] = {}
    # Embeddings are finite, else they would not have been stored, and an STS task gives
    # scikit-learn nothing else; to look again takes a twelfth of the time.
    finite = sklearn.get_config()["assume_finite"] or task.metadata.type == "STS"
    with eager_columns(), sklearn.config_context(assume_finite=finite):
        for split in task.eval_splits:
            found[split] = {}
            for subset in task.hf_subsets:
                found[split].update(
                    task.evaluate(
                        encoder, split, subsets_to_run=[subset], encode_kwargs=dict(ENCODE)
                    )
                )
    return found
