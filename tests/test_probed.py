"""The figure of probes by depth."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from test_figures import check_layout

from layerwise import probes
from layerwise.association.order import Order
from layerwise.config import Config
from layerwise.config.studies import Study
from layerwise.errors import LayerwiseError
from layerwise.figures.studies import Tables, draw
from layerwise.workflow import targets


def rows(task: str, model: str, gains: list[float], **more: Any) -> list[dict[str, Any]]:
    return [
        {"model": model, "revision": "main", "task": task, "task_type": "Classification",
         "layer": layer, "depth": layer / (len(gains) - 1), "tokens": "all", "pooling": "mean",
         "readout": readout, "layers": "one", "linear": 0.5 + gain, "low": 0.45 + gain,
         "high": 0.55 + gain, "neighbours": 0.5, "neighbours_low": 0.4, "neighbours_high": 0.6,
         "control": 0.5, "selectivity": gain, "chance": 0.5, "penalty": 1.0, "n_train": 320,
         "n_test": 400, **more}
        for readout in ("residual", "output") for layer, gain in enumerate(gains)
    ]  # fmt: skip


def drawn(table: list[dict[str, Any]], **study: Any) -> Any:
    tables = Tables(probes=pd.DataFrame(table))
    return draw(Study(kind="probes_by_depth", **study), tables, Order(["m", "n"]))


def test_what_is_said_is_what_is_beyond_noise() -> None:
    gains = [0.0, 0.03, 0.2, 0.3]
    found = drawn(
        [*rows("reviews", "m", gains), *rows("pos", "n", [-0.2] * 4, task_type="Tagging")]
    )
    check_layout(found.figure)
    assert found.title.startswith("Probes do better than their controls at 2 of 8 layers of all")
    one, other = found.facts["curves"]
    assert (one["above"], one["best_layer"], other["above"]) == (2, 3, 0)
    # Below the last layer the output is the stream, and is drawn once.
    mine = found.table.query("model == 'm'")
    assert len(mine) == 5 and (mine["readout"] == "output").sum() == 1
    assert "random tag" in found.caption and "best of many" in found.caption
    json.dumps(found.facts)
    assert drawn(rows("reviews", "m", [0.01, -0.02])).title.startswith("At no layer")


def test_a_title_over_many_tasks_is_corrected_over_them() -> None:
    """Of twenty tasks one has a layer that passes its own correction, as by chance."""
    tasks = [rows(f"t{i}", "m", [0.09 * (i == 0), 0.0]) for i in range(20)]
    found = drawn([row for task in tasks for row in task])
    assert found.title.startswith("At no layer")
    assert found.facts["curves"][0]["above"] == 1


def test_labels_without_meaning_are_told_as_such() -> None:
    """Of 60 data sets of labels drawn by a coin, few have a layer above its control."""
    rng = np.random.default_rng(0)
    said = 0
    for _ in range(60):
        labels = rng.permutation(np.arange(100) % 2)
        features = (rng.normal(size=(100, 4)) for _ in range(3))
        table = [
            {**row, "linear": p.linear, "low": p.low, "high": p.high, "control": p.control,
             "selectivity": p.selectivity}
            for row, p in zip(
                rows("t", "m", [0.0] * 3)[:3], probes.probe_layers(features, labels), strict=True
            )
        ]  # fmt: skip
        said += not drawn(table).title.startswith("At no layer")
    assert said <= 6


CONFIG: dict[str, Any] = {
    "models": {"m": {"source": {"hub": "o/m"}}},
    "tasks": ["reviews", "likeness", "LeeNewsSimilarity"],
    "own_tasks": {
        "reviews": {"file": "d.csv", "kind": "classification"},
        "likeness": {"file": "p.csv", "kind": "pairs"},
    },
}


def test_a_study_reads_the_probes_of_own_tasks() -> None:
    config = Config.of({**CONFIG, "studies": {"mine": {"kind": "probes_by_depth"}}})
    jobs = targets.made_from(config, "mine", "probes")
    assert jobs == [targets.Job("score_labels", ("m", "main", "reviews"))]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tasks": ["likeness"]}, "pairs have none; name one of another kind"),
        ({"tasks": ["LeeNewsSimilarity"]}, "it has no such task"),
        ({"revisions": ["main", "x"]}, "main|revisions"),
    ],
)
def test_studies_without_probes_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(LayerwiseError, match=said):
        Config.of({**CONFIG, "studies": {"mine": {"kind": "probes_by_depth", **changed}}})


def test_tables_without_what_is_asked_for() -> None:
    with pytest.raises(LayerwiseError, match="asks for the task 'other', which its tables"):
        drawn(rows("reviews", "m", [0.1, 0.2]), tasks=("other",))
    empty = Tables(probes=pd.DataFrame(rows("t", "m", [0.1, 0.2])).iloc[:0])
    with pytest.raises(LayerwiseError, match="There is no probe to draw"):
        draw(Study(kind="probes_by_depth"), empty, Order(["m"]))


def test_readouts_are_curves_of_their_own() -> None:
    gains = [0.0, 0.03, 0.2, 0.3]
    both = rows("reviews", "m", gains)
    normed = [{**row, "readout": "final_norm", "linear": 0.4}
              for row in both if row["readout"] == "residual"]  # fmt: skip
    found = drawn([*both, *normed])
    curves = {c["reading"]: c for c in found.facts["curves"]}
    assert {r: c["n_layers"] for r, c in curves.items()} == {"all": 4, "all, final_norm": 4}
    assert curves["all, final_norm"]["linear"] == 0.4
    assert "final norm" in found.caption
    # Without the residual stream another readout takes its place.
    found = drawn([*normed, *(row for row in both if row["readout"] == "output")])
    assert [c["n_layers"] for c in found.facts["curves"]] == [4]
    assert len(found.table) == 5
