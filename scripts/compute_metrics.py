"""Compute metrics of all layers from a file of activations. Needs no GPU and no model.

Metrics that the tables have already, from the same activations and by the same formula, stay.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from layerwise.errors import LayerwiseError
from layerwise.run import script

Tables = dict[str, Any]
"""Data frames by the name of their table."""
TABLES = ("positions", "prompts", "metrics")
# What is stored of the activations, beside hashes.
ABOUT = ("model", "revision", "corpus", "dtype", "readout", "input")


def main(job: script.Job) -> None:
    """Read the metrics that stay, compute the others, write."""
    from layerwise.io import tables

    keys = job.plan.metric_keys(**job.names)
    paths = {table: Path(getattr(job.output, table)) for table in TABLES}
    due = metrics_due(paths.values(), keys, job.key)
    stay = [name for name in keys if name not in due]
    sources: list[tuple[dict[str, str], Tables]] = []
    if stay:
        stored = {table: tables.read(path, table) for table, path in paths.items()}
        sources.append((tables.facts(paths["metrics"]), only(stored, stay)))
    if due:
        sources.append(compute(job, due))
    facts = {k: v for k, v in sources[-1][0].items() if k in ABOUT or k.endswith("sha256")}
    order = job.config.metrics.metrics or tuple(keys)
    facts["versions"] = tables.joined_versions(facts for facts, _ in sources)
    facts["metric_keys"] = json.dumps(keys)
    for table, path in paths.items():
        rows = joined([of_source[table] for _, of_source in sources], order)
        tables.write(path, rows, key=job.key, **facts)


def metrics_due(paths: Iterable[Path], keys: dict[str, str], key: str) -> list[str]:
    """The metrics that the tables lack.

    All of them if there are no such tables, or if they are made again under the same key.
    """
    from layerwise.io import tables

    with suppress(LayerwiseError):
        made_for = {facts["key"]: facts for facts in map(tables.facts, paths)}
        if len(made_for) == 1 and key not in made_for:
            (facts,) = made_for.values()
            stored = json.loads(facts.get("metric_keys", "{}"))
            return [name for name, wanted in keys.items() if stored.get(name) != wanted]
    return list(keys)


def only(stored: Tables, metrics: Sequence[str]) -> Tables:
    """The rows of some metrics; those along the sequence are one."""
    from layerwise.run.plan import SEQUENCE

    rows = {name: table[table["metric"].isin(metrics)] for name, table in stored.items()}
    rows["positions"] = stored["positions"][: None if SEQUENCE in metrics else 0]
    return rows


def compute(job: script.Job, due: Sequence[str]) -> tuple[dict[str, str], Tables]:
    """What is to be stored of the activations, and the tables of some metrics."""
    from layerwise.activations.store import Activations
    from layerwise.io.files import versions
    from layerwise.metrics import table
    from layerwise.run.plan import SEQUENCE

    settings = job.config.metrics
    wanted = tuple(name for name in settings.metrics or due if name in due and name != SEQUENCE)
    with Activations(Path(job.input.activations), **job.names) as activations:
        facts = {k: str(v) for k, v in activations.attributes.items()}
        of_due = settings.model_copy(update={"metrics": wanted})
        metrics, prompts = table.compute(activations, of_due, job.threads)
        positions = table.compute_along(activations, settings)
    made = {"metrics": metrics, "prompts": prompts, "positions": positions}
    facts |= {"input": facts["key"], "versions": json.dumps(versions())}
    return facts, only(made, due)


def joined(sources: Sequence[Any], metrics: Sequence[str]) -> Any:
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
    script.run(main, snakemake)
