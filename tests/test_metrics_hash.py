"""The hash of a metric's code follows its formula, not its prose."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from layerwise.metrics import registry, source

FORMULA = '''"""A metric."""

from layerwise.metrics.formulas.entropy import entropy
from layerwise.metrics.registry import Overall, metric


def total(X, power: float = 1.0) -> float:
    """Sum of powers."""
    if power < 0:
        raise ValueError("power is below 0")
    return (X ** power).sum()  # over rows and columns


@metric(
    name="total", label="Total", unit="", direction=1, range="any", source="here",
    inputs=("pooled",), function=total,
)
def compute(layer):
    yield Overall(total(layer.pooled), 0.0, len(layer.pooled))
'''


def hash_of(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / "total_metric.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(registry, "_METRICS", dict(registry.all_metrics()))
    sys.modules.pop("total_metric", None)
    importlib.invalidate_caches()
    importlib.import_module("total_metric")
    try:
        return registry.formula_hash("total")
    finally:
        del sys.modules["total_metric"]


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("# over rows and columns", "# of all", True),
        ('"""Sum of powers."""', '"""Add the powers of all entries."""', True),
        ("power is below 0", "power must be 0 or above", True),
        ('label="Total"', 'label="Sum"', True),
        ("X ** power", "X**power", True),
        ("power: float = 1.0", "power=1.0", True),
        ("X ** power", "X * power", False),
        ("= 1.0", "= 2.0", False),
        ("power < 0", "power <= 0", False),
        ("formulas.entropy import entropy", "formulas.spectra import centred", False),
    ],
)
def test_only_the_formula_counts(
    old: str, new: str, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = tmp_path / "before", tmp_path / "after_it"
    for folder in folders:
        folder.mkdir()
    assert old in FORMULA
    before = hash_of(FORMULA, folders[0], monkeypatch)
    after = hash_of(FORMULA.replace(old, new), folders[1], monkeypatch)
    assert (before == after) == same


def test_a_formula_that_is_edited_while_python_runs_has_a_new_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for later processes: none of them may find the old hash under the new source."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "total_metric.py").write_text(FORMULA)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_METRICS", dict(registry.all_metrics()))
    monkeypatch.setitem(sys.modules, "total_metric", importlib.import_module("total_metric"))
    before = registry.formula_hash("total")
    (tmp_path / "total_metric.py").write_text(FORMULA.replace("X ** power", "X * (2 * power)"))
    assert registry.formula_hash("total") != before


def test_imported_formulas_count() -> None:
    modules = [registry.get("prompt_entropy").compute.__module__]
    found = source.essence(modules, source.texts(modules))
    assert {f"layerwise.metrics.formulas.{name}" for name in ("entropy", "spectra")} <= {*found}
    assert registry.formula_hash("lidar") != registry.formula_hash("dime")
    assert registry.formula_hash() == registry.formula_hash(*registry.all_metrics())
