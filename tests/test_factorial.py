"""Objective or mixer: the masked objective, two directions, and the effects of two factors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from conftest import ROOT
from scipy import stats

from layerwise.association.published import published_metrics, read_table
from layerwise.config import Config
from layerwise.config.models import Nano
from layerwise.config.studies import Study
from layerwise.errors import LayerwiseError
from layerwise.figures.factorial import depth
from layerwise.figures.studies import Order, Tables, draw
from layerwise.models import nano
from layerwise.models.load import load
from layerwise.statistics.factorial import over_replicates, two_by_two
from layerwise.workflow.sources import check_sources
from layerwise.workflow.stages import STAGES

# The objective


def test_what_came_before_rests_in_silence() -> None:
    keyed = Nano(architecture="gpt_neox").keyed()
    assert not {"objective", "corpus", "device"} & set(keyed)
    assert Nano(architecture="gpt_neox", objective="masked").keyed()["objective"] == "masked"


def test_tokens_are_hidden_as_in_bert() -> None:
    tokenizer = nano.train_tokenizer(tiny.WORDS, 300, mask=True)
    assert tokenizer.mask_token_id != tokenizer.eos_token_id
    hide = nano.Hide(tokenizer, 0)
    tokens = torch.randint(2, len(tokenizer), (400, 256))
    seen, hidden = hide(tokens)
    assert float(hidden.float().mean()) == pytest.approx(0.15, abs=0.005)
    assert torch.equal(seen[~hidden], tokens[~hidden])
    masked = seen[hidden] == tokenizer.mask_token_id
    assert float(masked.float().mean()) == pytest.approx(0.8, abs=0.01)
    kept = seen[hidden] == tokens[hidden]
    assert float(kept.float().mean()) == pytest.approx(0.1, abs=0.01)
    again, _ = nano.Hide(tokenizer, 0)(tokens)
    assert torch.equal(again, seen)
    assert not torch.equal(hide(tokens)[0], seen)


@pytest.mark.parametrize("architecture", ["gpt_neox", "mamba2"])
def test_masked_models_learn_from_both_sides(architecture: Any, tmp_path: Path) -> None:
    """Of a text in which each token stands twice, the hidden one stands beside it."""
    settings = Nano(
        architecture=architecture, layers=2, hidden=32, vocabulary=300, context=16, batch=8,
        train_steps=60, learning_rate=0.01, objective="masked",
    )  # fmt: skip
    texts = tiny.texts(300)
    folders = {s: tmp_path / str(s) for s in (0, 60)}
    history = nano.train(texts, settings, [0, 60], folders)
    assert history[1]["held_out_loss"] < history[0]["held_out_loss"] - 1
    both = load("m", tiny.entry(folders[60], bidirectional=True), "main", device="cpu")
    assert both.tokenizer.mask_token_id is not None


def config(**changes: Any) -> dict[str, Any]:
    source = {"folder": "results/nano/a/{revision}"}
    return {
        "models": {"a": {"source": source, "revisions": ["step1"], **changes}},
        "nano": {"a": {"architecture": "mamba2", "objective": "masked"}},
        "corpora": {"w": {"source": {"package": "wikipedia"}}},
        "studies": {"s": {"kind": "metrics_by_depth"}},
    }


def test_the_models_entry_has_to_say_the_direction() -> None:
    Config.of(config(bidirectional=True))
    with pytest.raises(LayerwiseError, match="write bidirectional: true"):
        Config.of(config())
    plain = config(bidirectional=True)
    del plain["nano"]["a"]["objective"]
    with pytest.raises(LayerwiseError, match="write bidirectional: false"):
        Config.of(plain)
    other = config(bidirectional=True)
    other["nano"]["a"]["corpus"] = "v"
    with pytest.raises(LayerwiseError, match=r"nano\.a\.corpus: there is no 'v'"):
        Config.of(other)


# The effects


def test_equal_spreads_give_the_regression() -> None:
    spread = np.array([-1.0, 0.2, 0.8, 1.1])
    means = [1.0, 2.0, 4.0, 9.0]
    cells = [m + spread for m in means]
    found = two_by_two(cells)
    first, second = np.repeat([-0.5, -0.5, 0.5, 0.5], 4), np.repeat([-0.5, 0.5, -0.5, 0.5], 4)
    design = np.column_stack([np.ones(16), first, second, first * second])
    y = np.concatenate(cells)
    beta, *_ = np.linalg.lstsq(design, y, rcond=None)
    variance = ((y - design @ beta) ** 2).sum() / 12 * np.linalg.inv(design.T @ design)
    for k, name in enumerate(("first", "second", "interaction"), start=1):
        assert found[name].value == pytest.approx(beta[k])
        assert found[name].df == pytest.approx(12)
        error = np.sqrt(variance[k, k])
        assert found[name].p == pytest.approx(2 * stats.t.sf(abs(beta[k]) / error, 12))
        margin = stats.t.isf(0.025, 12) * error
        assert found[name].high == pytest.approx(beta[k] + margin)


def test_intervals_over_three_seeds_hold() -> None:
    rng = np.random.default_rng(0)
    deviations = (0.3, 1.0, 1.0, 3.0)
    covered = np.zeros(3)
    for _ in range(1500):
        found = two_by_two([s * rng.normal(size=3) for s in deviations])
        covered += [e.low < 0 < e.high for e in found.values()]
    assert (covered / 1500 > 0.925).all()


def test_too_few_seeds_are_refused() -> None:
    with pytest.raises(LayerwiseError, match="at least 3 models each"):
        two_by_two([[1, 2, 3]] * 3 + [[1, 2]])


def test_the_valley_of_a_curve() -> None:
    assert depth(pd.Series([3.0, 1.0, 2.0, 5.0])) == 2.0
    assert depth(pd.Series([1.0, 4.0, 2.0])) == -3.0
    with pytest.raises(LayerwiseError, match="three or more layers"):
        depth(pd.Series([1.0, np.nan, 2.0]))


FACTORS = {
    "objective": {"causal": ["c0", "c1", "c2", "d0", "d1", "d2"],
                  "masked": ["m0", "m1", "m2", "n0", "n1", "n2"]},
    "mixer": {"attention": ["c0", "c1", "c2", "m0", "m1", "m2"],
              "mamba": ["d0", "d1", "d2", "n0", "n1", "n2"]},
}  # fmt: skip


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = []
    for model in [m for level in FACTORS["objective"].values() for m in level]:
        low = {"c": 2.0, "d": 2.0, "m": 0.5, "n": 0.5}[model[0]] + 0.05 * rng.normal()
        for tokens in ("all", "drop_first"):
            for layer in range(5):
                value = 3.0 - (low if layer == 2 and tokens == "all" else 0.02 * rng.normal())
                rows.append((model, tokens, layer, layer / 4, value))
    frame = pd.DataFrame(rows, columns=["model", "tokens", "layer", "depth", "value"])
    return frame.assign(
        revision="main", corpus="w", metric="prompt_entropy", protocol="paper", alpha=1.0,
        normalization="raw", stderr=0.1, n=24, n_left_out=0, sublayer="block",
    )  # fmt: skip


def test_the_study_finds_the_effect_that_is_there() -> None:
    study = Study.model_validate_json(
        __import__("json").dumps({"kind": "factorial", "factors": FACTORS})
    )
    drawn = draw(study, Tables(metrics=table()), Order())
    effects = drawn.table[drawn.table["what"] == "effect"].set_index(["reading", "effect"])
    one = effects.loc["all", "objective: masked − causal"]
    assert one["low"] < -1.5 < one["high"]
    assert one["p_holm"] < 0.05
    assert (effects.loc["drop_first", "p_holm"] > 0.05).all()
    assert drawn.title.endswith("objective: masked − causal")
    assert len(drawn.table[drawn.table["what"] == "model"]) == 24
    assert "In 12 of 24 curves the valley is deeper than 10 %" in drawn.caption, "not in flat ones"
    # The curves that the valleys are read from stand in front, a line a cell.
    curves = drawn.figure.axes[0]
    assert {len(line.get_ydata()) for line in curves.lines} == {5}
    labels = curves.get_legend_handles_labels()[1]
    assert labels == [f"{a}, {b}" for a in FACTORS["objective"] for b in FACTORS["mixer"]]
    cell = table().query("tokens == 'all' and model in ['c0', 'c1', 'c2']")
    np.testing.assert_allclose(
        curves.lines[0].get_ydata(), cell.groupby("layer")["value"].mean(), atol=1e-12
    )


def test_curves_of_other_depths_have_no_mean() -> None:
    study = Study.model_validate_json(
        __import__("json").dumps({"kind": "factorial", "factors": FACTORS})
    )
    metrics = table().query("tokens == 'all'")
    short = metrics["model"].eq("c0")
    metrics = pd.concat(
        [metrics[~short], metrics[short & metrics["layer"].lt(4)].assign(
            depth=lambda rows: rows["layer"] / 3
        )]
    )  # fmt: skip
    curves = draw(study, Tables(metrics=metrics), Order()).figure.axes[0]
    assert len(curves.lines) == 3 + 3


def test_an_interval_over_replicates_is_students() -> None:
    values = np.random.default_rng(0).normal(size=(3, 4))
    mean, low, high = over_replicates(values)
    for place in range(4):
        wanted = stats.ttest_1samp(values[:, place], 0).confidence_interval(0.95)
        assert (low[place], high[place]) == pytest.approx((wanted.low, wanted.high))
    np.testing.assert_allclose(mean, values.mean(axis=0))


def test_tables_of_models_that_ran_elsewhere(tmp_path: Path) -> None:
    """A run's own metrics, as a CSV under `published`, give the same figure."""
    inside = table().assign(sublayer="mlp", value=99.0)
    pd.concat([table(), inside]).to_csv(tmp_path / "metrics.csv", index=False)
    given: dict[str, Any] = {
        "published": {"gpu": {"metrics": str(tmp_path / "metrics.csv")}},
        "studies": {"s": {"kind": "factorial", "published": "gpu", "factors": FACTORS}},
    }
    config = Config.of(given)
    study = config.studies["s"]
    check_sources(config)
    # Without scores there is no table of them to draw in the explorer.
    assert "metrics:gpu" in STAGES["build_explorer"].inputs(config)
    assert "scores:gpu" not in STAGES["build_explorer"].inputs(config)
    there = published_metrics(read_table(tmp_path / "metrics.csv"))
    direct = draw(study, Tables(metrics=table()))
    pd.testing.assert_frame_equal(draw(study, Tables(metrics=there)).table, direct.table)
    with pytest.raises(LayerwiseError, match="no finite value in 1 of"):
        published_metrics(table().assign(value=[np.inf, *table()["value"][1:]]))
    given["studies"] = {"s": {"kind": "score_by_depth", "published": "gpu"}}
    with pytest.raises(LayerwiseError, match=r"needs scores, and published\.gpu has none"):
        Config.of(given)


@pytest.mark.parametrize(
    ("change", "says"),
    [({"mixer": None}, "two factors of two levels"),
     ({"mixer": {"attention": ["c0"], "mamba": ["d0"]}}, "in one level of both factors"),
     ({"mixer": {"attention": FACTORS["objective"]["causal"],
                 "mamba": FACTORS["objective"]["masked"]}}, "three models a cell")],
)  # fmt: skip
def test_factors_that_are_none(change: dict[str, Any], says: str) -> None:
    factors = {k: v for k, v in {**FACTORS, **change}.items() if v is not None}
    names = [m for level in FACTORS["objective"].values() for m in level]
    given = {
        "models": {n: {"source": {"folder": "x"}} for n in names},
        "corpora": {"w": {"source": {"package": "wikipedia"}}},
        "studies": {"s": {"kind": "factorial", "factors": factors}},
    }
    with pytest.raises(LayerwiseError, match=says):
        Config.of(given)


def test_the_quickstart_trains_as_before() -> None:
    """Keys of its models are what they were, so that nobody trains them again."""
    import yaml

    quickstart = Config.of(yaml.safe_load((ROOT / "config.yaml").read_text()))
    for entry in quickstart.nano.values():
        assert entry.objective == "causal"
        silent = {"objective", "corpus", "device", "side"}
        assert set(entry.keyed()) == set(Nano.model_fields) - silent


def test_the_page_is_what_its_table_says() -> None:
    """docs/studies/objective_or_mixer.md, of the table beside it."""
    folder = ROOT / "docs" / "studies"
    page = " ".join((folder / "objective_or_mixer.md").read_text(encoding="utf-8").split())
    table_ = pd.read_csv(folder / "objective_or_mixer.csv")
    models = table_[table_["what"] == "model"]
    assert models.groupby(["reading", "objective", "mixer"]).size().eq(3).all()
    for (mixer, objective), cell in models.groupby(["mixer", "objective"]):
        whole, rest = (cell[cell["reading"] == r] for r in ("all", "drop_first"))
        told = [
            ", ".join(said(v, digits) for v in values)
            for values, digits in ((whole["held_out_loss"], 2), (whole["valley"], 2),
                                   (rest["valley"], 2), (whole["first_token_share"], 3))
        ]  # fmt: skip
        assert f"| {mixer}, {objective} | {' | '.join(told)} |" in page
    for row in table_[table_["what"] == "effect"].to_dict("records"):
        low, high = (said(row[end], 2) for end in ("low", "high"))
        told_ = f"{said(row['value'], 2)} ({low} to {high}) | {row['p_holm']:.3f}"
        where = {"all": "all tokens", "drop_first": "without the first"}[row["reading"]]
        assert f"| {row['effect']} | {where} | {told_} |" in page


def said(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".replace("-", "−")
