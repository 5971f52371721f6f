"""Configs to start from: `layerwise new`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from layerwise.choosing import kind_of
from layerwise.config import Config
from layerwise.config.association import OWN_TEXTS
from layerwise.errors import LayerwiseError
from layerwise.models.source import named
from layerwise.section import NAME
from layerwise.tasks.names import PAPER
from layerwise.workflow.validate import validate

QUICK = (
    "EmotionClassification",
    "TwitterSemEval2015",
    "AskUbuntuDupQuestions",
    "BIOSSES",
    "STSBenchmark",
)
"""Small tasks of the paper, of each type but clustering."""

METRICS = (
    "prompt_entropy",
    "dataset_entropy",
    "curvature",
    "effective_rank",
    "infonce",
    "dime",
    "lidar",
)
"""The paper's seven metrics."""


def small(
    models: Sequence[str],
    prompts: Path | None = None,
    tasks: Sequence[str] = (),
    labels: Path | None = None,
) -> dict[str, Any]:
    """A small config: metrics on some prompts, and scores if tasks or labels are named.

    Parameters
    ----------
    models : sequence of str
        As `layerwise.models.source.named` takes them; at least one.
    prompts : Path, optional
        File with the prompts; without one, the Wikipedia slice of gensim's test data.
    tasks : sequence of str
        MTEB tasks.
    labels : Path, optional
        File of labelled rows, as `layerwise choose` takes it.

    Returns
    -------
    dict
        For `write`.

    Raises
    ------
    LayerwiseError
        If the file is missing, or no model or two models of one name are given.
    """
    if prompts is not None and not prompts.is_file():
        raise LayerwiseError(
            f"There is no file {prompts}; relative paths start at the current folder.",
            code="missing_file",
        )
    source = {"package": "wikipedia"} if prompts is None else {"file": str(prompts.absolute())}
    studies: dict[str, Any] = {"metrics_by_depth": {"kind": "metrics_by_depth"}}
    entries: dict[str, Any] = {task: {} for task in tasks}
    if labels is not None:
        entries[labels.stem] = {"file": str(labels.absolute()), "kind": kind_of(labels)}
    if entries:
        for kind in ("score_by_depth", "task_heatmap", "metric_vs_score", "layer_selection"):
            studies[kind] = {"kind": kind}
        studies["task_heatmap"]["models"] = [_name(model) for model in models[:1]]
    return {
        "models": _models(models),
        "corpora": {
            "prompts": {
                "source": source,
                "filters": {"min_tokens": 10, "max_tokens": 256, "longer": "cut"},
                "sample": {"n": 500},
                "views": {"n": 8, "on_failure": "drop"},
            }
        },
        **({"tasks": entries} if entries else {}),
        "extract": {"tokens": ["all", "drop_first"]},
        "studies": studies,
    }


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
    three = ["prompt_entropy", "curvature", "lidar"]
    by_depth = {"kind": "metrics_by_depth", "corpora": ["wikitext"]}
    against = {"kind": "metric_vs_score", "corpora": [OWN_TEXTS], "metrics": list(METRICS)}
    studies = {
        "figure_1_score_by_depth": {"kind": "score_by_depth"},
        "figure_2_three_metrics": by_depth | {"metrics": three},
        "figure_3_metric_vs_score": against | {"measure": "dcor"},
        "figure_8_all_measures": against | {"measure": "all"},
        "figure_10_all_metrics": by_depth | {"metrics": list(METRICS)},
        "table_2_layer_selection": {
            "kind": "layer_selection",
            "corpora": ["wikitext"],
            "metrics": list(METRICS),
        },
    }
    found = _models(models)
    if revisions:
        shorthand = len(revisions) == 1 and revisions[0] in ("all", "log")
        for model in found.values():
            model["revisions"] = revisions[0] if shorthand else list(revisions)
        training = {"kind": "metrics_over_checkpoints", "corpora": ["wikitext"]}
        studies |= {
            "figure_4_training": training | {"metrics": three},
            "figure_11_all_metrics_training": training | {"metrics": list(METRICS)},
            "scores_over_checkpoints": {"kind": "scores_over_checkpoints"},
        }
    wikitext = {"hub": "Salesforce/wikitext", "name": "wikitext-103-raw-v1", "split": "train"}
    # Curvature needs three tokens, and tasks' texts may be headings.
    texts = {"min_tokens": 3, "drop_headings": False}
    return {
        "models": found,
        "corpora": {
            "wikitext": _corpus(wikitext, {"min_tokens": 30}),
            **{task: _corpus({"task": task}, texts) for task in tasks},
        },
        "tasks": list(tasks),
        "extract": {"tokens": ["all"]},
        "metrics": {"metrics": list(METRICS)},
        # The paper selects the layer where these two are lowest.
        "association": {"directions": {"dime": -1, "dataset_entropy": -1}},
        "studies": studies,
    }


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
    text = yaml.dump(document, Dumper=_Plain, sort_keys=False, width=99, allow_unicode=True)
    path.write_text(
        "# `python -m layerwise.config.schema` describes every key and its default.\n\n" + text
    )
    return path


class _Plain(yaml.SafeDumper):
    """Writes repeated values out in full."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _corpus(source: dict[str, str], filters: dict[str, Any]) -> dict[str, Any]:
    return {
        "source": source,
        "filters": filters | {"max_tokens": 512, "longer": "cut"},
        "sample": {"n": 1000},
        "views": {"n": 16, "on_failure": "drop"},
    }


def _models(models: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The section ``models``.

    Raises
    ------
    LayerwiseError
        If there is no model, or two have the same name.
    """
    if not models:
        raise LayerwiseError("No model was given; name one.", code="missing")
    names = [_name(model) for model in models]
    for name in names:
        if names.count(name) > 1:
            raise LayerwiseError(
                f"Two models would be called {name!r}; name one here, and add the other to the "
                "config under a name of your own.",
                code="duplicate",
            )
    return {name: {"source": _given(model)} for name, model in zip(names, models, strict=True)}


def _given(model: str) -> dict[str, Any]:
    found = {key: value for key, value in named(model).plain().items() if value is not None}
    if "folder" in found:
        found["folder"] = str(Path(found["folder"]).absolute())
    return found


def _name(model: str) -> str:
    """A name for figures and paths: the package, or the last part of what was given.

    Characters that a name cannot have are replaced.
    """
    parts = model.rstrip("/").split("#")[0].split("/")
    last = parts[0].removeprefix("package:") if model.startswith("package:") else parts[-1]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.") or "model"
    return name if re.fullmatch(NAME, name) else f"model-{name}"
