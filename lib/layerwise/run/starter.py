"""Configs to start from: `layerwise new`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from layerwise.config import Config
from layerwise.config.kinds import all_kinds
from layerwise.config.tasks import LabelledEntry
from layerwise.errors import LayerwiseError
from layerwise.models.source import named
from layerwise.project import ROOT, SCHEMA
from layerwise.run.validate import validate
from layerwise.tasks.catalog import PAPER

QUICK = (
    "EmotionClassification",
    "TwitterSemEval2015",
    "AskUbuntuDupQuestions",
    "BIOSSES",
    "STSBenchmark",
)
"""Small tasks of the paper, of each type but clustering."""


def small(
    models: Sequence[str],
    prompts: Path | None = None,
    tasks: Sequence[str] = (),
    labels: LabelledEntry | None = None,
    column: str | None = None,
) -> dict[str, Any]:
    """A small config: metrics on some prompts, and scores if tasks or labels are named.

    Parameters
    ----------
    models : sequence of str
        As `layerwise.models.source.named` takes them; at least one.
    prompts : Path, optional
        File with the prompts; without one, the texts of the example.
    tasks : sequence of str
        MTEB tasks.
    labels : LabelledEntry, optional
        Labelled rows of a file, which names the task.
    column : str, optional
        The texts' column in the file of prompts, if it has another name than text.

    Returns
    -------
    dict
        For `write`.

    Raises
    ------
    LayerwiseError
        If no model or two models of one name are given.
    """
    document = _template("small")
    document["models"] = _models(models)
    if prompts is not None:
        source = {"file": str(prompts.absolute()), "column": column}
        document["corpora"]["prompts"]["source"] = {k: v for k, v in source.items() if v}
    else:
        example = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
        (corpus, *_) = example["corpora"].values()
        document["corpora"]["prompts"]["source"] = corpus["source"]
        document["recipes"] = example["recipes"]
    document["tasks"] = {task: {} for task in tasks}
    if labels is not None:
        entry = labels.model_dump(mode="json", exclude_defaults=True)
        document["tasks"][Path(entry["file"]).stem] = entry
    studies = document["studies"]
    studies["task_heatmap"]["models"] = list(document["models"])[:1]
    if not document["tasks"]:
        del document["tasks"]
        document["studies"] = {"metrics_by_depth": studies["metrics_by_depth"]}
    return document


def panel(
    models: Sequence[str], tasks: Sequence[str] = PAPER, revisions: Sequence[str] = ()
) -> dict[str, Any]:
    """A config with the experiments of Skean et al. 2025 (arXiv 2502.02013) for any models.

    Metrics are computed on WikiText and on the texts of each task, on 1,000 prompts with 16 views.
    Studies are Figures 1, 2, 3, 8 and 10 and the table of layer selection, and with checkpoints
    Figures 4 and 11.

    Parameters
    ----------
    models : sequence of str
        As in `small`.
    tasks : sequence of str
        MTEB tasks.
    revisions : sequence of str
        Checkpoints of each model; ``all`` or ``log`` alone for those that the hub lists.

    Returns
    -------
    dict
        For `write`.

    Raises
    ------
    LayerwiseError
        As in `small`.
    """
    document = _template("paper")
    document["models"], document["tasks"] = _models(models), list(tasks)
    corpora = document["corpora"]
    of_task = corpora.pop("TASK")
    corpora |= {task: of_task | {"source": {"task": task}} for task in tasks}
    for model in document["models"].values() if revisions else ():
        shorthand = [*revisions] in (["all"], ["log"])
        model["revisions"] = revisions[0] if shorthand else [*revisions]
    if not revisions:
        studies = document["studies"].items()
        document["studies"] = {
            n: s for n, s in studies if not all_kinds()[s["kind"]].needs_checkpoints
        }
    return document


def write(folder: Path, document: dict[str, Any]) -> Path:
    """Write ``config.yaml`` into a folder, which also gets the results; make it if needed.

    Returns
    -------
    Path
        The config.

    Raises
    ------
    LayerwiseError
        If there is a config already, or the document is not valid.
    """
    path = folder / "config.yaml"
    if path.exists():
        raise LayerwiseError(
            f"{path} exists already; remove it or name another folder with --folder.",
            code="exists",
        )
    if folder != Path():
        document = {"results": (folder / "results").as_posix(), **document}
    validate(Config.of(document))
    folder.mkdir(parents=True, exist_ok=True)
    plain = json.loads(json.dumps(document))  # repeated values become copies, not YAML aliases
    text = yaml.safe_dump(plain, sort_keys=False, width=99, allow_unicode=True)
    # Editors with a YAML language server then complete and check the keys. They take the path from
    # the config's folder, so that both can move together.
    schema = os.path.relpath(ROOT / SCHEMA, folder)
    path.write_text(f"# yaml-language-server: $schema={schema}\n\n{text}")
    return path


def _template(name: str) -> dict[str, Any]:
    text = files("layerwise.data").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def _models(models: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The section ``models``.

    Raises
    ------
    LayerwiseError
        If there is no model, or two have the same name.
    """
    if not models:
        raise LayerwiseError("No model was given; name one.", code="missing")
    entries: dict[str, dict[str, Any]] = {}
    for model in models:
        name, source = _name(model), named(model).model_dump(exclude_none=True)
        if name in entries:
            raise LayerwiseError(
                f"Two models would be called {name!r}; name one here, and add the other to the "
                "config under a name of your own.",
                code="duplicate",
            )
        if "folder" in source:
            source["folder"] = str(Path(source["folder"]).absolute())
        entries[name] = {"source": source}
    return entries


def _name(model: str) -> str:
    """A name for figures and paths: the package, or the last part of the given name.

    Characters that a name cannot have are replaced.
    """
    parts = model.rstrip("/").split("#")[0].split("/")
    last = parts[0].removeprefix("package:") if model.startswith("package:") else parts[-1]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._") or "model"
