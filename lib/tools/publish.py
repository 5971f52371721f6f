"""Results of a run as a data set of the Hugging Face hub: `layerwise publish`."""

from __future__ import annotations

import json
import shutil
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from layerwise.errors import LayerwiseError
from layerwise.io import tables
from layerwise.run.results import Results

TABLES = {
    "metrics": "metrics by layer",
    "prompts": "metrics of each prompt",
    "positions": "metrics along the prompt",
    "scores": "scores of tasks by layer",
    "associations": "association of metrics with scores",
    "selections": "layer selected by each metric, and the score lost",
    "similarities": "CKA and RSA between layers",
}


def publish(results: Path, out: Path, licence: str) -> list[str]:
    """Write a folder that the hub takes as a data set; nothing is uploaded.

    Parameters
    ----------
    results : Path
        The folder of a run.
    out : Path
        The folder to write, which is empty or not there: a Parquet file for each table of
        `TABLES` that the run has, the card (``README.md``), and the explorer (``index.html``).
    licence : str
        Identifier of the hub, such as cc-by-4.0.

    Returns
    -------
    list of str
        Names of the tables.

    Raises
    ------
    LayerwiseError
        If the folder holds no run with a table and the explorer.
    """
    run = Results(results)
    explorer = results / "explore.html"
    if run.plan is None or not explorer.is_file():
        raise LayerwiseError(
            f"{results} has no config.json or no explore.html; finish the run first.",
            code="missing_file",
        )
    paths = {name: each for name in TABLES if (each := run._paths(name))}
    frames = {name: tables.read(each, name) for name, each in paths.items()}
    every = [*chain.from_iterable(paths.values())]
    if not frames:
        raise LayerwiseError(f"{results} has no tables; finish the run first.", code="too_few")
    if problem := run.outdated(every):
        raise LayerwiseError(problem, code="mismatch")
    out.mkdir(parents=True, exist_ok=True)
    for name, table in frames.items():
        table.to_parquet(out / f"{name}.parquet", index=False)
    shutil.copy(explorer, out / "index.html")
    head = {
        "license": licence,
        "tags": ["layerwise", "interpretability"],
        "configs": [{"config_name": name, "data_files": f"{name}.parquet"} for name in frames],
    }
    versions = sorted({tables.facts(path)["versions"] for path in every})
    made_with = [json.loads(one) for one in versions]
    config = run.plan.config.model_dump(mode="json", exclude_defaults=True)
    template = files("layerwise.data").joinpath("card.md").read_text(encoding="utf-8")
    card = template.format(
        head=yaml.safe_dump(head, sort_keys=False),
        models=", ".join(run.models),
        version=made_with[0]["layerwise"],
        listed="".join(f"- `{n}`: {TABLES[n]} ({len(t):,} rows)\n" for n, t in frames.items()),
        first=next(iter(frames)),
        config=yaml.safe_dump(_without_paths(config), sort_keys=False),
        versions="\n".join(f"- {', '.join(map(' '.join, one.items()))}" for one in made_with),
    )
    (out / "README.md").write_text(card, encoding="utf-8")
    return list(frames)


def _without_paths(value: Any) -> Any:
    """A config's value with the last part of absolute paths only, which may name a person."""
    if isinstance(value, dict):
        return {key: _without_paths(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
