"""presets/published.yaml: the numbers of its figures against the shipped tables."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT

from layerwise.association.table import associate
from layerwise.config import Config, read_config
from layerwise.figures.render import Drawn, draw
from layerwise.figures.select import Data
from layerwise.io.tables import read_table
from papers.published import published_metrics, published_scores

Frame = pd.DataFrame
SHIPPED = ROOT / "lib/layerwise/data/published"


@cache
def config() -> Config:
    return read_config(ROOT / "presets/published.yaml")


@cache
def published(name: str, table: str) -> Frame:
    convert = {"metrics": published_metrics, "scores": published_scores}[table]
    return convert(read_table(Path(getattr(config().published[name], table))))


def table_of(name: str, **more: Frame) -> Frame:
    """The numbers that a study of the preset draws."""
    study = config().studies[name]
    read = [table for table in study.reads if table in ("metrics", "scores")]
    tables = {table: published(study.published, table) for table in read} | more
    return study.declaration.table(Data(study, tables, own_texts=config().own_texts))


def drawn(name: str) -> Drawn:
    """The figure of a study that reads scores or metrics."""
    study = config().studies[name]
    read = [table for table in study.reads if table in ("metrics", "scores")]
    tables = {table: published(study.published, table) for table in read}
    return draw(study, tables, config=config())


@cache
def raw(table: str, end: str = "") -> Frame:
    found = pd.read_parquet(SHIPPED / f"{table}{end}.parquet")
    return found.assign(model=found["family"].astype(str) + "-" + found["size"].astype(str))


def metric(model: str, name: str, corpus: str, layer: int, revision: str = "main") -> float:
    """A number as it is in the shipped file."""
    t = raw("metrics")
    found = t[
        (t["model"] == model)
        & (t["metric"] == name)
        & (t["dataset"] == corpus)
        & (t["layer"] == layer)
        & (t["revision"] == revision)
    ]
    return float(found["value"].item())


def mean_score(model: str, layer: int, revision: str = "main", pooling: str = "mean") -> float:
    t = raw("scores")
    t = t[(t["model"] == model) & (t["revision"] == revision) & (t["pooling"] == pooling)]
    by_task = t.groupby(["task", "layer"], observed=True)["main_score"].mean().unstack()
    return float(by_task[layer].mean())


def value(table: Frame, layer: int, **where: str) -> float:
    for column, wanted in where.items():
        table = table[table[column] == wanted]
    return float(table.loc[table["layer"] == layer, "value"].item())


# Study, model, metric, corpus, layer, revision
METRICS = """
figure_2_architectures mamba-370m entropy_prompt wikitext 47 main
figure_2_architectures bert-base lidar wikitext 3 main
figure_10_all_metrics Pythia-410m dime wikitext 12 main
figure_12_sizes Pythia-1b curvature wikitext 9 main
figure_13_finetuning LLM2Vec-mntp-supervised-8B infonce wikitext 20 main
figure_14_vision aim-huge entropy_prompt imagenet 6 main
figure_4_training Pythia-410m entropy_prompt wikitext 12 step1
figure_4_training Pythia-410m entropy_prompt wikitext 12 step128000
figure_11_all_metrics_training Pythia-410m entropy_prompt wikitext 12 step4000
figure_6a_repetition Pythia-410m entropy_prompt repeated_tokens_0.7875 12 main
figure_6b_randomness Pythia-410m entropy_prompt random_tokens_0.89 12 main
figure_6c_length Pythia-410m entropy_prompt random_prompts_512 12 main
"""


@pytest.mark.parametrize("row", METRICS.strip().splitlines())
def test_metrics(row: str) -> None:
    study, model, name, corpus, layer, revision = row.split()
    corpus = corpus.replace("_", " ")
    table = table_of(study)
    rows = {"model": model, "revision": revision, "corpus": corpus}
    # Of one metric, a figure has no other y.
    rows |= {"y": name.replace("entropy_prompt", "prompt_entropy")} if "y" in table else {}
    wanted = metric(model, name, corpus, int(layer), revision)
    assert value(table, int(layer), **rows) == pytest.approx(wanted)


def test_chance_of_infonce_is_that_of_its_variant() -> None:
    """On N = 472 prompts log N one-way and log(2N - 1) two-way; BERT's are on 529."""
    for study, one_way in (("figure_12_sizes", "Pythia-1b"), ("figure_10_all_metrics", "")):
        rows = table_of(study).query("metric == 'infonce'")
        levels = rows.groupby("model")["chance"].first().to_dict()
        n_others = {"bert-base": 1057}
        wanted = {m: np.log(472 if m == one_way else n_others.get(m, 943)) for m in levels}
        assert levels == pytest.approx(wanted)
        assert set(rows["variant"]) == {"two_way", *(["one_way"] if one_way else [])}
        middle = value(rows, 12, model="Pythia-410m")
        assert levels["Pythia-410m"] - middle == pytest.approx(0.477, abs=1e-3)


def test_scores_by_depth() -> None:
    table = table_of("figure_1_score_by_depth")
    assert set(table["n_tasks"]) == {24}, "common tasks"
    assert "24 tasks" in {
        t.get_text() for t in drawn("figure_1_score_by_depth").figure.legends[0].get_texts()
    }
    of_sizes = table_of("score_by_size")
    assert value(of_sizes, 17, model="Pythia-410m") == pytest.approx(mean_score("Pythia-410m", 17))
    tasks = of_sizes.groupby("model")["n_tasks"].first().to_dict()
    assert set(tasks.values()) == {32}
    best = table[table["best"]].set_index("model")["layer"].to_dict()
    assert best == {"Pythia-410m": 17, "mamba-370m": 17, "bert-base": 1}
    vision = table_of("figure_14_vision")
    assert not vision.loc[vision["y"] != "score", "best"].any(), "the paper marks none"
    assert "ImageNet" in drawn("figure_14_vision").figure.axes[0].get_ylabel()
    assert value(vision, 12, model="vit-base", y="score") == pytest.approx(
        mean_score("vit-base", 12)
    )


def test_checkpoints_and_perturbed_prompts_of_the_figures() -> None:
    for study in ("figure_4_training", "figure_11_all_metrics_training"):
        revisions = list(dict.fromkeys(table_of(study)["revision"]))
        assert revisions[:2] == ["step1", "step1000"]
        assert "main" not in revisions, "its pooled metrics are of another run"
    for label, study in (
        ("repetition", "figure_6a_repetition"),
        ("randomness", "figure_6b_randomness"),
        ("length", "figure_6c_length"),
    ):
        table = table_of(study)
        shares = table["corpus"].str.rpartition(" ")[2].astype(float)
        assert shares.tolist() == pytest.approx(table[label].astype(float).tolist())


def test_sublayers() -> None:
    table = table_of("figure_15_sublayers")
    t = raw("metrics")
    one = (t["dataset"] == "stages") & (t["layer"] == 5) & (t["revision"] == "main")
    for sublayer in ("mlp", "block"):
        wanted = t.loc[one & (t["sublayer"] == sublayer), "value"].item()
        assert value(table, 5, sublayer=sublayer) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("study", "model"),
    [
        ("figure_3_metric_vs_score", "Pythia-410m"),
        ("figure_3_over_tasks", "Pythia-410m"),
        ("figure_9_bert", "bert-base"),
    ],
)
def test_metrics_against_scores(study: str, model: str) -> None:
    def of_model(table: str) -> Frame:
        whole = published("authors", table)
        return whole[(whole["model"] == model) & (whole["revision"] == "main")]

    metrics = of_model("metrics")
    metrics = metrics[metrics["metric"] == "lidar"]
    chosen = config().studies[study].model_copy(update={"metrics": ("lidar",)})
    settings = config().association
    found = associate(metrics, of_model("scores"), settings, over=chosen.over)
    tables = {"metrics": metrics, "scores": of_model("scores"), "associations": found}
    table = chosen.declaration.table(Data(chosen, tables, own_texts=config().own_texts))
    t = raw("metrics")
    t = t[(t["model"] == model) & (t["revision"] == "main") & (t["metric"] == "lidar")]
    own = t[t["dataset"].map(config().own_texts).isin(of_model("scores")["task"])]
    if chosen.over == "tasks":  # a point for each, of those that are correlated within a layer
        assert len(table) == 29 * 25 == len(own)
        assert "dealt to other tasks" in draw(chosen, tables, config=config()).caption
    elif model == "Pythia-410m":  # all of whose tasks have all layers
        assert set(table["n_tasks"]) == {29}
        wanted = own[own["layer"] == 4]["value"].mean()
        assert value(table, 4, metric="lidar") == pytest.approx(wanted, rel=1e-5)
    else:
        assert table["n_tasks"].max() < 29, "tasks without scores at all layers drop out"


@pytest.mark.parametrize(
    ("study", "name", "end", "gain"),
    [
        ("table_2_layer_per_task", "dime", "lowest", 3.24),
        ("table_2_layer_per_task", "dime", "highest", -2.03),
        ("table_2_llm2vec", "lidar", "highest", 0.0),
    ],
)
def test_layers_of_each_task(study: str, name: str, end: str, gain: float) -> None:
    table = table_of(study)
    row = table[(table["metric"] == name) & (table["end"] == end)].iloc[0]
    assert 100 * row["gain"] == pytest.approx(gain, abs=0.01)
    assert row["low"] <= row["gain"] <= row["high"]
    if study == "table_2_layer_per_task" and end == "lowest":
        assert row["gain"] == pytest.approx(by_hand(np.argmin), abs=1e-6)


def by_hand(select: Callable[[np.ndarray], np.intp]) -> float:
    """The gain of DiME's layers in Pythia-410m, from the shipped files."""
    scores, metrics = raw("scores"), raw("metrics")
    scores, metrics = (
        t[(t["model"] == "Pythia-410m") & (t["revision"] == "main")] for t in (scores, metrics)
    )
    gains = []
    for corpus, task in config().own_texts.items():
        curve = metrics[(metrics["dataset"] == corpus) & (metrics["metric"] == "dime")]
        score = scores[scores["task"] == task].groupby("layer")["main_score"].mean()
        gains.append(
            score[int(select(curve.sort_values("layer")["value"].to_numpy()))] - score[24]
        )
    return float(np.mean(gains))


def test_valley_without_the_normed_last_layer() -> None:
    table = table_of("valley_by_size")
    curve = table[(table["what"] == "metric") & (table["model"] == "Pythia-410m")]
    assert curve["layer"].max() == 23
    depth = table[(table["what"] == "valley") & (table["metric"] == "prompt_entropy")]
    assert depth.set_index("model")["value"]["Pythia-410m"] > 1


def test_the_best_layer_over_training() -> None:
    table = table_of("score_over_training").drop_duplicates("revision").set_index("revision")
    assert set(table.loc[:"step2000", "best_layer"]) == {0}
    assert table.loc["step4000":, "best_layer"].min() >= 17
    gain = mean_score("Pythia-410m", 17) - mean_score("Pythia-410m", 24)
    assert table.loc["main", "gain"] == pytest.approx(gain)


def test_captions_say_what_is_drawn() -> None:
    """The number of prompts, bands only where there are some, and what is left out."""
    caption = drawn("figure_2_architectures").caption
    assert "on 472 prompts of wikitext" in caption
    assert "Bands" not in caption and "Without intervals" in caption
    assert "unknown" not in drawn("figure_6a_repetition").caption
    training = drawn("figure_4_training").caption
    assert "The finished model is left out" in training
    jump = [metric("Pythia-410m", "lidar", "wikitext", 8, r) for r in ("step128000", "main")]
    assert "LiDAR at layer 8 is {:.2f} at step 128,000 and {:.2f} there".format(*jump) in training


def test_titles_name_the_figure() -> None:
    for name, study in config().studies.items():
        figure = re.match(r"(figure|table)_(\d+[abc]?)_", name)
        if figure:
            number = f"{figure[1].title()} {figure[2]}"
            assert study.title.startswith((f"{number}:", f"{number},"))
            assert len(study.title.split()) <= 8


def test_a_model_has_one_colour_in_all_figures() -> None:
    colours = []
    for name in ("figure_1_score_by_depth", "figure_2_architectures", "score_by_size"):
        legend = drawn(name).figure.legends[0]
        pairs = zip(legend.get_texts(), legend.get_lines(), strict=True)
        colours.append({text.get_text(): line.get_color() for text, line in pairs})
    one, two, three = colours
    for model in ("Pythia-410m", "mamba-370m", "bert-base"):
        assert one[model] == two[model]
    assert one["Pythia-410m"] == three["Pythia-410m"]


@pytest.mark.parametrize("study", ["figure_8_all_measures", "figure_9_bert"])
def test_measures_of_the_paper_have_a_panel_with_their_null(study: str) -> None:
    """Figures 8 and 9 print distance correlations, and Spearman's and Kendall's."""
    chosen = config().studies[study]
    model = chosen.models[0]
    tables = {}
    for table in ("metrics", "scores"):
        whole = published("authors", table)
        tables[table] = whole[(whole["model"] == model) & (whole["revision"] == "main")]
    metrics = tables["metrics"]
    metrics = metrics[metrics["metric"].isin(["dime", "lidar"])]
    found = associate(metrics, tables["scores"], config().association)
    chosen = chosen.model_copy(update={"metrics": ("dime", "lidar")})
    figure = draw(chosen, {"associations": found}, config=config())
    titles = [ax.get_title(loc="left") for ax in figure.figure.axes]
    assert titles[:3] == ["dCor", "Spearman\u2019s ρ", "Kendall\u2019s τ"]
    for panel in figure.figure.axes[:3]:
        assert any(line.get_marker() == "|" for line in panel.lines)
    rows = figure.table[figure.table["metric"] == "dime"].set_index("measure")
    assert rows.loc[["dcor", "spearman", "kendall"], "null95"].notna().all()
    if study == "figure_8_all_measures":
        assert rows.loc["dcor", "value"] == pytest.approx(0.893, abs=0.001)
        assert rows.loc["kendall", "value"] == pytest.approx(-0.43, abs=0.005)
