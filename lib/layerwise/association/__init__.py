"""Does a metric say which layer is good? Association over layers, and layer choice without labels.

Start with `layerwise.association.table.associate` (how strongly each metric goes with the task
scores, and how strongly that would happen by chance) and
`layerwise.association.choice.choose_layers` (what following the metric would have cost or gained).
"""
