"""Figures: what is drawn is in the table, titles follow the data, nothing is cut off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from association_tables import tidy_metrics, tidy_scores
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from layerwise.association.best import best_layers
from layerwise.association.choice import choose_layers
from layerwise.association.order import in_order
from layerwise.association.published import published_metrics, published_scores, read_table
from layerwise.association.table import associate
from layerwise.config.association import AssociationSettings
from layerwise.config.kinds import KINDS as ALL
from layerwise.config.studies import Study
from layerwise.errors import LayerwiseError
from layerwise.figures import sample_size, style
from layerwise.figures.drawn import Drawn, plain
from layerwise.figures.first_page import first_page
from layerwise.figures.frames import mean_scores
from layerwise.figures.labels import axis_label, in_sentence, listing, p_value, span
from layerwise.figures.marks import broken, spread
from layerwise.figures.studies import Order, Tables, draw
from layerwise.metrics.registry import directions
from layerwise.statistics.corrections import holm
from layerwise.statistics.tasks import gain_new_task
from layerwise.statistics.valleys import of_means

ROOT = Path(__file__).parents[1]
# Those on prompts have tables and a suite of their own: test_prompt_studies.py.
OF_PROMPTS = (
    "alpha_robustness", "layer_similarity", "model_difference", "prompt_groups", "size_scaling",
    "training_course",
)  # fmt: skip
KINDS = {name: kind for name, kind in ALL.items() if name not in OF_PROMPTS}
PUBLISHED = ROOT.parent / "shared" / "published"
LAYERS = {"a decoder of thirty blocks": 31, "encoder": 7, "nano": 7, "mamba": 7}
STEPS = ["step0", "step1", "step8", "step64", "step512"]
TYPES = ("Classification", "Clustering", "PairClassification", "Reranking", "STS")


ORDER = Order(list(LAYERS), {"nano": STEPS, "mamba": STEPS})
FEW = AssociationSettings()


def made_up() -> Tables:
    """Four models as the quickstart has them: a sink in the first, checkpoints in two."""
    rng = np.random.default_rng(3)
    metrics, scores, prompts = [], [], []
    for model, n in LAYERS.items():
        depth = np.linspace(0, 1, n)
        revisions = STEPS if model in ("nano", "mamba") else ["main"]
        for k, revision in enumerate(revisions):
            trained = (k + 1) / len(revisions)
            for tokens in ("all", "drop_first"):
                hill = np.sin(np.pi * depth) * trained * (0.3 if model == "encoder" else 1)
                sunk = hill * (tokens == "all") * (model.startswith("a "))
                if revision in revisions[-2:]:
                    level = rng.uniform(0.3, 0.7, (5, 1))
                    noise = rng.normal(0, 0.005, (5, n))
                    rise = depth**3 if model == "encoder" else hill
                    values = level + 0.15 * rise - 0.3 * sunk + noise
                    scores.append(
                        tidy_scores(
                            values, model=model, revision=revision, tokens=tokens, types=TYPES
                        )
                    )
                curves = {
                    "prompt_entropy": 3.5 - 0.6 * hill - 2.0 * sunk,
                    "dataset_entropy": 3.0 - 0.4 * depth,
                    "curvature": 1.9 - 0.3 * hill,
                    "infonce": 2.2 - hill,
                    "lidar": 50 + 20 * hill,
                    "dime": 1 + hill,
                    "effective_rank": 30 - 10 * hill,
                    "infonce_mi_bound": 1 + hill,  # with a name longer than a panel
                }
                jitter = {c: v + rng.normal(0, 0.01, n) for c, v in curves.items()}
                metrics.append(tidy_metrics(jitter, model=model, revision=revision, tokens=tokens))
                if revision in revisions[-2:]:
                    prompts.append(_per_prompt(metrics[-1], split=model.startswith("a "), rng=rng))
    found = pd.concat(metrics, ignore_index=True), pd.concat(scores, ignore_index=True)
    return Tables(
        metrics=found[0],
        scores=found[1],
        associations=associate(*found, FEW, ORDER),
        choices=choose_layers(*found, directions(), stability=REFUSED),
        prompts=pd.concat(prompts, ignore_index=True),
    )


def _per_prompt(metrics: pd.DataFrame, *, split: bool, rng: np.random.Generator) -> pd.DataFrame:
    part = metrics[metrics["metric"] == "prompt_entropy"]
    part = part.loc[part.index.repeat(60)].reset_index(drop=True)
    part["prompt_id"] = [f"p{i}" for i in range(60)] * (len(part) // 60)
    part["value"] += rng.normal(0, 0.05, len(part))
    if split:
        part["value"] += np.where(np.arange(len(part)) % 2, 1.0, 0.0)
    return part.drop(columns=["normalization", "stderr", "n", "n_left_out"])


REFUSED = pd.DataFrame({
    "model": ["encoder"], "revision": ["main"], "corpus": ["wikipedia"], "tokens": ["all"],
    "protocol": ["paper"], "metric": ["dataset_entropy"], "refused": ["99% set by δ"],
})  # fmt: skip


@pytest.fixture(scope="module")
def tables() -> Tables:
    return made_up()


def made(**settings: Any) -> Study:
    """A study as the config gives it."""
    return Study.model_validate_json(json.dumps(settings))


def associated(tables: Tables, **settings: Any) -> Tables:
    """The same tables with associations and choices of their own, as a study's stages make."""
    assert tables.metrics is not None
    assert tables.scores is not None
    scores = tables.scores
    if settings.get("tasks"):
        scores = scores[scores["task"].isin(settings["tasks"])]
    own = settings.get("own_texts", {})
    few = AssociationSettings(own_texts=own)
    return replace(
        tables,
        associations=associate(tables.metrics, scores, few, ORDER),
        choices=choose_layers(tables.metrics, scores, directions(), own_texts=own),
    )


def study(kind: str, tables: Tables, **settings: Any) -> Drawn:
    """Draw a study, with any complaint of the layout an error."""
    own = settings.pop("own_texts", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = draw(made(kind=kind, **settings), tables, ORDER, own_texts=own)
        FigureCanvasAgg(drawn.figure).draw()
    return drawn


def check_layout(figure: Figure) -> None:
    """Nothing is cut off; header, legends and panels don't lie on one another."""
    figure.set_dpi(style.DPI)  # as saved: the width of letters depends on it
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    page = figure.bbox
    slack = 4.0
    shown = [a for a in figure.axes if a.get_visible()]
    texts = [t for t in figure.texts if t.get_text()]
    notes = [t for a in shown for t in [*a.texts, a.title, a._left_title] if t.get_text()]
    for text in [*texts, *notes, *(a.xaxis.label for a in shown), *(a.yaxis.label for a in shown)]:
        if not text.get_text() or not text.get_visible():
            continue
        box = text.get_window_extent(renderer)
        assert box.x0 >= page.x0 - slack, f"cut off on the left: {text.get_text()!r}"
        assert box.x1 <= page.x1 + slack, f"cut off on the right: {text.get_text()!r}"
        assert box.y0 >= page.y0 - slack, f"cut off below: {text.get_text()!r}"
        assert box.y1 <= page.y1 + slack, f"cut off above: {text.get_text()!r}"
    panels = [a.get_window_extent(renderer) for a in shown]
    for legend in figure.legends:
        box = legend.get_window_extent(renderer)
        assert box.x1 <= page.x1 + slack, "the legend is cut off"
        assert box.y0 >= page.y0 - slack, "the legend is cut off"
        assert not any(box.overlaps(p) for p in panels), "a legend lies on the data"
    for text in texts:
        box = text.get_window_extent(renderer)
        others = [*panels, *(n.get_window_extent(renderer) for n in notes)]
        assert not any(box.overlaps(o) for o in others), f"{text.get_text()!r} lies on a panel"
    written = [n.get_window_extent(renderer) for n in notes]
    for i, box in enumerate(written):
        hit = next((j for j in range(i) if box.overlaps(written[j])), None)
        assert hit is None, f"{notes[i].get_text()!r} lies on {notes[hit or 0].get_text()!r}"
    data = [a.get_window_extent(renderer) for a in shown if a.get_label() != "<colorbar>"]
    below = max((g.get_window_extent(renderer).y1 for g in figure.legends), default=0.0)
    lowest = min(t.y0 for a in shown if (t := a.get_tightbbox(renderer)) is not None)
    assert lowest - below < 80, "an empty strip above the legend"
    for i, one in enumerate(data):
        assert one.width > 60, "a panel has no room"
        assert one.height > 60, "a panel has no room"
        assert not any(one.overlaps(p) for p in data[i + 1 :]), "panels overlap"


def fed(kind: str, tables: Tables) -> Tables:
    """The tables, with what some kinds need beside the plain ones."""
    metrics, prompts, scores = tables.metrics, tables.prompts, tables.scores
    assert metrics is not None
    assert prompts is not None
    assert scores is not None
    if kind == "layers_together":
        together = scores.assign(layers="mean 2", main_score=scores["main_score"] + 0.01)
        return replace(tables, scores=pd.concat([scores, together]))
    if kind == "along_sequence":
        whole = metrics[metrics["metric"] == "prompt_entropy"]
        grown = [
            whole.assign(position=t, value=value, quartile_1=value - 0.1, median=value,
                         quartile_3=value + 0.1, n=n)
            for t, n in ((2, 60), (4, 60), (8, 50), (16, 40), (32, 20))
            for value in [whole["value"] * np.log2(t) / 5]
        ]  # fmt: skip
        return replace(tables, positions=pd.concat(grown).assign(metric="prefix_entropy"))
    if kind == "block_parts":
        inside = prompts[prompts["layer"] > 0]
        parts = [
            inside.assign(sublayer=part, value=inside["value"] + rise)
            for part, rise in (("input_norm", 0.3), ("mixer", -0.2), ("mixer_residual", 0.1),
                               ("mlp_norm", 0.4), ("mlp", -0.3))
        ]  # fmt: skip
        return replace(tables, prompts=pd.concat([prompts.assign(sublayer="block"), *parts]))
    return tables


ONE_MODEL = {"model_overview": {"models": ["a decoder of thirty blocks"]}}
# Those of tables of their own are in tests of their own.
PLAIN = [
    k for k in KINDS if k not in ("paired_by_depth", "probes_by_depth", "factorial", "claims")
]
OF_CHOICES = ("token_choice", "sink_valley")  # they compare choices of tokens
OF_TRAINING = [k for k, kind in KINDS.items() if kind.checkpoints]


@pytest.mark.parametrize("kind", PLAIN)
def test_every_kind(kind: str, tables: Tables) -> None:
    drawn = study(kind, fed(kind, tables), **ONE_MODEL.get(kind, {}))
    check_layout(drawn.figure)
    assert len(drawn.table) > 0
    assert len(drawn.title) > 20
    assert len(drawn.caption) > 100
    assert "nan" not in (drawn.title + drawn.caption).lower().split()
    json.dumps(drawn.facts)
    drawn.table.to_csv(os.devnull)


@pytest.mark.parametrize("kind", [k for k in PLAIN if k not in ("power_law", *OF_CHOICES)])
def test_every_kind_with_one_model_and_one_token_choice(kind: str, tables: Tables) -> None:
    drawn = study(kind, fed(kind, tables), models=["nano"], tokens=["drop_first"])
    check_layout(drawn.figure)
    assert set(drawn.table["model"]) <= {"nano", "all"}


@pytest.mark.parametrize(
    "kind", ["score_by_depth", "metrics_by_depth", "layer_choice", "metric_vs_score"]
)
def test_many_models_with_long_names(kind: str, tables: Tables) -> None:
    many = [f"organisation/quite-a-long-model-name-{i}b" for i in range(9)]
    assert tables.metrics is not None
    assert tables.scores is not None
    wide = Tables(**{
        name: pd.concat(table[table["model"] == "encoder"].assign(model=m) for m in many)
        for name, table in vars(tables).items() if table is not None
    })  # fmt: skip
    check_layout(study(kind, wide).figure)


def lines_of(figure: Figure) -> list[tuple[np.ndarray, np.ndarray]]:
    """Curves of the panels: those with more than two points."""
    return [
        (np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))
        for axis in figure.axes
        if axis.get_visible()
        for line in axis.get_lines()
        if len(np.atleast_1d(line.get_xdata())) > 2
    ]


def assert_drawn(curves: pd.DataFrame, keys: list[str], value: str, figure: Figure) -> None:
    """The lines of a figure are the curves of a table, each once."""
    expected = sorted(
        tuple(np.round(g.sort_values("depth")[value].to_numpy(dtype=float), 9))
        for _, g in curves.groupby(keys)
    )
    drawn = sorted(tuple(np.round(y.astype(float), 9)) for _, y in lines_of(figure))
    assert drawn == expected


def test_the_table_is_what_is_drawn(tables: Tables) -> None:
    drawn = study("score_by_depth", tables)
    points = drawn.table.assign(points=100 * drawn.table["value"])
    assert_drawn(points, ["model", "tokens"], "points", drawn.figure)
    drawn = study("metrics_by_depth", tables)
    assert_drawn(drawn.table, ["model", "tokens", "y"], "value", drawn.figure)
    assert set(drawn.table["metric"]) == {"prompt_entropy", "curvature", "infonce"}
    drawn = study("metrics_over_checkpoints", tables, metrics=["curvature"])
    assert_drawn(drawn.table, ["model", "tokens", "revision"], "value", drawn.figure)
    assert set(drawn.table["model"]) == {"nano", "mamba"}
    drawn = study("token_choice", tables)
    scaled = drawn.table["value"].where(drawn.table["y"] > 0, 100 * drawn.table["value"])
    points = drawn.table.assign(points=scaled)
    assert_drawn(points, ["model", "tokens", "y"], "points", drawn.figure)


def test_heat_maps_show_the_table(tables: Tables) -> None:
    assert tables.scores is not None
    assert tables.metrics is not None
    drawn = study("task_heatmap", tables, models=["encoder"], tokens=["all"])
    cells = np.asarray(drawn.figure.axes[0].collections[0].get_array()).reshape(5, 7)
    scores = tables.scores.query("model == 'encoder' and tokens == 'all'")
    wide = scores.pivot(index=["task_type", "task"], columns="layer", values="main_score")
    expected = 100 * wide.sub(wide[6], axis=0).sort_index()
    np.testing.assert_allclose(cells, expected.to_numpy(), atol=1e-9)
    names = [t.get_text() for t in drawn.figure.axes[0].get_yticklabels()]
    assert names == [task for _, task in expected.index]

    drawn = study("checkpoint_heatmap", tables, models=["nano"], tokens=["all"])
    image = drawn.figure.axes[0].images[0]
    metrics = tables.metrics.query(
        "model == 'nano' and tokens == 'all' and metric == 'prompt_entropy'"
    )
    wide = metrics.pivot(index="layer", columns="revision", values="value")[STEPS]
    np.testing.assert_allclose(np.asarray(image.get_array()), wide.to_numpy())
    assert image.origin == "lower"  # layer 0 at the bottom


def test_an_output_without_a_score_is_not_counted_as_beaten(tables: Tables) -> None:
    assert tables.scores is not None
    cut = (tables.scores["model"] == "encoder") & (tables.scores["depth"] == 1)
    some = associated(replace(tables, scores=tables.scores[~cut]))
    drawn = study("layer_choice", some, tokens=["all"])
    check_layout(drawn.figure)
    asides = [t.get_text() for t in drawn.figure.axes[0].texts]
    assert {t.split(" of ")[1] for t in asides if " of " in t} == {"3"}
    known = drawn.table[drawn.table["gain_low"].notna()]
    above = (known["gain_low"] > 0).groupby(known["metric"]).sum()
    rules = [t.get_text() for t in drawn.figure.axes[0].get_yticklabels()]
    at = rules.index("Middle layer")
    assert asides[2 * at] == f"{above['middle layer']} of 3"
    assert "(output:" not in drawn.title
    assert "The output of encoder has no score" in drawn.caption
    none = associated(replace(tables, scores=tables.scores[tables.scores["depth"] < 1]))
    drawn = study("layer_choice", none, tokens=["all"])
    assert "The model's own output" not in [
        t.get_text() for t in drawn.figure.axes[0].get_yticklabels()
    ]
    assert "–" in [t.get_text() for t in drawn.figure.axes[0].texts]
    assert "nan" not in (drawn.title + drawn.caption).lower().split()


def test_the_first_page_says_that_an_output_has_no_score() -> None:
    values = np.array([[0.2, 0.6, 0.5, 0.9], [0.2, 0.8, 0.5, 0.9]])
    scores = tidy_scores(values)
    page = first_page(best_layers(scores[scores["layer"] < 3]), Order(["m"]))
    assert "**m**: layer 1 of 3 (all tokens), 70.0, but its output has no score." in page
    assert "  - the output has no score\n" in page
    assert "nan" not in page
    assert "which no layer" not in page
    # A tie goes to the shallower layer, which is not the last for that.
    tie = first_page(best_layers(tidy_scores(np.array([[0.2, 0.6, 0.6]]))), Order(["m"]))
    assert (
        "layer 1 of 2 (all tokens), 60.0, 0.0 points above its own output on these tasks, too few"
        in tie
    )


def test_the_first_page_speaks_of_the_last_revision() -> None:
    scores = pd.concat([
        tidy_scores(np.array([[0.2, 0.9, 0.5]]), revision="step1"),
        tidy_scores(np.array([[0.6, 0.3, 0.5]]), revision="step10"),
        tidy_scores(np.array([[0.1, 0.2, 0.3]]), model="n"),
    ])  # fmt: skip
    page = first_page(best_layers(scores), Order(["m"]))
    assert (
        "**m** (step10): layer 0 of 2 (all tokens), 60.0, 10.0 points above its own output on "
        "these tasks, too few for an interval." in page
    )
    assert page.count("**m**") == 1
    assert "**n**: its own output (all tokens), 30.0, which no layer" in page, (
        "main needs no mention"
    )
    assert "   * - m (step1)\n" in page


def test_the_first_page_counts_against_chance() -> None:
    rng = np.random.default_rng(0)
    level = rng.uniform(0.2, 0.6, (8, 1))
    clear = level + np.array([0.0, 0.1, 0.0]) + rng.normal(0, 0.005, (8, 3))
    same = level + rng.normal(0, 0.02, (8, 3))
    scores = [tidy_scores(v, model=m) for m, v in (("a", clear), ("b", clear), ("c", same))]
    page = first_page(best_layers(pd.concat(scores)), Order(["a", "b", "c"]))
    assert page.startswith(
        "A layer inside leads the output on new tasks with all tokens in 2 of 3 models, by "
        "chance in 0.1."
    )
    assert "**a**: layer 1 of 2 (all tokens)" in page
    page = first_page(best_layers(scores[2]), Order(["c"]))
    assert page.startswith("No evidence that a layer inside leads the output on new tasks ")
    assert "no evidence of a lead" in page or "its own output" in page


def test_another_layer_does_not_pass_for_the_last(tables: Tables) -> None:
    assert tables.scores is not None
    cut = (tables.scores["model"] == "encoder") & (tables.scores["depth"] == 1)
    some = associated(replace(tables, scores=tables.scores[~cut]))

    def ringed(drawn: Drawn) -> set[float]:
        return {
            float(np.ravel(x.get_xdata())[0])
            for x in drawn.figure.axes[0].get_lines()
            if np.size(x.get_xdata()) == 1
        }

    one = {"models": ["encoder"], "tokens": ["all"]}
    drawn = study("score_by_depth", some, **one)
    assert drawn.title == "Layer 5 of encoder is its best; its output has no score"
    assert "output without a score" in drawn.caption
    assert ringed(drawn) == {5 / 6}
    notes = [t.get_text() for t in drawn.figure.axes[0].texts]
    assert any("(layer 5 of 6), no score of the output" in n for n in notes)
    assert "of 3 models with all tokens" in study("score_by_depth", some).title
    assert "layer 5 of 6" in study("model_overview", some, **one).title
    with pytest.raises(
        LayerwiseError, match=r"encoder at main has no score of the model's output \(layer 6\)"
    ):
        study("task_heatmap", some)
    drawn = study("metric_vs_score", some, **one, metrics=["curvature"])
    assert not horizontal(drawn), "no line for an output without a score"


def test_layer_choice_shows_the_regret(tables: Tables) -> None:
    drawn = study("layer_choice", tables, tokens=["all"])
    points = [
        float(line.get_xdata()[0])
        for line in drawn.figure.axes[0].get_lines()
        if line.get_marker() == "o"
    ]
    np.testing.assert_allclose(sorted(points), sorted(100 * drawn.table["regret"]), atol=1e-9)
    means = [
        float(line.get_xdata()[0])
        for line in drawn.figure.axes[0].get_lines()
        if line.get_marker() == "|"
    ]
    good = drawn.table.groupby("metric").filter(lambda part: (part["refused"] == "").all())
    expected = 100 * good.groupby("metric")["regret"].mean()
    np.testing.assert_allclose(sorted(means), sorted(expected), atol=1e-9)
    assert means == sorted(means)  # the best rule on top
    rules = [t.get_text() for t in drawn.figure.axes[0].get_yticklabels()]
    assert rules[-1] == "Dataset entropy", "what is refused comes last"
    assert "Dataset entropy (99% set by δ)" in drawn.caption
    hatched = [p for p in drawn.figure.axes[0].patches if p.get_hatch()]
    assert len(hatched) == 1
    assert "best rule of the others" in set(drawn.table["metric"])
    nested = drawn.facts["by_tokens"]["all tokens"]["nested_regret"]
    assert f"loses {100 * nested:.1f} points" in drawn.title


@pytest.mark.parametrize("kind", ["layer_choice", "association_strength"])
def test_many_models_stay_within_the_row_of_their_metric(kind: str, tables: Tables) -> None:
    names = [f"m{i}" for i in range(14)]
    both = {
        name: pd.concat([t[t["model"] == "encoder"].assign(model=m) for m in names])
        for name in ("choices", "associations")
        if (t := getattr(tables, name)) is not None
    }
    drawn = draw(made(kind=kind, metrics=["curvature", "lidar"], tokens=["all"]), Tables(**both),
                 Order(names))  # fmt: skip
    axis = drawn.figure.axes[0]
    rows = len(axis.get_yticks())
    places = [float(y) for line in axis.get_lines() if line.get_marker() in ("o", "s")
              for y in line.get_ydata()]  # fmt: skip
    assert len(places) == 14 * rows
    gaps = np.diff(sorted(places))
    assert gaps.max() > 2 * np.median(gaps), "rows are apart"
    assert axis.get_position().height * drawn.figure.get_size_inches()[1] > 0.05 * len(places)


def test_a_rule_that_a_model_lacks_has_no_mean_over_models(tables: Tables) -> None:
    choices = tables.choices
    assert choices is not None
    lucky = (choices["metric"] == "curvature") & (choices["model"] == "encoder")
    choices = choices[(choices["metric"] != "curvature") | lucky].copy()
    choices.loc[choices["metric"] == "curvature", "regret"] = 0.0
    drawn = study("layer_choice", Tables(choices=choices), tokens=["all"])
    assert drawn.facts["by_tokens"]["all tokens"]["best_rule"] not in (None, "curvature")
    n = len([line for line in drawn.figure.axes[0].get_lines() if line.get_marker() == "|"])
    bad = {"curvature", *drawn.table.loc[drawn.table["refused"] != "", "metric"]}
    assert n == drawn.table["metric"].nunique() - len(bad)


@pytest.mark.parametrize("kind", ["layer_choice", "association_strength"])
def test_a_metric_is_drawn_in_the_variant_that_it_names(kind: str, tables: Tables) -> None:
    name = "choices" if kind == "layer_choice" else "associations"
    table = getattr(tables, name)
    other = table[table["metric"] == "prompt_entropy"].assign(alpha=2.0)
    given = Tables(**{name: pd.concat([table, other], ignore_index=True)})
    two = {"metric": "prompt_entropy", "alpha": 2.0}
    drawn = study(kind, given, metrics=[two, "curvature"], tokens=["all"]).table
    assert set(drawn.loc[drawn["metric"] == "prompt_entropy", "alpha"]) == {2.0}
    assert "curvature" in set(drawn["metric"])
    with pytest.raises(LayerwiseError, match="prompt_entropy in several variants; name one"):
        study(kind, given, metrics=[two, "prompt_entropy"])
    with pytest.raises(LayerwiseError, match="prompt_entropy is not there with alpha 4"):
        study(kind, given, metrics=[{**two, "alpha": 4.0}])


def test_association_points_are_filled_beyond_chance(tables: Tables) -> None:
    assert tables.associations is not None
    table = tables.associations.assign(chance=2.0)
    table.loc[table["model"] == "encoder", "chance"] = 0.0
    drawn = study(
        "association_strength", Tables(associations=table), models=["encoder", "nano"],
        tokens=["all"],
    )  # fmt: skip
    filled = {
        mpl.colors.to_hex(line.get_markeredgecolor())
        for line in drawn.figure.axes[0].get_lines()
        if line.get_marker() == "o" and mpl.colors.to_hex(line.get_color()) != "#ffffff"
    }
    assert filled == {style.colour_of("encoder", list(LAYERS)).lower()}
    n = len(drawn.table[drawn.table["model"] != "all"])
    assert f"{n // 2} of {n} r given depth exceed what unrelated curves reach" in drawn.title
    assert f"by chance {0.05 * n:.1f}" in drawn.title
    assert drawn.title.startswith("No evidence")


def test_titles_say_what_passes_its_test(tables: Tables) -> None:
    assert tables.associations is not None
    table = tables.associations.copy()
    match = table["measure"] == "match"
    table.loc[match, ["p", "p_all", "reason", "n_models"]] = [0.5, 0.9, "", 7]
    for kind in ("association_strength", "metric_vs_score"):
        title = study(kind, replace(tables, associations=table), tokens=["all"]).title
        assert title.startswith("No evidence that a metric says more of the score than depth does")
        assert "matched across 7 models, smallest corrected p 0.90" in title
    table.loc[match & (table["metric"] == "curvature"), "p_all"] = 0.01
    for kind in ("association_strength", "metric_vs_score"):
        title = study(kind, replace(tables, associations=table), tokens=["all"]).title
        assert title.startswith("1 of ")
        assert "matched across 7 models, corrected p ≤ .05" in title


def test_dcor_shows_its_sign(tables: Tables) -> None:
    drawn = study("association_strength", tables, models=["nano"], tokens=["all"], measure="dcor")
    check_layout(drawn.figure)
    table = drawn.table[drawn.table["model"] != "all"]
    markers = [line.get_marker() for line in drawn.figure.axes[0].get_lines()]
    assert markers.count("^") == (table["sign"] > 0).sum()
    assert markers.count("v") == (table["sign"] < 0).sum()


def test_beyond_depth_has_intervals_and_hatches(tables: Tables) -> None:
    drawn = study("beyond_depth", tables, tokens=["all"])
    assert set(drawn.table["measure"]) == {"slope"}
    assert drawn.table["low"].notna().all()
    assert set(drawn.table.loc[drawn.table["refused"] != "", "metric"]) == {"dataset_entropy"}
    assert any(p.get_hatch() for p in drawn.figure.axes[0].patches)
    assert "layer index" not in set(drawn.table["metric"]), "depth adds nothing to depth"
    few = replace(tables, associations=tables.associations.query("measure == 'dcor'"))
    with pytest.raises(LayerwiseError, match=r"add slope to association\.measures"):
        study("beyond_depth", few)


def test_overview_says_which_metrics_point_to_the_best_layer() -> None:
    layers = 11
    hill = np.sin(np.pi * np.linspace(0, 1, layers))
    curves = {"curvature": -hill, "lidar": hill, "dime": -hill}  # lower, higher, higher is better
    drawn = study(
        "model_overview",
        Tables(
            metrics=tidy_metrics(curves, model="encoder"),
            scores=tidy_scores(np.tile(0.5 + 0.1 * hill, (2, 1)), model="encoder"),
        ),
    )
    assert drawn.facts["best"]["all"]["layer"] == 5
    near = drawn.facts["near"]["all"]
    assert (near["of"], near["near"]) == (3, ["curvature", "lidar"])
    # Layers 4, 5 and 6 of eleven lie within a tenth of the depth.
    assert near["by_chance"] == pytest.approx(9 / 11)
    assert (
        "layer 5 of 10 with all tokens (2 of 3 metrics point there, by chance 0.8)" in drawn.title
    )


def test_scores_are_the_mean_over_tasks(tables: Tables) -> None:
    table = study("score_by_depth", tables).table
    assert tables.scores is not None
    row = table[
        (table["model"] == "encoder") & (table["tokens"] == "all") & (table["layer"] == 2)
    ].iloc[0]
    mine = tables.scores.query("model == 'encoder' and tokens == 'all' and layer == 2")
    assert row["value"] == pytest.approx(mine["main_score"].mean())
    assert row["low"] < row["value"] < row["high"]
    # Tasks lie 0.4 apart in level; what is left after that is taken off is their noise.
    assert row["high"] - row["low"] < 0.05
    best = table[table["best"]].set_index(["model", "tokens"])["layer"]
    assert best["encoder", "all"] == 6


def test_the_interval_of_a_mean_score_is_as_wide_as_its_formula() -> None:
    rng = np.random.default_rng(5)
    n_tasks, n_layers = 6, 3
    values = rng.uniform(0.3, 0.6, (n_tasks, 1)) + rng.normal(0, 0.03, (n_tasks, n_layers))
    table = mean_scores(tidy_scores(values))
    within = values - values.mean(axis=1, keepdims=True)
    spread_of_mean = np.sqrt(within.var(axis=0, ddof=1) * n_layers / (n_layers - 1) / n_tasks)
    # Student's t with five degrees of freedom.
    np.testing.assert_allclose(table["high"] - table["low"], 2 * 2.570582 * spread_of_mean)
    middle = (table["high"] + table["low"]) / 2
    np.testing.assert_allclose(middle, values.mean(axis=0))
    assert (table["band_high"] > table["high"]).all()
    lead = gain_new_task(values, values[:, -1])
    assert (table["lead"] == lead.value).all()
    assert (table["lead_low"] == lead.low).all()
    assert mean_scores(tidy_scores(values)[lambda t: t["layer"] == 1])["low"].isna().all()


def test_the_evaluators_interval_is_of_a_task_with_one_subset() -> None:
    scores = tidy_scores(np.array([[0.2, 0.4, 0.3]]))
    scores = scores.assign(score_low=scores["main_score"] - 0.1, score_high=0.9)
    table = mean_scores(scores)
    np.testing.assert_allclose(table["low"], [0.1, 0.3, 0.2])
    np.testing.assert_allclose(table["high"], 0.9)
    both = pd.concat([scores, scores.assign(subset="other")])
    assert mean_scores(both)[["low", "high"]].isna().all(axis=None)


def test_titles_follow_the_data(tables: Tables) -> None:
    assert tables.scores is not None
    title = study("score_by_depth", tables).title
    assert title.startswith("A layer inside leads the output in 2 of 4 models with all tokens")
    assert "(by chance in 0.1) and in 3 of 4 without the first token (by chance in 0.1)" in title
    turned = tables.scores.copy()
    last = turned["depth"] == 1
    turned.loc[last, "main_score"] += 5
    title = study("score_by_depth", Tables(scores=turned)).title
    assert title.startswith("No evidence that a layer inside leads the output: in 0 of 4 models")
    title = study("metrics_by_depth", tables).title
    assert title.startswith("Prompt entropy has a valley")
    assert "in 3 of 4 models with all tokens (by chance in 0.1)" in title
    split = study("value_distribution", tables).title
    assert "31 of 31 layers of a decoder of thirty blocks" in split
    assert "encoder" not in split


def test_titles_of_differences_state_what_passes(tables: Tables) -> None:
    rng = np.random.default_rng(0)
    level, noise = rng.uniform(0.3, 0.7, (5, 1)), rng.normal(0, 0.002, (2, 2, 5, 7))
    fall = np.array([0, 0, 0.2, 0.2, 0, 0, 0])
    scores = pd.concat(
        tidy_scores(
            level - fall * (model == "encoder") * (tokens == "all") + noise[i, k],
            model=model, tokens=tokens, types=TYPES,
        )
        for i, model in enumerate(("encoder", "nano"))
        for k, tokens in enumerate(("all", "drop_first"))
    )  # fmt: skip
    metrics = tables.metrics
    assert metrics is not None
    revision = metrics["revision"].isin(["main", "step512"])
    metrics = metrics[revision & metrics["model"].isin(["encoder", "nano"])]
    both = Tables(metrics=metrics.assign(revision="main"), scores=scores)
    title = study("token_choice", both).title
    assert title.startswith("Scoring without the first token changes the score at 2 of 7 layers")
    assert "encoder (by up to +20.2 points at 50 % depth) and none of 7 layers of nano" in title
    # Standard errors as large as the change: nothing is told apart from 0.
    noisy = tables.metrics.assign(stderr=1.0, n=90)  # type: ignore[union-attr]
    trained = study("metrics_over_checkpoints", Tables(metrics=noisy), metrics=["prompt_entropy"])
    assert trained.title.startswith("No evidence that training moves prompt entropy: at none of")
    sure = tables.metrics.assign(stderr=0.01, n=90)  # type: ignore[union-attr]
    trained = study("metrics_over_checkpoints", Tables(metrics=sure), metrics=["prompt_entropy"])
    assert trained.title.startswith("Training moves prompt entropy at ")
    bare = tables.metrics.assign(stderr=np.nan)  # type: ignore[union-attr]
    trained = study("metrics_over_checkpoints", Tables(metrics=bare), metrics=["prompt_entropy"])
    assert "untested for want of standard errors" in trained.title


def test_bands_of_scores_end_with_their_range() -> None:
    values = np.array([[0.99, 0.97], [0.90, 1.0], [0.97, 0.80]])
    plain = mean_scores(tidy_scores(values, model="m", types=["Classification"] * 3))
    assert plain["high"].max() == plain["band_high"].max() == 1
    low = mean_scores(tidy_scores(1 - values, model="m", types=["Classification"] * 3))
    assert low["low"].min() == low["band_low"].min() == 0
    correlated = mean_scores(tidy_scores(1 - values, model="m", types=["STS"] * 3))
    assert correlated["band_low"].min() < 0


def test_the_association_is_of_what_is_drawn(tables: Tables) -> None:
    from layerwise.association.measures import distance_correlation

    table = study("metric_vs_score", tables, models=["encoder"], measure="dcor").table
    for _, panel in table.groupby(["model", "tokens", "y"]):
        assert panel["association"].iloc[0] == pytest.approx(
            distance_correlation(panel["value"], panel["score"]), abs=1e-9
        )
    two = associated(tables, tasks=["task0", "task1"])
    with pytest.raises(LayerwiseError, match="are over 5 tasks, and this study draws 2"):
        study("metric_vs_score", tables, tasks=["task0", "task1"], models=["nano"])
    some = study(
        "metric_vs_score", two, tasks=["task0", "task1"], models=["nano"], measure="dcor"
    ).table
    assert set(some["n_tasks"]) == {2}
    panel = some[(some["y"] == 1) & (some["tokens"] == "all")]
    assert panel["association"].iloc[0] == pytest.approx(
        distance_correlation(panel["value"], panel["score"]), abs=1e-9
    )


def test_the_association_is_of_the_points_where_own_texts_lack_layers() -> None:
    from layerwise.association.measures import spearman

    rng = np.random.default_rng(1)
    metrics = pd.concat(
        tidy_metrics({"curvature": rng.random(9)}, corpus=f"t{i}") for i in range(3)
    )
    own = {f"t{i}": f"task{i}" for i in range(3)}
    metrics = metrics[~((metrics["corpus"] == "t1") & (metrics["layer"].isin([4, 5])))]
    both = Tables(metrics=metrics, scores=tidy_scores(rng.random((3, 9))))
    drawn = study(
        "metric_vs_score", associated(both, own_texts=own), metrics=["curvature"],
        measure="spearman", own_texts=own, corpora=["task texts"],
    )  # fmt: skip
    assert len(drawn.table) == 9
    assert set(drawn.table["n_tasks"]) == {2}
    assert drawn.table["association"].iloc[0] == pytest.approx(
        spearman(drawn.table["value"], drawn.table["score"])
    )


def test_panels_tell_what_unrelated_curves_reach(tables: Tables) -> None:
    drawn = study("metric_vs_score", tables, models=["nano"], tokens=["all"], measure="spearman")
    for axis, (_, panel) in zip(drawn.figure.axes, drawn.table.groupby("y"), strict=False):
        row = panel.iloc[0]
        ends = ("association", "association_chance")
        value, chance = (f"{row[e]:.2f}".replace("-", "−") for e in ends)
        assert axis.get_title("left") == f"ρ {value} ({chance})"
    assert "95 % of pairs of unrelated curves" in drawn.caption
    assert "No p is given (4 models, where a test" in drawn.caption
    signed = study("metric_vs_score", tables, models=["nano"], tokens=["all"], measure="dcor")
    falls = signed.table.drop_duplicates("y")["association_sign"] < 0
    titles = [a.get_title("left") for a in signed.figure.axes[:3]]
    assert ["↓" in t for t in titles] == falls.tolist()
    slopes = study("metric_vs_score", tables, models=["nano"], tokens=["all"], measure="slope")
    row = slopes.table[slopes.table["y"] == 1].iloc[0]
    assert f"[{row['association_low']:.2f}".replace("-", "−") in (
        slopes.figure.axes[0].get_title("left")
    )


def test_a_model_has_one_colour_in_all_studies(tables: Tables) -> None:
    def colour(kind: str, **settings: Any) -> str:
        figure = study(kind, tables, models=["nano"], tokens=["all"], **settings).figure
        line = next(x for x in figure.axes[0].get_lines() if len(np.atleast_1d(x.get_xdata())) > 2)
        return mpl.colors.to_hex(line.get_color())

    expected = style.colour_of("nano", list(LAYERS)).lower()
    assert colour("score_by_depth") == colour("metrics_by_depth") == expected
    assert len(set(style.PALETTE)) == len(style.PALETTE)
    many = [f"m{i}" for i in range(20)]
    looks = {(style.colour_of(m, many), style.marker_of(m, many)) for m in many}
    assert len(looks) == 20


def test_checkpoints_are_coloured_in_order(tables: Tables) -> None:
    figure = study("metrics_over_checkpoints", tables, models=["nano"], tokens=["all"]).figure
    lightness = [
        0.3 * r + 0.59 * g + 0.11 * b
        for r, g, b, _ in (
            mpl.colors.to_rgba(x.get_color())
            for x in figure.axes[0].get_lines()
            if len(np.atleast_1d(x.get_xdata())) > 2
        )
    ]
    assert lightness == sorted(lightness)
    assert len(set(lightness)) == len(STEPS)
    bar = next(a for a in figure.axes if a.get_label() == "<colorbar>")
    ticks = [t.get_text() for t in bar.get_yticklabels()]
    assert ticks == ["0", "1", "8", "64", "512"]
    gaps = np.diff(bar.get_yticks())
    _, norm = style.step_colours([0, 1, 8, 64, 512])
    places = np.diff([float(norm(t)) for t in bar.get_yticks()])
    assert (gaps > 0).all()
    np.testing.assert_allclose(places[1:], places[1])  # evenly spaced on a logarithmic scale


def test_comparison_by_corpus(tables: Tables) -> None:
    assert tables.metrics is not None
    encoder = tables.metrics[tables.metrics["model"] == "encoder"]
    both = Tables(metrics=pd.concat([encoder, encoder.assign(corpus="repeated")]))
    with pytest.raises(LayerwiseError, match="several values of corpus: repeated, wikipedia"):
        study("metrics_by_depth", both)
    drawn = study("metrics_by_depth", both, colour="corpus", tokens=["all"])
    labels = [t.get_text() for t in drawn.figure.legends[0].get_texts()]
    assert labels[:2] == ["repeated", "wikipedia"]
    graded = study("metrics_by_depth", both, colour="corpus", ordered=True, tokens=["all"],
                   corpora=["wikipedia", "repeated"])  # fmt: skip
    handles = graded.figure.legends[0].legend_handles
    assert [h.get_label() for h in handles[:2]] == ["wikipedia", "repeated"]
    first, last = (sum(mpl.colors.to_rgb(h.get_color())) for h in handles[:2])
    assert first < last  # from dark to light
    sizes = study("metrics_by_depth", tables, ordered=True, models=["nano", "encoder", "mamba"])
    lines = sizes.figure.legends[0].legend_handles[:3]
    light = [sum(mpl.colors.to_rgb(h.get_color())) for h in lines]
    assert light == sorted(light)


def test_variants_of_metrics(tables: Tables) -> None:
    assert tables.metrics is not None
    two = tables.metrics[tables.metrics["metric"] == "prompt_entropy"].assign(alpha=2.0)
    infinite = two.assign(alpha=np.inf)
    more = Tables(metrics=pd.concat([tables.metrics, two, infinite]))
    drawn = study(
        "metrics_by_depth", more,
        metrics=["prompt_entropy", {"metric": "prompt_entropy", "alpha": 2},
                 {"metric": "prompt_entropy", "alpha": "inf"}],
    )  # fmt: skip
    assert sorted(drawn.table["alpha"].unique()) == [1, 2, np.inf]
    labels = {a.get_ylabel().replace("\n", "") for a in drawn.figure.axes if a.get_visible()}
    assert {"Prompt entropy (nats, α = 2)", "Prompt entropy (nats, α = ∞)"} <= labels
    with pytest.raises(LayerwiseError, match="alpha 3"):
        study("metrics_by_depth", more, metrics=["prompt_entropy"], alpha=3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "score_by_depth", "models": ["nanoo"]}, "did you mean 'nano'"),
        ({"kind": "score_by_depth", "tasks": ["task9"]}, "the task 'task9'"),
        ({"kind": "score_by_depth", "pooling": "cls"}, "there are mean"),
        ({"kind": "score_by_depth", "revisions": ["step9"]}, "did you mean 'step64'"),
        ({"kind": "metrics_by_depth", "metrics": ["curvatur"]}, "did you mean 'curvature'"),
        ({"kind": "metrics_over_checkpoints", "models": ["encoder"]}, "two or more checkpoints"),
        ({"kind": "model_overview"}, "would mix several values of model"),
        ({"kind": "metric_vs_score", "measure": "dcor", "y": ["scores"]}, "needs"),
        ({"kind": "value_distribution", "metrics": ["curvature", "lidar"]}, "several values of y"),
    ],
)
def test_mistakes_are_said(settings: dict[str, Any], words: str, tables: Tables) -> None:
    prompts = tables.prompts
    if settings["kind"] == "value_distribution":
        assert prompts is not None
        prompts = pd.concat([prompts.assign(metric=m) for m in settings["metrics"]])
    if "y" in settings:
        settings = {"kind": "metric_vs_score"}
        tables = Tables(metrics=tables.metrics, scores=tables.scores)
    with pytest.raises(LayerwiseError, match=words):
        draw(made(**settings), replace(tables, prompts=prompts))


def test_a_missing_table_is_said() -> None:
    with pytest.raises(LayerwiseError, match="needs tables of scores"):
        draw(made(kind="score_by_depth"), Tables())


def test_importing_the_list_of_kinds_is_cheap() -> None:
    for module, heavy in (
        ("kinds", ("matplotlib", "pandas", "numpy")),
        ("studies", ("seaborn", "dcor", "torch", "sklearn", "diptest")),
    ):
        code = (
            f"import sys, layerwise.figures.{module}\n"
            f"print(sorted({set(heavy)} & set(sys.modules)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "[]"


def test_files_are_whole_and_the_same_again(tables: Tables, tmp_path: Path) -> None:
    names = []
    for i in range(2):
        drawn = study("score_by_depth", tables)
        names.append((tmp_path / f"{i}.png", tmp_path / f"{i}.pdf"))
        with style.theme():
            style.save(drawn.figure, *names[-1])
    for first, second in zip(*names, strict=True):
        assert first.read_bytes() == second.read_bytes()
    pdf = names[0][1].read_bytes()
    assert pdf.startswith(b"%PDF")
    assert b"/FontFile2" in pdf  # TrueType, embedded
    assert b"/Type3" not in pdf
    from PIL import Image

    with Image.open(names[0][0]) as image:
        assert image.info["dpi"][0] == pytest.approx(200, abs=0.1)


def test_the_callers_settings_come_back() -> None:
    before = dict(mpl.rcParams)
    with style.theme():
        pass
    assert dict(mpl.rcParams) == before


def test_the_header_takes_no_room_from_the_panels() -> None:
    sizes = []
    for words in (1, 60):
        figure, axes = style.grid(1, 2)
        style.header(figure, "word " * words, "more " * words)
        check_layout(figure)
        box = axes[0, 0].get_window_extent()
        sizes.append((box.width, box.height))
    np.testing.assert_allclose(sizes[0], sizes[1], atol=2)


SEVEN = [
    "prompt_entropy", "dataset_entropy", "curvature", "effective_rank", "infonce", "dime", "lidar",
]  # fmt: skip


@pytest.mark.parametrize(
    "kind", ["metrics_by_depth", "metric_vs_score", "metrics_over_checkpoints"]
)
def test_many_metrics_are_wrapped(kind: str, tables: Tables) -> None:
    drawn = study(kind, tables, models=["nano"], metrics=SEVEN)
    check_layout(drawn.figure)
    width, height = drawn.figure.get_size_inches()
    assert max(width, height) < 13
    panels = [a for a in drawn.figure.axes if a.get_visible() and a.get_label() != "<colorbar>"]
    assert len(panels) == 2 * len(SEVEN)
    assert set(drawn.table["metric"]) == set(SEVEN)


def test_all_measures_above_a_panel(tables: Tables) -> None:
    from layerwise.association import distance_correlation, kendall, spearman

    assert tables.associations is not None
    drawn = study("metric_vs_score", tables, models=["nano"], tokens=["all"], measure="all")
    check_layout(drawn.figure)
    assert [a.get_title("left").count("\n") for a in drawn.figure.axes[:3]] == [5, 5, 5]
    for _, panel in drawn.table.groupby("y"):
        for suffix, measure in (
            ("_dcor", distance_correlation), ("_spearman", spearman), ("_kendall", kendall),
        ):  # fmt: skip
            value = measure(panel["value"], panel["score"])
            assert panel[f"association{suffix}"].iloc[0] == pytest.approx(value, abs=1e-9)
    few = replace(tables, associations=tables.associations.query("measure == 'dcor'"))
    with pytest.raises(LayerwiseError, match="its associations have dcor; add it to"):
        study("metric_vs_score", few, measure="kendall")


def horizontal(drawn: Drawn) -> list[float]:
    """Heights of the lines across the first panel."""
    lines = drawn.figure.axes[0].get_lines()
    return [float(x.get_ydata()[0]) for x in lines if list(x.get_xdata()) == [0, 1]]


def test_the_best_layer_is_ringed_and_the_output_a_line(tables: Tables) -> None:
    drawn = study("metric_vs_score", tables, models=["nano"], tokens=["all"])
    panel = drawn.table[drawn.table["y"] == 1].sort_values("depth")
    rings = [x for x in drawn.figure.axes[0].get_lines() if len(np.atleast_1d(x.get_xdata())) == 1]
    found = {x.get_marker(): float(np.ravel(x.get_ydata())[0]) for x in rings}
    assert found == {
        "o": pytest.approx(100 * panel["score"].max()),
    }
    assert horizontal(drawn) == [pytest.approx(100 * panel["score"].iloc[-1])]
    assert "the last layer stands in for it" in drawn.caption


def test_metrics_alone_mark_what_they_would_pick(tables: Tables) -> None:
    drawn = study("metrics_by_depth", tables, models=["nano"], tokens=["all"])
    for axis, metric, better in zip(
        drawn.figure.axes, ("prompt_entropy", "curvature", "infonce"), ("min",) * 3, strict=False
    ):
        curve = drawn.table[drawn.table["metric"] == metric].set_index("depth")["value"]
        rings = {
            line.get_markerfacecolor() == "white": (np.ravel(line.get_xdata()),
                                                    np.ravel(line.get_ydata()))
            for line in axis.get_lines()
            if len(np.atleast_1d(line.get_xdata())) == 1
        }  # fmt: skip
        best = getattr(curve, f"idx{better}")()
        np.testing.assert_allclose(np.ravel(rings[False]), [best, curve[best]])
        np.testing.assert_allclose(np.ravel(rings[True]), [curve.index.max(), curve.iloc[-1]])


def test_checkpoints_mark_what_the_metric_would_pick(tables: Tables) -> None:
    drawn = study(
        "metrics_over_checkpoints", tables, models=["nano"], tokens=["all"],
        metrics=["curvature", "lidar"],
    )  # fmt: skip
    panels = [a for a in drawn.figure.axes if a.get_label() != "<colorbar>"]
    for axis, metric, better in zip(panels, ("curvature", "lidar"), ("min", "max"), strict=True):
        found: dict[bool, set[tuple[float, float]]] = {False: set(), True: set()}
        for line in axis.get_lines():
            if len(np.atleast_1d(line.get_xdata())) == 1:
                x, y = np.ravel(line.get_xdata()), np.ravel(line.get_ydata())
                found[line.get_markerfacecolor() == "white"].add((float(x[0]), float(y[0])))
        part = drawn.table[drawn.table["metric"] == metric]
        curves = [c.set_index("depth")["value"] for _, c in part.groupby("revision")]
        ends = [getattr(c, f"idx{better}")() for c in curves]
        assert found[False] == {(e, c[e]) for c, e in zip(curves, ends, strict=True)}
        assert found[True] == {(1.0, c[1.0]) for c in curves}
    labels = [t.get_text() for t in drawn.figure.legends[0].get_texts()]
    assert labels == ["layer that the metric picks", "last layer"]
    assert "Filled circles are the layers that the metrics themselves pick" in drawn.caption
    unknown = study("metrics_over_checkpoints", tables, models=["nano"], tokens=["all"],
                    metrics=["infonce_mi_bound"])  # fmt: skip
    known = "infonce_mi_bound" in directions()
    labels = [t.get_text() for t in unknown.figure.legends[0].get_texts()]
    assert ("layer that the metric picks" in labels) == known


def test_labels_are_spread_no_more_than_needed() -> None:
    assert spread([0.0, 5.0], 2) == [0, 5]
    assert spread([1.0, 1.0, 9.0], 2) == [0, 2, 9]
    assert spread([1.0, 1.0, 9.0], 2, floor=1) == [1, 3, 9]
    assert spread([0.0, 1.0, 3.0], 2) == pytest.approx([-2 / 3, 4 / 3, 10 / 3])


def test_headlines_fit_the_page_as_saved() -> None:
    words = "Prompt entropy has a valley between its ends in 1 of 3 models, 90 % of all tokens; "
    for width in np.arange(5.2, 10.7, 0.05):
        figure = Figure(figsize=(width, 2), layout="constrained")
        style.header(figure, words * 4, words * 4)
        figure.set_dpi(style.DPI)
        canvas = FigureCanvasAgg(figure)
        for text in figure.texts:
            assert text.get_window_extent(canvas.get_renderer()).x1 <= figure.bbox.x1
            assert "\n%" not in text.get_text()


def test_caption_is_plain_text(tables: Tables) -> None:
    from docutils.core import publish_parts

    drawn = study("score_by_depth", tables)
    odd = Drawn(drawn.figure, drawn.table, "a_model_ *x* `y` |z|", "On model_ by *x*.", {})
    body = publish_parts(odd.rst(), writer="html")["body"]
    assert "system-message" not in body
    assert "<strong>a_model_ *x* `y` |z|</strong>" in body
    assert "On model_ by *x*." in body
    assert plain("a\\b") == "a\\\\b"


def test_small_helpers() -> None:
    assert [p_value(p) for p in (0.0004, 0.0123, 0.5, 1.0)] == [
        "p < .001", "p = .012", "p = .50", "p = 1",
    ]  # fmt: skip
    assert listing(["a", "b", "c"]) == "a, b and c"
    assert span([3, 5]) == "3–5"
    assert in_sentence("dime") == "DiME"
    assert in_sentence("curvature") == "curvature"
    assert axis_label("curvature", None, "raw") == "Curvature (rad)"
    assert "nats" not in axis_label("prompt_entropy", 1.0, "logD")
    assert in_order(["c", "a", "b"], ["b", "x"]) == ["b", "a", "c"]
    assert of_means([3.0, 1.0, 2.0]) == 1
    assert of_means([3.0, 1.95, 2.0]) is None
    assert of_means([1.0, 2.0, 3.0]) is None
    # Shoulders need not be the ends, and errors must not reach as far as the dip is deep.
    assert of_means([0.0, 3.0, 1.0, np.nan, 3.0, 0.0]) == 2
    assert of_means([3.0, 1.0, 2.0], [0.2] * 3) == 1
    assert of_means([3.0, 1.0, 2.0], [0.4] * 3) is None
    assert of_means([3.0, 1.0, 1.4, 2.0], [0.4, np.nan, 0.4, 0.4]) is None
    np.testing.assert_allclose(
        holm(np.array([0.01, np.nan, 0.04, 0.03])), [0.03, np.nan, 0.06, 0.06]
    )


def test_metrics_take_the_studys_variant_unless_they_name_one() -> None:
    plain_study = made(kind="metrics_by_depth", alpha=2)
    names = [m.metric for m in plain_study.curves or ()]
    assert names == ["prompt_entropy", "curvature", "infonce"]
    assert {m.alpha for m in plain_study.curves or ()} == {2}
    named = made(kind="curves", metrics=["dime", {"metric": "lidar", "protocol": "paper"}],
                 protocol="reference")  # fmt: skip
    assert [m.protocol for m in named.curves or ()] == ["reference", "paper"]


@pytest.mark.slow
@pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the published tables are not beside the repository"
)
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("score_by_depth", {}),
        ("task_heatmap", {}),
        ("metrics_by_depth", {"corpora": ["wikitext"], "alpha": 2}),
        ("metric_vs_score", {"corpora": ["wikitext"], "alpha": 2, "measure": "spearman"}),
        ("layer_choice", {"corpora": ["wikitext"], "alpha": 2}),
    ],
)
def test_published_tables_can_be_drawn(kind: str, settings: dict[str, Any]) -> None:
    metrics = published_metrics(read_table(PUBLISHED / "metrics.csv.gz"))
    scores = published_scores(read_table(PUBLISHED / "mteb_scores.csv.gz"))
    tables = associated(Tables(metrics[metrics["corpus"] == "wikitext"], scores=scores))
    if kind.startswith("metric"):
        settings = {**settings, "metrics": ["prompt_entropy", "lidar", "infonce"]}
    drawn = study(kind, tables, protocol="reference", **settings)
    check_layout(drawn.figure)
    if kind == "score_by_depth":
        best = drawn.table[drawn.table["best"]].set_index("model")
        assert best["layer"].to_dict() == {"Pythia-14m": 0, "Pythia-70m": 0, "Pythia-160m": 8}
        # As docs/published-claims.md has it.
        assert "leads the output in 2 of 3 models" in drawn.title


def test_metrics_against_n_say_which_are_not_settled() -> None:
    sizes = [25, 50, 100]
    table = pd.DataFrame(
        [
            {
                "tokens": "all", "layer": 3, "metric": metric, "protocol": "paper", "n": n,
                "alpha": np.nan, "repeat": repeat, "value": value(n) * (1 + 0.001 * repeat),
            }
            for metric, value in (("rankme", float), ("curvature", lambda _: 2.0))
            for n in sizes
            for repeat in range(1 if n == 100 else 3)
        ]
    )  # fmt: skip
    drawn = sample_size.draw(table, "paper", "all", 3)
    assert drawn.title.startswith("1 of 2 metrics still change by more than 3%")
    assert "RankMe (50%)" in drawn.title
    assert drawn.facts["change"]["rankme"] == pytest.approx(0.5, abs=0.01)
    shown = [axis for axis in drawn.figure.axes if axis.get_visible()]
    assert [len(axis.lines) for axis in shown] == [4, 4], "three orders and the dot of all"
    with pytest.raises(LayerwiseError, match=r"the table has layers \[3\]"):
        sample_size.draw(table, "paper", "all", 4)


def test_a_long_label_is_broken_between_words_and_within_only_those_longer_than_a_line() -> None:
    assert broken("Mutual information, InfoNCE bound", 24).split("\n") == [
        "Mutual information, ", "InfoNCE bound",
    ]  # fmt: skip
    assert broken("WikipediaArticleClusteringLong", 24).split("\n") == [
        "WikipediaArticle", "ClusteringLong",
    ]  # fmt: skip
