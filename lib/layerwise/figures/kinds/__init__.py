"""Kinds of studies: a function that makes a table of every number drawn, and one that plots it."""

from layerwise.figures.kinds import association, by_depth, heatmaps, sequence

__all__ = ["association", "by_depth", "heatmaps", "sequence"]
