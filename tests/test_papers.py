"""The annex: claims of both papers, their theorems, and what the authors' numbers add."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT

from layerwise.association.curves import metric_curves
from layerwise.io.tables import read_table
from papers import additions, tables, theory
from papers.claims import inputs, metrics, page, scores
from papers.claims.claim import Number, verdict
from papers.tables import Release

LEVELS = np.linspace(0, 0.9, 9)[:8]
CLAIMS = (*page.LAYER_BY_LAYER, *page.DOES_IT_MATTER)


@pytest.fixture(scope="module")
def release() -> Release:
    return Release()


def raw(**where: object) -> pd.DataFrame:
    """Rows of the shipped file of metrics."""
    table = pd.read_parquet(ROOT / "lib/layerwise/data/published/metrics.parquet")
    table["model"] = table["family"].astype(str) + "-" + table["size"].astype(str)
    return table[(table[list(where)] == list(where.values())).all(axis=1)]


def test_the_claims_are_what_the_tables_say(release: Release) -> None:
    text = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
    table = (ROOT / "docs/claims.csv").read_text(encoding="utf-8")
    assert page.page(release) == text, "run `make regenerate`"
    assert page.rows(release).to_csv(index=False) == table, "run `make regenerate`"
    assert "cannot be checked" in text
    assert all(line.count("|") == 5 for line in text.splitlines() if "| **" in line)


def test_verdicts_follow_the_rule_on_the_page() -> None:
    yes, no, aside = Number("a", True), Number("b", False), Number("c")
    assert verdict([yes, aside]) == "reproduced"
    assert verdict([yes, no]) == "mixed"
    assert verdict([no, aside]) == "not reproduced"
    assert verdict([aside]) == verdict([]) == "cannot be checked"
    assert [str(number) for number in (yes, no, aside)] == ["a ✓", "b ✗", "(c)"]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.says[:50])
def test_a_checked_claim_has_a_place_and_a_condition(claim: page.Claim) -> None:
    assert claim.where
    assert claim.decides
    unchecked = ("Fine-tuning on chains of thought", "Prompt entropy of intermediate layers is bi")
    assert bool(claim.supported_if) != claim.says.startswith(unchecked)


def test_every_rule_can_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On random numbers, rising or falling with depth, each rule finds one against its claim."""
    lenses = pd.read_csv(tables.LENSES)
    refuted = set()
    for seed, slope in enumerate((0, 1, -1, 0, 0, 0)):

        def read(path: Path, seed: int = seed, slope: int = slope) -> pd.DataFrame:
            table = read_table(path)
            column = "main_score" if "main_score" in table else "value"
            noise = np.random.default_rng(seed).uniform(0.4, 0.5, size=len(table))
            return table.assign(**{column: noise + slope * 0.01 * table["layer"].to_numpy(float)})

        random = lenses.assign(accuracy=0.5 + slope * 0.01 * lenses["state"])
        random.to_csv(tmp_path / "lenses.csv", index=False)
        monkeypatch.setattr(tables, "LENSES", tmp_path / "lenses.csv")
        monkeypatch.setattr(tables, "read_table", read)
        release = Release()
        for claim in CLAIMS:
            if claim.says not in refuted and any(
                n.supports is False for n in claim.check(release)
            ):
                refuted.add(claim.says)
    assert {claim.says for claim in CLAIMS if claim.supported_if} == refuted


@pytest.mark.slow
def test_levels_of_repetition_by_simulation(shared: Path) -> None:
    """Layer 0 of Figure 6a has the entropy of texts whose tokens repeat with these levels.

    Each type of token is a random direction, as the embeddings of different tokens nearly are.
    """
    texts = pd.read_parquet(shared / "texts/wikitext-103-validation.parquet")["text"]
    words = [text.split() for text in texts if 30 <= len(text.split()) <= 200][:40]
    rng = np.random.default_rng(0)
    simulated = []
    for level in LEVELS:
        entropies = []
        for prompt in words:
            tokens = np.array(prompt)
            tokens[rng.random(len(tokens)) < level] = rng.choice(prompt)
            types, ids = np.unique(tokens, return_inverse=True)
            states = rng.standard_normal((len(types), 256))[ids]
            states -= states.mean(axis=0)
            states /= np.linalg.norm(states, axis=1, keepdims=True).clip(1e-12)
            gram = (states @ states.T).clip(0)
            shares = np.linalg.eigvalsh(gram / np.trace(gram)).clip(1e-15)
            entropies.append(-(shares * np.log(shares)).sum() / np.log(len(tokens)))
        simulated.append(np.mean(entropies))
    shipped = [
        Release().curve("Pythia-410m", "prompt_entropy", f"repeated tokens {level:.4g}")[0]
        for level in LEVELS
    ]
    relative = np.array(simulated) / simulated[0], np.array(shipped) / shipped[0]
    assert np.abs(relative[0] - relative[1]).max() < 0.06


def test_leads_of_all_models_with_scores_by_layer(release: Release) -> None:
    """Those that FINDINGS counts, from docs/published.csv."""
    models = release.scores.loc[release.scores["task_type"] != "ImageClassification", "model"]
    curves = {model: release.score(model) for model in set(models)}
    leads = {
        model: scores.lead(c).gain
        for model, c in curves.items()
        if len(c.layers) > 5 and c.layers[-1] == c.last_layer
    }
    table = pd.read_csv(ROOT / "docs/published.csv").query("what == 'lead'")
    shown = (100 * table.set_index("model")["value"]).to_dict()
    assert leads == pytest.approx(shown, abs=1e-3)


def test_claims_name_the_papers_models(release: Release) -> None:
    """Fourteen has the paper's five families and no other, Figure 2 three models."""
    words = " ".join(map(str, inputs.objective_makes_the_valley.check(release)))
    assert all(family in words for family in ("aim", "vit", "beit", "dinov2", "mae"))
    assert "clip" not in words
    words = " ".join(map(str, metrics.bert_is_stable.check(release)))
    assert "bert-base" in words and "Llama" not in words


def test_changes_of_the_stream_by_hand(release: Release) -> None:
    ranks = raw(dataset="stages", revision="main").pivot(
        index="layer", columns="sublayer", values="value"
    )
    by_hand = sum(np.log(ranks["block"][n] / ranks["mixer_residual"][n]) for n in (5, 6, 7, 8, 9))
    changes = release.changes_of_rank()
    assert (
        changes["mlp"].loc[5:9].sum() == pytest.approx(by_hand) == pytest.approx(-1.46, abs=0.01)
    )
    assert changes["mixer"].loc[5:9].sum() == pytest.approx(0.18, abs=0.01)
    assert changes.index.min() == 2, "the release has no rank of the embeddings"


def test_missing_tasks_of_bert(release: Release) -> None:
    """Five of its seven missing tasks are clusterings, where late layers win."""
    curves = release.score("bert-base")
    assert sum("Clustering" in task for task in curves.tasks_left_out) == 5
    assert scores.lead_in_the_mix_of_32(curves) == pytest.approx(3.4, abs=0.05)
    everything = release.score("Pythia-410m")
    assert scores.lead_in_the_mix_of_32(everything) == pytest.approx(scores.lead(everything).gain)


@pytest.mark.parametrize("statement", theory.STATEMENTS, ids=lambda statement: statement.name)
def test_the_example_of_a_theorem_shows_its_verdict(statement: theory.Statement) -> None:
    example = statement.example()
    assert example.shown, example.words


def test_the_table_of_additions_is_what_the_tables_say() -> None:
    table = pd.read_csv(ROOT / "docs/additions.csv")
    again = additions.additions()
    again["group"] = again["group"].replace("", np.nan)
    pd.testing.assert_frame_equal(table, again, check_dtype=False, rtol=1e-3, atol=2e-4)


def value_of(what: str, group: str) -> pd.Series:
    table = pd.read_csv(ROOT / "docs/additions.csv")
    return table[(table["what"] == what) & (table["group"] == group)].squeeze()


def test_additions_by_hand(release: Release) -> None:
    """From the shipped files, without the code of the annex."""
    scores = pd.read_parquet(ROOT / "lib/layerwise/data/published/scores.parquet")
    scores = scores[
        scores["family"].eq("Pythia") & scores["size"].eq("410m") & scores["layer"].eq(24)
    ]
    scores = scores[scores["pooling"].eq("mean")].groupby(["task", "revision"], observed=True)
    by_task = 100 * scores["main_score"].mean().unstack()
    change = by_task["main"] - by_task["step16000"]
    row = value_of("change of the score", "output")
    assert row["value"] == pytest.approx(change.mean(), abs=0.01) == pytest.approx(-1.39, abs=0.01)
    assert row["high"] < 0
    assert value_of("tasks with a lower score", "output")["value"] == (change < 0).sum() == 24
    size = value_of("depth of the valley on WikiText", "Pythia-6.9b")["value"]
    curve = raw(model="Pythia-6.9b", dataset="wikitext", metric="entropy_prompt")
    curve = curve.set_index("layer")["value"].drop(32)
    assert size == pytest.approx(curve.idxmin() / 32, abs=1e-4)


def test_resampled_clusters_stay_together() -> None:
    weights = additions.resampled(np.array(["a", "a", "b", "c"]))
    assert weights.sum(axis=1) == pytest.approx(1)
    assert (weights[:, 0] == weights[:, 1]).all()
    assert (weights[:, 2] == 0).any()


def test_a_model_without_metrics_has_no_curves(release: Release) -> None:
    """Some models of the release have scores alone."""
    others = release.metrics[release.metrics["model"] == "bert-base"]
    curves = metric_curves(others, release.score("Pythia-410m"))
    assert len(curves.variants) == 0
    assert curves.values.shape == (0, 32, 25)
