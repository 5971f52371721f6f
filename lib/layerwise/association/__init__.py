"""Does a metric say which layer is good? Association over layers, and layer choice without labels.

For two curves in a notebook: `distance_correlation`, `spearman` and `kendall`, on plain arrays.
For tidy tables: `layerwise.association.table.associate` (how strongly each metric goes with the
task scores, and how strongly that would happen by chance) and
`layerwise.association.choice.choose_layers` (what following the metric would have cost or gained).
"""

from layerwise.association.measures import distance_correlation, kendall, spearman

__all__ = ["distance_correlation", "kendall", "spearman"]
