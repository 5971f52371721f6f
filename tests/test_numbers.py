"""Each measured number of a page is a number of a table.

A number with decimals, a percentage, or a number of points counts as measured, unless it stands in
code (so settings and definitions are written `0.3`). It has to be in the tables of its section,
rounded as it is written, as it is or times 100: the CSV files that the section links, and of all
CSV files of docs the rows of the studies that it names ("study `final_norm`").
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from layerwise.project import ROOT

# docs/claims.md is written from the shipped tables, which tests/test_papers.py checks.
PAGES = [
    page
    for page in (
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *(ROOT / folder / "README.md" for folder in ("results", "benchmarks")),
    )
    if page.name not in ("claims.md", "CHANGELOG.md")
]
# Sections with numbers of simulations and timings that have no table.
WITHOUT = (
    "# Statistics",
    "## What the answer costs",
    "## Error rates",
    "## Standard errors of metrics",
    "# Choosing a layer",
    "# Speed",
    "## Standard errors\n",
    "## Many prompts",
    "## The quickstart\n",
    "## Without labels",
    "## Size of a run",
    "### Scoring beside a GPU",
    "### Half precision",
    "### Starts",
    "## Scoring beside a GPU",
    "## Tiny random weights",  # equal to its table by a test of its own
    "## Use the layer",
)
NUMBER = re.compile(r"(?<![\w.,/])[−+]?(?:\d+\.\d+|\.\d+|\d+(?=%| points\b))(?![\w/])(?!\.\d)")
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# Levels of confidence, versions, and parts of a paper are no measurements.
OTHER = re.compile(
    r"(?:95|2\.5|5)%|\barXiv:? ?\d+\.\d+|Python 3\.\d+|(?:mteb|version) \d+\.\d+"
    r"|(?:§|definition )\d\.\d|\b[Pp]ythia[- ]\d\.\d+b|Qwen 2\.5|\b\d\.\db\b"
)
COUNTS = ["layer", "position", "n_tasks", "n_clusters", "n"]
STUDIES = re.compile(r"\b[Ss]tud(?:y|ies) ((?:`[^`]+`(?:, | and )?)+)")
TABLE = re.compile(r"\]\((?:\.\./)?(?:docs/)?([\w-]+\.csv)\)")


def sections(page: Path) -> list[str]:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    return re.split(r"^(?=#{1,3} )", text, flags=re.MULTILINE)


def measured(section: str) -> list[str]:
    """Numbers outside code, links and images."""
    text = re.sub(r"!\[[^\]]*\]|\]\([^)]*\)", "]", re.sub("`[^`]*`", "", section))
    return NUMBER.findall(OTHER.sub("", text))


@cache
def table(name: str) -> pd.DataFrame:
    return pd.read_csv(ROOT / "docs" / name)


def values_of(section: str) -> list[float]:
    """All numbers of a section's tables, but counts and layers."""
    text = " ".join(section.split())
    named = [study for names in STUDIES.findall(text) for study in re.findall("`([^`]+)`", names)]
    parts = [
        table(name) for name in TABLE.findall(text) if "study" not in table(name) or not named
    ]
    for path in ROOT.glob("docs/*.csv"):
        if "study" in table(path.name):
            parts.append(table(path.name).query("study in @named"))
    numbers = [part.drop(columns=COUNTS, errors="ignore") for part in parts]
    numbers = [part.select_dtypes("number").to_numpy().ravel() for part in numbers]
    return [v for v in np.concatenate([*numbers, []]) if np.isfinite(v)]


def is_one_of(number: str, values: list[float]) -> bool:
    digits = number.lstrip("−+")
    decimals = len(digits.partition(".")[2])
    wanted = float(digits)
    near = [
        abs(abs(scale * v) - wanted) <= 0.5001 * 10**-decimals
        for v in values
        if v < 0 or not number.startswith("−")
        for scale in (1, 100)
    ]
    return any(near)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_numbers_are_in_tables(page: Path) -> None:
    missing = []
    for section in sections(page):
        numbers = [] if section.startswith(WITHOUT) else measured(section)
        if numbers:
            values = values_of(section)
            lost = [number for number in numbers if not is_one_of(number, values)]
            missing += [f"{section.splitlines()[0]}: {number}" for number in lost]
    assert missing == []


def test_the_rule() -> None:
    text = (
        "Of 17 layers `0.3` and mteb 1.14 gain 2.0 points (95% CI −1.2 to 5), 15 points, 3%, .82."
    )
    assert measured(text) == ["2.0", "−1.2", "15", "3", ".82"]
    assert is_one_of("58.9", [0.58904]) and is_one_of("−1.2", [-1.24])
    assert not is_one_of("−1.2", [1.24]) and not is_one_of("58.9", [0.5882, 58.7])
