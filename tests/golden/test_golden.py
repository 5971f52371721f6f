"""What the library computes is what it computed: each golden table against today's.

A fix that changes values on purpose writes its tables anew with `tests.golden.regenerate` and
says so in its commit.
"""

from __future__ import annotations

import compute
import pytest
import tables


@pytest.mark.parametrize("name", compute.CASES)
def test_values_are_the_golden_ones(name: str) -> None:
    case = compute.CASES[name]
    golden = tables.read(name)
    found = tables.differences(golden, case.make(), list(case.keys), case.rtol, case.atol)
    shown = "\n".join(found[: tables.SHOWN])
    assert not found, f"{name}: {len(found)} differences from {len(golden)} golden rows\n{shown}"


def test_every_golden_table_has_a_case() -> None:
    assert {path.stem for path in tables.FOLDER.glob("*.csv")} <= set(compute.CASES)
