"""Every preset, from models to figures, by the real workflow, on stand-ins (see `hub`).

A preset is run unchanged except for sizes (`SIZES`): numbers of prompts, views, checkpoints, tasks
and models of a family, and threads.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hub
import pandas as pd
import pytest
import yaml
from conftest import ROOT
from helpers import forked, tiny
from helpers.project import assert_drawn_alike, snakemake
from helpers.suites import suites_listed

from layerwise.config import Config
from layerwise.models.load import load
from layerwise.tasks import catalog

pytestmark = pytest.mark.slow

# presets/real.yaml takes nothing from the hub; `make real` runs it.
PRESETS = {
    p.stem: p for p in sorted((ROOT / "presets").glob("*.yaml")) if not p.stem.startswith("real")
}

PROMPTS, VIEWS, WORDS, QUESTIONS = 24, 4, 60, 10
# As many as a model can be trained on.
IMAGES = 80
# Models that a recipe trains or a package holds, and the family of random ones in their place.
IN_FOLDERS = {"pythia-nano": "gpt_neox", "mamba2-nano": "mamba2", "smollm2-135m": "llama"}

SWEEP = {
    "revisions": {"pythia-410m": ["step1", "step512", "step143000"]},
    "tasks": ["EmotionClassification", "STSBenchmark"],
}
TASKS = ["EmotionClassification", "AskUbuntuDupQuestions", "STSBenchmark"]
# Smaller settings of a preset, besides prompts and views.
SIZES: dict[str, dict[str, Any]] = {
    "pythia_sweep": SWEEP,
    "pythia_suite": {
        "models": ["pythia-14m", "pythia-12b"],
        "revisions": {name: ["step1", "step143000"] for name in ("pythia-14m", "pythia-12b")},
        "tasks": ["STSBenchmark"],
    },
    "ablation": {"tasks": ["LeeNewsSimilarity", "STS17", "BIOSSES"]},
    "checkpoints": {
        "revisions": {
            "olmo-2-1b": ["stage1-step0-tokens0B", "stage1-step10000-tokens21B"],
            "smollm3-3b": ["stage1-step-40000", "stage1-step-3440000"],
        },
        "tasks": ["STSBenchmark"],
    },
    "sinks": SWEEP,
    "layer_studies": SWEEP,
    "embedding_models": {
        "models": ["e5-base-v2", "bge-base-en-v1.5", "qwen3-embedding-0.6b"],
        "tasks": TASKS,
    },
    "imagenet": {"models": ["vit-large", "aimv2-large", "imagegpt-medium"]},
    "findings": {
        "revisions": {key: ["step256", "step512"] for key in ("pythia-nano", "mamba2-nano")},
        "tasks": ["WikipediaArticlePairs"],
    },
    "as_released": {
        "models": ["pythia-14m", "pythia-410m", "mamba-370m", "bert-base"],
        "tasks": TASKS,
    },
    "paper_figures": {**SWEEP, "tasks": TASKS},
    "panel": {"tasks": TASKS},
    "small": {"tasks": TASKS},
    "models": {
        # The first and the last of a family, and each kind of entry: half type, several GPUs,
        # adapters, attention both ways. The others are loaded, below.
        "models": [
            "pythia-14m",
            "pythia-12b",
            "cerebras-gpt-111m",
            "cerebras-gpt-13b",
            "llama-3-8b",
            "llm2vec-mntp",
            "llm2vec-mntp-supervised",
            "qwen2.5-0.5b",
            "qwen2.5-7b",
            "mamba-130m",
            "mamba-2.8b",
            "mamba2-130m",
            "mamba2-2.7b",
            "bert-base",
            "roberta-base",
            "gpt2",
            "gemma-2b",
            "gemma-2-2b",
            "smollm2-135m",
            "zamba2-1.2b",
            "jamba-52b",
        ],
    },
}


def read(preset: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(PRESETS[preset].read_text())
    return found


def _mapping(tasks: Any) -> dict[str, Any]:
    return tasks if isinstance(tasks, dict) else dict.fromkeys(tasks)


def cut(preset: str) -> dict[str, Any]:
    """A preset in a size that takes minutes."""
    return smaller(read(preset), SIZES.get(preset, {}))


def smaller(config: dict[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """A config in a size that takes minutes."""
    config = copy.deepcopy(config)
    for entry in config.get("corpora", {}).values():
        entry["sample"] = {**entry.get("sample", {}), "n": PROMPTS}
        views = entry.get("views", {})
        entry["views"] = {**views, "n": min(views.get("n", 2), VIEWS)}
        if {"images", "audio"} & entry.keys():
            entry["sample"]["n"] = IMAGES
            if "classes" in entry:
                entry["classes"] = 4
            continue
        perturb = {
            k: list(v)[:: max(1, len(v) - 1)] if isinstance(v, list) else v
            for k, v in entry.get("perturb", {}).items()
        }
        if perturb:
            entry["perturb"] = perturb  # the lowest and the highest level
        if "length" in perturb:
            perturb["length"] = [4, 8]
            entry["filters"] = {**entry["filters"], "min_tokens": 8}
        if generation := entry.get("source", {}).get("generate"):
            generation["max_new_tokens"] = PROMPTS
            asked = generation["prompts"]  # which several corpora may share
            generation["prompts"] = {**asked, "split": f"{asked['split']}[:{PROMPTS}]"}
            entry["filters"] = {**entry["filters"], "longer": "cut"}
        least = entry["filters"].get("min_tokens", 0)
        template = entry.get("source", {}).get("template", "")
        most = max(WORDS, 3 * least // 2) + len(template.split())
        # Where a preset has no limit, the stand-ins' longer texts are cut, not left out.
        cut = {} if "max_tokens" in entry["filters"] else {"longer": "cut"}
        entry["filters"] = {**entry["filters"], **cut, "max_tokens": most}
    config["tasks"] = _mapping(config.get("tasks", {}))
    for entry in config["tasks"].values():
        if "sample" in (entry or {}):
            entry["sample"] = QUESTIONS
    for model in IN_FOLDERS.keys() & config.get("models", {}).keys():
        if "hub" not in config["models"][model]["source"]:
            config["models"][model]["source"] = {"folder": f"models/{model}/{{revision}}"}
    for model, revisions in sizes.get("revisions", {}).items():
        config["models"][model]["revisions"] = revisions
        for study in config["studies"].values():
            if isinstance(study.get("revisions"), list):
                study["revisions"] = revisions
    for section, key in (("tasks", "tasks"), ("models", "models")):
        if key not in sizes:
            continue
        left_out = [name for name in config[section] if name not in sizes[key]]
        if section == "tasks":
            config["tasks"] = {name: config["tasks"][name] for name in sizes["tasks"]}
            for name in left_out:
                config.get("corpora", {}).pop(name, None)
                config.get("association", {}).get("text_sources", {}).pop(name, None)
            for study in config["studies"].values():
                if "tasks" in study:
                    study["tasks"] = [name for name in study["tasks"] if name not in left_out]
            continue
        for name in left_out:
            del config["models"][name]
        for study in config["studies"].values():
            if "models" in study:
                study["models"] = [name for name in study["models"] if name not in left_out]
    if "extract" in config:
        config["extract"] = {**config["extract"], "threads": 1, "device": "cpu"}
    if "scoring" in config:
        config["scoring"] = {**config["scoring"], "threads": 1}
    return config


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The hub's caches, for all presets, and the ``python`` of their jobs."""
    pytest.importorskip("gensim", reason="package with the texts of the stand-ins")
    home = tmp_path_factory.mktemp("hub")
    jobs = forked.command(home, environment(home))
    yield home
    jobs.kill()


def environment(home: Path) -> dict[str, str]:
    """Where jobs look for models and data sets, and for ``python``."""
    path = os.pathsep.join([str(home), str(Path(sys.executable).parent), os.environ["PATH"]])
    caches = {"HF_HUB_CACHE": f"{home}/hub", "HF_DATASETS_CACHE": f"{home}/datasets"}
    threads = {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "10000"}
    return {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "PATH": path, **caches, **threads}


def run(name: str, config: dict[str, Any], home: Path, folder: Path) -> None:
    """Run a config to its figures and check its files."""
    checked = Config.of(config)
    hub.fill(home, checked)
    place = folder / name
    place.mkdir(parents=True)
    for part in ("lib", "workflow", "scripts", "envs"):
        (place / part).symlink_to(ROOT / part)
    for model in IN_FOLDERS.keys() & checked.models.keys():
        for seed, revision in enumerate(checked.models[model].revisions):
            tiny.save(IN_FOLDERS[model], place / "models" / model / revision, seed=seed)
    (place / "preset.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    snakemake(place, "--configfile", "preset.yaml", **environment(home))
    results = place / config.get("results", "results")
    for study in config["studies"]:
        figure = results / "figures" / f"{study}.png"
        assert figure.stat().st_size > 10_000, study
        table = pd.read_csv(results / "tables" / f"{study}.csv")
        assert len(table), study
        log = (results / "logs" / "figure" / f"{study}.log").read_text()
        assert "layout not applied" not in log, f"{study}: something is cut off"
    assert_drawn_alike(results)
    for scores in results.glob("scores/*/*.parquet"):
        assert set(pd.read_parquet(scores)["model"]) <= set(checked.models)


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_runs(preset: str, home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    run(preset, cut(preset), home, tmp_path_factory.getbasetemp() / "presets")


FROM_HUB = [n for n in PRESETS if read(n).get("models") and "recipes" not in read(n)]


@pytest.mark.parametrize("preset", FROM_HUB)
def test_every_model_can_be_loaded(
    preset: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own type, its adapters, its revision, from the hub's cache."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(home / "hub"))
    with suites_listed():
        config = Config.of(read(preset))
    for name, entry in config.models.items():
        revision = entry.revisions[-1]
        hub.add_model(home, entry.source.hub, [revision])
        for adapter in entry.adapters:
            hub.add_adapter(home, adapter.hub)
        dtype = config.extraction(name).dtype
        loaded = load(name, entry, revision, device="cpu", dtype=dtype)
        kept = {str(p.dtype) for p in loaded.model.parameters()}
        assert f"torch.{dtype}" in kept, name


def test_reranking_offline_keeps_to_the_candidates(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them mteb would rank all documents, and say nothing."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", home / "datasets")
    hub.add_task(home, "AskUbuntuDupQuestions")
    task = catalog.load(catalog.get_task("AskUbuntuDupQuestions"))
    data = task.dataset["default"]["test"]
    assert {len(ids) for ids in data["top_ranked"].values()} == {5} != len(data["corpus"])
