"""Every state of a batch, for tests that set one pass against another."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from layerwise.activations.representation import Packed

States = dict[tuple[int, str], list[npt.NDArray[np.float64]]]


class Keep:
    """Keeps every state of a batch: of layer and sublayer, each of `n` prompts' T x D."""

    def __init__(self, into: States, rows: list[int], n: int) -> None:
        self.into, self.rows, self.n = into, rows, n

    def take(self, layer: int, sublayer: str, packed: Packed, /) -> None:
        for place, row in enumerate(self.rows):
            kept = packed.states[place, : packed.lengths[place]].double().numpy().copy()
            self.into.setdefault((layer, sublayer), [np.empty(0)] * self.n)[row] = kept

    def finish(self) -> None:
        pass
