"""Columns of a data set as lists, as mteb's evaluators use them.

Since version 4, `datasets` gives *lazy* columns: every access to an element decodes its row again.
mteb's evaluators go through columns element by element, so most of an evaluation decodes the same
labels again and again (EmotionClassification: 12.4 s a layer; 0.3 s are classifiers and
their scores). Under `eager_columns` a column is a list, as before version 4: the same values,
decoded once.

The same data are evaluated at every layer, so columns of small data sets are kept, and so is what
evaluators derive of them by choosing and renaming columns: `datasets` copies and hashes all that
it knows of a data set each time, which is a tenth of an STS task's evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

# Lists of more rows are not kept: they may be all the documents of a retrieval task.
MOST_ROWS = 50_000
DERIVING = ("select_columns", "rename_columns")

# By data set: its columns by name, and what was derived by how. They end with it.
_kept: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()


@contextmanager
def eager_columns() -> Iterator[None]:
    """Make ``dataset["column"]`` a list in this process while the block runs."""
    from datasets import Dataset

    lazy = Dataset.__getitem__
    derive = {name: getattr(Dataset, name) for name in DERIVING}

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

    def derived(name: str) -> Any:
        def once(self: Any, *columns: Any, **more: Any) -> Any:
            how = name, repr((columns, more))
            known = _kept.setdefault(self, {})
            if how not in known:
                known[how] = derive[name](self, *columns, **more)
            return known[how]

        return once

    Dataset.__getitem__ = eager
    for name in DERIVING:
        setattr(Dataset, name, derived(name))
    try:
        yield
    finally:
        Dataset.__getitem__ = lazy
        for name, usual in derive.items():
            setattr(Dataset, name, usual)
