"""Kinds of studies: a function that makes a table of every number drawn, and one that plots it."""

from layerwise.figures.kinds import association, by_depth, compare, prompts, valley

__all__ = ["association", "by_depth", "compare", "prompts", "valley"]
