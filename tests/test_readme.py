"""What the README says of the quickstart is what its tables say, under docs/quickstart-*.csv."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from layerwise.association.selection import NESTED, OUTPUT

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def readme() -> str:
    """The README in one line."""
    return " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def best() -> pd.DataFrame:
    return pd.read_csv(ROOT / "docs" / "quickstart-best-layers.csv")


@pytest.fixture(scope="module")
def choices() -> pd.DataFrame:
    table = pd.read_csv(ROOT / "docs" / "quickstart-choices.csv")
    return table.fillna({"refused": "", "same_as": ""})


def points(share: float) -> str:
    return f"{100 * share:.1f}".replace("-", "−")


def test_the_lead_of_smollm2(readme: str, best: pd.DataFrame) -> None:
    row = best.set_index(["model", "tokens"]).loc["smollm2-135m", "drop_first"]
    assert (
        f"layer {row['best_layer']} of {row['last_layer']} scores {points(row['best_score'])} and "
        f"the output {points(row['output_score'])}"
    ) in readme
    assert (
        f"a lead of {points(row['gain_new_task'])} points, with an interval from "
        f"{points(row['gain_low'])} to {points(row['gain_high'])}"
    ) in readme
    words = {3: "three", 5: "five"}
    tasks, sources = words[row["n_tasks"]], words[row["n_sources"]]
    assert f"the {tasks} tasks are of {sources} sources of texts" in readme


def test_minilm_is_best_at_its_output(readme: str, best: pd.DataFrame) -> None:
    rows = best[best["model"] == "minilm-l6"]
    assert rows["best_is_output"].all()
    assert f"best at its output** ({100 * rows['best_score'].min():.0f})" in readme


def test_what_picks_lose(readme: str, choices: pd.DataFrame) -> None:
    rows = choices[choices["tokens"] == "all"].groupby("metric")["regret"].mean()
    assert (
        f"loses {points(rows[NESTED])} points with all tokens, and the output "
        f"{points(rows[OUTPUT])}"
    ) in readme
    assert choices.loc[choices["metric"] == NESTED, "p"].min() > 0.05


def test_which_picks_are_refused(readme: str, choices: pd.DataFrame) -> None:
    refused = set(choices.loc[choices["refused"] != "", "metric"])
    assert {"dime", "rankme", "infonce", "lidar"} <= refused
    assert "DiME, RankMe, InfoNCE and LiDAR are decided by the number of prompts" in readme
