"""Metrics of a layer's representation, without labels. Each is a function on arrays.

>>> import numpy as np
>>> from layerwise import metrics
>>> round(metrics.dataset_entropy(np.eye(8)), 6)  # eight orthogonal prompts: log 8
2.079442

Arrays are numpy's or torch's. Of one prompt's token states Z (T x D): `prompt_entropy`,
`effective_rank`, `curvature`. Of the pooled embeddings X of N prompts (N x D): `dataset_entropy`,
`rankme` and others. Of two views A, B of the prompts: `infonce`, `dime`. Of many views
(V x N x D): `lidar`. ``dir(metrics)`` lists them, ``help(metrics.lidar)`` gives shapes, range and
source.

`layerwise.metrics.registry` declares the inputs and the direction of each;
`layerwise.metrics.table` computes all of them for an activations file.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    # Imported when used, to keep `import layerwise.metrics` fast.
    if not name.startswith("_"):
        from layerwise.metrics.registry import functions

        if name in (known := functions()):
            return known[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from layerwise.metrics.registry import functions

    return sorted(functions())
