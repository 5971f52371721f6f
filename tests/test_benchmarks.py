"""The benchmarks run; what they measure is for a quiet machine to say."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import tiny
import tiny_images
from conftest import ROOT

from layerwise.models.load import load


@pytest.fixture
def bench_gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("bench_gpu")


def test_the_gpu_table_on_a_small_model(bench_gpu: ModuleType) -> None:
    rows = bench_gpu.measure("tiny", "cpu", prompts=6, tokens=30, repeats=1)
    found = {name: value for name, value, _ in rows}
    assert len(found) == len(rows) == 10
    assert all(value[0].isdigit() for value in found.values())
    assert float(found["extraction: all four"].split()[0]) > 0


def test_the_passes_arithmetic_is_that_of_the_shape(bench_gpu: ModuleType) -> None:
    # 302 million weights in Pythia-410m's blocks, two operations each, and attention beside them.
    ids = [[0] * 10, [0] * 20]
    alone = 2 * 301_989_888 * 30
    assert bench_gpu.flops("pythia-410m", ids) == alone + 4 * 24 * 1024 * (10**2 + 20**2)
    texts = bench_gpu.make_texts(50, 160)
    assert len(texts) == 50
    assert texts == bench_gpu.make_texts(50, 160)


def test_the_table_of_studies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    bench = importlib.import_module("bench_studies")
    tiny.save("gpt_neox", tmp_path)
    loaded = load("m", tiny.entry(tmp_path), "main", device="cpu")
    texts = tiny.texts(8, shortest=8)
    rows = bench.measure(loaded, tiny.entry(tmp_path), texts, 0, 1, tmp_path)
    found = {row["what"]: row for row in rows}
    assert len(found) == len(rows) == 10
    assert found["plain extraction"]["times"] == found["plain extraction"]["space"] == 1
    assert all(row["seconds"] > 0 for row in rows)
    assert found["all three"]["bytes"] > found["along_sequence (`prefixes`)"]["bytes"]


def test_the_table_of_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    bench = importlib.import_module("bench_probes")
    row = bench.measure(rows=120, width=6, classes=3, layers=2, of=4)
    seconds = row["processor_seconds_a_layer"]
    assert len(seconds) == len(row["accuracy"]) == 2
    assert row["processor_seconds_of_4_layers"] == pytest.approx(2 * sum(seconds), abs=0.1)
    assert row["accuracy"][0] < row["accuracy"][1]


def test_the_table_of_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    bench = importlib.import_module("bench_images")
    folder = tiny_images.save("vit", tmp_path / "m")
    loaded = load("m", tiny_images.entry(folder), "main", device="cpu")
    row = bench.measure(loaded, 3, 1, tmp_path)
    assert row["tokens"] == 17
    assert all(row[name] > 0 for name in (*bench.READINGS, "extract: pooled and curvature"))
