"""The pages: their links lead somewhere, their Python runs, what is generated is up to date."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import tiny
import yaml

from layerwise import tables
from layerwise.activations.extract import extract
from layerwise.activations.store import Activations
from layerwise.config import read_config
from layerwise.config.extraction import ExtractSettings
from layerwise.config.metrics import MetricsSettings
from layerwise.metrics.table import compute
from layerwise.models.load import load
from layerwise.project import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")])
NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
# Blocks that want a model of the hub, or scores of a run, and those with a test of their own.
WANTS_MORE = {"docs/your-model.md": "a model of the hub", "docs/your-tasks.md": "a run's scores",
              "docs/adding-a-metric.md": "run in test_metrics_table.py"}  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `results` as the quickstart has them, of a random model."""
    place = tmp_path_factory.mktemp("quickstart")
    loaded = load("minilm-l6", tiny.entry(tiny.save("bert", place / "bert")), "main", device="cpu")
    target = place / "results" / "activations" / "minilm-l6" / "main" / "wikipedia.h5"
    target.parent.mkdir(parents=True)
    extract(
        loaded, corpus="wikipedia", prompts=[f"p{i}" for i in range(12)],
        views=[tiny.texts(12, seed=v) for v in range(2)],
        settings=ExtractSettings(tokens=("all", "drop_first")), target=target, attributes={},
    )  # fmt: skip
    with Activations(target) as activations:
        metrics, _ = compute(activations, MetricsSettings(metrics=("prompt_entropy",)))
    tables.write(
        place / "results" / "metrics" / "minilm-l6" / "main" / "wikipedia.parquet", metrics
    )
    return place


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = [t for t in LINK.findall(text) if not re.match(r"[a-z]+:", t)]
    assert [t for t in targets if not (page.parent / t).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_python_on_the_pages_runs(
    page: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    monkeypatch.chdir(results)
    rng = np.random.default_rng(0)
    space = {
        "Z": rng.normal(size=(9, 4)), "views": rng.normal(size=(4, 20, 8)),
        "curve": rng.normal(size=7), "scores": rng.normal(size=7),
    }  # fmt: skip
    name = page.relative_to(ROOT).as_posix()
    for language, code in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            compiled = compile(code, name, "exec")
            if name not in WANTS_MORE:
                exec(compiled, space)
        if language == "yaml":
            yaml.safe_load(code)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_run(path: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(results)
    space: dict[str, object] = {}
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 4
    for number, text in enumerate(code):
        exec(compile(text, f"{path.name}, cell {number}", "exec"), space)
    # They were saved with what they show.
    assert all(cell["outputs"] for cell in cells if cell["cell_type"] == "code" and "print" in "".join(cell["source"]))  # fmt: skip


def test_the_api_names_every_metric() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for path in ROOT.glob("lib/layerwise/metrics/catalog/[a-z]*.py"):
        assert f"::: layerwise.metrics.catalog.{path.stem}\n" in page


def test_the_small_config_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_config([ROOT / "docs" / "mine.yaml"])
    assert config.results == "mine"
    assert os.fspath(config.results) != "results"


def test_every_page_is_in_the_sites_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in ROOT.glob("docs/**/*.md"):
        assert f": {page.relative_to(ROOT / 'docs').as_posix()}\n" in menu, page
