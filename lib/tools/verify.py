"""Verify that a model's layers are read right, and keep what was measured in a table.

The table of docs/models.md is written by this alone: `layerwise verify MODEL… --table FILE`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from layerwise.errors import LayerwiseError
from layerwise.io.files import replacing
from layerwise.models import hooks
from layerwise.models.architectures import Layout
from layerwise.models.load import LoadedModel
from layerwise.models.opening import open_model

KEY = ("model", "weights", "dtype")
COLUMNS = (
    *("model", "architecture", "weights", "layers", "width", "streams", "readout"),
    *("output_difference", "hidden_states", "difference", "batches", "sublayers"),
    *("dtype", "megabytes", "transformers", "refused"),
)
# States of one layer differ by less than this, relative to the largest: rounding in float32.
EQUAL = 1e-5


def verify(what: Any, *, name: str = "", weights: str = "real", **options: Any) -> dict[str, Any]:
    """Open a model, which proves its layers, and compare them with transformers' own states.

    Parameters
    ----------
    what, **options
        As for `layerwise.models.opening.open_model`.
    name : str
        Name in the table; by default `what`.
    weights : {'real', 'random'}
        What its weights are.

    Returns
    -------
    dict
        A row of the table: `COLUMNS`. A model that cannot be read is refused in it.

    Raises
    ------
    LayerwiseError
        If there is no such model, or its files cannot be read.
    """
    dtype = options.get("dtype", "float32")
    row = {"model": name or str(what), "weights": weights, "dtype": dtype}
    row["transformers"] = version("transformers")
    try:
        with open_model(what, **options) as loaded:
            return row | measured(loaded)
    except LayerwiseError as error:
        if error.code != "unsupported":
            raise
        return row | {"refused": str(error)}


@torch.inference_mode()
def measured(loaded: LoadedModel) -> dict[str, Any]:
    """What is found in an open model, with a pass over a few short inputs."""
    loaded.require_model("verify")
    anatomy, network, inputs = loaded.anatomy, loaded.model, loaded.example()
    layers: list[Tensor] = []
    hooks.run(network, anatomy, inputs, lambda _, __, states: layers.append(states.clone()))
    options = hooks.pass_options(network, hooks.token_count(inputs))
    output = network(**inputs, **options, output_hidden_states=True)
    last = output.last_hidden_state
    theirs: Sequence[Tensor] = getattr(output, "hidden_states", None) or ()
    read_out = layers[-1] if anatomy.final_norm is None else anatomy.read_out(layers[-1])
    # transformers' last is normed in most decoders, and Mamba's leave the embedding output out.
    matches = []
    for shift in (0, 1):
        pairs = list(zip(layers[shift:], theirs, strict=False))
        differences = [_difference(ours, their, anatomy.layout) for ours, their in pairs]
        if pairs and len(pairs) == anatomy.n_layers:
            differences[-1] = min(differences[-1], _difference(read_out, theirs[-1]))
        matches.append([difference for difference in differences if difference <= EQUAL])
    equal = max(matches, key=len)
    try:
        sublayers = ", ".join(anatomy.sublayers)
        hooks.run(network, anatomy, inputs, lambda *_: None, sublayers=anatomy.sublayers)
    except LayerwiseError as error:
        sublayers = f"none: {str(error).partition(';')[0]}"
    size = sum(tensor.numel() * tensor.element_size() for tensor in network.parameters())
    return {
        "architecture": anatomy.kind,
        "layers": anatomy.n_layers,
        "width": anatomy.hidden,
        "streams": anatomy.layout.streams,
        "readout": _named(anatomy.final_norm),
        "output_difference": _difference(read_out, last),
        "hidden_states": f"{len(equal)} of {anatomy.n_layers}",
        "difference": max(equal, default=float("nan")),
        "batches": "of one length" if anatomy.equal_lengths else "of any lengths",
        "sublayers": sublayers,
        "megabytes": size / 1e6,
    }


def record(table: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows to a table of models, in place of earlier ones of the same."""
    known = pd.read_csv(table, dtype=str) if table.exists() else pd.DataFrame()
    new = pd.DataFrame(rows).map(lambda value: f"{value:.2g}" if type(value) is float else value)
    whole = pd.concat([known, new]).reindex(columns=list(COLUMNS))
    whole = whole.drop_duplicates(list(KEY), keep="last").sort_values(["weights", "model"])
    with replacing(table) as path:
        whole.to_csv(path, index=False)


def _named(module: Any) -> str:
    """What stands between the last block and the output."""
    if isinstance(module, torch.nn.Sequential):
        return " → ".join(map(_named, module))
    return "none" if module is None else type(module).__name__


def _difference(ours: Tensor, theirs: Tensor, layout: Layout | None = None) -> float:
    """Largest difference, relative to the largest state; infinite for states of other shapes."""
    if layout is not None and theirs.ndim == len(layout.order):
        theirs = layout.states(theirs) if layout.streams > 1 else theirs
    theirs = theirs[:, : ours.shape[1]]
    if theirs.shape != ours.shape:
        return float("inf")
    return float((ours - theirs).abs().max() / theirs.abs().max())
