"""Every state of a batch, for tests that set one pass against another."""

from typing import Any

import numpy as np
import numpy.typing as npt

from layerwise.activations import forward
from layerwise.activations.representation import Packed
from layerwise.models.load import LoadedModel

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


def states_of(model: LoadedModel, prompts: list[Any], **options: Any) -> States:
    """The states that the pass hands over, of each layer and prompt."""
    found: States = {}
    forward.run(model, prompts, lambda rows: Keep(found, rows, len(prompts)), **options)
    return found


def assert_near(found: np.ndarray, expected: np.ndarray, what: object) -> None:
    """Equal up to rounding of the largest state."""
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * scale, err_msg=str(what))
