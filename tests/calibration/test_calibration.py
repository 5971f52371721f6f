"""Coverage within .92 and .97 and type-I error within .03 and .07, as docs/statistics.md says.

Two halves: the committed table (docs/calibration.csv, some 40 draws for each of 900 cells, made by
measure.py) is held to its bounds, and a small part of it is measured again, so that a change of
the code that breaks an interval is seen without the whole run.
"""

from __future__ import annotations

import csv
import math
import runpy
import sys
from collections import defaultdict
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import document
import measure
from simulate import PUBLISHED, TABLES

TABLE = Path(__file__).parents[2] / "docs" / "calibration.csv"
PAGE = TABLE.with_name("statistics.md")

# Lowest and highest share of the "after" column by what the table says is wanted.
BOUNDS = {
    "0.95": (0.92, 0.97),
    "at least 0.95": (0.92, 1.0),
    "0.05": (0.03, 0.07),
    "at most 0.05": (0.0, 0.07),
}
# Conservative by design: the choice is paid for as if all rivals were equal. Slopes of monotone
# curves, of which some models have little left beyond the mean, are held by less.
WIDER = {
    "several models, metric with error": (0.87, 0.99),
    "gain of the chosen layer": (0.92, 0.99),
    "gain of the chosen layer, all equal": (0.92, 0.99),
}
# What the issue found: these were out of bounds before, and must show it.
BROKEN = {
    "interval, layer named beforehand": (0.70, 0.92),
    "interval, tasks share texts": (0.60, 0.89),
    "band over all layers": (0.1, 0.8),
    "gain claimed, all equal": (0.08, 0.4),
    "one model, permuted layers": (0.2, 0.9),
    "several models, one metric": (0.3, 1.0),
    "headline by count, all equal": (0.5, 1.0),
}


def pooled(rows, side, *keys):
    """Share and number of draws over all rows with equal `keys`."""
    hits, draws = defaultdict(float), defaultdict(int)
    for row in rows:
        if row[side] not in ("", None):
            key = tuple(str(row[k]) for k in keys)
            n = int(row[f"{side}_repeats"])
            hits[key] += float(row[side]) * n
            draws[key] += n
    return {key: (hits[key] / draws[key], draws[key]) for key in draws}


def bounds(check):
    return WIDER.get(check, BOUNDS.get(measure.CHECKS[check][3]))


def within(share, draws, low, high, errors=2.6):
    """Whether a share can be one within the bounds: `errors` standard errors of simulation."""
    slack = errors * math.sqrt(0.05 * 0.95 / draws)
    return low - slack <= share <= high + slack


@pytest.fixture(scope="module")
def table():
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("check", [c for c in measure.CHECKS if measure.CHECKS[c][3]])
@pytest.mark.parametrize("by", [(), ("n",), ("layers",), ("kind",), ("n", "layers")])
def test_the_table_is_within_bounds(table, check, by):
    for key, (share, draws) in pooled(
        [r for r in table if r["check"] == check], "after", *by
    ).items():
        assert within(share, draws, *bounds(check)), (check, by, key, share, draws)


@pytest.mark.parametrize("check", BROKEN)
def test_what_was_wrong_shows(table, check):
    share, _ = pooled([r for r in table if r["check"] == check], "before")[()]
    low, high = BROKEN[check]
    assert low < share < high


def test_the_table_is_complete(table):
    have = {(r["check"], int(r["n"]), int(r["layers"]), r["kind"]) for r in table}
    assert have == set(measure.cells())


def test_the_page_is_made_from_the_table():
    page = PAGE.read_text(encoding="utf-8")
    assert document.filled(page, TABLE) == page, "run tests/calibration/document.py"


def test_the_page_holds_the_picks():
    script = PAGE.parents[1] / "scripts" / "measure_picks.py"
    lines = runpy.run_path(str(script))["lines"]
    made = "\n".join(lines(pd.read_csv(PAGE.with_name("pick-stability.csv"))))
    assert f"<!-- picks -->\n{made}\n<!-- end of picks -->" in PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "n", "layers", "repeats"),
    [
        ("interval, layer named beforehand", 5, 7, 200),
        ("interval, tasks share texts", 10, 7, 200),
        ("band over all layers", 10, 13, 60),
        ("gain of the chosen layer", 5, 7, 80),
        ("gain claimed, all equal", 10, 7, 80),
        ("best layer in the set", 5, 7, 80),
        ("equivalence at the margin", 10, 7, 200),
        ("interval of an association", 10, 13, 100),
        ("several models, one metric", 6, 7, 100),
        ("several models, any of ten metrics", 8, 13, 120),
    ],
)
def test_measured_again(check, n, layers, repeats):
    kinds = ("smooth", "walk", "trended")
    kinds += (PUBLISHED,) if TABLES.exists() else ()
    rows = [measure.measure((check, n, layers, kind), repeats) for kind in kinds]
    share, draws = pooled(rows, "after")[()]
    assert within(share, draws, *bounds(check), errors=3.0), (share, draws)
