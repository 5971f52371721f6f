"""Columns of a data set as lists, as mteb's evaluators use them.

Since version 4, `datasets` gives *lazy* columns: every access to an element decodes its row again.
mteb's evaluators go through columns element by element, at every layer, so most of an evaluation
decodes the same labels again and again. Under `eager_columns` a column is a list, as before
version 4: the same values, decoded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

# Lists of more rows are not kept: they may be all the documents of a retrieval task.
MOST_ROWS = 50_000

# By data set: its columns by name. They end with it.
_kept: WeakKeyDictionary[Any, dict[str, list[Any]]] = WeakKeyDictionary()


@contextmanager
def eager_columns() -> Iterator[None]:
    """Make ``dataset["column"]`` a list in this process while the block runs."""
    from datasets import Dataset

    lazy = Dataset.__getitem__

    def eager(self: Any, key: Any) -> Any:
        if not isinstance(key, str):
            return lazy(self, key)
        if len(self) > MOST_ROWS:
            return lazy(self, key)[:]
        columns = _kept.setdefault(self, {})
        if key not in columns:
            columns[key] = lazy(self, key)[:]
        # A copy: evaluators own what they get.
        return list(columns[key])

    Dataset.__getitem__ = eager
    try:
        yield
    finally:
        Dataset.__getitem__ = lazy
