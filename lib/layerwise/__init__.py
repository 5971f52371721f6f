"""layerwise: what each layer of a model represents, and which layer to use."""
