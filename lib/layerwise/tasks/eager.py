"""Columns of a data set as lists, as mteb's evaluators use them.

Since version 4, `datasets` gives *lazy* columns: every access to an element decodes its row again.
mteb's evaluators go through columns element by element, so most of an evaluation decodes the same
labels again and again (EmotionClassification: 12.4 s a layer, of which 0.3 s are classifiers and
their scores). Under `eager_columns` a column is a list, as before version 4: the same values,
decoded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def eager_columns() -> Iterator[None]:
    """Make ``dataset["column"]`` a list in this process while the block runs."""
    from datasets import Dataset

    lazy = Dataset.__getitem__

    def eager(self: Any, key: Any) -> Any:
        found = lazy(self, key)
        return found[:] if isinstance(key, str) else found

    Dataset.__getitem__ = eager
    try:
        yield
    finally:
        Dataset.__getitem__ = lazy
