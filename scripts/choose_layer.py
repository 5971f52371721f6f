"""Print the layers to use of a model, from its metrics alone: no labels, no scores of its own.

    python scripts/choose_layer.py --metrics results/metrics/smollm2-135m/main/wikipedia.parquet \\
        --choices results/choices/*.parquet --picks results/picks/*/*/*.parquet

What is recommended is a set of layers, those that metrics pick near their consensus, or none:
where the metrics do not agree, or such picks have not beaten the output of other models
(--choices). Metrics that their regulariser or the number of prompts decides (--picks) have no say.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd
from layerwise.cli import parser, run

from layerwise import tables
from layerwise.association.curves import require_columns
from layerwise.association.recommendation import Record, recommend, track_record
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
    made.add_argument("--picks", type=Path, nargs="+", help="tables of which picks can be trusted")
    return made.parse_args()


def describe(picks: pd.DataFrame, chosen: dict[str, object], record: Record | None) -> str:
    """The recommendation in words and a table."""
    layers = ", ".join(map(str, chosen["layers"]))  # type: ignore[call-overload]
    advice = f"none, since {chosen['none']}" if chosen["none"] else f"use one of layers {layers}"
    lines = [
        f"{chosen['model']} at {chosen['revision']}: {advice}",
        f"  tokens: {chosen['tokens']}; metrics on {chosen['corpus']}; their consensus is layer "
        f"{chosen['layer']} of {chosen['last_layer']}; {chosen['agreement']:.0%} of them pick a "
        "layer within a tenth of the depth of it",
        f"  {_told(record)}",
        "",
        f"  {'metric':<34}{'better':<9}{'picks layer':>11}{'depth':>8}",
    ]
    lines += [
        f"  {_label(row.metric):<34}{row.better:<9}"
        f"{row.layer:>11}{100 * row.depth:>6.0f} %"
        + (f"  refused: {row.refused}" if row.refused else "")
        + (f"  the same as {_label(row.same_as)}: no vote" if row.same_as else "")
        for row in picks.itertuples()
    ]
    return "\n".join(lines)


def _label(metric: str) -> str:
    known = all_metrics()
    return known[metric].label if metric in known else metric


def _told(record: Record | None) -> str:
    if record is None:
        return "track record: none known (--choices)"
    return (
        f"track record in {record.models} other models: loses {record.regret:.1f} points against "
        f"the best layer, where the output loses {record.output:.1f} and the middle layer "
        f"{record.middle:.1f}; can be told to lie above the output in {record.told_above} of "
        f"{record.told} (by chance in {record.above.expected:.1f}), below it in "
        f"{record.told_below}"
    )


def main(given: argparse.Namespace) -> None:
    """Read, choose, print."""
    metrics = tables.read(given.metrics, "metrics")
    require_columns(metrics, ["model"], "metrics")
    choices = tables.read(given.choices, "choices") if given.choices else None
    checked = tables.read(given.picks, "picks") if given.picks else None
    names = [given.model] if given.model else sorted(metrics["model"].unique())
    for name in names:
        asked = {
            "model": name, "revision": given.revision, "tokens": given.tokens,
            "corpus": given.corpus, "protocol": given.protocol, "stability": checked,
        }  # fmt: skip
        picks, chosen = recommend(metrics, directions(), **asked)
        record = None
        if choices is not None:
            at = {k: str(chosen[k]) for k in ("tokens", "corpus")}
            record = track_record(choices, without=name, protocol=given.protocol, **at)
            picks, chosen = recommend(metrics, directions(), **asked, record=record)
        sys.stdout.write(describe(picks, chosen, record) + "\n\n")


if __name__ == "__main__":
    run(main, arguments())
