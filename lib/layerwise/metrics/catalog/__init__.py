"""The metrics: one file each, or one for a few that share computations."""
