"""The presets are complete configs; their names agree with one another."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from layerwise.figures.settings import StudySettings
from layerwise.plan import Plan

from layerwise.config import complete, read_schema
from layerwise.metrics.registry import all_metrics
from layerwise.models.architectures import BLOCK, SUBLAYERS

SCHEMA = read_schema(ROOT / "workflow" / "schemas" / "config.schema.yaml")


def test_the_list_of_the_papers_models_is_valid() -> None:
    listed = yaml.safe_load((ROOT / "presets" / "models.yaml").read_text())
    base = yaml.safe_load((ROOT / "config.yaml").read_text())
    filled = complete({**base, "models": {**base["models"], **listed["models"]}}, SCHEMA)
    assert len(filled["models"]["pythia-410m"]["revisions"]) == 154
    assert len(filled["models"]["llm2vec-mntp-supervised"]["adapters"]) == 2


PRESETS = [
    p for p in sorted((ROOT / "presets").glob("*.yaml")) if p.stem not in ("models", "published")
]


@pytest.mark.parametrize("preset", PRESETS, ids=lambda p: p.stem)
def test_presets_are_complete_configs(preset: Path) -> None:
    filled = complete(yaml.safe_load(preset.read_text()), SCHEMA)
    plan = Plan(filled)
    plan.check_sources()
    made = set(plan.targets())
    for name, study in filled["studies"].items():
        assert plan.path("figures", f"{name}.png") in made
        asked = StudySettings.from_dict(plan.study_settings(name))
        assert {m.metric for m in asked.curves} <= set(all_metrics())
        assert set(study["own_texts"].values()) <= set(filled["tasks"])
        # A comparison by model needs one corpus, as drawing would say after days of work.
        if "metrics" in plan.needs(name) and not study["own_texts"]:
            assert len(plan.study(name)["corpora"]) == 1


def test_the_papers_tasks_and_figures_are_there() -> None:
    tasks = yaml.safe_load((ROOT / "presets" / "mteb32.yaml").read_text())["tasks"]
    figures = yaml.safe_load((ROOT / "presets" / "paper_figures.yaml").read_text())
    sweep = yaml.safe_load((ROOT / "presets" / "pythia_sweep.yaml").read_text())
    assert len(set(tasks)) == 32
    assert set(tasks) == set(figures["tasks"]) == set(sweep["tasks"])
    own = figures["association"]["own_texts"]
    assert own == {task: task for task in tasks}
    assert {c: e["source"].get("task") for c, e in figures["corpora"].items() if c in own} == own
    inside = yaml.safe_load((ROOT / "presets" / "paper_sublayers.yaml").read_text())
    assert set(inside["extract"]["sublayers"]) == set(SUBLAYERS) - {BLOCK}
    numbers = {name.split("_")[1] for name in figures["studies"] if name.startswith("figure_")}
    assert numbers == {"1", "2", "3", "4", "7", "8", "9", "10", "11", "12", "13"}


def test_a_study_of_picks_has_their_tables_as_results() -> None:
    raw = yaml.safe_load((ROOT / "config.yaml").read_text())
    plan = Plan(complete(raw, SCHEMA))
    picks = {t for t in plan.targets() if "/choices/" in t}
    assert picks == {f"results/choices/layer_choice.{s}" for s in ("parquet", "csv")}
    raw["association"] = {"resamples": 7}
    other = Plan(complete(raw, SCHEMA))
    assert other.choices_key("layer_choice") != plan.choices_key("layer_choice")
    assert other.metrics_key("minilm-l6", "main", "wikipedia") == plan.metrics_key(
        "minilm-l6", "main", "wikipedia"
    )
