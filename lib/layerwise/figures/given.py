"""What every kind of study is drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

from layerwise.association.order import Order
from layerwise.config.studies import Study
from layerwise.figures.frames import Rows, pick_prompts, rows


@dataclass(frozen=True)
class Given:
    """A study with its tables.

    Attributes
    ----------
    study : Study
    tables : mapping of name to DataFrame
        Those that `layerwise.config.kinds.needs` names.
    order : Order
    better : mapping of metric to 1 or -1
        The better end of each metric.
    own_texts : mapping of corpus to task
        What 'task texts' stands for.
    """

    study: Study
    tables: Mapping[str, pd.DataFrame]
    order: Order
    better: Mapping[str, int]
    own_texts: Mapping[str, str] = field(default_factory=dict)

    def rows(self) -> Rows:
        """The rows that the study draws of its metrics and scores."""
        return rows(
            self.study,
            self.order,
            metrics=self.tables.get("metrics"),
            scores=self.tables.get("scores"),
        )

    def prompts(self) -> Rows:
        """The rows that the study draws of every prompt's own values."""
        return pick_prompts(self.tables["prompts"], self.study, self.order)
