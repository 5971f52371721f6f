"""Association of metrics with task scores over layers, and layer selection without labels.

`distance_correlation`, `spearman` and `kendall` compare two curves, as plain arrays. For tidy
tables, `layerwise.association.table.associate` gives the association of each metric with the
scores, and `layerwise.association.selection.select_layers` the score of the layers that metrics
select.
"""

from layerwise.association.measures import distance_correlation, kendall, spearman

__all__ = ["distance_correlation", "kendall", "spearman"]
