"""Commands beside studies: look at a machine, verify a model, pass results on."""
