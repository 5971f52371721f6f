"""Make the pictures of the docs, the notebooks and the tables of numbers: `make pictures`.

What is up to date is not computed again, and a part that fails does not stop the others: start it
again to go on. `--only` takes names of `RUNS`, `explorer`, `notebooks` and `numbers`.

Each PNG is in full colour and holds its provenance and the words of its legend, which
tests/test_docs.py compares with the code's.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import yaml

import layerwise
from layerwise.figures import panels
from layerwise.names import encode

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
DPI = 110
WINDOW = "1440,900"


class Run(NamedTuple):
    """A run of the workflow that pictures are drawn from.

    Parameters
    ----------
    configs : tuple of str
    folder : str
        Its results.
    studies : mapping of str to str
        Its studies by picture.
    more : tuple of str
        Other files that are made.
    """

    configs: tuple[str, ...]
    folder: str
    studies: Mapping[str, str]
    more: tuple[str, ...] = ()


def same(*names: str) -> dict[str, str]:
    """Pictures that have the names of their studies."""
    return dict(zip(names, names, strict=True))


def studies_of(config: str) -> list[str]:
    """The studies that a config adds or draws."""
    given = yaml.safe_load((ROOT / config).read_text(encoding="utf-8"))["studies"]
    return [name for name, study in given.items() if "kind" in study]


QUICKSTART = studies_of("config.yaml")
RUNS = {
    "quickstart": Run(("config.yaml",), "results", same(*QUICKSTART), ("all",)),
    "gallery": Run(
        ("config.yaml", "docs/gallery.yaml"), "results", same(*studies_of("docs/gallery.yaml"))
    ),
    "probes": Run(("docs/gallery_probes.yaml",), "results/probes", same("probes_by_depth")),
    "published": Run(
        ("presets/published.yaml",),
        "results/published",
        {
            "score_by_depth": "figure_1_score_by_depth",
            "metric_vs_score": "figure_3_metric_vs_score",
            "layer_selection": "layer_selection",
            "scores_over_checkpoints": "score_over_training",
            "size_scaling": "valley_by_size",
            "task_selection": "table_2_layer_per_task",
        },
        ("results/published/figures/figure_3_over_tasks.png",),  # for docs/tables.py
    ),
    "real": Run(
        ("presets/real.yaml",),
        "results/real",
        same("antibodies_accuracy", "fine_tuning", "fine_tuning_accuracy", "images_accuracy"),
    ),
    "real_texts": Run(
        ("presets/real_texts.yaml",),
        "results/real_texts",
        same("texts_final_norm", "texts_causes") | {"valley_and_peak": "texts_valley_and_peak"},
    ),
    "ablation": Run(
        ("presets/ablation.yaml",),
        "results/ablation",
        {"sink_without_a_write": "sink", "score_differences": "score_differences"},
    ),
}
STEPS = (*RUNS, "explorer", "notebooks", "numbers")


def main() -> None:
    """Make all parts, or those that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cores", default="2")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=STEPS)
    given = parser.parse_args()
    failed = []
    for step in given.only:
        try:
            make(step, given.cores)
        except Exception as error:  # the others are made, and the exit status tells
            failed.append(f"{step}: {type(error).__name__}: {error}")
            sys.stdout.write(f"{failed[-1]}\n")
    if failed:
        sys.exit("Not made: " + "; ".join(failed))


def make(step: str, cores: str) -> None:
    """Make one part."""
    if step == "explorer":
        explorer(ROOT / "results" / "explore.html", DOCS / "explorer.png")
    elif step == "notebooks":
        for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
            notebook(path)
    elif step == "numbers":
        subprocess.run([sys.executable, DOCS / "tables.py"], check=True)
    else:
        run = RUNS[step]
        pictures = {name: run.studies[name] for name in pictures_of(step)}
        files = [f"{run.folder}/figures/{encode(study)}.png" for study in pictures.values()]
        if not (files or run.more):
            return
        command = ["snakemake", "--cores", cores, "--configfile", *run.configs, "--"]
        subprocess.run([*command, *files, *run.more], check=True, cwd=ROOT)
        draw(run, pictures)


def pictures_of(step: str) -> Iterable[str]:
    """The pictures on pages that are drawn from a run; the last run that has one counts."""
    pages = (page.read_text(encoding="utf-8") for page in (*ROOT.glob("*.md"), *DOCS.glob("*.md")))
    for picture in sorted(set(re.findall(r"/(\w+)\.png\)", "".join(pages)))):
        of = [name for name, run in RUNS.items() if picture in run.studies]
        if not of:
            sys.exit(f"docs/pictures.py: RUNS has no study for {picture}.png; add it.")
        if of[-1] == step:
            yield picture


def draw(run: Run, pictures: Mapping[str, str]) -> None:
    """Draw pictures from a run's tables."""
    results = layerwise.open(ROOT / run.folder)
    for name, study in pictures.items():
        path = DOCS / "figures" / f"{name}.png"
        figure = results.plot(study)
        legends = [*figure.legends, *(ax.get_legend() for ax in figure.axes if ax.get_legend())]
        words = [text.get_text() for legend in legends for text in legend.get_texts()]
        about = {"Software": f"layerwise {version('layerwise')}", "Legend": json.dumps(words)}
        with panels.theme():
            figure.savefig(path, dpi=DPI, facecolor="white", metadata=about)
        sys.stdout.write(f"{path.name}: {path.stat().st_size // 1024} KB\n")


def notebook(path: Path) -> None:
    """Run a notebook from the project's root and save it with what it shows."""
    import nbformat
    from nbclient import NotebookClient

    cells = nbformat.read(path, as_version=4)
    NotebookClient(cells, resources={"metadata": {"path": str(ROOT)}}).execute()
    for cell in cells.cells:
        if cell.cell_type == "code":  # bars and warnings are of this machine
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
            cell.metadata.pop("execution", None)
    nbformat.write(cells, path)


def explorer(page: Path, target: Path) -> None:
    """Take a picture of the explorer with Chromium.

    Raises
    ------
    SystemExit
        If Chromium is not installed.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("The picture of the explorer needs Chromium; apt-get install chromium.")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    options += [f"--window-size={WINDOW}", f"--screenshot={target}"]
    subprocess.run([chromium, *options, page.as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    main()
