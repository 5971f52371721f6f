"""Size of the activations that a run writes, from the shapes of models and corpora."""

from __future__ import annotations

from layerwise.config import Config
from layerwise.workflow import studies

FLOAT_BYTES = 4


def describe(config: Config) -> list[str]:
    """Gigabytes of pooled activations by model, and models and corpora of unknown size."""
    sizes: dict[str, float] = {}
    unknown = set()
    for model, revision, corpus in studies.measured(config):
        shape = _shape(config, model, revision)
        rows = _rows(config, corpus)
        if shape is None:
            unknown.add(model)
        elif rows is None:
            unknown.add(corpus)
        else:
            settings = config.extraction(model, corpus)
            variants = len(settings.tokens) * len(settings.protocols)
            written = shape[0] * shape[1] * rows * variants * FLOAT_BYTES
            sizes[model] = sizes.get(model, 0.0) + written
    lines = [f"{model}: {size / 1e9:.3g} GB of activations" for model, size in sizes.items()]
    if unknown:
        lines.append(f"Size unknown: {', '.join(sorted(unknown))}")
    return lines


def _rows(config: Config, corpus: str) -> int | None:
    """Prompts times views, the prompt itself included; None without a sample size."""
    entry = config.corpora[corpus]
    n = entry.sample.n
    return None if n is None else n * (1 + entry.views.n)


def _shape(config: Config, model: str, revision: str) -> tuple[int, int] | None:
    """Number of layers, the embeddings included, and width; None if they are not known here."""
    from transformers import AutoConfig

    from layerwise.errors import LayerwiseError
    from layerwise.models.source import locate

    if model in config.nano:
        return config.nano[model].layers + 1, config.nano[model].hidden
    try:
        place = locate(config.models[model].source, revision)
        gguf = {"gguf_file": place.gguf_file} if place.gguf_file else {}
        found = AutoConfig.from_pretrained(
            place.name, revision=place.revision or "main", local_files_only=True, **gguf
        )
    except (LayerwiseError, OSError, ValueError):
        return None
    return found.num_hidden_layers + 1, found.hidden_size
