"""Print the layer to use of a model, from its metrics alone: no labels, no scores.

    python scripts/choose_layer.py --metrics results/metrics/smollm2-135m/main/wikipedia.parquet

The recommended layer is the one with the best mean rank over the paper's metrics. With --choices
(results/choices/*.parquet) it also says how such picks have done where scores are known.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from layerwise import tables
from layerwise.association.choice import CONSENSUS, MIDDLE, OUTPUT, summarize
from layerwise.association.curves import require_columns
from layerwise.association.recommendation import recommend
from layerwise.cli import parser, run
from layerwise.metrics.registry import all_metrics, directions


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    made = parser(__doc__)
    made.add_argument("--metrics", type=Path, nargs="+", required=True, help="tables of metrics")
    made.add_argument("--model", help="its name in the tables (default: every model there)")
    made.add_argument("--revision", help="its checkpoint (default: the last one)")
    made.add_argument("--tokens", help="all, drop_first or drop_sinks (default: drop_first)")
    made.add_argument("--corpus", help="corpus of the metrics, if they are on several")
    made.add_argument("--protocol", default="paper", help="paper (default) or reference")
    made.add_argument("--choices", type=Path, nargs="+", help="tables of how picks have done")
    return made.parse_args()


def describe(picks: pd.DataFrame, chosen: dict[str, object]) -> str:
    """The recommendation in words and a table."""
    known = all_metrics()
    lines = [
        f"{chosen['model']} at {chosen['revision']}: use layer {chosen['layer']} of "
        f"{chosen['last_layer']} ({100 * float(str(chosen['depth'])):.0f} % depth)",
        f"  tokens: {chosen['tokens']}; metrics on {chosen['corpus']}; "
        f"{100 * float(str(chosen['agreement'])):.0f} % of the metrics pick a layer within a "
        "tenth of the depth of it",
        "",
        f"  {'metric':<34}{'better':<9}{'picks layer':>11}{'depth':>8}",
    ]
    lines += [
        f"  {known[row.metric].label if row.metric in known else row.metric:<34}{row.better:<9}"
        f"{row.layer:>11}{100 * row.depth:>6.0f} %"
        for row in picks.itertuples()
    ]
    return "\n".join(lines)


def track_record(choices: pd.DataFrame, tokens: str) -> str:
    """How picks by consensus, the model's own output and the middle layer have done."""
    summary = summarize(choices)
    summary = summary[(summary["task_type"] == "all") & (summary["tokens"] == tokens)]
    rows = summary[summary["metric"].isin([CONSENSUS, OUTPUT, MIDDLE])]
    lines = [
        "  Where scores are known:",
        f"  {'rule':<34}{'models':>7}{'mean regret':>13}{'beats output':>14}{'beats middle':>14}",
    ]
    lines += [
        f"  {name:<34}{n:>7}{100 * regret:>13.1f}{output:>14}{middle:>14}"
        for name, n, regret, output, middle in zip(
            rows["metric"].where(
                rows["corpus"] == "none", rows["metric"] + " on " + rows["corpus"]
            ),
            rows["n_models"],
            rows["mean_regret"],
            rows["beats_output"],
            rows["beats_middle"],
            strict=True,
        )
    ]
    return "\n".join(lines)


def main(given: argparse.Namespace) -> None:
    """Read, choose, print."""
    metrics = tables.read(given.metrics, "metrics")
    require_columns(metrics, ["model"], "metrics")
    choices = tables.read(given.choices, "choices") if given.choices else None
    names = [given.model] if given.model else sorted(metrics["model"].unique())
    for name in names:
        picks, chosen = recommend(
            metrics, directions(), model=name, revision=given.revision, tokens=given.tokens,
            corpus=given.corpus, protocol=given.protocol,
        )  # fmt: skip
        sys.stdout.write(describe(picks, chosen) + "\n\n")
        if choices is not None:
            sys.stdout.write(track_record(choices, str(chosen["tokens"])) + "\n\n")


if __name__ == "__main__":
    run(main, arguments())
