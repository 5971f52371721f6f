"""The metrics, one file each (or a few that share their work); every file here is found."""

# The config takes in all metrics' settings as it is imported. If a metric's file were the first to
# import it, that file would be half read then, and its settings missing.
import layerwise.config.base  # noqa: F401
