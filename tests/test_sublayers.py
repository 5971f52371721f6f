"""Associations and layer selection leave the parts of blocks aside."""

import numpy as np
import pandas as pd
from helpers.association_tables import tidy_metrics, tidy_scores

from layerwise.association.selection import select_layers
from layerwise.association.table import associate
from layerwise.metrics.registry import directions
from layerwise.vocabulary import BLOCK


def test_parts_of_blocks_change_neither_associations_nor_choices() -> None:
    hill = np.sin(np.pi * np.linspace(0, 1, 7))
    scores = tidy_scores(0.1 * hill + np.array([[0.3], [0.5]]))
    blocks = tidy_metrics({"prompt_entropy": 2 + hill, "dime": 2 + hill})
    inner = blocks[blocks["layer"] > 0]
    parts = inner.assign(sublayer="mlp", value=9 - inner["value"])
    everything = pd.concat([blocks.assign(sublayer=BLOCK), parts])
    # Tables from elsewhere have no column for them.
    found, expected = associate(everything, scores), associate(blocks, scores)
    pd.testing.assert_frame_equal(found, expected)
    found, expected = (select_layers(t, scores, directions()) for t in (everything, blocks))
    pd.testing.assert_frame_equal(found, expected)
