"""The kinds of figures. Importing this registers them."""

from layerwise.figures.kinds import (
    association,
    by_depth,
    checkpoints,
    compare,
    prompts,
    selection,
    theory,
    valley,
)

__all__ = [
    "association",
    "by_depth",
    "checkpoints",
    "compare",
    "prompts",
    "selection",
    "theory",
    "valley",
]
