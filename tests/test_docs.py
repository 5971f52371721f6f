"""The pages: links lead somewhere, Python runs, YAML is valid, lists equal the registries."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml
from helpers import tiny
from helpers.scripts import script
from PIL import Image

import layerwise.metrics
from layerwise.activations.extract import extract
from layerwise.activations.store import Activations
from layerwise.cli import app
from layerwise.config.corpora import CorpusSettings
from layerwise.config.models import Model
from layerwise.config.settings import ExtractSettings, MetricsSettings, ScoringSettings
from layerwise.config.studies import Kind, Study, all_kinds
from layerwise.config.tasks import LabelledEntry, MtebEntry
from layerwise.io import tables
from layerwise.metrics import registry
from layerwise.metrics.table import compute
from layerwise.models.load import load
from layerwise.project import ROOT
from layerwise.section import parse
from media.settings import AudioCorpus, ImageCorpus
from papers.choice import ChoiceTask

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")])
NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s#]+)?(?:#([^)\s]*))?\)")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [code for name, code in found if name == language]


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `results` of the quickstart's MiniLM, of a random model."""
    place = tmp_path_factory.mktemp("quickstart")
    loaded = load("minilm-l6", tiny.entry(tiny.save("bert", place / "bert")), "main", device="cpu")
    target = place / "results" / "activations" / "minilm-l6" / "main" / "wikipedia.h5"
    target.parent.mkdir(parents=True)
    extract(
        loaded,
        corpus="wikipedia",
        prompts=[f"p{i}" for i in range(12)],
        views=[tiny.texts(12, seed=v) for v in range(2)],
        settings=ExtractSettings(tokens=("all", "drop_first")),
        target=target,
        attributes={},
    )
    with Activations(target) as activations:
        metrics, _ = compute(activations, MetricsSettings(metrics=("prompt_entropy",)))
    tables.write(
        place / "results" / "metrics" / "minilm-l6" / "main" / "wikipedia.parquet", metrics
    )
    return place


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for target, anchor in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        place = page.parent / target if target else page
        if not place.exists() or (anchor and anchor not in anchors(place)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p, "python") and p.name != "CONTRIBUTING.md"], ids=name_of
)
def test_python_on_the_pages_runs(
    page: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(results)
    space: dict[str, object] = {}
    for code in blocks(page, "python"):
        exec(compile(code, name_of(page), "exec"), space)


SECTIONS = {
    "models": (Model,),
    "corpora": (CorpusSettings, ImageCorpus, AudioCorpus),
    "tasks": (MtebEntry, LabelledEntry, ChoiceTask),
    "studies": (Study,),
}


def check_entry(section: str, entry: object) -> None:
    """Parse an entry by the class whose keys it has."""
    entry = entry or {}
    classes = SECTIONS[section]
    fits = [c for c in classes if set(entry) <= set(c.model_fields)]
    assert fits, f"{section}: {entry}"
    parse(fits[0], entry)


COMMAND = re.compile(r"^(?:\$ )?((?:layerwise|make|snakemake|python) [^#\n]+)", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_on_the_pages_exist(page: Path) -> None:
    """Subcommands and options parse; targets, scripts, presets and the quickstart's models exist."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    models = yaml.safe_load((ROOT / "config.yaml").read_text())["models"].values()
    folders = [(m["source"].get("folder", ""), m.get("revisions", [])) for m in models]
    made = [folder.format(revision=r) for folder, revisions in folders for r in revisions]
    for block in (code.replace("\\\n", " ") for code in blocks(page, "")):
        for program, *words in map(shlex.split, COMMAND.findall(block)):
            if program == "layerwise":
                command: Any = typer.main.get_command(app)
                command.commands[words[0]].make_context(words[0], words[1:])
            if program == "make":
                assert words[0] in targets
            for word in words:
                if word.startswith(("benchmarks/", "presets/", "scripts/", "workflow/")):
                    assert (ROOT / word).exists(), word
                assert not word.startswith("results/quickstart/") or word in made, word


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "yaml")], ids=name_of)
def test_yaml_on_the_pages_is_valid(page: Path) -> None:
    for code in blocks(page, "yaml"):
        document = yaml.safe_load(code)
        if any("about" in entry for entry in document.values() if isinstance(entry, dict)):
            for name, entry in document.items():
                Kind(name=name, **entry)
            continue
        if any("kind" in entry for entry in document.values() if isinstance(entry, dict)):
            document = {"studies": document}
        for section, entries in document.items():
            if section in SECTIONS:
                for entry in entries.values():
                    check_entry(section, entry)
            else:
                kinds = {"metrics": MetricsSettings, "scoring": ScoringSettings}
                parse(kinds[section], entries)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_run(path: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(results)
    space: dict[str, object] = {}
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 4
    for number, cell in enumerate(code):
        exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), space)
        # They were saved with what they show.
        assert cell["outputs"] or "print" not in "".join(cell["source"])


RENDER = script("render", ROOT / "docs")
# Pages that are written as a whole, or name versions.
TYPED = ("claims.md", "CHANGELOG.md")
CODE = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)|<!--n:.*?<!---->|<!--table:.*?<!--end-->", re.S)
# Not those of definitions, versions and parts of a paper.
MEASURED = re.compile(r"(?<![\w./,:§-])(?<!arXiv |ython )(?<!mteb )[−+]?\d*\.\d+(?![\w.])")


@pytest.mark.parametrize("page", RENDER.PAGES, ids=name_of)
def test_numbers_of_pages_are_rendered(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert RENDER.rendered(text) == text, "run `make regenerate`"
    typed = [] if page.name in TYPED else MEASURED.findall(CODE.sub("", text))
    assert typed == [], "take it from a table (docs/render.py), or write a setting as `0.3`"


def test_metrics_page_has_every_metric() -> None:
    assert set(registry.all_metrics()) <= anchors(ROOT / "docs" / "metrics.md")


PICTURES = [*sorted(ROOT.glob("docs/figures/*.png")), ROOT / "docs" / "explorer.png"]
# Texts that the code makes from numbers and the names of a config.
MADE = re.compile(
    r"α = [\d.∞]+|n < \d+: rough interval|layer of the \w+ value|\d+ tasks|step\d+|main"
    r"|[a-z]+\d*-[\w-]+|Pythia-\d+[mb]|without massive"
)


@pytest.mark.parametrize("path", PICTURES, ids=lambda p: p.stem)
def test_pictures_are_in_full_colour_and_say_what_the_code_says(path: Path) -> None:
    code = (f for place in ("layerwise", "papers") for f in (ROOT / "lib" / place).rglob("*.py"))
    source = "".join(file.read_text(encoding="utf-8") for file in code)
    source += (ROOT / "lib" / "layerwise" / "vocabulary.py").read_text(encoding="utf-8")
    with Image.open(path) as image:
        assert image.mode in ("RGB", "RGBA"), "run `make pictures`"
        legend = json.loads(getattr(image, "text", {}).get("Legend", "[]"))
    assert path.stem == "explorer" or "Legend" in image.info, "run `make pictures`"
    for text in legend:
        for part in re.split(" · |, ", text):
            assert MADE.fullmatch(part) or part in source, f"{text}: run `make pictures`"


def test_every_picture_is_a_study_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    pictures = importlib.import_module("pictures")
    made = {name: set(pictures.pictures_of(name)) for name in pictures.RUNS}
    drawn = {path.stem for path in PICTURES} - {"explorer"}
    assert set.union(*made.values()) == drawn
    for name, run in pictures.RUNS.items():
        studies = set().union(*map(pictures.studies_of, run.configs))
        assert {run.studies[picture] for picture in made[name]} <= studies


def test_figures_page_shows_every_kind() -> None:
    page = ROOT / "docs" / "figures.md"
    assert set(all_kinds()) <= anchors(page)
    shown = {
        yaml_["kind"]
        for code in blocks(page, "yaml")
        for yaml_ in yaml.safe_load(code).values()
        if "kind" in yaml_
    }
    assert set(all_kinds()) <= shown


def test_example_of_a_metric_works(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {n: m for n, m in registry.all_metrics().items() if n != "stable_rank"}
    monkeypatch.setattr(registry, "_METRICS", others)
    example, _ = blocks(ROOT / "CONTRIBUTING.md", "python")
    module = types.ModuleType("example")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(example, "CONTRIBUTING.md", "exec"), module.__dict__)
    X = np.random.default_rng(0).normal(size=(50, 8))
    expected = (np.linalg.svd(X)[1] ** 2).sum() / np.linalg.svd(X)[1][0] ** 2
    assert layerwise.metrics.stable_rank(X) == pytest.approx(expected)


def test_every_page_is_in_the_sites_menu() -> None:
    menu = (ROOT / "properdocs.yml").read_text(encoding="utf-8")
    for page in ROOT.glob("docs/**/*.md"):
        assert f": {page.relative_to(ROOT / 'docs').as_posix()}\n" in menu, page
