"""Configs to start from: `layerwise new`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from layerwise.config import Config
from layerwise.errors import LayerwiseError, check_name
from layerwise.models.source import named
from layerwise.project import ROOT, SCHEMA
from layerwise.run.validate import validate
from layerwise.section import read_yaml


def write(
    folder: Path,
    models: Sequence[str],
    *,
    preset: str = "small",
    texts: Path | None = None,
    tasks: Sequence[str] = (),
) -> Path:
    """Write a preset with other models, prompts and tasks as ``config.yaml`` into a folder.

    Parameters
    ----------
    folder : Path
        It also gets the results, and is made if needed.
    models : sequence of str
        As `layerwise.models.source.named` takes them; at least one.
    preset : str
        Name of a file in ``presets``.
    texts : Path, optional
        File with the prompts of the preset's corpora that are no task's.
    tasks : sequence of str
        Tasks of mteb, in place of the preset's and of the corpora of their texts.

    Returns
    -------
    Path
        The config.

    Raises
    ------
    LayerwiseError
        If there is a config already, no such preset or no model, two models of one name, or the
        result is no valid config.
    """
    path = folder / "config.yaml"
    if path.exists():
        raise LayerwiseError(
            f"{path} exists already; remove it or name another folder with --folder.",
            code="exists",
        )
    check_name("preset", preset, sorted(file.stem for file in ROOT.glob("presets/*.yaml")))
    document = read_yaml(ROOT / "presets" / f"{preset}.yaml")
    document["results"] = (folder / "results").as_posix()
    document["models"] = _models(models)
    corpora = document.get("corpora", {})
    of_tasks = {name for name, corpus in corpora.items() if "task" in corpus.get("source", {})}
    if texts:
        prompts = {"source": {"file": str(texts.absolute())}}
        others = corpora.keys() - of_tasks
        corpora |= {name: corpora[name] | prompts for name in others}
    if tasks:
        document["tasks"] = [*tasks]
        document["corpora"] = {
            n: c for n, c in corpora.items() if n not in of_tasks or c["source"]["task"] in tasks
        }
    validate(Config.of(document))
    folder.mkdir(parents=True, exist_ok=True)
    plain = json.loads(json.dumps(document))  # repeated values become copies, not YAML aliases
    text = yaml.safe_dump(plain, sort_keys=False, width=99, allow_unicode=True)
    # Editors with a YAML language server then complete and check the keys. They take the path from
    # the config's folder, so that both can move together.
    schema = os.path.relpath(ROOT / SCHEMA, folder)
    path.write_text(f"# yaml-language-server: $schema={schema}\n\n{text}")
    return path


def _models(models: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The section ``models``; names are the package, or the last part of what was given."""
    if not models:
        raise LayerwiseError("No model was given; name one.", code="missing")
    entries: dict[str, dict[str, Any]] = {}
    for model in models:
        parts = model.rstrip("/").split("#")[0].split("/")
        last = parts[0].removeprefix("package:") if model.startswith("package:") else parts[-1]
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._") or "model"
        if name in entries:
            raise LayerwiseError(
                f"Two models would be called {name!r}; name one here, and add the other to the "
                "config under a name of your own.",
                code="duplicate",
            )
        source = named(model).model_dump(exclude_none=True)
        if "folder" in source:
            source["folder"] = str(Path(source["folder"]).absolute())
        entries[name] = {"source": source}
    return entries
