"""Figures of the studies: tidy tables in; figure, the table drawn, and the caption's facts out.

One module a kind of study, one more for each thing they share (`style`, `labels`, `frames`).
`layerwise.figures.studies.draw` picks the module by the study's kind.
"""
