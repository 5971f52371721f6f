"""Kinds of figures that only the papers' presets use."""

from papers.figures import bimodality, differences, similarity, valley

__all__ = ["bimodality", "differences", "similarity", "valley"]
