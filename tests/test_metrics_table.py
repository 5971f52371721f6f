"""From an activations file to tidy tables: declarations, settings, degenerate prompts."""

from __future__ import annotations

import doctest
import importlib
import logging
import math
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from in_memory import Arrays
from pydantic import Field
from refused import refused

from layerwise import metrics
from layerwise.activations import store as layout
from layerwise.config.metrics import MetricsSettings
from layerwise.errors import Code
from layerwise.metrics import catalog, lists, registry, table
from layerwise.metrics.catalog import alpha_req
from layerwise.metrics.formulas.arrays import UndefinedMetricError
from layerwise.metrics.formulas.entropy import entropy
from layerwise.metrics.formulas.spectra import gram_spectrum
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import NORMALIZATIONS, Overall, PerPrompt
from layerwise.section import Section, parse

N, V, D, LAYERS = 24, 3, 10, 4

SINKS = ("first_token_share", "largest_norm", "second_norm", "sink_rate")


def token_states(layer: int, view: int, prompt: int) -> np.ndarray:
    """States of a prompt's tokens, T x D; prompts 0, 1 and 2 have one, two and equal tokens."""
    rng = np.random.default_rng([prompt, layer])
    length = {0: 1, 1: 2}.get(prompt, 3 + prompt % 5)
    states = rng.normal(size=(length, D)) + np.arange(D) * 0.1
    if prompt == 2:
        states[:] = states[0]
    return states + 0.1 * view * np.random.default_rng([prompt, layer, view]).normal(size=D)


def write_activations(
    path: Path,
    n: int = N,
    n_views: int = V,
    tokens: tuple[str, ...] = ("all", "drop_first"),
    change: Callable[[Any], None] | None = None,
) -> Path:
    """An activations file of made-up states, in float64 routes of its own."""
    rank = 8
    labels = layout.labels(
        protocols=("paper", "reference"),
        tokens=tokens,
        n_layers=LAYERS,
        n_views=n_views + 1,
        prompts=[f"prompt-{i}" for i in range(n)],
        hidden=D,
        rank=rank,
    )
    attributes = {"model": "m", "revision": "step1", "corpus": "c", "weights_sha256": "abc"}
    with layout.create(path, labels, attributes) as file:
        for t, choice in enumerate(tokens):
            for layer in range(LAYERS):
                for view in range(n_views + 1):
                    for i in range(n):
                        states = token_states(layer, view, i)
                        states = states[1:] if choice == "drop_first" else states
                        file["n_tokens"][:, t, layer, view, i] = len(states)
                        if view == 0 and choice == "all":
                            norms = np.linalg.norm(states, axis=1)
                            file["norm"][layer, i] = np.pad(norms, (0, rank - len(norms)))
                        _write_prompt(file, (t, layer, view, i), states)
        attention = np.random.default_rng(1).random((LAYERS, n, 4))
        attention[0] = np.nan  # the embedding output
        layout.add_attention(file, attention)
        if change:
            change(file)
    return path


def _write_prompt(file: Any, at: tuple[int, int, int, int], states: np.ndarray) -> None:
    t, layer, view, i = at
    centred = states - states.mean(axis=0) if len(states) else states
    norms = np.linalg.norm(centred, axis=1, keepdims=True)
    unit = np.divide(centred, norms, out=np.zeros_like(centred), where=norms > 1e-12)
    for p, rows in enumerate((states, unit)):
        file["pooled"][p, t, layer, view, i] = rows.mean(axis=0) if len(rows) else 0.0
        if view == 0 and len(rows):
            values = gram_spectrum(rows)
            if p == 1:
                values = np.linalg.eigvalsh(np.maximum(rows @ rows.T, 0))[::-1]
            padded = np.zeros(file["spectrum"].shape[-1])
            padded[: len(values)] = values
            file["spectrum"][p, t, layer, i] = padded
        elif view == 0:
            file["spectrum"][p, t, layer, i] = 0.0
        if view == 0:
            turns = len(rows) > 2 and np.ptp(rows, axis=0).max() > 1e-9
            file["curvature"][p, t, layer, i] = metrics.curvature(rows) if turns else np.nan


@pytest.fixture(scope="module")
def activations_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_activations(tmp_path_factory.mktemp("metrics") / "a.h5")


def compute(path: Path, **settings: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    with layout.Activations(path) as activations:
        return table.compute(activations, MetricsSettings(**settings))


@pytest.fixture(scope="module")
def tables(activations_file: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
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


def test_every_metric_is_there_on_every_layer_protocol_and_choice_of_tokens(
    tables: tuple[pd.DataFrame, pd.DataFrame],
) -> None:
    frame = tables[0]
    assert tuple(frame.columns) == tuple(table.COLUMNS)
    for name, metric in registry.all_metrics().items():
        for protocol in metric.protocols:
            for tokens in {"all", "drop_first"} & set(metric.tokens):
                rows = pick(frame, metric=name, protocol=protocol, tokens=tokens)
                first = int("attention" in metric.inputs)
                layers = list(range(first, LAYERS))
                assert sorted(rows["layer"].unique()) == layers, (name, protocol)
    assert np.isfinite(frame["value"]).all()
    assert not frame.duplicated(
        ["layer", "metric", "protocol", "tokens", "alpha", "normalization"]
    ).any()
    assert set(frame["model"]) == {"m"}
    assert set(frame["revision"]) == {"step1"}
    assert np.allclose(frame["depth"], frame["layer"] / (LAYERS - 1))
    assert (frame["n"] + frame["n_left_out"] == N).all()


def test_values_are_those_of_the_functions_on_token_states(
    tables: tuple[pd.DataFrame, pd.DataFrame],
) -> None:
    frame = pick(tables[0], protocol="paper", normalization="raw", layer=2)
    views = np.stack(
        [[token_states(2, v, i).mean(axis=0) for i in range(N)] for v in range(V + 1)]
    )
    views = views.astype(np.float32)
    ends = [np.stack([token_states(x, 0, i).mean(axis=0) for i in range(N)]) for x in (0, 3)]
    rows = pick(frame, tokens="all")

    def value(name: str, alpha: float | None = None) -> float:
        return float(pick(rows, metric=name, alpha=alpha)["value"].item())

    prompts = [token_states(2, 0, i) for i in range(N)]
    for alpha in (1.0, 2.0, math.inf):
        expected = np.mean([entropy(Z, alpha) for Z in prompts])
        assert value("prompt_entropy", alpha) == pytest.approx(expected, abs=1e-8)
        assert value("dataset_entropy", alpha) == pytest.approx(entropy(views[0], alpha), abs=1e-8)
    assert value("dime", 1.0) == pytest.approx(metrics.dime(views[1], views[2]), abs=1e-8)
    assert value("infonce") == pytest.approx(metrics.infonce(views[1], views[2]), abs=1e-8)
    assert value("lidar") == pytest.approx(metrics.lidar(views[1:]), rel=1e-8)
    assert value("cka_first") == pytest.approx(metrics.cka(views[0], ends[0]), abs=1e-5)
    assert value("cka_last") == pytest.approx(metrics.cka(views[0], ends[1]), abs=1e-5)
    assert value("curvature") == pytest.approx(
        np.mean([metrics.curvature(Z) for Z in prompts[3:]])
    )
    dropped = pick(frame, tokens="drop_first", metric="dataset_entropy", alpha=1.0)
    pooled = np.stack([token_states(2, 0, i)[1:].mean(axis=0) for i in range(1, N)])
    expected = entropy(pooled.astype(np.float32), 1.0)
    assert dropped["value"].item() == pytest.approx(expected, abs=1e-8)


def test_normalisations_follow_from_raw(tables: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    rows = pick(tables[0], metric="dataset_entropy", protocol="paper", tokens="all", alpha=1.0)
    wide = rows.pivot(index="layer", columns="normalization", values="value")
    assert set(wide.columns) == set(NORMALIZATIONS)
    assert np.allclose(wide["logN"], wide["raw"] / math.log(N))
    assert np.allclose(wide["maxEntropy"], wide["raw"] / math.log(D))
    errors = rows.pivot(index="layer", columns="normalization", values="stderr")
    assert np.allclose(errors["logD"], errors["raw"] / math.log(D))
    # Of prompts, each by its own length before the mean.
    rows = pick(tables[0], metric="prompt_entropy", protocol="paper", tokens="all", alpha=1.0)
    found = pick(rows, normalization="logN", layer=1)
    shares = [
        entropy(token_states(1, 0, i)) / math.log(len(token_states(1, 0, i))) for i in range(1, N)
    ]
    assert found["value"].item() == pytest.approx(np.mean(shares), abs=1e-8)
    assert found["stderr"].item() == pytest.approx(np.std(shares, ddof=1) / math.sqrt(N - 1))


def test_only_asked_for_settings_come(activations_file: Path) -> None:
    frame, _ = compute(
        activations_file,
        metrics=("dataset_entropy", "rankme"),
        alphas=(0.5, math.inf),
        normalizations=("logD",),
    )
    assert set(frame["metric"]) == {"dataset_entropy", "rankme"}
    entropies = pick(frame, metric="dataset_entropy")
    assert set(entropies["alpha"]) == {0.5, math.inf}
    assert set(entropies["normalization"]) == {"raw", "logD"}
    assert set(pick(frame, metric="rankme")["normalization"]) == {"raw"}


def test_threads_change_nothing(activations_file: Path) -> None:
    with layout.Activations(activations_file) as activations:
        one = table.compute(activations, MetricsSettings(), threads=1)
        two = table.compute(activations, MetricsSettings(), threads=3)
    for a, b in zip(one, two, strict=True):
        pd.testing.assert_frame_equal(a, b)


# Degenerate prompts


def test_prompts_without_a_value_are_left_out_and_counted(
    tables: tuple[pd.DataFrame, pd.DataFrame],
) -> None:
    rows = pick(tables[0], protocol="paper", normalization="raw", layer=1)
    # One token, two tokens, all tokens equal: no angle. (Counts of a plain run.)
    assert set(pick(rows, metric="curvature", tokens="all")["n_left_out"]) == {3}
    # One and two equal tokens do have an entropy: 0.
    assert set(pick(rows, metric="prompt_entropy", tokens="all")["n_left_out"]) == {0}
    # Without its first token, the one-token prompt is gone from everything.
    left_out = pick(rows, tokens="drop_first").groupby("metric")["n_left_out"].max()
    assert (left_out >= 1).all()
    assert left_out["rankme"] == 1
    # log T = 0 for one token: its share of the maximum is not defined.
    shares = pick(tables[0], metric="prompt_entropy", normalization="logN", tokens="all")
    assert set(pick(shares, protocol="paper")["n_left_out"]) == {1}


def test_prompt_values_are_kept(tables: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    frame = tables[1]
    assert tuple(frame.columns) == tuple(table.PROMPT_COLUMNS)
    assert set(frame["metric"]) == {
        "prompt_entropy",
        "effective_rank",
        "curvature",
        "infonce",
        *SINKS,
    }
    assert np.isfinite(frame["value"]).all()
    rows = pick(frame, metric="prompt_entropy", protocol="paper", tokens="all", alpha=1.0, layer=1)
    assert list(rows["prompt_id"]) == [f"prompt-{i}" for i in range(N)]
    assert rows["value"].iloc[7] == pytest.approx(entropy(token_states(1, 0, 7)), abs=1e-8)
    assert rows["n_tokens"].iloc[7] == len(token_states(1, 0, 7))
    mean = pick(
        tables[0],
        metric="prompt_entropy",
        protocol="paper",
        tokens="all",
        alpha=1.0,
        layer=1,
        normalization="raw",
    )["value"].item()
    assert rows["value"].mean() == pytest.approx(mean, abs=1e-12)
    turns = pick(frame, metric="curvature", protocol="paper", tokens="all", layer=1)
    assert not set(turns["prompt_id"]) & {"prompt-0", "prompt-1", "prompt-2"}


def test_without_views_their_metrics_are_left_out_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_activations(tmp_path / "a.h5", n_views=0, tokens=("all",))
    with caplog.at_level(logging.WARNING, logger="layerwise"):
        frame, _ = compute(path)
    missing = {"infonce", "infonce_mi_bound", "dime", "lidar"}
    assert not set(frame["metric"]) & missing
    assert "rankme" in set(frame["metric"])
    for name in missing:
        (line,) = [m for m in caplog.messages if m.startswith(f"{name} is left out")]
        assert f"in {2 * LAYERS} places" in line
        assert "augmented views" in line
    nothing, no_prompts = compute(path, metrics=("lidar",))
    assert nothing.empty
    assert no_prompts.empty
    assert tuple(nothing.columns) == tuple(table.COLUMNS)


def test_one_prompt_leaves_its_own_metrics_and_no_nan(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def stretch(file: Any) -> None:
        file["n_tokens"][:] = 5
        file["curvature"][:] = 1.0

    path = write_activations(tmp_path / "a.h5", n=1, tokens=("all",), change=stretch)
    with caplog.at_level(logging.WARNING, logger="layerwise"):
        frame, _ = compute(path)
    sinks = set(SINKS) - {"second_norm"}
    assert set(frame["metric"]) == {"prompt_entropy", "effective_rank", "curvature", *sinks}
    assert np.isfinite(frame["value"]).all()
    assert frame["stderr"].isna().all()
    assert any("needs 2 prompts" in m for m in caplog.messages)


def test_equal_and_zero_embeddings_are_said_not_nan(tmp_path: Path) -> None:
    def flatten(file: Any) -> None:
        file["pooled"][:, :, 1] = 1.0
        file["pooled"][:, :, 2] = 0.0

    frame, _ = compute(write_activations(tmp_path / "a.h5", tokens=("all",), change=flatten))
    assert np.isfinite(frame["value"]).all()
    flat, zero = (set(pick(frame, layer=k)["metric"]) for k in (1, 2))
    assert {"dataset_entropy", "anisotropy", "infonce", "dime"} <= flat
    assert not flat & {"lidar", "nesum", "participation_ratio", "alpha_req", "cka_first", "two_nn"}
    of_prompts = {"prompt_entropy", "effective_rank", "curvature", *SINKS}
    assert zero <= of_prompts | {"infonce", "infonce_mi_bound"}
    values = pick(frame, layer=1, metric="dataset_entropy", normalization="raw", protocol="paper")
    assert np.allclose(values["value"], 0, atol=1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_name_the_prompt(tmp_path: Path, bad: float) -> None:
    for name, at in (("pooled", (0, 0, 2, 0, 5, 3)), ("spectrum", (1, 0, 1, 5, 0))):

        def spoil(file: Any, name: str = name, at: tuple[int, ...] = at) -> None:
            file[name][at] = bad

        path = write_activations(tmp_path / f"{name}.h5", tokens=("all",), change=spoil)
        with refused("not_finite"):
            compute(path)


# Settings


@pytest.mark.parametrize(
    ("section", "given", "code"),
    [
        ("dime", {"permutations": 0}, "out_of_range"),
        ("dime", {"permutation": 9}, "unknown_key"),
        ("infonce", {"temperature": -1}, "out_of_range"),
        ("lidar", {"delta": 0}, "out_of_range"),
        ("alpha_req", {"ranks": [5, 5]}, "invalid"),
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
    assert read.of("alpha_req", alpha_req.Settings).ranks == (2, 50)
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
            alphas=(1.0,),
            normalizations=(),
            **settings,
        )
        paper = pick(frame, protocol="paper")
        return paper.set_index(["metric", "layer", "tokens"])["value"]

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


def test_every_metric_declares_itself() -> None:
    found = registry.all_metrics()
    for name, metric in found.items():
        assert metric.label
        assert metric.source
        assert metric.range
        assert metric.compute.__doc__, f"{name} says nothing of itself"
        assert f"(#{name}) | {metric.axis} |" in lists.of_metrics()
    directions = registry.directions()
    assert directions["infonce"] == -1
    assert directions["lidar"] == 1
    assert "two_nn" not in directions
    with refused("unknown_name"):
        registry.get("rank_me")


def declare(monkeypatch: pytest.MonkeyPatch, compute: Any, **declared: Any) -> registry.Metric:
    """Register a metric for one test."""
    monkeypatch.setattr(registry, "_METRICS", dict(registry.all_metrics()))
    usual = {"name": "mean_norm", "label": "Mean norm", "range": "0 or above", "source": "here"}
    usual |= {"inputs": ("pooled",), "function": np.linalg.norm, "unit": "activation"}
    registry.metric(**{**usual, **declared})(compute)
    return registry.get("mean_norm")


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
    assert "prompt-0" not in set(dropped["prompt_id"])
    with layout.Activations(activations_file) as file:
        own = file.pooled("paper", "drop_first", 1)[5]
    row = dropped[(dropped["prompt_id"] == "prompt-5") & (dropped["layer"] == 1)]
    value = row.loc[row["protocol"] == "paper", "value"].item()
    assert value == pytest.approx(np.linalg.norm(own))
    assert "Mean norm (activation)" in lists.of_metrics()
    with pytest.raises(ValueError, match="entropies"):
        declare(monkeypatch, norms, inputs=("entropies",))


def test_a_new_metric_that_cannot_be_right(
    activations_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(monkeypatch, lambda _: [PerPrompt(np.ones(N - 3))])
    with pytest.raises(ValueError, match=f"{N - 3} input values to the {N} output"):
        compute(activations_file, metrics=("mean_norm",))


def test_the_other_declarations_hold_too(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer(Arrays(np.ones((2, 5, 3))))
    for declared in ({"protocols": ("reference",)}, {"min_prompts": 6}, {"min_views": 2}):
        wrong = declare(monkeypatch, lambda _: [Overall(1.0, 5)], **declared)
        with pytest.raises(UndefinedMetricError):
            list(wrong.on(layer))


def test_protocols_and_tokens_follow_the_extraction(tmp_path: Path) -> None:
    frame, _ = compute(write_activations(tmp_path / "a.h5", tokens=("drop_first",)))
    assert set(frame["tokens"]) == {"drop_first"}
    assert set(frame["protocol"]) == {"paper", "reference"}


def test_two_metrics_cannot_declare_one_section(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(Section):
        size: int = Field(1, description="x")

    declare(monkeypatch, len, settings=Other, section="lidar")
    with pytest.raises(ValueError, match="'lidar' is another metric's"):
        registry.sections()


# The flat library


def on_plain_arrays(name: str) -> tuple[float, float]:
    """A metric's value by its function, and as the table has it."""
    rng = np.random.default_rng(3)
    views = rng.normal(size=(4, 30, 12)) + 2 * rng.normal(size=(1, 30, 12))
    Z = rng.normal(size=(7, 12))
    spectra, ends = np.tile(gram_spectrum(Z), (30, 1)), rng.normal(size=(2, 30, 12))
    bends = np.full(30, metrics.curvature(Z))
    norms = np.tile(np.linalg.norm(Z, axis=1), (30, 1))
    weights = rng.dirichlet(np.ones(5), size=(4, 5))
    seen = np.tile(weights[:, :, 0].mean(axis=1), (30, 1))
    arrays = Arrays(
        views, spectra=spectra, norms=norms, attention=seen, curvature=bends, ends=ends
    )
    settings = MetricsSettings(alphas=(1.0,), settings={"alpha_req": {"ranks": [2, 12]}})
    declared = registry.get(name)
    given: tuple[Any, ...] = {
        "pooled": (views[0],),
        "spectra": (Z,),
        "norms": (Z,),
        "attention": (weights,),
        "curvature": (Z,),
        "views": (views[1:],),
        "pair": (views[1], views[2]),
    }[declared.inputs[0]]
    if "ends" in declared.inputs:
        given += (ends[0 if name == "cka_first" else 1],)
    more = {"ranks": (2, 12)} if name == "alpha_req" else {}
    (row,) = table.compute_layer(Layer(arrays, settings), [declared]).values[:1]
    function = getattr(metrics, declared.function.__name__)
    for kind in (torch.from_numpy, np.asarray):
        value = function(*map(kind, given), **more)
        assert isinstance(value, float)
    return value, row["value"]


@pytest.mark.parametrize("name", sorted(registry.all_metrics()))
def test_each_metric_is_a_function_on_plain_arrays(name: str) -> None:
    value, in_table = on_plain_arrays(name)
    assert value == pytest.approx(in_table, rel=1e-9)
    function = registry.get(name).function
    assert function.__name__ in dir(metrics)
    assert ">>>" in (function.__doc__ or ""), "an example"
    assert "shape (" in function.__doc__ or "those of `infonce`" in function.__doc__


def test_the_library_takes_tensors_and_says_what_it_cannot_do() -> None:
    Z = torch.eye(4, dtype=torch.bfloat16, requires_grad=True)
    assert metrics.prompt_entropy(Z) == pytest.approx(math.log(4))
    assert metrics.lidar(torch.randn(3, 5, 4).bfloat16()) >= 1
    with pytest.raises(UndefinedMetricError):
        metrics.infonce_mi_bound(np.zeros((3, 2)), np.ones((3, 2)))
    with pytest.raises(AttributeError, match="lidra"):
        _ = metrics.lidra


def modules_with_examples() -> Iterator[str]:
    yield "layerwise.metrics"
    for module in pkgutil.iter_modules(catalog.__path__, "layerwise.metrics.catalog."):
        yield module.name


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0
