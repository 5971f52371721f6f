"""The hash of a metric's code follows its formula, not its prose."""

from pathlib import Path

import pytest

from layerwise.metrics import registry
from layerwise.metrics.registry import formula_hash, source_hash

FORMULA = '''"""A metric."""

from layerwise.metrics.formulas import entropy
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
        ("formulas import entropy", "formulas import centred", False),
    ],
)
def test_only_the_formula_counts(old: str, new: str, same: bool, tmp_path: Path) -> None:
    before, after = tmp_path / "before.py", tmp_path / "after_it.py"
    assert old in FORMULA
    before.write_text(FORMULA)
    after.write_text(FORMULA.replace(old, new))
    assert (source_hash(before) == source_hash(after)) == same


def test_a_formula_that_is_edited_while_python_runs_has_a_new_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for later processes: none of them may find the old hash under the new source."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "catalog"
    folder.mkdir()
    (folder / "total.py").write_text(FORMULA)
    before = source_hash(folder)
    (folder / "total.py").write_text(FORMULA.replace("X ** power", "X * (2 * power)"))
    assert source_hash(folder) != before


def test_metrics_and_formulas_count_and_how_their_tables_are_written_does_not() -> None:
    folder = Path(registry.__file__).parent
    file = folder / "catalog" / "pairs.py"
    assert formula_hash(file) == source_hash(file, folder / "formulas.py")
    for name, metric in registry.all_metrics().items():
        assert metric.compute.__module__.startswith("layerwise.metrics.catalog."), name
