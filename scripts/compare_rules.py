"""Which rule for choosing a layer loses least in models that it was not made on?

    python scripts/compare_rules.py --results results --tokens drop_first --out rules.csv
    python scripts/compare_rules.py --results results --published published --out rules.csv

Reads the tables of runs (--results, with one corpus) and the authors' released tables
(--published, a folder with mteb_scores.csv.gz and metrics.csv.gz), and writes two tables: --out,
how each rule did by task type; beside it, `…-models.csv`, its regret in each model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from layerwise import tables
from layerwise.association import published
from layerwise.association.curves import OWN_TEXTS
from layerwise.association.order import Order
from layerwise.association.regret import Case, cases, compare, regrets, verdict
from layerwise.choosing.choose import without_views
from layerwise.cli import parser, run
from layerwise.errors import LayerwiseError
from layerwise.metrics.registry import directions


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    made = parser(__doc__)
    made.add_argument("--results", type=Path, nargs="*", default=[], help="folders of results")
    made.add_argument("--published", type=Path, help="folder with the authors' released tables")
    made.add_argument("--tokens", default="drop_first", help="of the own models (drop_first)")
    made.add_argument("--corpus", default="wikipedia", help="of the own metrics (wikipedia)")
    made.add_argument("--one-pass", action="store_true", help="without metrics of augmented texts")
    made.add_argument("--out", type=Path, required=True, help="the table to write, CSV")
    return made.parse_args()


def own(folder: Path, corpus: str, tokens: str, ends: Mapping[str, int]) -> list[Case]:
    """The models of a run."""
    metrics = tables.read(sorted(folder.glob(f"metrics/*/*/{corpus}.parquet")), "metrics")
    scores = tables.read(sorted(folder.glob("scores/*/*/*.parquet")), "scores")
    picks = sorted(folder.glob(f"picks/*/*/{corpus}.parquet"))
    checked = tables.read(picks, "picks") if picks else None
    return cases(metrics, scores, ends, corpus=corpus, tokens=tokens, stability=checked)


def released(folder: Path, ends: Mapping[str, int]) -> list[Case]:
    """The models of the authors' tables, each task with the metrics of its own texts."""
    scores = published.published_scores(published.read_table(folder / "mteb_scores.csv.gz"))
    metrics = published.published_metrics(published.read_table(folder / "metrics.csv.gz"))
    return cases(
        metrics, scores, ends, corpus=OWN_TEXTS, protocol="reference",
        own_texts=published.TASK_OF_DATASET,
    )  # fmt: skip


def weights(folders: list[Path]) -> dict[str, str]:
    """The first digits of the hash of each model's weights, last checkpoint."""
    scored: dict[str, dict[str, Path]] = {}
    for folder in folders:
        for path in sorted(folder.glob("scores/*/*/*.parquet")):
            model, revision = path.parts[-3:-1]
            scored.setdefault(model, {})[revision] = path
    last = {model: of[Order().last(model, of)] for model, of in scored.items()}
    return {m: tables.facts(path).get("weights_sha256", "")[:12] for m, path in last.items()}


def main(given: argparse.Namespace) -> None:
    """Read, compare, write, say what came of it."""
    if not (given.results or given.published):
        raise LayerwiseError(
            "Neither --results nor --published came; give the folders of runs, or of the authors' "
            "tables, or both."
        )
    ends = directions()
    if given.one_pass:
        ends = {metric: ends[metric] for metric in without_views()}
    models = [
        case for folder in given.results for case in own(folder, given.corpus, given.tokens, ends)
    ]
    if given.published:
        models += released(given.published, ends)
    found = regrets(models)
    types = list(dict.fromkeys(found["task_type"]))
    compared = pd.concat(
        [compare(found, task_type).assign(task_type=task_type) for task_type in types]
    )
    found["weights"] = found["model"].map(weights(given.results)).fillna("")
    tables.write_csv(given.out.with_name(f"{given.out.stem}-models.csv"), found.round(6))
    tables.write_csv(given.out, compared.round(6))
    for task_type in types:
        part = compared[compared["task_type"] == task_type]
        sys.stdout.write(f"{task_type}: {verdict(part)}\n")
    told = compared[compared["task_type"] == "all"].drop(columns="task_type")
    sys.stdout.write(told.round(3).to_string(index=False) + "\n")


if __name__ == "__main__":
    run(main, arguments())
