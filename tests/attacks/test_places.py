"""Projects, results and tables in folders with names of all kinds: to the report, and no code runs.

The project's own folder, its results folder and a table's path hold quotes, ``$()``, spaces, a
colon, a newline; nothing in them is ever run, and the figures and the report come out.
"""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from attack import REFUSED, RIGHT, Tally, tally
from test_inputs import metrics, scores
from test_pages import CHROMIUM, SECRET, shown
from test_workflow import CONFIG, Project

from layerwise.errors import LayerwiseError
from layerwise.models.source import package_folder

__all__ = ["tally"]

AREA = "code from names"
REPORT = "report"


class Elsewhere(Project):
    """A project whose library nobody is told of."""

    def environment(self) -> dict[str, str]:
        told = super().environment()
        del told["PYTHONPATH"]
        return told

    def try_snakemake(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            self.command(*arguments), cwd=self.folder, env=self.environment(),
            capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr


def small(**parts: Any) -> dict[str, Any]:
    """One model, one metric, one task."""
    config = copy.deepcopy(CONFIG)
    del config["models"]["second"]
    config["metrics"]["metrics"] = ["curvature"]
    config["studies"] = {
        "both": {"kind": "metric_vs_score", "metrics": ["curvature"]},
        "choice": {"kind": "layer_choice"},
    }
    return config | parts


def touched(folder: Path) -> list[str]:
    """Files that a command in a name would have made."""
    names = {"PWNED", "x", "y", "z"}
    return [str(p) for p in folder.rglob("*") if p.name in names and p.is_file()]


def to_the_report(project: Elsewhere) -> str:
    status, output = project.try_snakemake()
    assert status == 0, output[-5000:]
    status, output = project.try_snakemake("--report", "report.html")
    assert status == 0, output[-5000:]
    status, output = project.try_snakemake("--dry-run")
    assert "Nothing to be done" in output
    return (project.folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_folder_of_quotes_and_commands(tally: Tally, tmp_path: Path) -> None:
    project = Elsewhere(tmp_path / 'it\'s a $(touch x) "place"')
    results = 'out $(touch y) it\'s "q" ;touch z `touch z`'
    project.write(small(results=results))
    page = to_the_report(project)
    assert "Which layer of each model is best" in page
    assert (project.folder / results / "figures" / "both.png").stat().st_size > 10_000
    assert not touched(tmp_path)
    tally.note(AREA, RIGHT)
    if CHROMIUM:
        seen = shown(project.folder / "report.html", tmp_path / "profile")
        assert "Which layer of each model is best" in seen
        tally.note(REPORT, RIGHT)


@pytest.mark.slow
def test_a_folder_with_a_colon_and_a_newline_and_no_scores(tally: Tally, tmp_path: Path) -> None:
    """Metrics alone, published alone and the power law alone have a report too."""
    project = Elsewhere(tmp_path / "a b\nc:d %s")
    tables = project.folder / "my tables"
    tables.mkdir()
    scores().to_csv(tables / "s $(touch z).csv", index=False)
    metrics().to_csv(tables / "m;touch z.csv", index=False)
    config = small(
        results="r s",
        published={"p": {"scores": "my tables/s $(touch z).csv",
                         "metrics": "my tables/m;touch z.csv"}},
        studies={
            "depth": {"kind": "metrics_by_depth", "metrics": ["curvature"], "tokens": ["all"]},
            "law": {"kind": "power_law"},
            "elsewhere": {"kind": "score_by_depth", "published": "p"},
        },
    )  # fmt: skip
    del config["tasks"]
    project.write(config)
    page = to_the_report(project)
    assert "No study of this run has scores of its own" in page
    assert not touched(tmp_path)
    tally.note(AREA, RIGHT)
    for alone in ("law", "elsewhere"):
        project.write({"results": "r s", "published": config["published"],
                       "studies": {alone: config["studies"][alone]}})  # fmt: skip
        # The same config in another shape asks for nothing new.
        to_the_report(project)
        tally.note(REPORT, RIGHT)


@pytest.mark.slow
def test_jobs_import_the_library_beside_the_workflow(tally: Tally, tmp_path: Path) -> None:
    """Whatever is installed, or said in PYTHONPATH."""
    project = Elsewhere(tmp_path / "a place")
    other = tmp_path / "other" / "layerwise"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise SystemExit('another layerwise was imported')")
    (project.folder / "lib" / "layerwise" / "here.txt").write_text("")
    project.write({"studies": {"law": {"kind": "power_law"}}})
    done = subprocess.run(
        project.command(), cwd=project.folder, capture_output=True, text=True, check=False,
        env=project.environment() | {"PYTHONPATH": str(other.parent)}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    tally.note(AREA, RIGHT)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["{braces}", "a {b} c"])
def test_folders_that_snakemake_cannot_take(tally: Tally, tmp_path: Path, name: str) -> None:
    project = Elsewhere(tmp_path / name)
    status, output = project.try_snakemake("--dry-run")
    assert status == 1
    assert "Snakemake takes braces in that path for patterns; rename the folder." in output
    tally.note(AREA, REFUSED)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="wants Chromium (apt-get install chromium)")
def test_a_hostile_table_in_the_report(tally: Tally, tmp_path: Path) -> None:
    """Published names are refused; prompts whose ids are formulas and markup reach the pages as
    text."""
    project = Elsewhere(tmp_path / "project")
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET)
    hostile = f"x\n\n.. include:: {secret}\n\n.. raw:: html\n\n   <script>boom()</script>"
    tables = project.folder / "tables"
    tables.mkdir()
    scores(family=hostile).to_csv(tables / "s.csv", index=False)
    metrics().to_csv(tables / "m.csv", index=False)
    studies = {"elsewhere": {"kind": "score_by_depth", "published": "p"}}
    published = {"p": {"scores": "tables/s.csv", "metrics": "tables/m.csv"}}
    project.write({"published": published, "studies": studies})
    status, output = project.try_snakemake()
    assert status == 1
    assert "cannot be a name" in output
    tally.note(REPORT, REFUSED)
    # A caption as it would be had all checks failed.
    scores().to_csv(tables / "s.csv", index=False)
    project.snakemake()
    from layerwise.figures.render import plain

    caption = project.folder / "results" / "figures" / "elsewhere.rst"
    caption.write_text(f"**{plain(hostile)}**\n\n{plain(hostile)}\n", encoding="utf-8")
    status, output = project.try_snakemake("--report", "report.html")
    assert status == 0, output[-3000:]
    page = project.folder / "report.html"
    content = page.read_text(encoding="utf-8")
    assert SECRET not in content
    content = content.replace("<head>", "<head><script>function boom(){window.name='';"
                              "document.documentElement.id='H'+'IT'}</script>", 1)  # fmt: skip
    page.write_text(content, encoding="utf-8")
    seen = shown(page, tmp_path / "profile")
    assert 'id="HIT"' not in seen
    assert SECRET not in seen
    tally.note(REPORT, RIGHT)


def test_packages_are_found_without_running_their_code(
    tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "hostile_package" / "sub" / "data"
    inner.mkdir(parents=True)
    for folder in (inner.parent, inner.parent.parent):
        (folder / "__init__.py").write_text("raise SystemExit('this code was run')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert package_folder("hostile_package.sub.data") == inner
    assert package_folder("hostile_package.sub") == inner.parent
    assert "hostile_package" not in sys.modules
    tally.note(AREA, RIGHT)
    for absent in ("hostile_package.other", "no_such_package.sub", "hostile_package.sub.__init__"):
        with pytest.raises(LayerwiseError, match="is not installed"):
            package_folder(absent)
        tally.note(AREA, REFUSED)


def test_every_command_is_quoted() -> None:
    """The rules have one shell command, whose parts Snakemake quotes."""
    from conftest import ROOT

    for file in (ROOT / "workflow" / "rules").glob("*.smk"):
        text = file.read_text()
        shells = text.count("shell:")
        assert shells == text.count("shell:\n        RUN") + text.count("shell:\n            RUN")
    common = (ROOT / "workflow" / "rules" / "common.smk").read_text()
    assert 'RUN = "{params.command:q} --threads {threads} --log {log:q}"' in common


@pytest.mark.slow
def test_a_folder_that_looks_like_options(tally: Tally, tmp_path: Path) -> None:
    """A folder whose name looks like options."""
    project = Elsewhere(tmp_path / "-rf --help")
    project.write({"results": "r -x", "studies": {"law": {"kind": "power_law"}}})
    to_the_report(project)
    shutil.rmtree(project.folder)
    tally.note(AREA, RIGHT)
