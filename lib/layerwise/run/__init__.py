"""A run: its plan, keys, resources and results."""
