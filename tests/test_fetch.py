"""`layerwise fetch`: the caches are filled, and a missing model is named."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny
from helpers.refused import refused
from huggingface_hub import constants
from test_models_load import in_cache

from layerwise.config import Config
from layerwise.run.fetch import fetch
from layerwise.run.plan import Plan


def config(*revisions: str, adapters: Sequence[Any] = (), **sections: Any) -> Config:
    source = {"hub": "EleutherAI/pythia-tiny"}
    model = {"source": source, "revisions": list(revisions), "adapters": list(adapters)}
    return Config.of(
        {
            "models": {"tiny": model},
            "corpora": {"news": {"source": {"file": "news.txt"}}},
            "tasks": {"reviews": {"file": "reviews.csv", "kind": "classification"}},
            "studies": {"metrics": {"kind": "metrics_by_depth"}},
            **sections,
        }
    )


def fetched(given: Config, place: Path) -> int:
    """Fetch all of a config, whose results are in a folder."""
    return fetch(Plan(given.model_copy(update={"results": str(place / "results")})))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of the hub, with two revisions."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    folders = {name: tiny.save("gpt_neox", tmp_path / name) for name in ("step0", "step1")}
    in_cache(tmp_path / "hub", "EleutherAI/pythia-tiny", folders)
    return tmp_path / "hub"


def test_all_that_fails_is_listed_at_the_end(
    hub: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert fetched(config("step0", "step1"), tmp_path) == 2
    assert all(
        f"pythia-tiny at {revision}: commit" in caplog.text for revision in ("step0", "step1")
    )
    with refused("unreadable") as caught:
        fetched(config("step0", "step2", "step3"), tmp_path)
    assert "2 of 3 were not fetched" in str(caught.value)
    assert "'step2'" in str(caught.value) and "'step3'" in str(caught.value)


def test_a_model_without_safetensors_is_refused(hub: Path, tmp_path: Path) -> None:
    for file in hub.glob("*/snapshots/*/model.safetensors"):
        file.rename(file.with_name("pytorch_model.bin"))
    with refused("unreadable") as caught:
        fetched(config("step0"), tmp_path)
    assert "has no safetensors" in str(caught.value)


def test_folders_of_modules_are_fetched(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder,) = {file.parent for file in hub.glob("*/snapshots/*1/config.json")}
    modules = [{"path": "0_Transformer"}, {"path": "1_Pooling"}, {"path": ""}]
    (folder / "modules.json").write_text(json.dumps(modules))
    asked: list[str] = []

    def download(*_: Any, allow_patterns: list[str], **options: Any) -> str:
        asked.extend(allow_patterns if not options["ignore_patterns"] else ["root"])
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    fetched(config("step0"), tmp_path)
    assert {"0_Transformer/*.safetensors", "1_Pooling/*.json"} < {*asked}
    assert asked[-1] == "root"


def test_models_corpora_and_tasks_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for name in ("fetch_model", "fetch_data", "fetch_task"):
        monkeypatch.setattr(f"layerwise.run.fetch.{name}", lambda *_, name=name: done.append(name))
    prompts = {"hub": "me/prompts"}
    corpora = {
        "texts": {"source": {"hub": "me/news"}},
        "chains": {"source": {"generate": {"model": "tiny", "prompts": prompts}}},
        "file": {"source": {"file": "news.txt"}},
        "sts": {"source": {"task": "STS12"}},
        "photos": {"images": {"hub": "me/photos"}},
    }
    questions = {"task": "papers.choice.ChoiceTask", "questions": {"hub": "me/questions"}}
    tasks = {"mmlu": questions, "STS13": {}, "local": {"folder": "sts"}}
    assert fetched(config("step0", "step1", corpora=corpora, tasks=tasks), tmp_path) == 8
    assert done == ["fetch_model"] * 2 + ["fetch_data"] * 3 + [
        "fetch_task",
        "fetch_data",
        "fetch_task",
    ]
