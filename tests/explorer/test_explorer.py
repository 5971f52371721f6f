"""The explorer: what its page holds, and what a browser draws of it."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.association_tables import tidy_metrics, tidy_scores
from helpers.browser import NEEDS_CHROMIUM, asked
from scipy.stats import spearmanr

from explorer.gather import gather
from explorer.page import pack, render
from layerwise.association.scores import mean_scores
from layerwise.names import Order

LAYERS = 7
STEPS = ("step0", "step10", "step200")
rng = np.random.default_rng(0)


def metrics_of(model: str, revision: str, tokens: str = "all") -> pd.DataFrame:
    entropy, curvature = rng.normal(size=(2, LAYERS))
    curves = {"prompt_entropy": entropy, "curvature": curvature}
    return tidy_metrics(curves, model=model, revision=revision, tokens=tokens)


def scores_of(model: str, revision: str, tokens: str = "all") -> pd.DataFrame:
    values, types = rng.uniform(0.2, 0.9, size=(3, LAYERS)), ("STS", "Classification")
    return tidy_scores(values, model=model, revision=revision, tokens=tokens, types=types)


def page_of(folder: Path, sources: dict[str, Any], order: Order) -> Path:
    page = folder / "p.html"
    page.write_text(render(gather(sources, order, page), "A run"), encoding="utf-8")
    return page


class Made:
    """A page of made-up tables, and those tables."""

    def __init__(self, folder: Path) -> None:
        points = [("swept", step) for step in STEPS] + [("alone", "main")]
        readings = ("all", "drop_first")
        self.metrics = {
            (m, r): pd.concat([metrics_of(m, r, t) for t in readings]) for m, r in points
        }
        self.scores = {
            (m, r): pd.concat([scores_of(m, r, t) for t in readings])
            for m, r in (points[2], points[3])
        }
        row = self.of_metric("alone", "main")[:1]
        row = row.assign(pooling="mean", task_type="all", n_tasks=3, layer=4.0)
        choices = row.assign(unreliable="too few prompts", regret=0.1)
        choices = choices.assign(regret_low=0.0, regret_high=0.25)
        associations = row.assign(measure="dcor", value=0.625, null95=0.875)
        associations = associations.assign(low=np.nan, high=np.nan, reason="one model")
        read = {
            "metrics": [
                (t, folder / "metrics" / m / r / "w.parquet") for (m, r), t in self.metrics.items()
            ],
            "scores": [
                (t[t["task"] == task], folder / "scores" / m / r / f"{task}.parquet")
                for (m, r), t in self.scores.items()
                for task in ("task0", "task1", "task2")
            ],
            # Beside each, what a study of two of the three tasks found, read first.
            "associations": [
                (associations.assign(n_tasks=2, value=0.1), folder / "associations" / "few"),
                (associations, folder / "associations" / "x%2Fy.parquet"),
            ],
            "selections": [
                (choices.assign(n_tasks=2, layer=1.0), folder / "choices" / "few.parquet"),
                (choices, folder / "choices" / "c.parquet"),
            ],
        }
        self.page = folder / "explore.html"
        self.explored = gather({"": read}, Order(("alone", "swept"), {"swept": STEPS}), self.page)
        self.page.write_text(render(self.explored, "A run"), encoding="utf-8")

    def of_metric(self, model: str, revision: str, tokens: str = "all") -> pd.DataFrame:
        table = self.metrics[model, revision]
        return table[(table["metric"] == "curvature") & (table["tokens"] == tokens)]

    def of_scores(self, model: str, revision: str, tokens: str = "all") -> np.ndarray:
        """Shape (tasks, layers)."""
        table = self.scores[model, revision]
        table = table[table["tokens"] == tokens]
        return table.pivot(index="task", columns="layer", values="main_score").to_numpy()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("explore"))


def unpacked(column: dict[str, Any]) -> list[Any]:
    array = np.frombuffer(base64.b64decode(column["data"]), dtype=f"<{column['type']}")
    if "values" not in column:
        return [None if np.isnan(v) else float(v) for v in array]
    return [column["values"][int(i)] for i in array]


def test_packed_tables_come_back() -> None:
    table = pd.DataFrame(
        {
            "text": ["a", None, "<b>"],
            "whole": [3, 3, 1],
            "few": [1.0, np.nan, 2.0],
            "real": [0.1, np.nan, np.inf],
            "many": np.arange(3) + 10**6,
        }
    )
    packed = pack(table)
    assert packed["rows"] == 3
    columns = {name: unpacked(column) for name, column in packed["columns"].items()}
    assert columns["text"] == ["a", "", "<b>"]
    assert columns["whole"] == [3, 3, 1]
    assert columns["few"] == [1, None, 2]
    assert columns["real"] == [pytest.approx(0.1, rel=1e-7), None, np.inf]
    assert columns["many"] == [10**6, 10**6 + 1, 10**6 + 2]
    long = pack(pd.DataFrame({"text": [str(i) for i in range(300)]}))["columns"]["text"]
    assert long["type"] == "u2"
    assert unpacked(long) == [str(i) for i in range(300)]


def test_timeline_follows_steps(made: Made) -> None:
    assert made.explored.timeline == list(STEPS)
    at = {m["name"]: m["at"] for m in made.explored.models}
    assert at == {"alone": [0, 0, 0], "swept": [0, 1, 2]}
    assert [m["name"] for m in made.explored.models] == ["alone", "swept"]
    # Two sweeps of other steps share a timeline; a model has nothing before its first.
    tables = [
        (metrics_of(m, r), Path(f"{m}{r}"))
        for m, r in (("a", "step1"), ("a", "step4"), ("b", "step2"), ("b", "step8"))
    ]
    explored = gather({"": {"metrics": tables}}, Order(), Path("p.html"))
    assert explored.timeline == ["step1", "step2", "step4", "step8"]
    assert {m["name"]: m["at"] for m in explored.models} == {"a": [0, 0, 1, 1], "b": [-1, 0, 0, 1]}
    explored = gather({"": {"metrics": tables}}, Order(("b", "a")), Path("p.html"))
    assert [m["name"] for m in explored.models] == ["b", "a"], "as the config has them"
    # Without steps, checkpoints count from 0.
    named = [(metrics_of("c", r), Path(f"c{r}")) for r in ("early", "late")]
    explored = gather({"": {"metrics": [*tables[:2], *named]}}, Order(), Path("p.html"))
    assert {m["name"]: m["at"] for m in explored.models} == {"a": [-1, 0, 1], "c": [0, 1, 1]}


def test_published_models_keep_apart_from_own(tmp_path: Path) -> None:
    own, theirs = metrics_of("m", "main"), metrics_of("m", "main")
    sources = {
        "": {"metrics": [(own, tmp_path / "o")]},
        "them": {"metrics": [(theirs, tmp_path / "t")]},
    }
    names = [m["name"] for m in gather(sources, Order(("m",)), tmp_path / "p.html").models]
    assert names == ["m", "m (them)"]


def test_no_name_can_end_the_data(tmp_path: Path) -> None:
    hostile = "</script><script>boom()</script>"
    source = {"": {"metrics": [(metrics_of(hostile, "main"), tmp_path / "m.parquet")]}}
    page = render(gather(source, Order(), tmp_path / "p.html"), hostile)
    assert "boom()</script>" not in page
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data
    assert json.loads(data[1])["models"][0]["name"] == hostile
    assert not re.search(r"""(src|href)=["'](https?:)?//""", page)


# A browser


@NEEDS_CHROMIUM
def test_values_in_the_browser_equal_the_tables(made: Made, tmp_path: Path) -> None:
    lines = asked(
        made.page,
        tmp_path,
        """state.tokens = ["all", "drop_first"]; state.metric = "curvature"; draw();
        const values = (l) => [l.model.name, l.revision, l.tokens, l.file, l.points];
        return { score: drawnLines("score").full.map(values), metric: drawnLines("metric").full.map(values),
                 rho: pairsOf(drawnLines("score").full, drawnLines("metric").full).map((p) => p.rho) };""",
    )
    assert len(lines["metric"]) == 4
    for model, revision, tokens, file, points in lines["metric"]:
        table = made.of_metric(model, revision, tokens)
        assert [p["layer"] for p in points] == list(table["layer"])
        np.testing.assert_allclose([p["value"] for p in points], table["value"], rtol=1e-6)
        np.testing.assert_allclose(
            [p["high"] - p["value"] for p in points], 1.959964 * table["stderr"], rtol=1e-5
        )
        assert {p["n"] for p in points} == {100}
        assert file == f"metrics/{model}/{revision}/w.parquet"
    assert len(lines["score"]) == 4
    for model, revision, tokens, file, points in lines["score"]:
        values = made.of_scores(model, revision, tokens)
        np.testing.assert_allclose([p["value"] for p in points], 100 * values.mean(0), rtol=1e-6)
        assert not any("lead" in p for p in points), "three task clusters"
        assert {p["n"] for p in points} == {3}
        assert file == f"scores/{model}/{revision}/"
    for rho, score, metric in zip(lines["rho"], lines["score"], lines["metric"], strict=True):
        found = spearmanr([p["value"] for p in score[4]], [p["value"] for p in metric[4]])
        assert rho == pytest.approx(found.statistic, abs=1e-9)


@NEEDS_CHROMIUM
def test_a_metric_may_be_called_as_javascript_calls_its_own(tmp_path: Path) -> None:
    table = metrics_of("m", "main").assign(metric="constructor")
    page = page_of(tmp_path, {"them": {"metrics": [(table, tmp_path / "m.parquet")]}}, Order())
    assert asked(page, tmp_path, 'return drawnLines("metric").full.length;') == 1


@NEEDS_CHROMIUM
def test_what_studies_of_other_tasks_found_is_not_shown(made: Made, tmp_path: Path) -> None:
    seen = asked(
        made.page,
        tmp_path,
        """state.metric = "curvature"; draw();
        const counts = (table) => pairsOf(drawnLines("score").full, drawnLines("metric").full)
          .flatMap((line) => storedRows(table, line)).map((i) => table.n_tasks(i));
        const found = { associations: counts(associations), choices: counts(choices),
                        sure: document.querySelector("#sure").textContent,
                        many: document.getElementById("score").textContent };
        state.scored = "task\\ntask1"; draw();
        return { ...found, one: document.getElementById("score").textContent };""",
    )
    assert (seen["associations"], seen["choices"]) == ([3], [3])
    assert "/few" not in seen["sure"]
    # Three tasks, and evaluators without an interval.
    assert "No intervals: they take 5 task clusters" in seen["many"]
    assert "No intervals" not in seen["one"]


@NEEDS_CHROMIUM
def test_intervals_are_those_of_the_difference_to_the_output(tmp_path: Path) -> None:
    """As in the figures: a chart of its own, and none where there are too few clusters."""
    found = []
    for n_tasks in (4, 6):
        scores = tidy_scores(rng.uniform(0.2, 0.9, size=(n_tasks, LAYERS)), model="m")
        scores = scores.assign(text_source=scores["task"], score_low=0.1, score_high=0.95)
        page = page_of(tmp_path, {"": {"scores": [(scores, tmp_path / "s")]}}, Order(["m"]))
        found.append(asked(page, tmp_path, LEADS))
    few, many = found
    assert few == {"hidden": True, "leads": [], "bands": [0, 0], "tip": few["tip"]}
    assert few["tip"][-2:] == ["no interval", "n = 4 tasks"]
    table = mean_scores(scores)
    assert [lead[0] for lead in many["leads"]] == pytest.approx(
        100 * (table["value"] - table["output_score"]), abs=1e-4
    )
    for place, end in ((1, "low"), (2, "high")):
        expected = 100 * (table[end] - table["output_score"])
        assert [lead[place] for lead in many["leads"]] == pytest.approx(expected, abs=1e-4)
    assert (many["hidden"], many["bands"]) == (False, [0, 1])
    assert many["tip"][-2].startswith("Difference to the output: ")


LEADS = """const bands = (id) => document.querySelectorAll(`#${id} path.band`).length, line = drawnLines("score").full[0];
return { hidden: document.getElementById("lead").hidden, bands: [bands("score"), bands("lead")],
         leads: leadsOf([line]).flatMap((l) => l.points.map((p) => [p.value, p.low, p.high])),
         tip: describe({ line, point: line.points[1] }, scoreName()) };"""


@NEEDS_CHROMIUM
def test_a_model_of_the_weights_of_another_is_not_counted(tmp_path: Path) -> None:
    tables = [(metrics_of(m, "main"), tmp_path / m) for m in ("a", "b", "c")]
    page = page_of(tmp_path, {"": {"metrics": tables}}, Order(("a", "b", "c"), copies={"c": "a"}))
    about = asked(page, tmp_path, 'return document.getElementById("about").textContent;')
    assert about.startswith("2 models, 3 checkpoints, ")
    assert "c has the weights of a and is not counted." in about


@NEEDS_CHROMIUM
def test_the_first_token_selects_no_layer(tmp_path: Path) -> None:
    """As in the figures: the layer must be the same without the first token."""
    falls = np.array([3.0, 2.0, 1.0, 2.5, 2.0, 2.5, 3.0])
    found = []
    for bare in (falls - 0.5, np.arange(7.0)):
        table = pd.concat(
            [
                tidy_metrics({"curvature": falls}, model="m"),
                tidy_metrics({"curvature": bare}, model="m", tokens="drop_first"),
            ]
        )
        source = {"metrics": [(table, tmp_path / "w.parquet")]}
        page = page_of(tmp_path, {"": source}, Order(["m"]))
        found.append(asked(page, tmp_path, SELECTED))
    assert found[0] == [2, "layer 2"]
    assert found[1] == [None, "none: the first token decides it (layer 2)"]


SELECTED = """const { layer, why } = selectedBy(drawnLines("metric").full[0], undefined);
return [layer, why];"""


@NEEDS_CHROMIUM
def test_a_view_can_be_saved_and_sent(made: Made, tmp_path: Path) -> None:
    seen = asked(
        made.page,
        tmp_path,
        """state.stop = 1; state.tokens = ["drop_first"]; draw();
        const sent = location.hash;
        state.stop = 0; state.tokens = ["all"]; draw();
        history.replaceState(null, "", sent); recall(); draw();
        const saved = [];
        download = (blob, name) => saved.push([blob.type, name]);
        save("metric", "svg"); save("metric", "png");
        for (let i = 0; i < 45 && saved.length < 2; i++) await new Promise((done) => setTimeout(done, 100));
        return { stop: state.stop, tokens: state.tokens, checkpoint: data.timeline[1], sent: decodeURIComponent(sent),
                 saved, text: picture("metric").text, axis: document.querySelector("#metric svg").textContent };""",
        "--virtual-time-budget=5000",
    )
    assert (seen["stop"], seen["tokens"]) == (1, ["drop_first"])
    assert seen["checkpoint"] in seen["sent"]
    assert seen["saved"] == [["image/svg+xml", "metric.svg"], ["image/png", "metric.png"]]
    assert "stroke: rgb(" in seen["text"]
    # Title, axis label, legend and source are in the picture itself.
    for name in ("title", "y", "legend", "note"):
        assert f'class="{name}"' in seen["text"]
    assert "swept, step10" in seen["text"] and "Source: " in seen["text"]
    assert "Depth (% of layers)" in seen["axis"]


@NEEDS_CHROMIUM
def test_controls_change_what_is_drawn(made: Made, tmp_path: Path) -> None:
    seen = asked(
        made.page,
        tmp_path,
        """const paths = (id) => [...document.querySelectorAll(`#${id} path.line`)]
          .map((p) => [p.dataset.model, p.dataset.revision, p.dataset.tokens, p.getAttribute("d")]);
        const steps = { first: paths("metric") };
        const slider = document.getElementById("stop");
        slider.value = 1; slider.dispatchEvent(new Event("input"));
        steps.earlier = paths("metric"); steps.earlierScore = paths("score");
        document.getElementById("trail").click();
        steps.faint = document.querySelectorAll("#metric path.faint").length;
        document.querySelector("input[value=swept]").click();
        steps.one = paths("metric");
        document.querySelector("input[value=drop_first]").click();
        steps.both = paths("metric");
        const choose = (name, value) => { const s = document.querySelector(`select[name=${name}]`);
          s.value = value; s.dispatchEvent(new Event("change")); };
        choose("metric", "curvature");
        steps.curvature = paths("metric");
        steps.alpha = document.getElementById("choose-alpha").hidden;
        choose("scored", "task\\ntask1");
        steps.task = drawnLines("score").full[0].points.map((p) => p.value);
        steps.title = document.querySelector("#score h2").textContent;
        choose("axis", "layer");
        steps.label = document.querySelector("#metric svg").textContent;
        steps.address = JSON.parse(decodeURIComponent(location.hash.slice(1)));
        return steps;""",
    )
    assert [line[:3] for line in seen["first"]] == [
        ["alone", "main", "all"],
        ["swept", "step200", "all"],
    ]
    assert [line[:2] for line in seen["earlier"]] == [["alone", "main"], ["swept", "step10"]]
    assert seen["earlier"][1][3] != seen["first"][1][3]
    assert [line[0] for line in seen["earlierScore"]] == ["alone"]  # step10 was not scored
    assert seen["faint"] == 1
    assert [line[0] for line in seen["one"]] == ["alone"]
    assert [line[2] for line in seen["both"]] == ["all", "drop_first"]
    assert seen["curvature"][0][3] != seen["both"][0][3]
    assert seen["alpha"] is True
    np.testing.assert_allclose(seen["task"], 100 * made.of_scores("alone", "main")[1], rtol=1e-6)
    assert seen["title"] == "Score, task1"
    assert "Layer" in seen["label"]
    assert seen["address"]["scored"] == "task\ntask1"


@NEEDS_CHROMIUM
def test_keys_table_and_download(made: Made, tmp_path: Path) -> None:
    seen = asked(
        made.page,
        tmp_path,
        """state.metric = "curvature"; draw();
        const svg = document.querySelector("#metric svg");
        const press = (key) => svg.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
        const detail = document.getElementById("detail"), shown = [];
        for (const key of ["ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft"]) { press(key); shown.push(detail.textContent); }
        const link = detail.querySelector("a").getAttribute("href");
        return { shown, link, csv: csv(), rows: document.querySelectorAll("#values tbody tr").length,
                 sure: document.querySelector("#sure").textContent,
                 links: [...document.querySelectorAll("#sure a")].map((a) => a.getAttribute("href")),
                 named: [...document.querySelectorAll("input, select, button")].every((e) => e.labels?.length || e.getAttribute("aria-label") || e.textContent) };""",
    )
    first = made.of_metric("alone", "main").iloc[0]
    assert (
        f"Curvature (rad): {first['value']:.4g}".replace("-", "−").rstrip("0") in seen["shown"][0]
    )
    assert "n = 100 prompts" in seen["shown"][0]
    assert "layer 1 of 6" in seen["shown"][1]
    assert seen["shown"][2].startswith("swept, step200: layer 1 of 6")
    assert seen["shown"][3].startswith("swept, step200: layer 0 of 6")
    assert seen["link"] == "metrics/swept/step200/w.parquet"
    lines = seen["csv"].splitlines()
    header, *rows = (line.split(",") for line in lines if '"' not in line)
    assert len(rows) == seen["rows"]
    values = [
        float(row[6]) for row in rows if row[0].startswith("Curvature") and row[1] == "alone"
    ]
    expected = made.of_metric("alone", "main")["value"]
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert header[6] == "value"
    assert "unreliable: too few prompts" in seen["sure"]
    assert "0.63 (0.88)" in seen["sure"]
    assert "10.0 (0.0 to 25.0)" in seen["sure"]
    # A percent sign of a file's own name is no escape in its link.
    assert "associations/x%252Fy.parquet" in seen["links"]
    assert seen["named"]
