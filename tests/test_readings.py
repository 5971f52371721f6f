"""Several readings of the same layers (token choices, poolings, readouts) told apart."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from association_tables import tidy_metrics, tidy_scores
from matplotlib.backends.backend_agg import FigureCanvasAgg

from layerwise.association.best import best_layers
from layerwise.association.order import Order
from layerwise.association.table import associate
from layerwise.config import Config
from layerwise.section import parse
from layerwise.config.scoring import ScoringSettings
from layerwise.config.studies import Study
from layerwise.errors import LayerwiseError
from layerwise.figures import style
from layerwise.figures.first_page import first_page
from layerwise.figures.labels import layers_label, reading, reading_label
from layerwise.figures.studies import Tables, draw
from layerwise.tasks import results

DEPTH = np.linspace(0, 1, 7)


def scores() -> pd.DataFrame:
    """Two tasks; each reading is best at a layer of its own."""
    pieces = []
    best = {
        ("all", "mean", "residual"): 1,
        ("drop_first", "mean", "residual"): 2,
        ("all", "last_token", "residual"): 3,
        ("drop_first", "last_token", "residual"): 3,
        ("all", "cls", "residual"): 4,
        ("all", "mean", "final_norm"): 5,
    }
    for (tokens, pooling, readout), layer in best.items():
        curve = 0.5 - np.abs(np.arange(7) - layer) / 50 + np.array([[0.0], [0.2]])
        pieces.append(
            tidy_scores(curve, tokens=tokens, types=("STS", "STS")).assign(
                pooling=pooling, readout=readout
            )
        )
    return pd.concat(pieces, ignore_index=True)


ALL = ["mean", "last_token", "cls", "mean, final_norm"]


def test_all_in_one_figure() -> None:
    drawn = draw(parse(Study, {"kind": "score_by_depth", "pooling": ALL}), Tables(scores=scores()))
    FigureCanvasAgg(drawn.figure).draw()
    table = drawn.table
    best = table[table["best"]].set_index("reading")["layer"].to_dict()
    assert best == {"all": 1, "drop_first": 2, "last_token": 3, "cls": 4, "all, final_norm": 5}
    axis = drawn.figure.axes[0]
    lines = [x for x in axis.get_lines() if len(np.atleast_1d(x.get_xdata())) == 7]
    assert len(lines) == 5
    looks = {str(x._dash_pattern) for x in lines}  # what is set: get_linestyle says "--" of all
    assert len(looks) == 5, "each reading has dashes of its own"
    legend = [t.get_text() for t in drawn.figure.legends[0].get_texts()]
    assert legend[:5] == [
        "all tokens", "without the first token", "last token", "first token (CLS)",
        "all tokens, final norm",
    ]  # fmt: skip
    assert "in 1 of 1 model with all tokens" in drawn.title
    assert "by the last token" in drawn.title
    json.dumps(drawn.facts)


def test_one_reading_as_before() -> None:
    drawn = draw(parse(Study, {"kind": "score_by_depth"}), Tables(scores=scores()))
    assert set(drawn.table["reading"]) == {"all", "drop_first"}
    normed = draw(
        parse(Study, {"kind": "score_by_depth", "pooling": ALL[-1]}), Tables(scores=scores())
    )
    assert normed.table.loc[normed.table["best"], "layer"].tolist() == [5]


def test_the_first_page_tells_readings_apart() -> None:
    page = first_page(best_layers(scores()), Order(["m"]))
    for name, layer in (("all tokens", 1), ("last token", 3), ("all tokens, final norm", 5)):
        assert page.count(f"  - {name}\n     - {layer} of 6") == 1, name
    assert page.count("  - last token\n") == 1, "the last token is one, whatever is dropped"


def test_associations_of_each_reading() -> None:
    metrics = tidy_metrics({"curvature": np.sin(DEPTH), "lidar": DEPTH**2})
    found = associate(metrics, scores())
    assert set(found["pooling"]) == set(ALL)


def test_other_kinds_show_one() -> None:
    with pytest.raises(LayerwiseError, match="no scores with the pooling 'max'"):
        draw(parse(Study, {"kind": "score_by_depth", "pooling": ["max"]}), Tables(scores=scores()))


def test_names() -> None:
    assert reading("drop_first", "mean") == "drop_first"
    assert reading("drop_first", "last_token") == reading("all", "last_token") == "last_token"
    assert (
        reading_label(reading("drop_first", "cls")) == "first token left without the first token"
    )
    assert reading_label("all, final_norm", sentence=True) == "with all tokens, final norm"
    many = ["all", *(f"x{i}" for i in range(9))]
    assert style.stroke_of("x5", many) == style.stroke_of("x1", many)
    assert {"pooling", "readout"} <= set(results.schema().names)


def test_the_first_page_says_where_the_last_layer_is_best() -> None:
    rising = tidy_scores(np.array([[0.1, 0.2, 0.3, 0.4], [0.2, 0.3, 0.4, 0.6]]))
    page = first_page(best_layers(rising), Order(["m"]))
    assert "its own output" in page
    assert "0.0 (0.0 to 0.0)" not in page
    noisy = tidy_scores(np.array([[0.5, 0.2, 0.3], [0.3, 0.6, 0.4]]))
    assert "(−" in first_page(best_layers(noisy), Order(["m"])), "a minus, not a hyphen"


# Several layers


def several_layers(lead: float = 0.02, tasks: int = 5) -> pd.DataFrame:
    """One layer is best at 3; the mean of two, at 4, by `lead` on each task but the last."""
    rng = np.random.default_rng(0)
    level = rng.uniform(0.3, 0.7, size=(tasks, 1))
    single = level - np.abs(np.arange(7) - 3) / 50
    mean = level - np.abs(np.arange(7) - 4) / 50 + lead
    mean[-1] -= 2 * lead
    types = ("STS",)
    return pd.concat(
        [
            tidy_scores(single, types=types).assign(readout="output", layers="one"),
            tidy_scores(mean, types=types).assign(readout="output", layers="mean 2"),
        ],
        ignore_index=True,
    )


def test_one_layer_or_several() -> None:
    table = several_layers()
    drawn = draw(parse(Study, {"kind": "layers_together"}), Tables(scores=table))
    FigureCanvasAgg(drawn.figure).draw()
    (found,) = drawn.facts["several"]
    assert (found["layers"], found["layer"], found["single_layer"]) == ("mean 2", 4, 3)
    # By the definition, task by task.
    wide = table.pivot_table(index="task", columns=["layers", "layer"], values="main_score")
    ahead = []
    for task in wide.index:
        others = wide.drop(index=task).mean()
        chosen = {way: (way, others[way].idxmax()) for way in ("one", "mean 2")}
        ahead.append(wide.loc[task, chosen["mean 2"]] - wide.loc[task, chosen["one"]])
    assert found["gain_new_task"] == pytest.approx(np.mean(ahead))
    assert found["n_ahead"] == sum(a > 0 for a in ahead) == 4
    assert found["gain"] == pytest.approx(0.02 * 3 / 5)
    assert drawn.title == (
        "No evidence that several layers of m together beat its best single one, or it them: +1.2 "
        "points, both chosen on other tasks (ahead on 4 of 5)"
    )
    legend = [t.get_text() for t in drawn.figure.legends[0].get_texts()]
    assert legend[:2] == ["one layer", "mean of the last 2 layers up to it"]
    json.dumps(drawn.facts)
    # All curves are set against one output: that of a single layer.
    assert drawn.table["output_score"].nunique() == 1
    last = table[(table["layers"] == "one") & (table["layer"] == 6)]["main_score"].mean()
    assert drawn.table["output_score"].iloc[0] == pytest.approx(last)


def test_several_layers_are_counted_where_they_are_told_to_lead() -> None:
    """Of four models the mean of two layers leads on all tasks in one."""
    rng, parts = np.random.default_rng(0), []
    for model, lead in (("a", 0), ("b", 0), ("c", 0), ("d", 0.02)):
        part = several_layers(lead).assign(model=model)
        lucky = (part["layers"] == "mean 2") & (part["task"] == "task4")
        part["main_score"] += 2 * lead * lucky + rng.normal(0, 0.001, len(part))
        parts.append(part)
    drawn = draw(parse(Study, {"kind": "layers_together"}), Tables(scores=pd.concat(parts)))
    assert [one["told"] for one in drawn.facts["several"]] == [0, 0, 0, 1]
    assert drawn.title == (
        "No evidence that several layers together beat the best single one: in 1 of 4 models, by "
        "chance in 0.2"
    )
    one = draw(parse(Study, {"kind": "layers_together"}), Tables(scores=parts[3]))
    assert one.title.startswith("Several layers of d score +2.0 points against")


def test_one_task_says_so() -> None:
    drawn = draw(parse(Study, {"kind": "layers_together"}), Tables(scores=several_layers(tasks=1)))
    assert drawn.title.endswith("both chosen on this one task, untested")
    assert drawn.facts["several"][0]["gain_new_task"] is None


def test_other_studies_are_of_single_layers() -> None:
    table, alone = several_layers(), several_layers()
    alone = alone[alone["layers"] == "one"].drop(columns="layers")
    for name in ("score_by_depth", "task_heatmap"):
        both = [draw(parse(Study, {"kind": name}), Tables(scores=t)) for t in (table, alone)]
        pd.testing.assert_frame_equal(both[0].table, both[1].table)
        assert both[0].title == both[1].title
    pd.testing.assert_frame_equal(best_layers(table), best_layers(alone))
    metrics = tidy_metrics({"curvature": np.sin(DEPTH)})
    pd.testing.assert_frame_equal(associate(metrics, table), associate(metrics, alone))
    chosen = draw(
        parse(Study, {"kind": "score_by_depth", "layers": ["mean 2"]}), Tables(scores=table)
    )
    assert chosen.table.loc[chosen.table["best"], "layer"].tolist() == [4]
    turned = draw(
        parse(Study, {"kind": "score_by_depth", "dashes": "layers"}), Tables(scores=table)
    )
    assert set(turned.table["layers"]) == {"one", "mean 2"}


def test_layers_without_a_role_are_not_mixed() -> None:
    study = parse(Study, {"kind": "score_by_depth", "layers": ["one", "mean 2"]})
    with pytest.raises(LayerwiseError, match="would mix several values of layers: one, mean 2"):
        draw(study, Tables(scores=several_layers()))


def test_several_layers_over_training() -> None:
    tables = []
    for place, step in enumerate(("step1", "step8")):
        one = several_layers(lead=0.02 * place)
        tables.append(one.assign(revision=step))
    table = pd.concat(tables, ignore_index=True)
    study = {"kind": "scores_over_checkpoints", "column": ["model", "layers"]}
    drawn = draw(parse(Study, study), Tables(scores=table))
    FigureCanvasAgg(drawn.figure).draw()
    best = drawn.table[drawn.table["best"]].set_index(["layers", "revision"])["layer"]
    assert best["mean 2"].tolist() == [4, 4]
    assert best["one"].tolist() == [3, 3]


def test_names_of_layers() -> None:
    assert layers_label("mean all") == "mean of all layers up to it"
    assert layers_label("concat last") == "pair with the output"
    assert layers_label("concat 3") == "pair with layer 3"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"scoring": {"layers": ["mean 4"]}}, "without 'one'"),
        ({"scoring": {"layers": ["one", "mean 1"]}}, r"scoring\.layers.*\"mean 1\" came"),
        ({"scoring": {"layers": ["one", "mean four"]}}, r"scoring\.layers.*mean four"),
        (
            {"scoring": {"layers": ["one", "concat last"], "readouts": ["residual"]}},
            "'concat last' needs the readout output, and m is scored with residual",
        ),
        ({}, "sets several layers against one, and this one has one"),
        (
            {"scoring": {"layers": ["one", "mean 2"]},
             "studies": {"s": {"kind": "layers_together", "layers": ["one", "mean 3"]}}},
            r"reading of layers 'mean 3' \(did you mean 'mean 2'",
        ),
        (
            {"scoring": {"layers": ["one", "mean 2"]},
             "studies": {"s": {"kind": "layer_choice", "layers": ["mean 2"]}}},
            "layer_choice is about single layers",
        ),
    ],
)  # fmt: skip
def test_what_a_config_cannot_ask_for(more: dict[str, object], said: str) -> None:
    given = {
        "models": {"m": {"source": {"hub": "a/b"}}},
        "tasks": ["LeeNewsSimilarity"],
        "corpora": {"c": {"source": {"file": "x.txt"}}},
        "studies": {"s": {"kind": "layers_together"}},
        **more,
    }
    with pytest.raises(LayerwiseError, match=said):
        Config.of(given)


def test_single_layers_alone_are_silent_in_keys() -> None:
    plain = parse(ScoringSettings, {}, "scoring")
    assert "layers" not in plain.keyed()
    assert parse(ScoringSettings, {"layers": ["one"]}, "scoring").keyed() == plain.keyed()
    assert parse(ScoringSettings, {"layers": ["one", "mean 2"]}, "scoring").keyed()["layers"]
