"""Parameters and time that a model saves when it is cut at a layer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from layerwise.activations.embedding import embed
from layerwise.activations.representation import Representation
from layerwise.models.load import LoadedModel
from layerwise.tasks.labelled import Labels

TEXTS_TIMED = 64


def savings(loaded: LoadedModel, data: Labels, layer: int) -> str:
    """Parameters and time of a pass that are saved by a cut at a layer."""
    blocks = loaded.anatomy.blocks
    kept = {id(p) for block in blocks[:layer] for p in block.parameters()}
    cut = {id(p): p.numel() for block in blocks[layer:] for p in block.parameters()}
    saved_parameters = sum(n for key, n in cut.items() if key not in kept)
    whole = sum(p.numel() for p in loaded.model.parameters())
    texts = data.distinct()[:TEXTS_TIMED]
    return (
        f"Cut there, the model has {(whole - saved_parameters) / 1e6:.1f} of {whole / 1e6:.1f} "
        f"million parameters and takes {100 * time_share(loaded, texts, layer):.0f}% of the time "
        f"(a pass over {len(texts)} {loaded.reader.takes}s)."
    )


def time_share(loaded: LoadedModel, texts: Sequence[Any], layer: int) -> float:
    """Measure the share of a pass's time until a layer before the last."""
    start = reached = before = whole = 0.0
    n_calls = 0

    def now() -> float:
        if loaded.device.type == "cuda":
            torch.cuda.synchronize(loaded.device)
        return time.perf_counter()

    def begin(*_: Any) -> None:
        nonlocal start, n_calls, reached
        start, n_calls = now(), 0

    def enter(*_: Any) -> None:
        nonlocal n_calls, reached
        if n_calls == layer:
            reached = now()
        n_calls += 1

    def end(*_: Any) -> None:
        nonlocal before, whole
        before, whole = before + reached - start, whole + now() - start

    hooks = [loaded.model.register_forward_pre_hook(begin)]
    hooks += [
        block.register_forward_pre_hook(enter) for block in dict.fromkeys(loaded.anatomy.blocks)
    ]
    hooks.append(loaded.model.register_forward_hook(end))
    try:
        for _ in range(2):  # The first pass is slower.
            before = whole = 0.0
            embed(loaded, texts, [Representation("all", "mean", loaded.anatomy.readouts[0])])
    finally:
        for hook in hooks:
            hook.remove()
    return before / whole
