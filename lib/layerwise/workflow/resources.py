"""Memory that jobs ask a cluster for."""

from __future__ import annotations

from layerwise.config import Config
from layerwise.errors import LayerwiseError
from layerwise.models.source import locate
from layerwise.names import size_of

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
# Libraries, activations of a batch, and reading the file.
OVERHEAD_MB = 4000
# While weights are loaded, a part of them is in memory twice.
LOADING = 1.25


def model_mb(config: Config, model: str) -> int:
    """Megabytes of memory for a job that loads a model.

    The number of parameters is read from the name (``pythia-6.9b``) or from the size of a local
    model's weights; a model of unknown size counts as one of a billion parameters.
    """
    entry = config.models[model]
    width = BYTES[entry.dtype or config.extract.dtype]
    weights = _weights_bytes(config, model, width)
    return OVERHEAD_MB + int(LOADING * weights / 1e6)


def _weights_bytes(config: Config, model: str, width: int) -> float:
    entry = config.models[model]
    for name in (getattr(entry.source, "hub", None), model):
        parameters = size_of(name.rsplit("/", 1)[-1]) if name else None
        if parameters:
            return parameters * width
    if model in config.nano:
        return 0.0
    try:
        folder = locate(entry.source, entry.revisions[-1]).folder
    except LayerwiseError:
        folder = None
    if folder is None:
        return 1e9 * width
    return float(sum(p.stat().st_size for p in folder.glob("*.safetensors"))) or 1e9 * width
