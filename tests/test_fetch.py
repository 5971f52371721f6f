"""`layerwise fetch`: the caches are filled, and a missing model is named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

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
from layerwise.run.fetch import ADAPTER_FILES, fetch
from layerwise.run.plan import Plan
from layerwise.run.script import entry_of, pinned
from layerwise.run.snakemake import Stale, commit_of, commit_on_hub


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


def test_a_fetched_commit_is_part_of_the_keys(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def keys() -> list[str]:
        made = Plan(config("step0", "step1")).keys
        return [made.extract("tiny", revision, "news") for revision in ("step0", "step1")]

    before = keys()
    fetched(config("step0"), tmp_path)
    after = keys()
    assert after[0] != before[0] and after[1] == before[1]
    moved = json.loads(record(tmp_path, "step0").read_text()) | {"commit": "f" * 40}
    record(tmp_path, "step0").write_text(json.dumps(moved))
    assert keys()[0] not in (before[0], after[0])
    # A fetch that fails keeps the record.
    next(hub.glob("*/refs/step0")).unlink()
    with refused("unreadable"):
        fetched(config("step0"), tmp_path)
    assert json.loads(record(tmp_path, "step0").read_text())["commit"] == "f" * 40
    # The record is of another repository than this config's.
    other = config("step0").models["tiny"].model_copy(update={"source": HubSource(hub="me/other")})
    renamed = config("step0").model_copy(update={"models": {"tiny": other}})
    assert type(entry_of(Plan(renamed), "tiny", "step0").source) is HubSource


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
    fetched(adapted, tmp_path)
    recorded = json.loads(record(tmp_path, "step0").read_text())
    after = Plan(adapted).keys.model("tiny", "step0")
    for ref in hub.glob("*/refs/*"):
        ref.write_text("f" * 40)
    entry = entry_of(Plan(adapted), "tiny", "step0")
    assert locate(entry.source, "step0").revision == recorded["commit"]
    assert locate(entry.adapters[0]).revision == recorded["adapters"]["me/adapter@main"]
    assert load("tiny", entry.model_copy(update={"adapters": ()}), "step0", device="cpu").weights
    recorded["adapters"]["me/adapter@main"] = "e" * 40
    record(tmp_path, "step0").write_text(json.dumps(recorded))
    assert len({before, after, Plan(adapted).keys.model("tiny", "step0")}) == 3


def test_a_run_keeps_the_commit_that_it_began_with(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a fetch: the branch moves in the cache between two runs."""
    monkeypatch.chdir(tmp_path)
    refs, moved = list(hub.glob("*/refs/*")), "f" * 40

    def planned() -> Plan:
        plan = Plan(config("step0", adapters=[{"hub": "EleutherAI/pythia-tiny"}]))
        plan.resolve = commit_of
        return plan

    first = planned()
    before = first.keys.model("tiny", "step0")
    first.write_records()
    commit = json.loads(record(tmp_path, "step0").read_text())["commit"]
    for ref in refs:
        ref.write_text(moved)
    commit_of.cache_clear()
    assert planned().keys.model("tiny", "step0") == before
    assert (
        locate(entry_of(Plan(config("step0")), "tiny", "step0").source, "step0").revision == commit
    )
    record(tmp_path, "step0").unlink()
    assert planned().keys.model("tiny", "step0") != before
    commit_of.cache_clear()


def test_a_module_records_its_commits_before_its_jobs(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snakemake calls no `onstart` of it."""
    monkeypatch.chdir(tmp_path)
    workflow = MagicMock()
    workflow.output_settings.dryrun = False
    stale, plan = Stale(workflow), Plan(config("step0"))
    plan.resolve = stale.resolve
    stale.prepare({}, plan)
    assert json.loads(record(tmp_path, "step0").read_text())["commit"]
    commit_of.cache_clear()
    commit_on_hub.cache_clear()


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
    entries = {n: pinned(plan.config.corpora[n], plan.commit("corpora", n)) for n in corpora}
    revisions = [data_of(entry.source).revision for entry in entries.values()]
    assert revisions == [commit, commit, commit, None, "v2"]


def test_models_corpora_and_tasks_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fetch_model", "fetch_corpus", "fetch_task"):
        monkeypatch.setattr(f"layerwise.run.fetch.{name}", lambda *_: {"commit": "c"})
    prompts = {"hub": "me/prompts"}
    corpora = {
        "texts": {"source": {"hub": "me/news"}},
        "chains": {"source": {"generate": {"model": "tiny", "prompts": prompts}}},
        "file": {"source": {"file": "news.txt"}},
        "sts": {"source": {"task": "STS12"}},
        "photos": {"images": {"hub": "me/photos"}},
    }
    questions = {"questions": {"hub": "me/questions"}}
    tasks = {"mmlu": questions, "STS13": {}, "local": {"folder": "sts"}}
    assert fetched(config("step0", "step1", corpora=corpora, tasks=tasks), tmp_path) == 8
    records = (tmp_path / "results/fetched").rglob("*.json")
    assert sorted(
        path.relative_to(tmp_path / "results/fetched").as_posix() for path in records
    ) == [
        "corpora/chains.json",
        "corpora/photos.json",
        "corpora/texts.json",
        "models/tiny/step0.json",
        "models/tiny/step1.json",
        "tasks/STS12.json",
        "tasks/STS13.json",
        "tasks/mmlu.json",
    ]
