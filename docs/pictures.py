"""Draw the pictures of the docs and run its notebooks: `make pictures`.

Each PNG is in full colour and holds its provenance and the words of its legend, which
tests/test_docs.py compares with the code's.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import layerwise
from layerwise.figures import theme

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
DPI = 110
# Studies of other runs than the quickstart's with docs/gallery.yaml, by picture; those of the
# quickstart have the names of their pictures.
STUDIES = {
    "published": {
        "score_by_depth": "figure_1_score_by_depth",
        "metric_vs_score": "figure_3_metric_vs_score",
        "layer_selection": "layer_selection",
        "scores_over_checkpoints": "score_over_training",
        "size_scaling": "valley_by_size",
        "task_selection": "table_2_layer_per_task",
    },
    "probes": {"probes_by_depth": "probes_by_depth"},
    "real": {
        "antibodies_accuracy": "antibodies_accuracy",
        "fine_tuning": "fine_tuning",
        "fine_tuning_accuracy": "fine_tuning_accuracy",
        "images_accuracy": "images_accuracy",
    },
    "ablation": {"sink_without_a_write": "sink", "score_differences": "score_differences"},
}
WINDOW = "1440,900"


def main() -> None:
    """Draw every picture of the pages again, and the explorer."""
    results = ROOT / "results"
    runs = {name: layerwise.open(results / name) for name in ("", *STUDIES)}
    for path in sorted((DOCS / "figures").glob("*.png")):
        name = next((name for name, studies in STUDIES.items() if path.stem in studies), "")
        study = STUDIES.get(name, {}).get(path.stem, path.stem)
        run = runs[name]
        if study not in run.studies:
            sys.exit(f"{run.folder} has no study {study}; run `make pictures`.")
        figure = run.plot(study)
        legends = [*figure.legends, *(ax.get_legend() for ax in figure.axes if ax.get_legend())]
        words = [text.get_text() for legend in legends for text in legend.get_texts()]
        about = {"Software": f"layerwise {version('layerwise')}", "Legend": json.dumps(words)}
        with theme.theme():
            figure.savefig(path, dpi=DPI, facecolor="white", metadata=about)
        sys.stdout.write(f"{path.name}: {path.stat().st_size // 1024} KB\n")
    explorer(results / "explore.html", DOCS / "explorer.png")
    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        notebook(path)


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
