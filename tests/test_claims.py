"""What docs/published-claims.md says is what its table says, and the table is the code's."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from association_tables import tidy_metrics, tidy_scores

from layerwise.association.best import best_layers, layers_named
from layerwise.association.claims import claims, leads
from layerwise.association.claims_page import fill, page_parts
from layerwise.association.curves import score_curves
from layerwise.association.published import (
    TASK_OF_DATASET,
    published_metrics,
    published_scores,
    read_table,
)
from layerwise.association.sources import with_text_sources
from layerwise.errors import LayerwiseError
from layerwise.figures.labels import in_sentence

ROOT = Path(__file__).parents[1]
MODELS = ["Pythia-14m", "Pythia-70m", "Pythia-160m"]
METRICS = ["prompt_entropy", "dataset_entropy", "dime", "infonce", "lidar"]


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "published-claims.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return pd.read_csv(ROOT / "docs" / "published-claims.csv")


def test_the_page_is_filled_from_the_table(page: str, table: pd.DataFrame) -> None:
    labels = {str(m): in_sentence(str(m)) for m in table["what"].dropna().unique()}
    assert fill(page, page_parts(table, labels)) == page, "run scripts/check_claims.py"
    with pytest.raises(LayerwiseError, match="no part <!-- gains -->"):
        fill("# A page", {"gains": "x"})


def test_the_sentences_are_those_of_the_table(page: str, table: pd.DataFrame) -> None:
    def of(part: str, **where: str) -> pd.DataFrame:
        found = table[table["part"] == part]
        for column, value in where.items():
            found = found[found[column] == value]
        return found

    def listed(values: list[str]) -> str:
        return f"{', '.join(values[:-1])} and {values[-1]}"

    leads = of("leads")
    told = leads[leads["low"] > 0]
    said = f"**Stands for {len(told)} of 3 models** ({', '.join(told['model'])}; by chance 0.1"
    assert said in page
    small = leads.set_index("model").loc["Pythia-70m"]
    assert small["low"] < 0
    assert f"70m: the lead of {small['value']:.1f} points cannot be told from 0" in page
    earlier = listed([f"{k:.0f}" for k in leads["k"]])
    chance = listed([f"{e:.1f}" for e in leads["expected"]])
    assert f"{earlier} of 32 tasks; layers in random order give {chance} |" in page
    first = of("middle", what="layer 0").set_index("model")
    one, two = (first.loc[m] for m in MODELS[:2])
    assert (
        f"In 14m layer 0 leads the middle by {-one['value']:.1f} points ({-one['high']:.1f} to "
        f"{-one['low']:.1f}), and in 70m by {-two['value']:.1f} ({-two['high']:.1f} to "
        f"{-two['low']:.1f})"
    ) in page
    assert first.loc["Pythia-160m", "low"] < 0 < first.loc["Pythia-160m", "high"]
    last = of("middle", what="last layer").set_index("model")
    wide = last.loc["Pythia-160m"]
    assert f"(+{wide['value']:.1f} points, {wide['low']:.1f} to {wide['high']:.1f})" in page
    assert (last.loc[MODELS[:2], "value"].round(1) == 0.1).all()
    sizes = of("associations")
    beyond = sizes[sizes["dcor"] > sizes["dcor_chance"]]
    assert f"Of {len(sizes)} values {len(beyond)} exceed" in page
    assert beyond["model"].nunique() == 1
    up = [int((sizes.loc[sizes["model"] == m, "spearman"] > 0).sum()) for m in MODELS]
    assert f"{listed(list(map(str, up)))} of the five metrics have a positive Spearman" in page
    own = of("own texts")
    told = own[own["p_within"] <= 0.05]
    assert list(zip(told["model"], told["what"], strict=True)) == [
        ("Pythia-14m", "prompt_entropy"), ("Pythia-70m", "lidar")
    ]  # fmt: skip
    for p, metric in zip(told["p_within"], ("prompt entropy", "LiDAR"), strict=True):
        assert re.search(rf"{metric}[^|]*\(.*?p {f'{p:.3f}'[1:]}\)", page)
    dime = of("rules", what="lowest dime")
    assert (
        f"Lowest DiME leads the last layer by {listed([f'{v:.1f}' for v in dime['value']])}"
        in page
    )
    assert ((dime["low"] <= 0) & (dime["high"] >= 0)).all()
    (best,) = of("best rule")["what"]
    assert best == "highest infonce"
    zeros = int((of("rules", what=best)["layer"] == 0).sum())
    assert f"which picks layer 0 in {zeros} of 3 models" in page
    types = of("types")
    apart = int(((types["low"] > 0) | (types["high"] < 0)).sum())
    assert f"told apart are {apart} of {len(types)}" in " ".join(page.split())


@pytest.mark.slow
def test_the_table_is_what_the_published_tables_give(shared: Path, table: pd.DataFrame) -> None:
    files = (shared / "published" / f"{n}.csv.gz" for n in ("mteb_scores", "metrics"))
    scores, metrics = map(read_table, files)
    found = claims(
        with_text_sources(published_scores(scores), {}), published_metrics(metrics),
        TASK_OF_DATASET, MODELS, METRICS,
    )  # fmt: skip
    pd.testing.assert_frame_equal(
        found.reset_index(drop=True), table, check_dtype=False, rtol=1e-6, atol=1e-9
    )


def test_claims_on_curves_of_which_the_truth_is_known() -> None:
    rng = np.random.default_rng(1)
    hump = np.array([0, 0, 0, 0.1, 0, 0, 0])
    values = {m: rng.normal(0.5, 0.1, (8, 1)) + rng.normal(0, 0.005, (8, 7)) for m in "ab"}
    values["a"] += hump
    scores = pd.concat(tidy_scores(v, model=m) for m, v in values.items())
    metrics = pd.concat(
        tidy_metrics({"prompt_entropy": 1 - hump + rng.normal(0, 0.01, 7)}, model=m) for m in "ab"
    )
    found = claims(with_text_sources(scores, {}), metrics, models=["b", "a"])
    leads = found[found["part"] == "leads"].set_index("model")
    assert list(leads.index) == ["b", "a"]
    assert leads.loc["a", "layer"] == 3
    assert leads.loc["a", "low"] > 5  # points
    assert leads.loc["b", "low"] <= 0
    (apart,) = found[found["part"] == "leads told apart"]["k"]
    assert apart == 1
    picks = found[(found["part"] == "rules") & (found["what"] == "lowest prompt_entropy")]
    assert picks["layer"].tolist() == [3, 3]
    assert "own texts" not in set(found["part"])
    short = scores[~((scores["model"] == "b") & (scores["layer"] == 6))]
    assert set(claims(with_text_sources(short, {}), metrics)["model"].dropna()) == {"a"}
    with pytest.raises(LayerwiseError, match="one checkpoint and reading"):
        claims(pd.concat([scores, scores.assign(tokens="drop_first")]), metrics)
    with pytest.raises(LayerwiseError, match=r"one corpus, or on each task's own texts.*corpora"):
        claims(scores, pd.concat([metrics, metrics.assign(corpus="other")]))
    twice = pd.concat([metrics, metrics.assign(protocol="reference")])
    with pytest.raises(LayerwiseError, match=r"prompt_entropy of . is there in several protocols"):
        claims(scores, twice)
    with pytest.raises(LayerwiseError, match="No metric has a value at every layer"):
        claims(scores, metrics[(metrics["model"] == "a") | (metrics["layer"] > 0)])


@pytest.mark.parametrize("seed", range(4))
def test_layers_as_good_as_the_last_are_those_of_the_first_page(seed: int) -> None:
    scores = tidy_scores(0.5 + np.random.default_rng(seed).normal(0, 0.009, (8, 12)))
    mine, page = (
        leads(score_curves(scores))[0]["as_good"],
        best_layers(scores)["as_good_as_output"],
    )
    assert layers_named(mine) == layers_named(page.iloc[0])


def test_a_page_of_one_short_model_has_dashes(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(0.5, 0.1, (8, 4))
    scores = with_text_sources(tidy_scores(values, model="a"), {})
    metrics = tidy_metrics({"prompt_entropy": np.array([1.0, 3.0, 2.0, 4.0])}, model="a")
    found = claims(scores, metrics)
    found.to_csv(tmp_path / "c.csv", index=False)
    for read in (found, pd.read_csv(tmp_path / "c.csv")):
        parts = page_parts(read, {})
        assert "| – | " in parts["associations"] and "nan" not in "".join(parts.values())
        assert "Best over all models" not in parts["rules"]
