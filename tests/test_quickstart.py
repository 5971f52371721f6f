"""Recipes: files that a user's rules, or those of the quickstart, make before others read them."""

from argparse import Namespace
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from conftest import ROOT
from helpers import tiny
from helpers.project import Project

from layerwise.config import Config
from quickstart import __main__ as commands
from quickstart.nano import MODELS, Nano, train

RULES = """
rule make_texts:
    output:
        f"{RECIPE_FOLDER}/texts.txt",
    params:
        key=PLAN.key("recipe", folder=RECIPE_FOLDER),
    shell:
        "cp mine.txt {output}"


rule make_model:
    output:
        directory(f"{RECIPE_FOLDER}/model"),
    params:
        key=PLAN.key("recipe", folder=RECIPE_FOLDER),
    shell:
        "cp -r models/llama {output}"


rule make_task:
    output:
        directory(f"{RECIPE_FOLDER}/pairs"),
    params:
        key=PLAN.key("recipe", folder=RECIPE_FOLDER),
    shell:
        "mkdir -p {output} && cp pairs.parquet {output}/test.parquet"
"""


def test_files_of_a_recipe_are_made_once_and_again_when_it_changes(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    texts = tiny.texts(24, seed=5)
    pairs = {"sentence1": texts[:12], "sentence2": texts[12:], "score": [*range(12)]}
    pd.DataFrame(pairs).to_parquet(project.folder / "pairs.parquet")
    rules = project.folder / "make.smk"
    rules.write_text(RULES)
    project.config |= {
        "recipes": {"made": "make.smk"},
        "models": {"first": {"source": {"folder": "made/model"}}},
        "corpora": {"c": {"source": {"file": "made/texts.txt"}, "views": {"n": 0}}},
        "tasks": {"pairs": {"folder": "made/pairs", "type": "STS"}},
        "metrics": {"metrics": ["prompt_entropy", "curvature"]},
        "studies": {
            "entropy": {"kind": "metrics_by_depth", "metrics": ["prompt_entropy"]},
            "scores": {"kind": "score_by_depth"},
        },
    }
    project.write()
    project.snakemake()
    scores = pd.read_parquet(project.folder / "results/scores/first/main.parquet")
    assert set(scores["task_type"]) == {"STS"} and scores["main_score"].notna().all()
    assert project.jobs() == {}
    rules.write_text(RULES + "\n# another version\n")
    again = project.jobs()
    assert {"corpus", "extract", "metrics", "evaluate"} <= again.keys()
    rules.write_text(RULES + "\nkey = 1\n")
    printed = project.snakemake("--dry-run", check=False)
    assert "recipes: make.smk: key is a name of the workflow" in printed
    assert "Traceback" not in printed


def test_a_recipe_makes_what_is_in_its_folder() -> None:
    document = yaml.safe_load((ROOT / "config.yaml").read_text())
    document["recipes"] = {"made": "quickstart"}
    assert Config.of(document).recipe_of("made/a/b") == "made"
    assert Config.of(document).recipe_of("made2/a") is None


@pytest.mark.parametrize("architecture", [model.architecture for model in MODELS.values()])
def test_a_step_has_the_same_weights_whatever_else_is_saved(
    architecture: str, tmp_path: Path
) -> None:
    shape = {"layers": 2, "hidden": 32, "vocabulary": 300, "context": 16, "batch": 2}
    settings = Nano(architecture, **shape, train_steps=3)
    texts = tiny.texts(120, seed=1)
    history = train(texts, settings, {s: tmp_path / f"a{s}" for s in (0, 2, 3)})
    again = train(texts, settings, {2: tmp_path / "b2"})
    assert [row["step"] for row in history] == [0, 2, 3]
    assert again[0] == history[1]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("a2", "b2")]
    assert weights[0] == weights[1]


def test_training_is_on_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More would add numbers in another order: other weights on another machine."""
    threads: list[int] = []
    monkeypatch.setattr("quickstart.wikipedia.read_paragraphs", lambda _: [])
    monkeypatch.setattr(
        "quickstart.nano.train", lambda *_: threads.append(torch.get_num_threads()) or []
    )
    output, before = [tmp_path / "step1", tmp_path / "losses.csv"], torch.get_num_threads()
    (tmp_path / "step1").mkdir()
    try:
        torch.set_num_threads(2)
        commands.train(Namespace(model=next(iter(MODELS)), texts="", output=output, key="k"))
    finally:
        torch.set_num_threads(before)
    assert threads == [1]
