"""Each golden table against the library's present values.

A fix that changes values on purpose writes its tables anew with `tests.golden.regenerate` and
says so in its commit.
"""

from __future__ import annotations

import compute
import pytest
import tables
from of_tables import STUDIES, drawn

from layerwise.config.studies import all_kinds


@pytest.mark.parametrize("name", compute.CASES)
def test_values_are_the_golden_ones(name: str) -> None:
    case = compute.CASES[name]
    tables.compare(name, case.make(), list(case.keys), case.rtol, case.atol)


def test_every_golden_table_has_a_case() -> None:
    assert {path.stem for path in tables.FOLDER.glob("*.csv")} <= set(compute.CASES)


@pytest.mark.parametrize("kind", STUDIES)
def test_each_kind_is_drawn(kind: str) -> None:
    figure = drawn(kind)
    assert len(figure.table) > 0
    title = all_kinds()[kind].title
    assert figure.title in (title, title.replace("Metrics", "Prompt entropy"))
    assert len(figure.title.split()) <= 8
    assert len(figure.caption) > 40
    assert "{" not in figure.caption
    p = [c for c in figure.table if c == "p" or str(c).startswith("p_")]
    assert not (figure.table[p] == 0).any().any()
    if "low" in figure.table:
        known = figure.table.dropna(subset=["low", "high"])
        assert (known["low"] <= known["high"]).all()
    page = figure.figure.bbox
    for text in figure.figure.texts:
        box = text.get_window_extent()
        assert page.x0 - 4 <= box.x0 and box.x1 <= page.x1 + 4, text.get_text()
