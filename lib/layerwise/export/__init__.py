"""A model cut at a layer, as a folder that sentence-transformers and transformers load."""

from layerwise.export.cut import Exported, Recipe, export

__all__ = ["Exported", "Recipe", "export"]
