"""Sentences of README and FINDINGS have the numbers of the tables in docs.

tests/test_numbers.py looks for every number of every page.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from layerwise import data
from layerwise.project import ROOT
from papers import losses

DETAILS = "docs/findings_by_model.md"


def words(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def quickstart() -> pd.DataFrame:
    return pd.read_csv(ROOT / "docs" / "quickstart.csv", dtype={"layer": "Int64"})


def points(share: float) -> str:
    return f"{100 * share:.1f}".replace("-", "−")


def test_collapse_in_the_middle(quickstart: pd.DataFrame) -> None:
    scores = quickstart[quickstart["study"] == "final_norm"]
    at = scores.pivot(index="layer", columns="representation", values="value").map(points)
    assert (
        f"from {at.loc[11, 'all, residual']} at layer 11 to {at.loc[12, 'all, residual']}"
        in words(DETAILS)
    )
    assert f"layer 12 has {at.loc[12, 'all']}" in words(DETAILS)
    assert f"it has {at.loc[12, 'drop_first, residual']}" in words(DETAILS)
    rows = quickstart.query(
        "study == 'metrics_by_depth' and metric == 'prompt_entropy' and model == 'smollm2-135m'"
    )
    entropy = rows.set_index(["layer", "representation"])["value"]
    text = f"{entropy[12, 'all']:.2f} nats with all tokens and {entropy[12, 'drop_first']:.2f}"
    assert text in words(DETAILS)


def test_norm_entropy_and_sink_rate(quickstart: pd.DataFrame) -> None:
    rows = quickstart[quickstart["study"] == "sink_rate"].dropna(subset="layer")
    at = rows.pivot(index="metric", columns="layer", values="value")
    layers = [2, 3, 4, 10, 11, 12, 13, 15, 30]
    page = words(DETAILS)
    for metric, decimals in (("largest_norm", 1), ("prompt_entropy", 2), ("sink_rate", 2)):
        assert " | ".join(f"{v:.{decimals}f}" for v in at.loc[metric, layers]) in page


def leads(quickstart: pd.DataFrame) -> pd.DataFrame:
    rows = quickstart[quickstart["study"] == "best_layers"]
    return rows.set_index(["model", "revision", "representation"])


def test_leads_over_the_output(quickstart: pd.DataFrame) -> None:
    best = leads(quickstart)
    row = best.loc["smollm2-135m", "main", "all"]
    assert (
        f"layer {row['layer']} of 30 scores {points(row['score'])} and the output "
        f"{points(row['output_score'])}, a lead of {points(row['value'])} points"
    ) in words(DETAILS)
    minilm = best.loc["minilm-l6", "main", "all"]
    assert minilm["layer"] == 6
    assert f"best at its output ({points(minilm['score'])})" in words(DETAILS)


def test_lead_without_the_first_token(quickstart: pd.DataFrame) -> None:
    row = leads(quickstart).loc["smollm2-135m", "main", "drop_first"]
    assert (f"layer {row['layer']} leads by {points(row['value'])} points") in words(DETAILS)


def test_training(quickstart: pd.DataFrame) -> None:
    rows = quickstart.query(
        "study == 'metrics_over_checkpoints' and metric == 'prompt_entropy'"
        " and representation == 'all'"
    )
    last = rows[rows["layer"] == 6].set_index("revision")["value"]
    assert (
        f"from {last['step0']:.2f} nats to {last['step8']:.2f} at step 8 and recovers to "
        f"{last['step512']:.2f} at step 512"
    ) in words(DETAILS)


@pytest.mark.parametrize("page", ["README.md", DETAILS])
def test_association(page: str, quickstart: pd.DataFrame) -> None:
    rows = quickstart[quickstart["study"] == "metric_vs_score"]
    rows = rows.drop_duplicates(["model", "metric"])
    above = rows["association"].abs() > rows["null95"]
    assert f"{above.sum()} of {len(rows)} associations" in words(page)


@pytest.mark.parametrize("page", ["README.md", DETAILS])
def test_published_scores_of_pythia(page: str) -> None:
    scores = pd.read_parquet(data.published("scores"))
    main = scores[(scores["family"] == "Pythia") & (scores["revision"] == "main")]
    for size in ("410m", "160m") if page == DETAILS else ("410m",):
        found = main[main["size"] == size].groupby(["task", "layer"], observed=True)["main_score"]
        table = found.mean().unstack()
        mean, last = table.mean(), table.columns.max()
        best = mean.idxmax()
        assert f"layer {best} of {last}" in words(page)
        assert points(mean.max()) in words(page)
        assert points(mean[last]) in words(page)
        lead = table[best] - table[last]
        assert f"ahead in {(lead > 0).sum()} of {len(table)} tasks" in words(page)
        assert f"by {points(lead.median())} points in the median task" in words(DETAILS)


def test_correlations_with_the_norm(quickstart: pd.DataFrame) -> None:
    rows = quickstart[quickstart["study"] == "sink_rate"]
    wide = rows.pivot_table(index="layer", columns="metric", values="value")
    norm = np.log(wide["largest_norm"])
    entropy = norm.corr(wide["prompt_entropy"])
    sinks = norm.corr(wide["sink_rate"].shift(-1))
    assert f"entropy correlate with r = −{-entropy:.2f}" in words(DETAILS)
    assert f"sink rate with r = {sinks:.2f}" in words(DETAILS)


def test_published_selection_and_valley() -> None:
    """Numbers that docs/claims.md has too, which is made from the tables."""
    page, made = words(DETAILS), words("docs/claims.md")
    assert "24 tasks 0.58, 0.57, 1.02, 1.18, 0.86" in made
    assert "0.58 nats deep in Pythia-14m, 0.57 in 70m, 1.02 in 160m, 1.18 in 410m and 0.86" in page
    for both in ("16.5 (8.7 to 24.2)", "4.7 (−2.0 to 11.4)", "3.2 (0.0 to 6.4)"):
        assert both in made
    assert "by 16.5 points (8.7 to 24.2)" in page
    assert "by 4.7 (−2.0 to 11.4)" in page
    assert "gains 3.2 points over the output (0.0 to 6.4)" in page
    assert f"{made.count('| **')} claims" in page
    lost = losses.shipped()
    on_wikitext = lost[lost["corpus"] == "wikitext"]
    by_rule = on_wikitext[on_wikitext["model"] == "Pythia-410m"].set_index("rule")["loss"]
    assert f"loses {by_rule['prompt_entropy']:.1f} points" in page
    assert f"select the output, which loses {by_rule['lidar']:.1f}" in page
    assert f"loses {by_rule['curvature']:.1f} (" in page
    sizes = on_wikitext[on_wikitext["model"].str.startswith("Pythia")]
    mean = sizes.groupby("rule")["loss"].mean()
    assert f"curvature loses the least ({mean['curvature']:.1f} points" in page
    assert f"the most ({mean['lidar']:.1f})" in page


@pytest.fixture(scope="module")
def real() -> pd.DataFrame:
    return pd.read_csv(ROOT / "docs" / "real.csv")


def interval(row: pd.Series, decimals: int = 2, scale: float = 1) -> tuple[str, str]:
    """The value with its ends, as pages write them; a fall is given by its size."""
    value, low, high = scale * row[["value", "low", "high"]].astype(float)
    low, high = (low, high) if value > 0 else (high, low)
    return f"{abs(value):.{decimals}f}", f"{abs(low):.{decimals}f} to {abs(high):.{decimals}f}"


def test_probes_of_reactions_and_antibodies(real: pd.DataFrame) -> None:
    rows = real[(real["study"] == "fine_tuning_accuracy") & (real["task"] == "own products")]
    at = rows.set_index(["model", "layer"])
    page = words(DETAILS)
    (six, of_six), (seven, of_seven) = (interval(at.loc["rxn-bert", layer]) for layer in (6, 7))
    assert (
        f"accuracy is {six} at layer 6 (95% CI {of_six}) and {seven} at layer 7 ({of_seven}); "
        f"guessing gives {at['chance'].iloc[0]:.2f}"
    ) in page
    tuned = [at.loc[f"rxn-bert-tuned{size}", 7]["value"] for size in ("", "-10k")]
    assert f"the same step ({tuned[0]:.2f} and {tuned[1]:.2f} at layer 7)" in page
    (low, of_low), (high, of_high) = (interval(at.loc["rxn-albert", layer]) for layer in (3, 6))
    assert f"from {low} at layer 3 ({of_low}) to {high} at layer 6 ({of_high})" in page
    classes = real[(real["study"] == "fine_tuning_accuracy") & (real["task"] != "own products")]
    lowest = classes[classes["model"].str.startswith("rxn-bert")]["value"].min()
    assert f"at every layer ({lowest:.2f} or more)" in page
    genes = real[real["study"] == "antibodies_accuracy"].set_index("layer")
    best = genes["value"].idxmax()
    (top, of_top), (end, of_end), (start, of_start) = (
        interval(genes.loc[layer]) for layer in (best, 8, 0)
    )
    assert (
        f"accuracy of {top} ({of_top}) at layer {best} of 8, {end} ({of_end}) at the output and "
        f"{start} ({of_start}) at the embeddings; the most frequent family is "
        f"{genes['chance'].iloc[0]:.2f}"
    ) in page


def test_changes_by_fine_tuning(real: pd.DataFrame) -> None:
    rows = real[real["study"] == "fine_tuning"].set_index(["y", "model", "layer"]).sort_index()
    page = words(DETAILS)
    early = rows[rows.index.get_level_values("layer") <= 8]["value"]
    least = np.floor(100 * early["cka_debiased"].min()) / 100
    assert f"debiased CKA with the pre-trained layer is {least:.2f} or more" in page
    assert f"change by more than {early['prompt_entropy'].abs().max():.2f} nats" in page
    first, second = (
        {y: interval(rows.loc[y, f"rxn-bert-tuned{size}", 12]) for y in rows.index.levels[0]}
        for size in ("", "-10k")
    )
    cka, of_cka = first["cka_debiased"]
    assert second["cka_debiased"] == (cka, of_cka)
    assert f"At layer 12 it is {cka} ({of_cka}) in either" in page
    (fall, ends), (other, of_other) = first["prompt_entropy"], second["prompt_entropy"]
    turns = " and ".join(found["curvature"][0] for found in (first, second))
    assert (
        f"prompt entropy falls by {fall} nats ({ends}) and by {other} ({of_other}), and curvature "
        f"by {turns} rad"
    ) in page


def test_probes_of_images(real: pd.DataFrame) -> None:
    rows = real[real["study"] == "images_accuracy"].set_index(["representation", "layer"])
    page, patches, classes = words(DETAILS), rows.loc["patches"], rows.loc["class"]
    best, top = patches["value"].idxmax(), classes["value"].idxmax()
    (high, of_high), (end, of_end) = interval(patches.loc[best]), interval(patches.loc[12])
    assert f"accuracy of {high} ({of_high}) at layer {best} of 12 and of {end} ({of_end})" in page
    (high, of_high), guess = interval(classes.loc[top]), f"{classes.loc[0, 'chance']:.2f}"
    assert f"{classes.loc[0, 'value']:.2f}" == guess
    assert f"({guess}, as by guessing), reaches {high} ({of_high}) at layer {top}" in page


@pytest.fixture(scope="module")
def ablation() -> pd.DataFrame:
    table = pd.read_csv(ROOT / "docs" / "ablation.csv")
    return table.set_index(["study", "y", "model", "representation", "layer"]).sort_index()


def test_causes_of_valley_and_sink(ablation: pd.DataFrame) -> None:
    page = words(DETAILS)
    value = ablation["value"]
    norms, sinks = value["sink", "largest_norm"], value["sink", "sink_rate"]
    before, after = (norms[model, "all", 12] for model in ("whole", "without-12"))
    assert f"at layer 12 is {after:.1f} times the median in place of {before:.0f}" in page
    rows = ablation.loc["sink_differences", "prompt_entropy"]
    gain, ends = interval(rows.loc["without-12", "all", 12])
    assert f"entropy is {gain} nats higher there ({ends}, paired over" in page
    low, high = (rows.loc["without-12", "all"].loc[13:28, "value"].agg(f) for f in ("min", "max"))
    assert f"{low:.2f} to {high:.2f} nats higher at layers 13 to 28" in page
    assert (
        f"falls from {sinks['whole', 'all'].loc[14:30].min():.2f} or more to "
        f"{sinks['without-12', 'all'].loc[14:30].max():.2f} or less"
    ) in page
    assert rows.loc["without-20", "value"].abs().max() < 0.001
    assert "block 20 changes no entropy by a thousandth of a nat" in page


def test_scores_without_a_write(ablation: pd.DataFrame) -> None:
    page = words(DETAILS)
    rows = ablation.loc["score_differences", "score difference", "without-12"]
    late = rows.loc["all"].loc[13:30]
    assert (late["high"] < 0).all()
    least = ablation.loc["score_differences", "p_adjusted"].min()
    assert least > 0.05 and f"none is significant (least p {least:.2f})" in page
    falls = -100 * late["value"]
    (out, ends), (gain, of_gain) = (
        interval(rows.loc[where], 1, 100) for where in (("all", 30), ("all, residual", 12))
    )
    assert (
        f"from 13 to 30, by {falls.min():.1f} to {falls.max():.1f} points, and by {out} ({ends}) "
        "at the output"
    ) in page
    assert f"layer 12 gains {gain} points ({of_gain})" in page
    whole = 100 * ablation.loc["scores", "score", "whole"]["value"]
    text = f"({whole['all, residual', 12]:.1f} to {whole['drop_first, residual', 12]:.1f})"
    assert f"does in the whole model {text}" in page


# Words of a title that say which models its answer is about.
NAMED = re.compile(
    r"SmolLM2-135M-Instruct \(4-bit\)|MiniLM|Pythia|GPT-NeoX|rxnfp|AntiBERTy|DINOv2|authors'"
)


def test_titles_of_findings_name_their_models() -> None:
    lines = (ROOT / DETAILS).read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("## ") and not NAMED.search(line)] == []


SELECTORS = {
    **{rule: rule for rule in ("model output", "middle layer", "best layer", "LOES", "consensus")},
    "curvature": "curvature",
    "prompt_entropy": "prompt entropy",
    "dataset_entropy": "dataset entropy",
    "lidar": "LiDAR",
    "dime": "DiME",
    "infonce": "InfoNCE",
    "effective_rank": "effective rank",
    "anisotropy": "anisotropy",
    "rankme": "RankMe",
    "nesum": "NESum",
}
OF_MODELS = {
    "quickstart": ("minilm-l6 all", "smollm2-135m all", "smollm2-135m drop_first"),
    "release": tuple(
        f"{model} all"
        for model in ("Pythia-70m", "Pythia-160m", "Pythia-410m", "mamba-370m", "bert-base")
    ),
}


def selector_rows(of: str) -> list[str]:
    """Rows of a table in FINDINGS: nested regret of each selector, with its interval."""
    table = pd.read_csv(ROOT / "docs" / "selectors.csv")
    table = table[(table["of"] == of) & (table["corpus"] != "task texts")]
    cells = {}
    for row in table.to_dict("records"):
        value = points(row["nested_regret"])
        if np.isfinite(row["nested_low"]):
            value += f" ({points(row['nested_low'])} to {points(row['nested_high'])})"
        value += "" if pd.isna(row["unreliable"]) else "\\*"
        if np.isnan(row["nested_regret"]):  # near chance: it selects no layer
            value = "–"
        cells[row["metric"], f"{row['model']} {row['tokens']}"] = value
    known = {metric for metric, _ in cells}
    return [
        f"| {name} | {' | '.join(cells.get((rule, model), '–') for model in OF_MODELS[of])} |"
        for rule, name in SELECTORS.items()
        if rule in known
    ]


@pytest.mark.parametrize("of", OF_MODELS)
def test_selectors_compared(of: str) -> None:
    page, rows = (ROOT / DETAILS).read_text(encoding="utf-8"), selector_rows(of)
    assert len(rows) >= 10
    assert [row for row in rows if row not in page] == []


def test_findings_have_the_table_of_language_models_and_stay_short() -> None:
    page = (ROOT / "FINDINGS.md").read_text(encoding="utf-8")
    assert len(page) < 12_000
    table = pd.read_csv(ROOT / "docs" / "real_models.csv")
    for label, column in (("output", "output"), ("middle layer", "middle")):
        assert f"| {label} | {' | '.join(table[column].map(points))} |" in page
    cells = table["n_above_null"].astype(str) + " of " + table["n_related"].astype(str)
    assert f"| metrics above the null level | {' | '.join(cells)} |" in page
