"""Figures: what their numbers mean. tests/golden draws one of each kind."""

import sys
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from helpers.association_tables import tidy_metrics, tidy_scores
from helpers.refused import refused
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from scipy import stats

from layerwise.association.scores import mean_scores
from layerwise.association.selection import select_layers
from layerwise.config import Config, studies
from layerwise.config.studies import Study
from layerwise.figures import select
from layerwise.figures.kinds.association import against_null
from layerwise.figures.panels import Look
from layerwise.figures.render import Drawn, draw, plain
from layerwise.figures.select import Data, with_labels
from layerwise.metrics.registry import directions
from layerwise.names import Order
from layerwise.run import report

sys.path.insert(0, str(Path(__file__).parent / "golden"))
import made_up
import of_tables

ORDER = Order(list(made_up.LAYERS), made_up.CHECKPOINTS)


@cache
def tables() -> dict[str, pd.DataFrame]:
    found = made_up.tables()
    texts = pd.DataFrame({"prompt_id": found["prompts"]["prompt_id"].unique()})
    return {
        **found,
        "positions": made_up.positions(),
        "similarities": made_up.similarities(),
        "texts": texts.assign(text=["one word " * (1 + i % 5) for i in range(len(texts))]),
    }


@cache
def selections() -> pd.DataFrame:
    """Layers selected in two models."""
    found = {
        name: table[
            table["revision"].isin(["main", "step64"])
            & (table["tokens"] == "all")
            & table["model"].isin(["encoder-20m", "nano-1m"])
        ]
        for name, table in made_up.tables().items()
        if name != "prompts"
    }
    scored = found["metrics"], found["scores"]
    return select_layers(*scored, dict(directions()), order=ORDER)


def made(kind: str, given: dict[str, pd.DataFrame] | None = None, **settings: Any) -> Drawn:
    """Draw a study; a complaint of the layout is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = draw(Study(kind=kind, **settings), given or tables(), ORDER)
        FigureCanvasAgg(drawn.figure).draw()
    return drawn


SCORES = np.array([[0.3, 0.5, 0.4], [0.5, 0.8, 0.5], [0.2, 0.5, 0.3], [0.6, 0.7, 0.7]])

SCORES_OF_5 = np.vstack([SCORES, SCORES[0] + 0.05])


@pytest.mark.parametrize(("n_tasks", "low"), [(1, 0.1), (2, np.nan), (4, np.nan)])
def test_no_interval_is_drawn_of_fewer_than_five_task_clusters(n_tasks: int, low: float) -> None:
    """A single task has that of its evaluator, in the table."""
    scores = tidy_scores(SCORES[:n_tasks]).assign(score_low=0.1, score_high=0.9)
    drawn = made("score_by_depth", {"scores": scores})
    np.testing.assert_array_equal(drawn.table["low"], [low] * 3)
    (ax,) = drawn.figure.axes
    assert not ax.collections
    assert ("which take 5 task clusters" in drawn.caption) == (n_tasks > 1)


def test_two_prompts_give_no_interval_and_few_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    metrics = tidy_metrics({"prompt_entropy": np.arange(4.0)}).assign(n=2)
    drawn = made("metrics_by_depth", {"metrics": metrics}, metrics=("prompt_entropy",))
    assert drawn.table["low"].isna().all()
    for n, is_said in ((2, True), (29, True), (30, False)):
        given = {"metrics": metrics.assign(n=n)}
        drawn = made("metrics_by_depth", given, metrics=("prompt_entropy",))
        assert ("n < 30" in drawn.caption) == is_said
    made("attention_sink")
    assert "rests on 24 prompts" in caplog.text


def test_the_valley_and_the_best_layer_are_marked_with_and_without_a_cause() -> None:
    """A model with one more word in its name is the same model with something removed."""
    both = ("prompts", "scores")
    whole = {name: tables()[name].query("model == 'decoder-70m'") for name in both}
    layers = whole["scores"]["layer"]
    first_is_best = whole["scores"].assign(main_score=1 - layers / 100)
    last_is_lowest = whole["prompts"].assign(value=9 - whole["prompts"]["layer"] / 10)
    cut = {"prompts": last_is_lowest, "scores": first_is_best}
    given = {
        name: pd.concat([table, cut[name].assign(model="decoder-70m-without-massive")])
        for name, table in whole.items()
    }
    table = made("valley_and_peak", given, metrics=("prompt_entropy",)).table
    assert set(table["model"]) == {"decoder-70m"}
    marked = table[table["extreme"] & (table["removed"] == "without massive, final norm")]
    assert marked.set_index("what")["layer"].to_dict() == {"score": layers.min()}
    marked = table[table["extreme"] & (table["removed"] == "without massive")]
    assert marked.set_index("what")["layer"].to_dict() == {"metric": layers.max()}


def test_layers_that_tie_have_no_best_one() -> None:
    scores = tidy_scores(np.ones((4, 5)))
    table = made("score_by_depth", {"scores": scores}).table
    assert not table["best"].any()
    (best,) = report.first_table(scores)["best_layer"]
    assert best == "5 layers tie"


def test_one_task_cluster_is_no_plural() -> None:
    scores = tidy_scores(SCORES).assign(text_source="one")
    (shown,) = report.shown(report.first_table(scores))["Difference (95% CI)"]
    assert shown.endswith("(no CI: 1 task cluster)")
    assert "4 tasks (1 task cluster)" in made("score_by_depth", {"scores": scores}).caption


def test_token_selections_are_compared_task_by_task() -> None:
    more = SCORES + np.array([[0.1, 0.0, 0.2]])
    scores = pd.concat([tidy_scores(SCORES), tidy_scores(more, tokens="drop_first")])
    metrics = pd.concat(
        [tidy_metrics({"prompt_entropy": np.arange(3.0)}, tokens=t) for t in ("all", "drop_first")]
    )
    table = made("token_selection", {"scores": scores, "metrics": metrics}).table
    change = table[table["y"] == "score difference"]
    assert change["value"].tolist() == pytest.approx([0.1, 0.0, 0.2])
    assert change["n_tasks"].tolist() == [4, 4, 4]


def test_scores_of_models_are_compared_task_by_task() -> None:
    gain = np.array([[0.1, 0.0, 0.2]]) * np.array([[0.5], [1.0], [1.5], [1.0], [0.8], [1.2]])
    scores = np.vstack([SCORES, SCORES[:2]])
    parts = [tidy_scores(scores + n * gain, model=f"m{n}") for n in range(3)]
    parts[2] = parts[2][parts[2]["task"] != parts[2]["task"].iloc[0]]
    given = {"scores": pd.concat(parts)}
    drawn = made("score_differences", given, models=("m0", "m1", "m2"))
    ax, table = drawn.figure.axes[0], drawn.table
    assert ax.lines[0].get_ydata() == pytest.approx([10, 0, 20])
    assert " ".join(ax.get_ylabel().split()) == "Score less that of m0 (× 100)"
    assert set(table["base"]) == {"m0"}
    first, second = (table[table["model"] == model] for model in ("m1", "m2"))
    assert first["value"].tolist() == pytest.approx([0.1, 0.0, 0.2])
    error = gain.std(axis=0, ddof=1) / np.sqrt(6)
    width = (first["high"] - first["low"]) / 2
    assert width.tolist() == pytest.approx(stats.t.ppf(0.975, 5) * error)
    assert second["value"].tolist() == pytest.approx(2 * gain[1:].mean(axis=0))
    assert second["n_tasks"].tolist() == [5, 5, 5]
    differs = first[first["p_adjusted"] < 0.05]
    dots = np.concatenate([li.get_ydata() for li in ax.lines if li.get_marker() == "o"])
    assert len(dots) and {*dots.round(6)} <= {*(100 * differs["value"]).round(6)}
    with refused("too_few"):
        made("score_differences", given, models=("m0",))


def test_the_example_of_a_kind_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.split("## Add a kind of figure")[1]
    example = section.split("```python\n")[1].split("```")[0]
    monkeypatch.setattr(studies, "_KINDS", dict(studies._KINDS))
    exec(compile(example, "CONTRIBUTING.md", "exec"), {})
    drawn = made("histogram", models=("nano-1m",), tokens=("all",))
    bars = [bar for ax in drawn.figure.axes for bar in ax.patches]
    assert sum(bar.get_height() for bar in bars) == len(drawn.table) == 24
    assert drawn.caption == "Metric on texts at the last layer."


@pytest.mark.parametrize("kind", ["score_by_depth", "checkpoint_heatmap", "task_heatmap"])
def test_a_single_panel_is_drawn_on_the_callers_axes(kind: str) -> None:
    figure, (own, other) = plt.subplots(1, 2)
    study = Study(kind=kind, models=("nano-1m",), tokens=("all",), metrics=("prompt_entropy",))
    assert draw(study, tables(), ORDER, ax=own).figure is figure
    assert own.has_data() and not other.has_data()
    plt.close(figure)


def test_a_colour_bar_ends_with_the_first_row_of_panels() -> None:
    models = tuple(f"m{n}" for n in range(6))
    scores = pd.concat([tidy_scores(SCORES, model=model) for model in models])
    figure = made("task_heatmap", {"scores": scores}, models=models).figure
    *panels, bar = [ax.get_position() for ax in figure.axes if ax.get_visible()]
    assert len({round(panel.y0, 3) for panel in panels}) > 1
    assert bar.y0 > max(panel.y0 for panel in panels) - 0.01


def test_a_metric_that_stands_alone_is_in_the_title() -> None:
    metrics = {"metrics": tidy_metrics({"prompt_entropy": np.arange(4.0)})}
    drawn = made("metrics_by_depth", metrics, metrics=("prompt_entropy",))
    assert drawn.title == "Prompt entropy by depth"
    (ax,) = drawn.figure.axes
    assert ax.get_ylabel() == "Prompt entropy (nats)"
    three = made("metrics_by_depth", {"metrics": tables()["metrics"]}, tokens=("all",)).figure
    first = three.axes[0]  # the panel has the metric's name, its axis the unit
    assert (first.get_title(loc="left"), first.get_ylabel()) == ("Prompt entropy", "nats")


def test_types_of_one_task_each_share_an_axis() -> None:
    scores = tidy_scores(SCORES_OF_5)
    scores["task_type"] = scores["task"]
    axes = made("score_by_depth", {"scores": scores}, column=("task_type",)).figure.axes
    assert {ax.get_ylabel() for ax in axes} == {"Mean task score (× 100)", ""}
    assert len({ax.get_ylim() for ax in axes if ax.has_data()}) == 1


def test_bands_are_of_differences_to_the_output_and_the_legend_has_the_drawn_marks() -> None:
    scores = pd.concat([tidy_scores(SCORES_OF_5 - i / 10, model=f"m{i}") for i in range(2)])
    means = [(SCORES_OF_5 - i / 10).mean(axis=0) for i in range(2)]
    drawn = made("score_by_depth", {"scores": scores})
    ax, below = drawn.figure.axes
    assert not ax.collections
    assert below.get_ylabel().replace("\n", " ") == "Difference to the output (× 100)"
    lines, leads = ([line for line in a.lines if len(line.get_xdata()) == 3] for a in (ax, below))
    assert len(lines) == len(leads) == len(below.collections) == 2
    models = drawn.table.groupby("model")
    for line, lead, band, (_, rows) in zip(lines, leads, below.collections, models, strict=True):
        corners = band.get_paths()[0].vertices
        assert line.get_ydata() == pytest.approx(100 * rows["value"].to_numpy())
        difference = 100 * (rows["value"] - rows["output_score"])
        assert lead.get_ydata() == pytest.approx(difference.to_numpy())
        lowest = 100 * (rows["low"] - rows["output_score"]).min()
        assert corners[:, 1].min() == pytest.approx(lowest)
    marks = {line.get_label(): line for line in drawn.figure.legends[0].get_lines()}
    for name, line in zip(("m0", "m1"), lines, strict=True):
        assert (marks[name].get_color(), marks[name].get_marker()) == (
            line.get_color(),
            line.get_marker(),
        )
    singles = [line for line in ax.lines if len(line.get_xdata()) == 1]
    for name, filled in (("best layer", True), ("model output", False)):
        drawn_marks = [s for s in singles if (s.get_markerfacecolor() != "white") == filled]
        assert {s.get_marker() for s in drawn_marks} == {marks[name].get_marker()}
        assert (marks[name].get_markerfacecolor() != "white") == filled
        assert {s.get_markersize() for s in drawn_marks} == {marks[name].get_markersize()}
    outputs = [s.get_ydata()[0] for s in singles if s.get_markerfacecolor() == "white"]
    assert outputs == pytest.approx([100 * model[-1] for model in means])


def test_layers_above_their_control_have_the_legends_dot() -> None:
    drawn = made("probes_by_depth", {"scores": made_up.probes()})
    (legend,) = drawn.figure.legends
    entries = {line.get_label(): line for line in legend.get_lines()}
    dot = entries["above its control (adjusted p < .05)"]
    dots = [line for ax in drawn.figure.axes for line in ax.lines if line.get_marker() == "o"]
    assert {line.get_color() for line in dots} == {dot.get_color()}
    # Another task of a model changes no correction of the first.
    both = pd.concat([made_up.probes(), made_up.probes().assign(task="more")])
    p = made("probes_by_depth", {"scores": both}).table.query("task != 'more'")["p_adjusted"]
    assert p.tolist() == pytest.approx(drawn.table["p_adjusted"].tolist())


def test_an_interval_beyond_the_axis_has_an_arrow() -> None:
    wide = selections().copy()
    wide.loc[wide["metric"] == "curvature", "regret_high"] = 5.0
    drawn = made("layer_selection", {"selections": wide})
    arrows = [li for li in drawn.figure.axes[0].lines if li.get_marker() == ">"]
    n_wide = int((drawn.table["metric"] == "curvature").sum())
    assert sum(len(arrow.get_xdata()) for arrow in arrows) >= n_wide > 0
    legend = [text.get_text() for text in drawn.figure.legends[0].get_texts()]
    assert "interval goes on" in legend


def test_readouts_have_a_colour_and_a_name_each() -> None:
    stream = tidy_scores(SCORES).assign(readout="residual")
    scores = pd.concat([stream, stream.assign(readout="final_norm")])
    study = {"pooling": ("mean", "mean, residual"), "column": "tokens", "colour": "pooling"}
    drawn = made("score_by_depth", {"scores": scores}, **study)
    lines = [line for line in drawn.figure.axes[0].lines if len(line.get_xdata()) == 3]
    assert len({line.get_color() for line in lines}) == 2
    assert {line.get_linestyle() for line in lines} == {"-"}
    words = [text.get_text() for text in drawn.figure.legends[0].get_texts()]
    assert {"mean, final norm", "mean, residual stream"} <= {*words}


def test_checkpoints_of_the_map_and_of_the_lines_below_are_aligned() -> None:
    figure = made("training_dynamics", models=("nano-1m",), tokens=("all",)).figure
    heat, valley, *_ = [ax for ax in figure.axes if ax.get_visible() and ax.get_ylabel()]
    low, high = heat.get_xlim()
    assert (high - low) == pytest.approx(np.ptp(valley.get_xlim()))
    names = [[t.get_text() for t in ax.get_xticklabels()] for ax in (heat, valley)]
    assert names[0] == names[1]


def test_the_legend_tells_the_gain_on_held_out_tasks() -> None:
    values = np.array([[0.1, 0.9, 0.3, 0.2], [0.6, 0.3, 0.1, 0.3], [0.2, 0.1, 0.8, 0.4]])
    parts = [tidy_scores(values + n / 50, revision=f"step{n}") for n in (1, 2)]
    drawn = made("scores_over_checkpoints", {"scores": pd.concat(parts)})
    types = pd.concat(parts).assign(task_type=lambda table: table["task"])
    by_type = made("scores_over_checkpoints", {"scores": types}, column=("task_type",)).table
    best = by_type.drop_duplicates(["task_type", "revision"]).set_index("task_type")["best_layer"]
    assert best.groupby(level=0).unique().map(list).to_dict() == {
        f"task{n}": [int(row.argmax())] for n, row in enumerate(values)
    }
    first = drawn.table.drop_duplicates("revision")
    entries = {line.get_label(): line for line in drawn.figure.legends[0].get_lines()}
    lines = {e.get_linestyle(): n for n, e in entries.items() if e.get_linestyle() != "None"}
    words = {"-": ("gain", "that selected"), "--": ("gain_new_task", "held-out")}
    for style, (column, word) in words.items():
        curves = [
            line.get_ydata()
            for ax in drawn.figure.axes
            for line in ax.lines
            if line.get_linestyle() == style and len(line.get_xdata()) == 2
        ]
        assert word in lines[style]
        assert any(np.allclose(y, 100 * first[column]) for y in curves), column


def test_a_map_of_two_models_has_the_layers_of_each_along_its_axis() -> None:
    table = tables()["similarities"]
    one, other = ("encoder-20m", "nano-1m")
    table = table.query("model == @one and other_model == @other and measure == 'rsa'")
    table = table[table["other_revision"] == table["other_revision"].iloc[0]]
    table = table.assign(value=table["layer"] / 10 + table["other_layer"] / 100)
    (panel, *_) = made("layer_similarity", {"similarities": table}).figure.axes
    assert (panel.get_ylabel(), panel.get_xlabel()) == (f"Layer of {one}", f"Layer of {other}")
    values = panel.collections[0].get_array().reshape(7, 7)
    assert values[5, 2] == pytest.approx(0.52)


def test_a_line_ends_where_half_of_its_own_corpus_ends() -> None:
    positions = made_up.positions()
    small = positions.assign(corpus="small", n=positions["n"] // 10)
    given = {"positions": pd.concat([positions, small], ignore_index=True)}
    table = made("along_sequence", given, row="corpus").table
    alone = made("along_sequence", {"positions": small}).table
    assert len(table[table["corpus"] == "small"]) == len(alone) > 0


def test_title_is_the_studys_or_none() -> None:
    given = {"scores": tidy_scores(SCORES)}
    assert made("score_by_depth", given, title="Mine").title == "Mine"
    drawn = made("score_by_depth", given, title=None)
    assert drawn.title == ""
    assert drawn.rst().startswith("Mean main score over 4 tasks")
    assert drawn.figure.get_suptitle() == ""


def test_a_metric_selects_no_layer_that_the_first_token_decides() -> None:
    falls, rises = np.array([3.0, 2.0, 1.0, 2.5]), np.array([1.0, 2.0, 3.0, 4.0])
    for bare, best in ((falls - 0.5, [False, False, True, False]), (rises, [False] * 4)):
        parts = [("all", falls), ("drop_first", bare)]
        each = [tidy_metrics({"curvature": curve}, tokens=tokens) for tokens, curve in parts]
        study = {"metrics": ("curvature",), "tokens": ("all",)}
        table = made("metrics_by_depth", {"metrics": pd.concat(each)}, **study).table
        assert directions()["curvature"] == -1
        # A metric of all tokens alone is drawn beside it.
        norms = tidy_metrics({"largest_norm": falls})
        study = {**study, "metrics": ("curvature", "largest_norm")}
        assert made("metrics_by_depth", {"metrics": pd.concat([*each, norms])}, **study)
        assert table["best"].tolist() == best
    # Of several corpora, each has its own.
    both = pd.concat(
        tidy_metrics({"curvature": curve}, tokens=tokens, corpus=corpus)
        for corpus, bare in (("one", falls - 0.5), ("two", rises))
        for tokens, curve in (("all", falls), ("drop_first", bare))
    )
    study = {"metrics": ("curvature",), "tokens": ("all",), "row": "corpus"}
    table = made("metrics_by_depth", {"metrics": both}, **study).table
    assert table.groupby("corpus")["best"].sum().to_dict() == {"one": 1, "two": 0}


def test_the_better_end_of_a_metric_is_the_configs() -> None:
    study = {"kind": "metrics_by_depth", "metrics": ["curvature"]}
    config = Config.of({"association": {"directions": {"curvature": 1}}, "studies": {"s": study}})
    given = {"metrics": tidy_metrics({"curvature": np.array([3.0, 2.0, 4.0, 2.5])})}
    assert (
        draw(config.studies["s"], given, ORDER, config=config).table["best"].to_numpy().argmax()
        == 2
    )


def with_others(table: pd.DataFrame, dimension: str) -> pd.DataFrame:
    """A table with as many rows of other models, corpora or types of tasks, of other values."""
    if dimension not in table:
        return table
    renamed = {dimension, "other_model"} if dimension == "model" else {dimension}
    renamed |= {"task"} if dimension == "task_type" else set()
    other = table.assign(**{name: "x" + table[name] for name in renamed & {*table}})
    for value in {"value", "main_score"} & {*table}:
        other[value] = other[value].max() + other[value].min() - other[value]
    return pd.concat([table, other], ignore_index=True)


# These compare or count models, share bins and corrections, show one model, or what is stored.
TOGETHER = {"size_scaling", "power_law", "layer_similarity", "finetuning_effects"}
TOGETHER |= {"score_differences", "bimodality", "model_overview"}
TOGETHER |= {"association_strength", "layer_selection", "metric_vs_score"}
APART: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in sorted({*of_tables.STUDIES} - TOGETHER)),
    *((kind, {"row": ("corpus",)}) for kind in ("curves", "model_overview")),
    ("along_sequence", {"column": ("model", "representation", "corpus")}),
    *((kind, {"row": ("task_type",)}) for kind in ("curves", "score_by_depth", "task_heatmap")),
    ("scores_over_checkpoints", {"column": ("model", "representation", "task_type")}),
]


@pytest.mark.parametrize(("kind", "role"), APART, ids=str)
def test_what_is_shown_of_one_does_not_depend_on_the_others(
    kind: str, role: dict[str, Any]
) -> None:
    alone = of_tables.tables_of(kind)
    (*_, dimension) = role.get("row") or role.get("column") or ("model",)
    changes = dict(role)
    study = Study(
        kind=kind, **{"models": ("decoder-70m", "encoder-20m"), **of_tables.STUDIES[kind]}
    )
    order = Order(list(made_up.LAYERS), made_up.CHECKPOINTS)
    revisions = made_up.CHECKPOINTS | {f"x{m}": r for m, r in made_up.CHECKPOINTS.items()}
    one = study.declaration.table(Data.of(study.model_copy(update=changes), alone, order))
    if dimension == "model":
        changes["models"] = study.models and (*study.models, *(f"x{m}" for m in study.models))
    both = {name: with_others(table, dimension) for name, table in alone.items()}
    given = Data.of(study.model_copy(update=changes), both, Order([*revisions], revisions))
    table = study.declaration.table(given)
    other = table[dimension].str.startswith("x")
    assert other.any()
    pd.testing.assert_frame_equal(
        table.loc[~other, one.columns].reset_index(drop=True), one.reset_index(drop=True)
    )


def test_a_metric_near_chance_selects_no_layer() -> None:
    chance = np.log(2 * 100 - 1)
    curves = {"infonce": chance * np.array([0.93, 0.97, 0.98, 1.0])}
    drawn = made("metrics_by_depth", {"metrics": tidy_metrics(curves)}, metrics=("infonce",))
    assert drawn.table["chance"].tolist() == pytest.approx([chance] * 4)
    assert drawn.table["at_chance"].all() and not drawn.table["best"].any()
    assert "Dotted: chance." in drawn.caption
    (ax,) = drawn.figure.axes
    assert any(line.get_ydata()[0] == pytest.approx(chance) for line in ax.lines)
    told = {"infonce": curves["infonce"] * [1, 1, 0.5, 1]}
    table = made("metrics_by_depth", {"metrics": tidy_metrics(told)}, metrics=("infonce",)).table
    assert table["best"].tolist() == [False, False, True, False]


def test_a_mean_has_chance_where_each_of_its_tasks_has_one() -> None:
    scores = tidy_scores(SCORES, types=("A", "B"))
    scores["chance"] = scores["task"].map({"task0": 0.5, "task1": 0.5, "task2": 0.25})
    by_type = mean_scores(scores, ["task_type"]).groupby("task_type")["chance"].first()
    assert by_type["A"] == 0.375 and np.isnan(by_type.get("B", np.nan))
    assert mean_scores(scores)["chance"].isna().all()


def test_intervals_of_correlations_reach_below_zero() -> None:
    for types, lowest in ((("STS",), -0.2), (("Clustering",), 0.0)):
        values = np.random.default_rng(0).normal(0.0, 0.2, size=(8, 3))
        table = mean_scores(tidy_scores(values - 0.1, types=types))
        assert (table["low"].min() < lowest) if lowest else (table["low"].min() == 0), types


def test_few_models_share_one_axis_and_many_have_a_panel_each() -> None:
    for n, panels in ((3, 1), (7, 1), (8, 8)):
        scores = pd.concat([tidy_scores(SCORES, model=f"m{i}") for i in range(n)])
        drawn = draw(Study(kind="score_by_depth"), {"scores": scores})
        assert sum(ax.get_visible() for ax in drawn.figure.axes) == panels
        assert "chance" not in drawn.caption
    three = Study(kind="score_by_depth", colour="revision", models=("m0", "m1"))
    assert len(draw(three, {"scores": scores}).figure.axes) == 2


def test_normalizations_are_in_the_order_of_the_study() -> None:
    table = pd.DataFrame({"normalization": ["raw", "maxEntropy", "logN"]})
    orders = {
        ("logN", "raw", "maxEntropy"): ["logN", "raw", "maxEntropy"],
        None: ["raw", "logN", "maxEntropy"],
    }
    for listed, order in orders.items():
        study = Study(kind="curves", normalization=listed)
        assert select.Data(study, {}).values(table, "normalization") == order


def test_checkpoints_of_several_models_are_in_the_configs_order() -> None:
    course = ["warmup", "middle", "end"]
    curves = [(m, r) for m in ("a", "b") for r in course]
    parts = [tidy_scores(SCORES, model=m).assign(revision=r) for m, r in curves]
    order = Order(["a", "b"], {"a": course, "b": course})
    drawn = draw(Study(kind="scores_over_checkpoints"), {"scores": pd.concat(parts)}, order)
    assert list(drawn.table["revision"].unique()) == course
    by_step = {"a": ["step1", "step10", "main"], "b": ["step2", "step20"]}
    assert Order(["a", "b"], by_step).shared(by_step) == [
        "step1",
        "step2",
        "step10",
        "step20",
        "main",
    ]


def test_intervals_that_a_table_brings_are_kept() -> None:
    own = tidy_metrics({"prompt_entropy": np.arange(3.0)})
    given = own.assign(stderr=np.nan, low=own["value"] - 1, high=own["value"] + 2, n=2)
    table = made("metrics_by_depth", {"metrics": given}, metrics=("prompt_entropy",)).table
    assert (table["high"] - table["low"]).tolist() == [3, 3, 3]


def row_names(figure: Any) -> set[str]:
    return {text.get_text() for ax in figure.axes for text in ax.texts if ax.get_visible()}


def test_each_row_of_panels_is_named() -> None:
    curves = {f"m{i}": np.arange(3.0) for i in range(5)}
    metrics = pd.concat([tidy_metrics(curves, model=m) for m in ("one", "two")])
    study = {"metrics": tuple(curves), "row": "y", "column": "model"}
    assert {"one", "two"} <= row_names(
        made("metrics_by_depth", {"metrics": metrics}, **study).figure
    )
    # The last column has no panel of the second model.
    lacking = metrics[(metrics["model"] == "one") | (metrics["metric"] != "m2")]
    study = {"metrics": ("m0", "m1", "m2"), "row": "model", "column": "y", "colour": "tokens"}
    assert {"one", "two"} <= row_names(
        made("metrics_by_depth", {"metrics": lacking}, **study).figure
    )


def test_values_without_a_role_are_not_pooled() -> None:
    one, other = (tidy_metrics({"prompt_entropy": np.arange(3.0)}, corpus=c) for c in "ab")
    with refused("ambiguous"):
        made("metrics_by_depth", {"metrics": pd.concat([one, other])}, metrics=("prompt_entropy",))
    with refused("duplicate"):
        made(
            "metrics_by_depth",
            {"metrics": pd.concat([one, one.assign(value=0.0)])},
            metrics=("prompt_entropy",),
        )
    table = made(
        "metrics_by_depth",
        {"metrics": pd.concat([one, other])},
        metrics=("prompt_entropy",),
        colour="corpus",
    ).table
    assert set(table["corpus"]) == {"a", "b"}


def test_perturbations_are_a_dimension() -> None:
    parts = [tidy_metrics({"prompt_entropy": np.arange(3.0)}, corpus=c) for c in ("a", "b")]
    study = Study(kind="metrics_by_depth", metrics=("prompt_entropy",), colour="repetition")
    labels = {"a": {"repetition": 0.1}, "b": {"repetition": 0.5}}
    drawn = draw(study, {"metrics": with_labels(pd.concat(parts), labels)})
    legend = [t.get_text() for t in drawn.figure.legends[0].get_texts()]
    assert legend[:2] == ["repetition 0.1", "repetition 0.5"]


def test_what_is_asked_for_and_missing_is_named() -> None:
    scores = tidy_scores(SCORES)
    without_probe = made_up.probes().assign(control=np.nan)
    for code, kind, table, settings in (
        ("unknown_name", "score_by_depth", scores, {"models": ("n",)}),
        ("unknown_name", "score_by_depth", scores, {"pooling": "max"}),
        ("missing_file", "metrics_by_depth", scores, {}),
        ("too_few", "scores_over_checkpoints", scores, {}),
        ("missing", "probes_by_depth", without_probe, {}),
    ):
        with refused(code):
            made(kind, {"scores": table}, **settings)


def test_other_poolings_are_not_dropped_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    scores = pd.concat([tidy_scores(SCORES), tidy_scores(SCORES).assign(pooling="max")])
    drawn = made("score_by_depth", {"scores": scores})
    assert "max (another pooling; name it in the study)" in drawn.caption


def test_a_bidirectional_model_has_no_prefixes() -> None:
    positions = tables()["positions"]
    other = positions[positions["model"] == "nano-1m"].assign(model="bert", metric="token_norm")
    given = {"positions": pd.concat([positions, other], ignore_index=True)}
    assert "bert (bidirectional)" in made("along_sequence", given).caption
    with refused("unsupported"):
        made("along_sequence", given, models=("bert", "nano-1m"))


def test_the_legend_names_what_is_drawn() -> None:
    drawn = made("bimodality", models=("nano-1m",), tokens=("all",))
    one_mode = drawn.table.assign(p_adjusted=1.0)
    look = Look(Study(kind="bimodality").roles_for(several_checkpoints=False), ["nano-1m"])
    for table in (drawn.table, one_mode):
        figure = studies.all_kinds()["bimodality"].plot(table, look)
        words = {text.get_text() for text in figure.legends[0].get_texts()}
        split = (table.loc[table["what"] == "dip", "p_adjusted"] < 0.05).any()
        assert ("more than one mode (adjusted p < .05)" in words) == split
    drawn = made("scores_over_checkpoints", models=("nano-1m",), tokens=("all",))
    words = {text.get_text() for text in drawn.figure.legends[0].get_texts()}
    is_best = drawn.table["output_is_best"].astype(bool)
    assert ("model output is best" in words) == is_best.any()
    assert ("best layer" in words) == (~is_best).any()


def test_an_unreliable_selection_is_marked() -> None:
    found = selections().copy()
    found["unreliable"] = np.where(found["metric"] == "infonce", "12 prompts", "")
    drawn = made("layer_selection", {"selections": found})
    legend = [t.get_text() for t in drawn.figure.legends[0].get_texts()]
    assert "unreliable metric" in legend
    names = [t.get_text() for t in drawn.figure.axes[0].get_yticklabels()]
    assert names[-1] == "InfoNCE loss", "unreliable metrics come last"


def test_models_of_equal_weights_count_once_in_means() -> None:
    found = selections()
    first = found["model"].iloc[0]
    found = found.assign(regret=np.where(found["model"] == first, 0.2, 0.1))
    study = Study(kind="layer_selection")
    alone = draw(study, {"selections": found}, ORDER).figure
    copy = found[found["model"] == first].assign(model="copy")
    order = replace(ORDER, copies={"copy": first})
    both = draw(study, {"selections": pd.concat([found, copy])}, order).figure
    bars = [
        [x for line in figure.axes[0].lines if line.get_marker() == "|" for x in line.get_xdata()]
        for figure in (alone, both)
    ]
    assert bars[1] == pytest.approx(bars[0])
    assert any(10 < x < 20 for x in bars[0])


@pytest.mark.parametrize("text", ["a|b|", "*a*", "x: y", ".. note::", "1. a", "<b>"])
def test_names_are_no_markup(text: str) -> None:
    made_plain = plain(text)
    assert plain(text).replace("\\", "").replace(" ", "") == text.replace(" ", "")
    assert made_plain.startswith("\\") or "\\" in made_plain or text == "x: y"


def test_no_rows_have_no_best_ones() -> None:
    # Of a table of strings alone pandas maps to strings.
    table = pd.DataFrame({"metric": ["a"], "value": [1.0], "what": ["metric"]}).astype(
        {"metric": "str", "what": "str"}
    )
    assert len(select.best_rows(table.iloc[:0].assign(y=""), {"a": 1})) == 0


def test_a_null_that_contains_the_curve_is_neither_exceeded_nor_not() -> None:
    rows = {
        "value": [0.9, -0.9, 0.9, 0.9, 0.5, 0.9, 0.9],
        "null95": [0.9 - 1e-16, 0.9 + 1e-16, 0.5, 0.5, 0.9, np.nan, 0.5],
        "n_layers": [7, 13, 6, 7, 7, 7, 6],
        "measure": ["r", "r", "r", "r", "r", "slope", "dcor"],
    }
    verdict = against_null(pd.DataFrame(rows), Study(kind="association_strength"))
    tie = "too few layers to tell"
    assert verdict.tolist() == [tie, tie, tie, "beyond", "within", "", "beyond"]


# Of a panel: the labels of its axes, the number of its curves (or of the cells of its heat map),
# and names in the legend.
INSIDE = {
    "score_by_depth": ("", "Mean task score (× 100)", 8, "model output"),
    "metrics_by_depth": ("", "nats", 4, "best by the metric"),
    "checkpoint_heatmap": ("Training step", "Layer", 21, None),
    "task_heatmap": ("Depth (% of layers)", "", 65, "best layer"),
    "metric_vs_score": ("Prompt entropy (nats)", "Mean task score (× 100)", 1, "best layer"),
    "power_law": ("Exponent β of the spectrum", "Entropy / log n", 6, "α = ∞"),
    "probes_by_depth": ("Depth (% of layers)", "Accuracy (%)", 4, "control"),
}


@pytest.mark.parametrize("kind", INSIDE)
def test_a_panel_has_its_curves_labels_and_legend(kind: str) -> None:
    drawn = of_tables.drawn(kind)
    x, y, n, name = INSIDE[kind]
    ax = next(ax for ax in drawn.figure.axes if ax.get_visible())
    curves = [line for line in ax.lines if len(line.get_xdata()) > 2]
    cells = sum(c.get_array().size for c in ax.collections if isinstance(c, QuadMesh))
    assert (ax.get_xlabel(), ax.get_ylabel(), cells or len(curves)) == (x, y, n)
    names = [t.get_text() for legend in drawn.figure.legends for t in legend.get_texts()]
    assert name is None or name in names
