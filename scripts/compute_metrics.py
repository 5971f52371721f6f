"""Compute metrics of all layers from a file of activations. Needs no GPU and no model.

Metrics that the tables have already, from the same activations and by the same formula, stay.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from layerwise.run import script

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

TABLES = ("positions", "prompts", "metrics")
# What is stored of the activations, beside hashes.
ABOUT = ("model", "revision", "corpus", "dtype", "readout", "input")


def main(arguments: script.Arguments) -> None:
    """Read the metrics that stay, compute the others, write."""
    from layerwise.io import tables

    names = {name: getattr(arguments, name) for name in ("model", "revision", "corpus")}
    keys = arguments.plan.keys.of_metrics(**names)
    due = arguments.plan.metrics_due(**names)
    stay = [name for name in keys if name not in due]
    sources: list[tuple[dict[str, str], dict[str, pd.DataFrame]]] = []
    if stay:
        stored = {table: tables.read(getattr(arguments, table), table) for table in TABLES}
        sources.append((tables.facts(arguments.metrics), only(stored, stay)))
    if due:
        sources.append(compute(arguments, due))
    facts = {k: v for k, v in sources[-1][0].items() if k in ABOUT or k.endswith("sha256")}
    order = arguments.config.metrics.metrics or tuple(keys)
    facts["versions"] = tables.joined_versions(facts for facts, _ in sources)
    facts["metric_keys"] = json.dumps(keys)
    for table in TABLES:
        rows = joined([of_source[table] for _, of_source in sources], order)
        tables.write(getattr(arguments, table), rows, key=arguments.key, **facts)


def only(stored: dict[str, pd.DataFrame], metrics: Sequence[str]) -> dict[str, pd.DataFrame]:
    """The rows of some metrics; those along the sequence are one."""
    from layerwise.run.keys import SEQUENCE

    rows = {name: table[table["metric"].isin(metrics)] for name, table in stored.items()}
    rows["positions"] = stored["positions"][: None if SEQUENCE in metrics else 0]
    return rows


def compute(
    arguments: script.Arguments, due: Sequence[str]
) -> tuple[dict[str, str], dict[str, pd.DataFrame]]:
    """What is to be stored of the activations, and the tables of some metrics."""
    from layerwise.activations.store import Activations
    from layerwise.io.files import versions
    from layerwise.metrics import sequence, table
    from layerwise.run.keys import SEQUENCE

    names = {name: getattr(arguments, name) for name in ("model", "revision", "corpus")}
    settings = arguments.config.metrics
    wanted = tuple(name for name in settings.metrics or due if name in due and name != SEQUENCE)
    with Activations(arguments.activations, **names) as activations:
        script.check_activations(arguments.plan, activations)
        facts = {k: str(v) for k, v in activations.attributes.items()}
        of_due = settings.model_copy(update={"metrics": wanted})
        metrics, prompts = table.compute(activations, of_due, arguments.threads)
        positions = sequence.compute(activations, settings)
    made = {"metrics": metrics, "prompts": prompts, "positions": positions}
    facts |= {"input": facts["key"], "versions": json.dumps(versions())}
    return facts, only(made, due)


def joined(sources: Sequence[pd.DataFrame], metrics: Sequence[str]) -> pd.DataFrame:
    """Rows of both sources in the order of a table that was computed at once."""
    import pandas as pd

    full = [rows for rows in sources if len(rows)]
    if len(full) < 2:
        return (full or sources)[0].reset_index(drop=True)
    rows = pd.concat(full, ignore_index=True)
    order = pd.DataFrame({k: pd.factorize(rows[k])[0] for k in ("sublayer", "protocol", "tokens")})
    order["layer"], order["metric"] = rows["layer"], rows["metric"].map(metrics.index)
    return rows.loc[order.sort_values(list(order)).index].reset_index(drop=True)


if __name__ == "__main__":
    files = {
        "metrics": "table of metrics to write",
        "prompts": "table of single prompts to write",
        "positions": "table along the sequence to write",
    }
    options = script.parser(__doc__, "model", "revision", "corpus", stage="metrics", **files)
    about = "HDF5 file to read; none if the tables have all metrics already"
    options.add_argument("--activations", type=Path, nargs="?", help=about)
    script.run(main, options)
