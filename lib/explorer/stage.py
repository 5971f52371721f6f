"""The stage `explore` of the workflow: the explorer of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from layerwise.addons import stage
from layerwise.run.plan import STAGES, Plan, Stage, settings

TABLES = ("metrics", "scores", "associations", "selections")

stage("explore", rules=Path(__file__).with_name("rules.smk"), outputs=("explore.html",))


def _settings(plan: Plan) -> Any:
    tables = {name: plan.input_keys(name, study.needs) for name, study in plan.studies.items()}
    return [tables, settings(plan.config.association), plan.directions]


STAGES["explore"] = Stage(6, (), _settings, (), "explore", ("explore.html",))


def explored(plan: Plan) -> dict[str, dict[str, list[str]]]:
    """Files of the tables to show, by name of published tables (empty for own models) and table.

    Scores are shown with metrics, also where a study draws associations of both alone.
    """
    shown: dict[str, dict[str, list[str]]] = {}
    for study in plan.studies.values():
        origin = shown.setdefault(study.study.published or "", {})
        wanted = set(study.needs)
        if {"associations", "selections"} & wanted:
            wanted |= {"metrics", "scores"}
        for table in TABLES:
            if table in wanted:
                files = [*origin.get(table, ()), *study.files(table)]
                origin[table] = list(dict.fromkeys(files))
    return shown
