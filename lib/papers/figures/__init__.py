"""Kinds of figures that only the papers' presets use."""

from layerwise.figures.select import HOW
from papers.choice import FORMS
from papers.figures import bimodality, differences, similarity, valley

__all__ = ["bimodality", "differences", "similarity", "valley"]

HOW |= FORMS
