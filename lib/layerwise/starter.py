"""A config to start from: `layerwise new`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from layerwise.config import Config
from layerwise.errors import LayerwiseError
from layerwise.models.source import named
from layerwise.section import NAME


def write(folder: Path, models: Sequence[str], prompts: Path | None, tasks: Sequence[str]) -> Path:
    """Write ``config.yaml`` into a folder, valid at once.

    Parameters
    ----------
    models : sequence of str
        As `layerwise.models.source.named` takes them; at least one.
    prompts : Path, optional
        The file with the prompts; the Wikipedia slice of gensim's test data without one.
    tasks : sequence of str
        MTEB tasks; without any, metrics alone are computed.

    Raises
    ------
    LayerwiseError
        If there is a config already, no model is named, or what is named makes no valid config.
    """
    path = folder / "config.yaml"
    if path.exists():
        raise LayerwiseError(f"There is a config {path} already; name another folder.")
    if not models:
        raise LayerwiseError("No model came; name one with --model.")
    if prompts is not None and not prompts.is_file():
        raise LayerwiseError(f"There is no file {prompts}; paths count from where you run.")
    names = [_name(model) for model in models]
    for name in names:
        if names.count(name) > 1:
            raise LayerwiseError(
                f"Two models would be called {name!r}; name one here, and add the other to the "
                "config under a name of your own."
            )
    document = _document(models, prompts, tasks)
    Config.of(document)
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(document, sort_keys=False, width=99, allow_unicode=True)
    path.write_text(
        "# Every key, with its default: workflow/schemas/config.schema.yaml of layerwise.\n\n"
        + text
    )
    return path


def _document(models: Sequence[str], prompts: Path | None, tasks: Sequence[str]) -> dict[str, Any]:
    source = {"package": "wikipedia"} if prompts is None else {"file": str(prompts.absolute())}
    studies: dict[str, Any] = {"metrics_by_depth": {"kind": "metrics_by_depth"}}
    if tasks:
        studies |= {
            kind: {"kind": kind}
            for kind in ("score_by_depth", "task_heatmap", "metric_vs_score", "layer_choice")
        }
        for kind in ("task_heatmap",):
            studies[kind] |= {"models": [_name(models[0])]}
    document: dict[str, Any] = {
        "models": {_name(model): {"source": _given(model)} for model in models},
        "corpora": {
            "prompts": {
                "source": source,
                "filters": {"min_tokens": 10, "max_tokens": 256, "longer": "cut"},
                "sample": {"n": 500},
                "views": {"n": 8, "on_failure": "drop"},
            }
        },
    }
    if tasks:
        document["tasks"] = list(tasks)
    return document | {"extract": {"tokens": ["all", "drop_first"]}, "studies": studies}


def _given(model: str) -> dict[str, Any]:
    found = {key: value for key, value in named(model).plain().items() if value is not None}
    if "folder" in found:
        found["folder"] = str(Path(found["folder"]).absolute())
    return found


def _name(model: str) -> str:
    """A name for figures and paths: the package, or the last part of what was given, odd
    characters replaced."""
    parts = model.rstrip("/").split("#")[0].split("/")
    last = parts[0].removeprefix("package:") if model.startswith("package:") else parts[-1]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.") or "model"
    return name if re.fullmatch(NAME, name) else f"model-{name}"
