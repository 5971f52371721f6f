"""From an activations file to tidy tables: declarations, settings, degenerate prompts."""

import doctest
import math
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import tiny
from helpers.in_memory import Arrays
from helpers.kept_states import States, states_of
from helpers.refused import refused
from pydantic import Field

from layerwise import metrics
from layerwise.activations import store as layout
from layerwise.activations.representation import pack
from layerwise.activations.store import ARRAYS, BASE
from layerwise.config.settings import MetricsSettings
from layerwise.errors import Code
from layerwise.metrics import registry, table
from layerwise.metrics.catalog import spectrum
from layerwise.metrics.formulas import UndefinedMetricError, entropy, gram_spectrum
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import NORMALIZATIONS, Overall, PerPrompt
from layerwise.models.load import LoadedModel
from layerwise.section import Section, parse
from layerwise.vocabulary import PROTOCOLS

Tables = tuple[pd.DataFrame, pd.DataFrame]

N, V, D, LAYERS = 24, 3, 32, 4
# Prompts 0, 1 and 2 have one, two and equal tokens; without positions their states are equal too.
ODD = ["x", "xy", "...."]
VIEWS = [ODD + tiny.texts(N - len(ODD), seed=view, longest=12) for view in range(V + 1)]
# Every array that a file may have, those that metrics declare among them.
KEPT = tuple(sorted(ARRAYS.keys() - {*BASE})) if registry.all_metrics() else ()
BOTH: dict[str, Any] = {"protocols": tuple(PROTOCOLS), "tokens": ("all", "drop_first")}
PARTS = ("mixer", "mlp")
SINKS = ("first_token_share", "largest_norm", "second_norm", "sink_rate")
OF_PROMPTS = {"prompt_entropy", "effective_rank", "curvature", *SINKS}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return tiny.loaded("gpt_neox", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def states(model: LoadedModel) -> list[States]:
    """Of each view."""
    return [states_of(model, model.texts.prompts(view)[0], sublayers=PARTS) for view in VIEWS]


@pytest.fixture(scope="module")
def activations_file(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("metrics") / "a.h5"
    return tiny.extracted(model, path, *VIEWS, **BOTH, arrays=KEPT)


@pytest.fixture
def spoiled(activations_file: Path, tmp_path: Path) -> Path:
    """A copy of the file to be changed."""
    return Path(shutil.copy(activations_file, tmp_path))


def compute(path: Path, protocol: str | None = None, **settings: Any) -> Tables:
    """The tables, or the rows of one protocol."""
    with layout.Activations(path) as activations:
        metrics, prompts = table.compute(activations, MetricsSettings(**settings))
    if protocol is None:
        return metrics, prompts
    return pick(metrics, protocol=protocol), pick(prompts, protocol=protocol)


@pytest.fixture(scope="module")
def tables(activations_file: Path) -> Tables:
    return compute(
        activations_file,
        settings={"alpha_req": {"ranks": [2, 500]}},
        normalizations=NORMALIZATIONS,
    )


def pick(frame: pd.DataFrame, **where: Any) -> pd.DataFrame:
    for column, value in where.items():
        frame = frame[frame[column].isna() if value is None else frame[column] == value]
    return frame


# The table


def test_every_metric_is_there_on_every_layer_protocol_and_token_selection(tables: Tables) -> None:
    frame = tables[0]
    assert tuple(frame.columns) == tuple(table.COLUMNS)
    for name, metric in registry.all_metrics().items():
        for protocol in metric.protocols:
            for tokens in {"all", "drop_first"} & set(metric.tokens):
                rows = pick(frame, metric=name, protocol=protocol, tokens=tokens)
                first = int("first_token_attention" in metric.inputs)
                layers = list(range(first, LAYERS))
                assert sorted(rows["layer"].unique()) == layers, (name, protocol)
    assert np.isfinite(frame["value"]).all()
    assert not frame.duplicated(
        ["layer", "metric", "protocol", "tokens", "alpha", "normalization"]
    ).any()
    assert set(frame["model"]) == {"gpt_neox"}
    assert set(frame["revision"]) == {"main"}
    assert np.allclose(frame["depth"], frame["layer"] / (LAYERS - 1))
    assert (frame["n"] + frame["n_left_out"] == N).all()


@pytest.fixture(scope="module")
def tables_of_parts(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    path = tmp_path_factory.mktemp("parts") / "a.h5"
    tiny.extracted(model, path, *VIEWS, **BOTH, sublayers=PARTS)
    names = ("prompt_entropy", "dataset_entropy", "curvature", "infonce", "lidar", "dime")
    return compute(path, metrics=(*names, "cka_first", "cka_last"), protocol="paper")


@pytest.mark.parametrize("part", ["block", *PARTS])
def test_values_are_those_of_the_functions_on_token_states(
    tables_of_parts: Tables, states: list[States], part: str
) -> None:
    own, of_prompts = (pick(t, sublayer=part, layer=2) for t in tables_of_parts)

    def value(name: str, tokens: str = "all", alpha: float | None = None) -> float:
        rows = pick(own, tokens=tokens, metric=name, alpha=alpha, normalization="raw")
        return float(rows["value"].item())

    def means(view: int, layer: int = 2, first: int = 0) -> np.ndarray:
        return np.stack([Z[first:].mean(axis=0) for Z in states[view][layer, part][first:]])

    prompts, views = states[0][2, part], np.stack([means(view) for view in range(V + 1)])
    near = partial(pytest.approx, rel=1e-5, abs=1e-6)
    for alpha in (1.0, 2.0, math.inf):
        spread = [entropy(Z, alpha) for Z in prompts]
        assert value("prompt_entropy", alpha=alpha) == near(np.mean(spread))
        rows = pick(of_prompts, metric="prompt_entropy", tokens="all", alpha=alpha)
        assert list(rows["value"]) == near(spread)
        assert value("dataset_entropy", alpha=alpha) == near(entropy(views[0], alpha))
    assert value("dime", alpha=1.0) == near(metrics.dime(views[1], views[2]))
    assert value("infonce") == near(metrics.infonce(views[1], views[2]))
    assert value("lidar") == near(metrics.lidar(views[1:]))
    ends = [means(0, layer=layer) for layer in (0 if part == "block" else 1, 3)]
    assert value("cka_first") == near(metrics.cka(views[0], ends[0]))
    assert value("cka_last") == near(metrics.cka(views[0], ends[1]))
    assert value("curvature") == near(np.mean([metrics.curvature(Z) for Z in prompts[3:]]))
    # Prompt 0 has no token but the first.
    dropped = entropy(means(0, first=1))
    assert value("dataset_entropy", "drop_first", 1.0) == near(dropped)


def test_normalisations_follow_from_raw(tables: Tables, states: list[States]) -> None:
    rows = pick(tables[0], metric="dataset_entropy", protocol="paper", tokens="all", alpha=1.0)
    wide = rows.pivot(index="layer", columns="normalization", values="value")
    assert set(wide.columns) == set(NORMALIZATIONS)
    assert np.allclose(wide["logN"], wide["raw"] / math.log(N))
    assert np.allclose(wide["maxEntropy"], wide["raw"] / math.log(min(N, D)))
    for metric in ("dataset_entropy", "dime"):
        own = pick(tables[0], metric=metric, protocol="paper", tokens="all", alpha=1.0)
        errors = own.pivot(index="layer", columns="normalization", values="stderr")
        assert np.allclose(errors["logD"], errors["raw"] / math.log(D))
    # Of prompts, each by its own length before the mean.
    rows = pick(tables[0], metric="prompt_entropy", protocol="paper", tokens="all", alpha=1.0)
    found = pick(rows, normalization="logN", layer=1)
    shares = [entropy(Z) / math.log(len(Z)) for Z in states[0][1, "block"][1:]]
    assert found["value"].item() == pytest.approx(np.mean(shares), abs=1e-6)
    assert found["stderr"].item() == pytest.approx(np.std(shares, ddof=1) / math.sqrt(N - 1))


def test_threads_change_nothing(activations_file: Path) -> None:
    with layout.Activations(activations_file) as activations:
        one = table.compute(activations, MetricsSettings(), threads=1)
        two = table.compute(activations, MetricsSettings(), threads=3)
    for a, b in zip(one, two, strict=True):
        pd.testing.assert_frame_equal(a, b)


# Degenerate prompts


def test_prompts_without_a_value_are_left_out_and_counted(tables: Tables) -> None:
    rows = pick(tables[0], protocol="paper", normalization="raw", layer=1)
    # One token, two tokens, all tokens equal: no angle. (Counts of a plain run.)
    assert set(pick(rows, metric="curvature", tokens="all")["n_left_out"]) == {3}
    # A single token attends to itself alone.
    assert set(pick(rows, metric="sink_rate", tokens="all")["n_left_out"]) == {1}
    # One and two equal tokens do have an entropy: 0.
    assert set(pick(rows, metric="prompt_entropy", tokens="all")["n_left_out"]) == {0}
    # Without its first token, the one-token prompt is gone from everything.
    left_out = pick(rows, tokens="drop_first").groupby("metric")["n_left_out"].max()
    assert (left_out >= 1).all()
    assert left_out["rankme"] == 1
    # log T = 0 for one token: its share of the maximum is not defined.
    shares = pick(tables[0], metric="prompt_entropy", normalization="logN", tokens="all")
    assert set(pick(shares, protocol="paper")["n_left_out"]) == {1}


def test_without_views_their_metrics_are_left_out_and_said(
    model: LoadedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tiny.extracted(model, tmp_path / "a.h5", VIEWS[0], **BOTH | {"tokens": ("drop_first",)})
    frame, _ = compute(path)
    missing = {"infonce", "infonce_mi_bound", "dime", "lidar"}
    assert not set(frame["metric"]) & missing
    assert "rankme" in set(frame["metric"])
    assert set(frame["tokens"]) == {"drop_first"}
    for name in missing:
        (line,) = [m for m in caplog.messages if m.startswith(f"{name} is left out")]
        assert f"in {2 * LAYERS} places" in line
        assert "augmented views" in line
    for nothing in compute(path, metrics=("lidar",)):
        assert nothing.empty
        assert set(nothing.columns) <= {*table.COLUMNS, *table.PROMPT_COLUMNS}


def test_one_prompt_leaves_its_own_metrics_and_no_nan(
    model: LoadedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tiny.extracted(
        model, tmp_path / "a.h5", VIEWS[0][-1:], VIEWS[1][-1:], arrays=tiny.ATTENTION
    )
    frame, _ = compute(path, protocol="paper")
    assert set(frame["metric"]) == OF_PROMPTS
    assert np.isfinite(frame["value"]).all()
    assert frame["stderr"].isna().all()
    assert any("needs 2 prompts" in m for m in caplog.messages)


def test_equal_and_zero_embeddings_are_said_not_nan(spoiled: Path) -> None:
    with h5py.File(spoiled, "a") as file:
        file["pooled"][:, :, 1] = 1.0
        file["pooled"][:, :, 2] = 0.0
    frame, _ = compute(spoiled)
    assert np.isfinite(frame["value"]).all()
    flat, zero = (set(pick(frame, layer=k)["metric"]) for k in (1, 2))
    assert {"dataset_entropy", "anisotropy", "infonce", "dime"} <= flat
    assert not flat & {"lidar", "nesum", "participation_ratio", "alpha_req", "cka_first", "two_nn"}
    of_prompts = {name for name, m in registry.all_metrics().items() if m.per_prompt}
    assert zero <= of_prompts | {"infonce_mi_bound"}
    values = pick(frame, layer=1, metric="dataset_entropy", normalization="raw", protocol="paper")
    assert np.allclose(values["value"], 0, atol=1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("name", "at"), [("pooled", (0, 0, 2, 0, 5, 3)), ("spectrum", (1, 0, 1, 5, 0))]
)
def test_nan_and_infinity_name_the_prompt(
    spoiled: Path, bad: float, name: str, at: tuple[int, ...]
) -> None:
    with h5py.File(spoiled, "a") as file:
        file[name][at] = bad
    with refused("not_finite") as caught:
        compute(spoiled, metrics=("prompt_entropy", "rankme"))
    assert "'p5'" in str(caught.value)


# Settings


@pytest.mark.parametrize(
    ("section", "given", "code"),
    [
        ("dime", {"permutations": 0}, "out_of_range"),
        ("dime", {"permutation": 9}, "unknown_key"),
        ("infonce", {"temperature": -1}, "out_of_range"),
        ("lidar", {"delta": 0}, "out_of_range"),
        ("alpha_req", {"ranks": [5, 8]}, "invalid"),
    ],
)
def test_a_wrong_setting_of_a_metric(section: str, given: dict[str, Any], code: Code) -> None:
    settings = MetricsSettings(settings={section: given})
    with refused(code):
        settings.of(section, registry.sections()[section])


def test_settings_come_from_json_and_go_back_to_it() -> None:
    given = {"alphas": [1, "inf"], "settings": {"alpha_req": {"ranks": [2, 50]}}}
    read = parse(MetricsSettings, given, "metrics")
    assert read.alphas == (1.0, math.inf)
    assert read.of("alpha_req", spectrum.Settings).ranks == (2, 50)
    assert parse(MetricsSettings, read.plain()) == read
    assert read.plain() == MetricsSettings().plain() | given
    schema = MetricsSettings.model_json_schema()
    assert set(schema["properties"]) == set(read.plain())
    assert schema["properties"]["alphas"]["default"] == [1, 2, "inf"]


def test_a_setting_reaches_its_metric(activations_file: Path) -> None:
    def values(**settings: Any) -> pd.DataFrame:
        frame, _ = compute(
            activations_file,
            metrics=("lidar", "dime", "infonce", "infonce_mi_bound", "two_nn"),
            protocol="paper",
            alphas=(1.0,),
            normalizations=(),
            **settings,
        )
        return frame.set_index(["metric", "layer", "tokens"])["value"]

    plain = values()
    for key, value in (
        ("lidar", {"delta": 0.5}),
        ("dime", {"permutations": 3}),
        ("infonce", {"temperature": 0.5}),
    ):
        moved = values(settings={key: value}) != plain
        changed = set(moved[moved].index.get_level_values("metric"))
        assert changed == ({"infonce", "infonce_mi_bound"} if key == "infonce" else {key})


# The registry


def declare(monkeypatch: pytest.MonkeyPatch, compute: Any, **declared: Any) -> registry.Metric:
    """Register a metric for one test."""
    monkeypatch.setattr(registry, "_METRICS", dict(registry.all_metrics()))
    usual = {"name": "mean_norm", "label": "Mean norm", "range": "0 or above", "source": "here"}
    usual |= {"inputs": ("pooled",), "function": np.linalg.norm, "unit": "activation"}
    usual["per_prompt"] = True
    registry.metric(**{**usual, **declared})(compute)
    return registry.all_metrics()["mean_norm"]


def test_a_new_metric_is_one_decorated_function(
    activations_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def norms(layer: Layer) -> list[PerPrompt]:
        return [PerPrompt(np.linalg.norm(layer.pooled, axis=1))]

    declare(monkeypatch, norms)
    frame, prompts = compute(activations_file, metrics=("mean_norm",))
    assert len(frame) == 2 * 2 * LAYERS
    # Of the prompt of one token nothing is left without its first.
    left_out = frame.groupby("tokens")["n_left_out"].unique().map(list).to_dict()
    assert left_out == {"all": [0], "drop_first": [1]}
    assert len(prompts) == 2 * LAYERS * (N + N - 1)
    dropped = prompts[prompts["tokens"] == "drop_first"]
    assert "p0" not in set(dropped["prompt_id"])
    with layout.Activations(activations_file) as file:
        own = file.pooled("paper", "drop_first", 1)[5]
    row = dropped[(dropped["prompt_id"] == "p5") & (dropped["layer"] == 1)]
    value = row.loc[row["protocol"] == "paper", "value"].item()
    assert value == pytest.approx(np.linalg.norm(own))
    assert registry.all_metrics()["mean_norm"].axis == "Mean norm (activation)"
    with pytest.raises(ValueError, match="entropies"):
        declare(monkeypatch, norms, inputs=("entropies",))


def test_a_new_metric_that_cannot_be_right(
    activations_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: list[tuple[Any, Code]] = [
        (PerPrompt(np.ones(N - 3)), "wrong_shape"),
        (PerPrompt([[1.0] * N]), "wrong_shape"),  # type: ignore[arg-type]
        (PerPrompt([[1.0], [1.0, 2.0]]), "wrong_shape"),  # type: ignore[arg-type]
        (1.0, "wrong_type"),
        (Overall(1.0, N), "wrong_type"),
    ]
    for result, code in wrong:
        declare(monkeypatch, lambda _, result=result: [result])
        with refused(code) as caught:
            compute(activations_file, metrics=("mean_norm",))
        assert "mean_norm" in str(caught.value)
    declare(monkeypatch, lambda layer: [PerPrompt([1.0] * N)])  # type: ignore[arg-type]
    assert len(compute(activations_file, metrics=("mean_norm",), protocol="paper")[0])


def test_a_sample_of_many_prompts_is_drawn_by_the_seed() -> None:
    values = np.arange(60.0).reshape(30, 2)

    def sample(seed: int) -> tuple[str, ...]:
        return Layer(Arrays(values), MetricsSettings(seed=seed)).sample(10).prompts

    assert sample(0) == sample(0) != sample(1)
    assert len(set(sample(1))) == 10


def test_padding_reaches_no_metric(
    activations_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smallest norm of a prompt is that of a token."""

    def smallest(layer: Layer) -> list[PerPrompt]:
        return [PerPrompt(np.nanmin(layer.norms, axis=1))]

    declare(monkeypatch, smallest, inputs=("norms",), tokens=("all",))
    _, prompts = compute(activations_file, metrics=("mean_norm",), protocol="paper")
    assert prompts["n_tokens"].nunique() > 1
    assert (prompts["value"] > 0).all()


def test_the_other_declarations_hold_too(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer(Arrays(np.ones((2, 5, 3))))
    for declared in ({"protocols": ("reference",)}, {"min_prompts": 6}, {"min_views": 2}):
        wrong = declare(monkeypatch, lambda _: [Overall(1.0, 5)], **declared)
        with pytest.raises(UndefinedMetricError):
            list(wrong.on(layer))


def test_two_metrics_cannot_declare_one_section(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(Section):
        size: int = Field(1, description="x")

    declare(monkeypatch, len, settings=Other, section="lidar")
    with pytest.raises(ValueError, match="'lidar' is another metric's"):
        registry.sections()


# The flat library


@pytest.mark.parametrize("name", registry.all_metrics())
def test_each_metric_is_a_function_on_plain_arrays_with_an_example(name: str) -> None:
    rng = np.random.default_rng(3)
    views = rng.normal(size=(4, 30, 12)) + 2 * rng.normal(size=(1, 30, 12))
    Z, ends = rng.normal(size=(7, 12)), rng.normal(size=(2, 30, 12))
    weights = rng.dirichlet(np.ones(5), size=(4, 5))
    packed = pack(torch.from_numpy(Z)[None], torch.tensor([len(Z)]))
    arrays = Arrays(
        views,
        spectrum=np.tile(gram_spectrum(Z), (30, 1)),
        norms=np.tile(np.linalg.norm(Z, axis=1), (30, 1)),
        first_token_attention=np.tile(weights[:, :, 0].mean(axis=1), (30, 1)),
        curvature=np.full(30, metrics.curvature(Z)),
        ends=ends,
        **{n: np.tile(c(packed).numpy(), (30, 1)) for n in KEPT if (c := ARRAYS[n].compute)},
    )
    settings = MetricsSettings(alphas=(1.0,), settings={"alpha_req": {"ranks": [2, 12]}})
    declared = registry.all_metrics()[name]
    assert declared.label and declared.source and declared.range and declared.compute.__doc__
    given: tuple[Any, ...] = {
        "pooled": (views[0],),
        "first_token_attention": (weights,),
        "views": (views[1:],),
        "pair": (views[1], views[2]),
    }.get(declared.inputs[0], (Z,))
    if "ends" in declared.inputs:
        given += (ends[0 if name == "cka_first" else 1],)
    more = {"ranks": (2, 12)} if name == "alpha_req" else {}
    row = table.compute_layer(Layer(arrays, settings), [declared]).values[0]
    function = getattr(metrics, declared.function.__name__)
    for kind in (torch.from_numpy, np.asarray):
        value = function(*map(kind, given), **more)
        assert isinstance(value, float)
        # Arrays are of float32.
        rounding = 1e-5 if declared.arrays else 0
        assert value == pytest.approx(row["value"], rel=1e-9, abs=rounding)
    assert function.__name__ in dir(metrics)
    assert "shape (" in function.__doc__ or "those of `infonce`" in function.__doc__
    examples = doctest.testmod(sys.modules[function.__module__])
    assert ">>>" in function.__doc__ and not examples.failed


def test_the_library_takes_tensors_and_says_what_it_cannot_do() -> None:
    Z = torch.eye(4, dtype=torch.bfloat16, requires_grad=True)
    assert metrics.prompt_entropy(Z) == pytest.approx(math.log(4))
    assert metrics.lidar(torch.randn(3, 5, 4).bfloat16()) >= 1
    with pytest.raises(UndefinedMetricError):
        metrics.infonce_mi_bound(np.zeros((3, 2)), np.ones((3, 2)))
    with pytest.raises(AttributeError, match="lidra"):
        _ = metrics.lidra
    examples = doctest.testmod(metrics)
    assert examples.attempted and not examples.failed
