"""Columns of a data set as lists, as mteb's evaluators use them.

Since version 4, `datasets` gives a *lazy* column: every access decodes a row anew. mteb's
evaluators index and iterate columns element by element, so that most of an evaluation goes into
decoding the same labels again and again (EmotionClassification: 12.4 s a layer, of which 0.3 s
are classifiers and their scores). Under `eager_columns` a column is the list that it was before
version 4: the same values, decoded once per access.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def eager_columns() -> Iterator[None]:
    """Let ``dataset["column"]`` be a list while the block runs, in this process."""
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
