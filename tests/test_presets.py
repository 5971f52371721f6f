"""Contents of the presets: the papers' tasks, figures, models and settings.

tests/presets checks that they run.
"""

import gc
import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from helpers.suites import suites_listed

from layerwise.config import Config, read_config
from layerwise.run.plan import Plan
from layerwise.tasks.catalog import PAPER
from layerwise.vocabulary import BLOCK, SUBLAYERS
from papers.tables import TEXTS

PRESETS = {
    p.stem: p for p in sorted((ROOT / "presets").glob("*.yaml")) if not p.stem.startswith("real")
}
# Of the models that LiDAR is shown of.
WIDEST = 4096


@cache
def preset(name: str) -> Config:
    with suites_listed():
        return read_config(PRESETS[name])


def test_the_papers_tasks_and_figures_are_there() -> None:
    for name in ("mteb32", "paper_figures", "as_released", "pythia_sweep", "panel"):
        assert set(preset(name).tasks) == set(PAPER), name
    for name in ("paper_figures", "as_released", "panel"):
        corpora = preset(name).corpora
        own = {c: e.source.task for c, e in corpora.items() if hasattr(e.source, "task")}
        assert own == {task: task for task in PAPER}
    assert set(preset("paper_sublayers").extract.sublayers) == set(SUBLAYERS) - {BLOCK}
    for name, figures in (("paper_figures", "1 2 3 4 7 8 9 10 11 12 13"), ("panel", "1 2 3 8 10")):
        studies = [study for study in preset(name).studies if study.startswith("figure_")]
        assert {study.split("_")[1] for study in studies} == set(figures.split())
    assert preset("published").association.own_texts == TEXTS
    assert set(TEXTS.values()) < set(PAPER)


@pytest.mark.parametrize("name", [name for name in PRESETS if preset(name).models])
def test_lidar_has_the_views_it_needs(name: str) -> None:
    config = preset(name)
    for study in Plan(config).studies.values():
        if "lidar" in {choice.metric for choice in study.study.metric_choices or ()}:
            for corpus in study.corpora:
                entry = config.corpora[corpus]
                assert entry.views.n == 16
                assert entry.sample.n is not None
                assert entry.sample.n * (entry.views.n - 1) > WIDEST


def test_a_task_text_without_views_stops_nothing() -> None:
    of_tasks = [c for c in preset("paper_figures").corpora.values() if hasattr(c.source, "task")]
    assert {corpus.views.on_failure for corpus in of_tasks} == {"drop"}


@pytest.mark.parametrize(
    "name", [n for n in PRESETS if preset(n).models and preset(n).extract.dtype == "float32"]
)
def test_what_is_larger_than_a_gpu_runs_in_half_the_precision(name: str) -> None:
    config = preset(name)
    for model, entry in config.models.items():
        billions = float(model.removesuffix("b").rpartition("-")[2]) if model[-1] == "b" else 0
        llama = "Llama-3-8B" in getattr(entry.source, "hub", "")
        llama |= "Medical-Llama3" in getattr(entry.source, "hub", "")
        large = llama or billions > 6
        wanted = "bfloat16" if large or name == "as_released" else "float32"
        assert config.extraction(model).dtype == wanted, model
        assert (entry.device_map == "auto") == (billions > 10), model


def test_the_papers_models_are_listed() -> None:
    raw = yaml.safe_load(PRESETS["models"].read_text())
    sizes = {
        "pythia": "14m 70m 160m 410m 1b 1.4b 2.8b 6.9b 12b",
        "cerebras-gpt": "111m 256m 590m 1.3b 2.7b 6.7b 13b",
        "mamba": "130m 370m 790m 1.4b 2.8b",
        "mamba2": "130m 370m 780m 1.3b 2.7b",
    }
    for family, listed in sizes.items():
        assert {f"{family}-{size}" for size in listed.split()} <= set(raw["models"])


def test_checkpoints_of_two_suites_are_spread_over_their_training() -> None:
    models = preset("checkpoints").models
    olmo, smollm = (models[name].revisions for name in ("olmo-2-1b", "smollm3-3b"))
    assert (olmo[0], olmo[-1]) == ("stage1-step0-tokens0B", "stage1-step1900000-tokens3990B")
    assert (smollm[0], smollm[-1]) == ("stage1-step-40000", "stage1-step-3440000")
    assert all(18 <= len(found) <= 20 for found in (olmo, smollm))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_plans_all_its_figures(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A dry run of the whole workflow, which validates the config, in this process."""
    gc.freeze()  # statsmodels looks for garbage each time
    from snakemake.api import SnakemakeApi
    from snakemake.settings.types import ConfigSettings, OutputSettings, ResourceSettings

    few = {"revisions": ["step1", "step143000"]}  # of 1,386 checkpoints
    given = {"models": dict.fromkeys(preset(name).models, few)} if name == "pythia_suite" else {}
    with suites_listed(), SnakemakeApi(OutputSettings(dryrun=True)) as api:
        plan = api.workflow(
            resource_settings=ResourceSettings(cores=1),
            config_settings=ConfigSettings(config=given, configfiles=[PRESETS[name]]),
            snakefile=ROOT / "workflow" / "Snakefile",
            workdir=tmp_path,
        )
        plan.dag().execute_workflow(executor="dryrun")
    printed = "".join(capfd.readouterr())
    figures = re.search(r"^figure +(\d+)$", printed, re.MULTILINE)
    assert figures, printed[-2000:]
    config = preset(name)
    assert int(figures[1]) == len(config.studies)
    assert Config.of(config.plain()) == config
    # A folder of the quickstart lies at results/corpora.
    assert config.results == f"results/{name.replace('corpora', 'corpora_of_columns')}"
