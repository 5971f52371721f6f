"""The config: read once, checked once, typed."""

from layerwise.config.old import complete, read_schema

__all__ = ["complete", "read_schema"]
