"""How surprising each prompt of a corpus is to a model itself.

Surprisal of a token is -log p(token | those before it), from the model's own readout of its last
layer (`layerwise.tasks.lens`); of a prompt it is the mean over its tokens, in nats. The first
token has none before it and so no surprisal, and neither do special tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from layerwise.activations import forward
from layerwise.activations.representation import Packed
from layerwise.config.models import Model
from layerwise.errors import LayerwiseError
from layerwise.models.architectures import BLOCK
from layerwise.models.failures import not_finite
from layerwise.models.load import LoadedModel
from layerwise.tasks import lens

log = logging.getLogger(__name__)

COLUMNS = ("model", "revision", "corpus", "prompt_id", "surprisal", "n_predicted")


def surprisals(
    loaded: LoadedModel,
    entry: Model,
    corpus: str,
    prompts: Sequence[str],
    ids: Sequence[Sequence[int]],
    budget: int | None = None,
) -> pd.DataFrame:
    """The surprisal of each prompt.

    Parameters
    ----------
    entry : Model
        The model's entry in the config, from which `loaded` was made.
    prompts : sequence of str, length N
        Ids of the prompts.
    ids : sequence of N token id lists

    Returns
    -------
    DataFrame
        `COLUMNS`: nats a token, and over how many tokens; NaN for a prompt that has none to
        predict. Without a row where the model cannot be asked (`layerwise.tasks.lens.lens_of`),
        which the log then says.

    Raises
    ------
    LayerwiseError
        As `measure`.
    """
    try:
        readout = lens.lens_of(loaded, entry)
    except lens.NoAnswersError as error:
        log.warning("%s has no surprisal to %s: %s", corpus, loaded.name, error)
        return pd.DataFrame(columns=list(COLUMNS))
    values, counts = measure(loaded, readout, prompts, ids, budget)
    return pd.DataFrame(
        {
            "model": loaded.name, "revision": loaded.revision, "corpus": corpus,
            "prompt_id": list(prompts), "surprisal": values, "n_predicted": counts,
        }
    )[list(COLUMNS)]  # fmt: skip


def measure(
    loaded: LoadedModel,
    readout: lens.Lens,
    prompts: Sequence[str],
    ids: Sequence[Sequence[int]],
    budget: int | None = None,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Nats a token of each prompt, NaN without a token to predict; and over how many tokens.

    Raises
    ------
    LayerwiseError
        If a prompt's surprisal is not finite.
    """
    special = set(loaded.tokenizer.all_special_ids)
    wanted = [[t for t in range(1, len(own)) if own[t] not in special] for own in ids]
    sums = np.zeros(len(ids))
    forward.run(
        loaded, ids, lambda rows: _Batch(readout, rows, ids, wanted, sums, loaded), budget=budget
    )
    if not np.isfinite(sums).all():
        prompt = prompts[int(np.argmin(np.isfinite(sums)))]
        raise LayerwiseError(
            not_finite(
                loaded.name, loaded.revision, loaded.dtype, f"the surprisal of prompt {prompt!r}"
            )
        )
    counts = np.array([len(places) for places in wanted])
    return np.divide(sums, counts, out=np.full(len(ids), np.nan), where=counts > 0), counts


class _Batch:
    """The surprisals of one batch, kept until the pass is over."""

    def __init__(
        self,
        readout: lens.Lens,
        rows: list[int],
        ids: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        sums: npt.NDArray[np.float64],
        loaded: LoadedModel,
    ) -> None:
        self.readout, self.rows, self.sums = readout, rows, sums
        self.last = loaded.anatomy.n_layers - 1
        places = [(r, t, ids[row][t]) for r, row in enumerate(rows) for t in wanted[row]]
        self.of = torch.tensor([r for r, _, _ in places], dtype=torch.long)
        self.before = torch.tensor([t - 1 for _, t, _ in places], dtype=torch.long)
        self.tokens = torch.tensor([token for _, _, token in places], dtype=torch.long)
        self.found = torch.zeros(len(rows), dtype=torch.float64)

    def take(self, layer: int, sublayer: str, packed: Packed, /) -> None:
        """Read the last layer at the tokens before the predicted ones."""
        if sublayer != BLOCK or layer != self.last:
            return
        device = packed.states.device
        states = packed.states[self.of.to(device), self.before.to(device)]
        size = self.readout.at_once
        for start in range(0, len(states), size):
            part = slice(start, start + size)
            logs = self.readout(states[part]).cpu()
            own = logs.gather(1, self.tokens[part, None])[:, 0].double()
            self.found.index_add_(0, self.of[part], -own)

    def finish(self) -> None:
        """Hand the sums over."""
        self.sums[self.rows] = self.found.numpy()
