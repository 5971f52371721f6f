"""`snakemake fetch`: the caches are filled, and a missing model is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from huggingface_hub import constants
from refused import refused
from test_models_load import in_cache

from layerwise.config import Config
from layerwise.workflow.fetch import fetch_all


def config(*revisions: str) -> Config:
    source = {"hub": "EleutherAI/pythia-tiny"}
    return Config.of(
        {
            "models": {"tiny": {"source": source, "revisions": list(revisions)}},
            "corpora": {"news": {"source": {"package": "lee"}}},
            "tasks": {"reviews": {"file": "reviews.csv", "kind": "classification"}},
            "studies": {"metrics": {"kind": "metrics_by_depth"}},
        }
    )


def test_models_in_the_cache_are_fetched_without_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    folders = {name: tiny.save("gpt_neox", tmp_path / name) for name in ("step0", "step1")}
    in_cache(tmp_path / "hub", "EleutherAI/pythia-tiny", folders)
    caplog.set_level("INFO")
    fetch_all(config("step0", "step1"))
    assert [r.args[1] for r in caplog.records if r.name.endswith("fetch")] == ["step0", "step1"]
    with refused("unreadable"):
        fetch_all(config("step0", "step2"))


def test_a_model_without_safetensors_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tiny.save("gpt_neox", tmp_path / "step0")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    in_cache(tmp_path / "hub", "EleutherAI/pythia-tiny", {"step0": folder})
    with refused("unsafe"):
        fetch_all(config("step0"))
