"""What rules for choosing a layer lose, and whether one can be told from another."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from layerwise.association import regret
from layerwise.association.regret import Case
from layerwise.errors import LayerwiseError


def case(model: str, score: list[float], output: float | None = None, **picks: int) -> Case:
    values = np.array(score)
    ranks = {"good": values.argsort().argsort() / (len(score) - 1)}
    last = score[-1] if output is None else output
    return Case(
        model, "all", np.arange(len(score)), len(score) - 1, values, last, picks or {"good": 0},
        ranks,
    )  # fmt: skip


def several(n: int, seed: int = 0, layers: int = 9) -> list[Case]:
    """Models whose best layer is the fourth of eight."""
    rng = np.random.default_rng(seed)
    hill = 0.5 - 0.05 * np.abs(np.arange(layers) - 4)
    return [
        case(f"m{k}", list(hill + 0.001 * rng.normal(size=layers)), good=4, bad=8)
        for k in range(n)
    ]


def test_regret_is_what_the_best_has_over_the_pick() -> None:
    found = regret.regrets([case("a", [0.1, 0.5, 0.3], 0.4, good=0)])
    mine = found.set_index("rule")["regret"]
    assert mine["good"] == pytest.approx(40)
    assert mine["last"] == pytest.approx(10)
    assert mine["middle"] == pytest.approx(0)
    # Where the output is best of all, every layer falls short of it.
    found = regret.regrets([case("a", [0.1, 0.5, 0.3], 0.6)])
    assert found.set_index("rule").loc[["last", "middle"], "regret"].tolist() == pytest.approx(
        [0, 10]
    )


def test_one_model_is_told_nothing_of_and_none_comes_twice() -> None:
    table = regret.compare(regret.regrets([case("a", [0.1, 0.5, 0.3], 0.4, good=0)]))
    assert set(table["n_models"]) == {1} and table[f"p_{regret.LAST}"].isna().all()
    assert "nothing can be told" in regret.verdict(table)
    with pytest.raises(LayerwiseError, match="a comes twice on tasks of the type all"):
        regret.regrets([case("a", [0.1, 0.5, 0.3]), case("a", [0.1, 0.5, 0.2])])


def test_sixty_percent_is_the_nearest_layer() -> None:
    assert case("a", [0.0] * 31).at(0.6) == 18
    assert case("a", [0.0] * 7).at(0.6) == 4  # .6 of 6 is 3.6
    assert case("a", [0.0] * 2).at(0.5) == 0  # of two, the shallower


def test_what_is_learned_comes_from_the_others() -> None:
    """Whatever a model's own scores are, what is learned picks the same layer in it."""
    others = several(4)
    picks = []
    for own in ([0.9, *[0.1] * 8], [*[0.1] * 8, 0.9]):
        mine = case("own", own, good=4, bad=8)
        mine = Case(**{**mine.__dict__, "ranks": others[0].ranks})
        found = regret.regrets([*others, mine])
        found = found[found["model"] == "own"].set_index("rule")["layer"]
        picks.append(found[[regret.DEPTH, regret.RULE, regret.LEARNED]].tolist())
    assert picks == [[4, 4, 4]] * 2


def test_what_is_learned_leaves_out_refused_metrics() -> None:
    """A metric that says the right thing in some models, and is refused in the rest, still helps
    where it is not refused, and has no say elsewhere."""
    models = several(6)
    models[0] = Case(**{**models[0].__dict__, "ranks": {"other": models[0].ranks["good"][::-1]}})
    found = regret.regrets(models)
    learned = found[found["rule"] == regret.LEARNED].set_index("model")["layer"]
    assert "m0" not in learned.index and set(learned) == {4}


def test_a_rule_that_is_better_everywhere_is_told() -> None:
    table = regret.compare(regret.regrets(several(8))).set_index("rule")
    assert table.loc["good", "regret"] < 0.5
    assert table.loc["good", "corrected_last"] == pytest.approx(1 / 128)
    assert "good" in regret.verdict(table.reset_index())
    few = regret.compare(regret.regrets(several(4)))
    assert "nothing can be told to lose less than 'last'" in regret.verdict(few)


def test_flips_are_exact() -> None:
    p, corrected = regret.flipped(np.array([[1.0, 2.0, 3.0], [1.0, 2.0, -3.0]]))
    assert p == pytest.approx([1 / 4, 1.0])
    # Of the four flips, one makes the second rule's differences those of the first.
    assert corrected[0] == pytest.approx(2 / 4)
    assert (corrected >= p).all()
    # Of a rule that one model lacks, the others are flipped.
    assert regret.flipped(np.array([[1.0, 2.0, np.nan]]))[0] == pytest.approx([1 / 2])
    assert regret.flipped(np.zeros((2, 5)))[0] == pytest.approx([1, 1])


def test_a_rule_that_few_models_know_takes_nothing_from_the_others() -> None:
    rng = np.random.default_rng(0)
    differences = np.full((2, 12), np.nan)
    differences[0] = 5 + 2 * rng.normal(size=12)
    differences[1, :2] = 1.0, 1.1
    p, corrected = regret.flipped(differences)
    assert p[0] == corrected[0] == 2 / 2**12
    assert p[1] == 0.5 <= corrected[1]


def test_the_correction_holds_its_level() -> None:
    """Ten rules that share most of their noise, no difference: one in twenty is told at most."""
    rng = np.random.default_rng(0)
    told = 0
    for _ in range(400):
        shared = rng.normal(size=(1, 7))
        differences = shared + 0.7 * rng.normal(size=(10, 7))
        told += regret.flipped(differences)[1].min() <= 0.05
    assert told / 400 <= 0.08


def test_a_metric_that_some_models_lack_counts_where_it_is() -> None:
    models = several(5)
    models[0] = Case(**{**models[0].__dict__, "picks": {"bad": 8}})
    table = regret.compare(regret.regrets(models)).set_index("rule")
    assert table.loc["good", "n_models"] == 4 and table.loc["bad", "n_models"] == 5
    assert isinstance(table, pd.DataFrame)
