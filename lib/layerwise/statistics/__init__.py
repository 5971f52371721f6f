"""What may be said of layers, metrics and rules: intervals, tests, and what chance would give.

========================================== =====================================================
`layerwise.statistics.tasks`               layers compared over tasks: intervals, bands, the gain
                                           of a chosen layer, regret, the set of best layers,
                                           equivalence
`layerwise.statistics.depth`               a metric and a score over layers, given depth
`layerwise.statistics.matching`            the same across models, with a valid p
`layerwise.statistics.mixed`               over models and tasks together, partial pooling
`layerwise.statistics.headlines`           counts and winners against chance
`layerwise.statistics.samples`             metrics below their sample size
`layerwise.statistics.flips`               the largest of several means against chance
`layerwise.statistics.variance`, `.power`  where an uncertainty comes from; what it takes
`layerwise.statistics.corrections`         Holm, Benjamini and Hochberg
========================================== =====================================================

Pure functions of arrays. How each does on curves of which the truth is known stands in
docs/statistics.md, made by tests/calibration.
"""
