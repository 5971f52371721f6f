"""Annex: the claims of two papers, checked with their authors' numbers, on `layerwise`.

The papers are "Layer by Layer" (arXiv 2502.02013) and "Does Representation Matter?"
(arXiv 2412.09563), both by Skean et al. `layerwise` doesn't import this package.
"""
