"""Versions of corpora of images and of recordings."""

from layerwise.run.plan import STAGES, Stage

CORPUS = STAGES["corpus"]
STAGES["images"] = Stage(2, CORPUS.names, CORPUS.settings)
STAGES["audio"] = Stage(1, CORPUS.names, CORPUS.settings)
