"""How good is a layer's representation, without labels? One metric a file, arrays in, floats out.

`layerwise.metrics.registry` knows every metric; `layerwise.metrics.table` computes them all for
an activations file. The formulas are plain functions on arrays, for use in a notebook:

>>> import numpy as np
>>> from layerwise.metrics.entropy import entropy
>>> round(entropy(np.eye(8)), 6)  # eight orthonormal rows: log 8
2.079442
"""
