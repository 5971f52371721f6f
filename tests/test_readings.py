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
from layerwise.config.association import AssociationSettings
from layerwise.config.base import parse
from layerwise.config.studies import Study
from layerwise.errors import LayerwiseError
from layerwise.figures import style
from layerwise.figures.first_page import first_page
from layerwise.figures.labels import reading, reading_label
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
    page = first_page(best_layers(scores(), resamples=50), Order(["m"]))
    for name, layer in (("all tokens", 1), ("last token", 3), ("all tokens, final norm", 5)):
        assert page.count(f"  - {name}\n     - {layer} of 6") == 1, name
    assert page.count("  - last token\n") == 1, "the last token is one, whatever is dropped"


def test_associations_of_each_reading() -> None:
    metrics = tidy_metrics({"curvature": np.sin(DEPTH), "lidar": DEPTH**2})
    found = associate(metrics, scores(), AssociationSettings(permutations=20, resamples=0))
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
    page = first_page(best_layers(rising, resamples=50), Order(["m"]))
    assert "its own output" in page
    assert "0.0 (0.0 to 0.0)" not in page
    noisy = tidy_scores(np.array([[0.5, 0.2, 0.3], [0.3, 0.6, 0.4]]))
    assert "(−" in first_page(best_layers(noisy, resamples=50), Order(["m"])), (
        "a minus, not a hyphen"
    )
