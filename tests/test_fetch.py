"""`snakemake fetch`: the caches are filled, and a missing model is named."""

from __future__ import annotations

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
from layerwise.config.corpora import data_of
from layerwise.config.models import HubSource
from layerwise.models.load import load
from layerwise.models.source import locate
from layerwise.run.fetch import ADAPTER_FILES, fetch_model, fetched, summarize
from layerwise.run.plan import Plan
from layerwise.run.script import fetched_corpus, fetched_entry


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


def record(place: Path, revision: str) -> Path:
    return place / f"results/fetched/models/tiny/{revision}.json"


def fetch(place: Path, *revisions: str) -> list[Path]:
    """The records of a model's revisions, fetched one by one."""
    entry = config(*revisions).models["tiny"]
    for revision in revisions:
        fetched(record(place, revision), lambda r=revision: fetch_model(entry, r))
    return [record(place, revision) for revision in revisions]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of the hub, with two revisions."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("layerwise.run.fetch.PAUSE_S", 0.0)
    folders = {name: tiny.save("gpt_neox", tmp_path / name) for name in ("step0", "step1")}
    in_cache(tmp_path / "hub", "EleutherAI/pythia-tiny", folders)
    return tmp_path / "hub"


def test_all_that_fails_is_listed_at_the_end(
    hub: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    summarize(fetch(tmp_path, "step0", "step1"))
    assert all(
        f"pythia-tiny at {revision}: commit" in caplog.text for revision in ("step0", "step1")
    )
    records = fetch(tmp_path, "step0", "step2", "step3")
    assert caplog.text.count("Attempt 3 of 3") == 2
    with refused("unreadable") as caught:
        summarize(records)
    assert "2 of 3 were not fetched" in str(caught.value)
    assert "'step2'" in str(caught.value) and "'step3'" in str(caught.value)


def test_a_model_without_safetensors_is_refused(hub: Path, tmp_path: Path) -> None:
    for file in hub.glob("*/snapshots/*/model.safetensors"):
        file.rename(file.with_name("pytorch_model.bin"))
    (path,) = fetch(tmp_path, "step0")
    assert "has no safetensors" in json.loads(path.read_text())["error"]


def test_a_fetched_commit_is_part_of_the_keys(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def keys() -> list[str]:
        made = Plan(config("step0", "step1")).keys
        return [made.extract("tiny", revision, "news") for revision in ("step0", "step1")]

    before = keys()
    fetch(tmp_path, "step0")
    after = keys()
    assert after[0] != before[0] and after[1] == before[1]
    moved = json.loads(record(tmp_path, "step0").read_text()) | {"commit": "f" * 40}
    record(tmp_path, "step0").write_text(json.dumps(moved))
    assert keys()[0] not in (before[0], after[0])
    fetched(record(tmp_path, "step0"), lambda: fetch_model(config("gone").models["tiny"], "gone"))
    assert json.loads(record(tmp_path, "step0").read_text())["commit"] == "f" * 40
    # The record is of another repository than this config's.
    other = config("step0").models["tiny"].model_copy(update={"source": HubSource(hub="me/other")})
    renamed = config("step0").model_copy(update={"models": {"tiny": other}})
    assert type(fetched_entry(renamed, "tiny", "step0").source) is HubSource


def test_a_job_takes_the_recorded_commit_after_the_branch_moved(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model and of its adapter, whose commit is part of the key, too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adapter").mkdir()
    for name in ADAPTER_FILES:
        (tmp_path / "adapter" / name).write_text("{}")
    in_cache(hub, "me/adapter", {"main": tmp_path / "adapter"})
    adapted = config("step0", adapters=[{"hub": "me/adapter"}])
    before = Plan(adapted).keys.model("tiny", "step0")
    entry = adapted.models["tiny"]
    fetched(record(tmp_path, "step0"), lambda: fetch_model(entry, "step0"))
    recorded = json.loads(record(tmp_path, "step0").read_text())
    after = Plan(adapted).keys.model("tiny", "step0")
    for ref in hub.glob("*/refs/*"):
        ref.write_text("f" * 40)
    pinned = fetched_entry(adapted, "tiny", "step0")
    assert locate(pinned.source, "step0").revision == recorded["commit"]
    assert locate(pinned.adapters[0]).revision == recorded["adapters"]["me/adapter@main"]
    assert load("tiny", pinned.model_copy(update={"adapters": ()}), "step0", device="cpu").weights
    recorded["adapters"]["me/adapter@main"] = "e" * 40
    record(tmp_path, "step0").write_text(json.dumps(recorded))
    assert len({before, after, Plan(adapted).keys.model("tiny", "step0")}) == 3


def test_data_are_read_at_the_recorded_commit(tmp_path: Path) -> None:
    source, commit = {"hub": "me/news"}, "c" * 40
    (tmp_path / "fetched/corpora").mkdir(parents=True)
    for name in ("texts", "chains", "images", "moved"):
        path = tmp_path / f"fetched/corpora/{name}.json"
        path.write_text(json.dumps({"of": "me/news@main", "commit": commit}))
    generate = {"model": "tiny", "prompts": source}
    corpora = {
        "texts": {"source": source},
        "chains": {"source": {"generate": generate}},
        "images": {"images": {**source, "column": "image"}},
        "other": {"source": source},
        "moved": {"source": {**source, "revision": "v2"}},
    }
    plan = Plan(config("step0", corpora=corpora, results=str(tmp_path)))
    found = [data_of(fetched_corpus(plan, name).source).revision for name in corpora]
    assert found == [commit, commit, commit, None, "v2"]


def test_what_the_hub_has_is_fetched_job_by_job() -> None:
    assert Plan(config("step0", "step1")).fetched == [
        "results/fetched/models/tiny/step0.json",
        "results/fetched/models/tiny/step1.json",
    ]
