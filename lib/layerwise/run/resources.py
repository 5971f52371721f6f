"""Memory that jobs ask a cluster for, and the size of the activations that a run writes."""

from __future__ import annotations

from layerwise.config import Config
from layerwise.models.source import locate
from layerwise.names import size_of
from layerwise.run.plan import Plan

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
    hub = getattr(entry.source, "hub", "").rpartition("/")[2]
    weights = (size_of(hub) or size_of(model) or 0.0) * width
    if not weights and model not in config.nano:
        folder = locate(entry.source, entry.revisions[-1]).folder
        files = folder.glob("*.safetensors") if folder else ()
        weights = sum(file.stat().st_size for file in files) or 1e9 * width
    return OVERHEAD_MB + int(LOADING * weights / 1e6)


def describe(config: Config) -> list[str]:
    """Gigabytes of activations by model, for models and corpora of known size."""
    sizes: dict[str, float] = {}
    of_tokens: dict[str, float] = {}
    measured = Plan(config).measured
    for model, revision, corpus in ((m, r, c) for (m, r), cs in measured.items() for c in cs):
        shape, entry = _shape(config, model, revision), config.corpora[corpus]
        if shape is None or entry.sample.n is None:
            continue
        settings = config.extraction(model, corpus)
        variants = len(settings.tokens) * len(settings.protocols)
        rows = entry.sample.n * (1 + entry.views.n)
        written = shape[0] * shape[1] * rows * variants * BYTES["float32"]
        sizes[model] = sizes.get(model, 0.0) + written
        if settings.token_states:
            width = BYTES["float16" if settings.token_states == "float16" else "float32"]
            layers = len(settings.layers or range(shape[0]))
            states = 100 * entry.sample.n * layers * shape[1] * width
            of_tokens[model] = of_tokens.get(model, 0.0) + states
    lines = [f"{model}: {size / 1e9:.3g} GB of activations" for model, size in sizes.items()]
    return lines + [
        f"{model}: {size / 1e9:.3g} GB of token states for every 100 tokens of a prompt"
        for model, size in of_tokens.items()
    ]


def _shape(config: Config, model: str, revision: str) -> tuple[int, int] | None:
    """Number of layers, the embeddings included, and width; None if they are not known here."""
    from transformers import AutoConfig

    if model in config.nano:
        return config.nano[model].layers + 1, config.nano[model].hidden
    place = locate(config.models[model].source, revision)
    gguf = {"gguf_file": place.gguf_file} if place.gguf_file else {}
    try:
        found = AutoConfig.from_pretrained(
            place.name, revision=place.revision or "main", local_files_only=True, **gguf
        )
    except (OSError, ValueError):
        return None
    return found.num_hidden_layers + 1, found.hidden_size
