"""Names of tasks, quick to import."""

from __future__ import annotations

from importlib.resources import files

import yaml

# Types of mteb tasks that the scoring has been checked on: the five that the paper averages over,
# and others that come through the same door.
TYPES = (
    "Classification",
    "Clustering",
    "MultilabelClassification",
    "PairClassification",
    "Reranking",
    "Retrieval",
    "STS",
    "Summarization",
)
# The same of images alone and of audio alone; those with text need a model that embeds both.
IMAGE_TYPES = (
    "Any2AnyRetrieval",
    "ImageClassification",
    "ImageClustering",
    "VisualSTS(eng)",
    "VisualSTS(multi)",
)
AUDIO_TYPES = (
    "Any2AnyRetrieval",
    "AudioClassification",
    "AudioClustering",
    "AudioMultilabelClassification",
    "AudioPairClassification",
    "AudioReranking",
)

# The 32 tasks of Skean et al. 2025 (arXiv 2502.02013), by mteb's names (the v1 tasks).
_TEMPLATE = (files("layerwise.data") / "paper.yaml").read_text(encoding="utf-8")
PAPER: tuple[str, ...] = tuple(yaml.safe_load(_TEMPLATE)["tasks"])

# Prompt types of mteb's texts.
PROMPT_TYPES = ("query", "document")
# The name of the prompt of texts that have no prompt type, where no other fits.
DEFAULT = "default"
# Stands for mteb's instruction in a prompt.
INSTRUCTION = "{instruction}"
