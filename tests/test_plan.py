"""The plan of a run: what its jobs ask for, and the time that planning takes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from layerwise.cli import app, runs
from layerwise.config import Config
from layerwise.run.plan import Plan
from layerwise.run.resources import LONGEST, Requests

CORPUS = {"source": {"file": "news.txt"}, "sample": {"n": 100}, "views": {"n": 2}}


def plan(models: dict[str, Any], **sections: Any) -> Plan:
    studies = {
        "sweep": {"kind": "metrics_by_depth", "revisions": "all"},
        "scores": {"kind": "score_by_depth", "revisions": "all"},
    }
    given = {"models": models, "corpora": {"c": CORPUS}, "tasks": ["STS12"], "studies": studies}
    return Plan(Config.of(given | sections))


def test_requests_follow_the_size_of_the_model() -> None:
    large = {"source": {"hub": "x/jamba-52b"}, "dtype": "bfloat16", "device_map": "auto"}
    small = {"source": {"hub": "x/pythia-14m"}}
    asked = Requests(plan({"large": large, "small": small}, tasks=["ArxivClusteringS2S"]))
    assert (asked.gpus("large"), asked.gpus("small")) == (2, 1)
    assert asked.memory_mb("large") > 100_000 > 5000 > asked.memory_mb("small")
    assert asked.extract_minutes("small", "c") < 15
    assert asked.evaluate_minutes("small", "main") < 30
    assert asked.evaluate_minutes("large", "main") == LONGEST
    assert asked.scratch_mb("large") > asked.scratch_mb("small")
    table = asked.table(30)
    assert table.loc["all", "GPU hours"] == table["GPU hours"][:-1].sum() > 0
    # Operations: 2 per parameter and token; each prompt with two views, and the reduction.
    tokens = 3 * (100 * 3 * 256) + asked.task_tokens("ArxivClusteringS2S")
    assert table.loc["small", "GPU hours"] == pytest.approx(2 * 14e6 * tokens / 30e12 / 3600)
    assert asked.extract_minutes("small", "c", attempt=100) == LONGEST
    more = {"small": small | {"revisions": ["step1", "step2"]}}
    last = Requests(plan(more, studies={"s": {"kind": "metrics_by_depth"}})).table(30)
    assert last.loc["small", ["checkpoints", "of"]].tolist() == [1, 2]
    large_first = asked.extract_priority("large", "c"), asked.evaluate_priority("large", "main")
    small_later = asked.extract_priority("small", "c"), asked.evaluate_priority("small", "main")
    assert all(15 <= s < b <= 16 for s, b in zip(small_later, large_first, strict=True))


def test_each_checkpoint_is_downloaded_and_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the GPU that the command names is the one that the hours are of."""
    source, steps = {"hub": "x/pythia-14m"}, ["step1", "step2", "main"]
    one, three = (plan({"m": {"source": source, "revisions": r}}) for r in (steps[:1], steps))
    rows = [Requests(planned).table(30).loc["m"] for planned in (one, three)]
    for column in ("checkpoints", "GPU hours", "GB to download"):
        assert rows[1][column] == pytest.approx(3 * rows[0][column]), column
    assert rows[0]["GB to download"] == pytest.approx(2 * 14e6 / 1e9)
    asked: list[float] = []
    monkeypatch.setattr(runs, "_snakemake", lambda *_: one)
    monkeypatch.setattr(Requests, "table", lambda _, tflops: asked.append(tflops) or [])
    for options in (["--tflops", "60"], []):
        assert CliRunner().invoke(app, ["plan", *options]).exit_code == 0
    assert asked == [60, 30]


def test_a_model_of_two_towers_has_a_size(tmp_path: Path) -> None:
    tower = {"num_hidden_layers": 3, "hidden_size": 32}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": tower, "vision_config": {}}))
    asked = Requests(plan({"clip": {"source": {"folder": str(tmp_path)}}}))
    assert asked.extract_mb("clip", "c") == 1 + 4 * 32 * 300 * 4 // 1_000_000


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_damaged_model_is_planned_and_left_to_its_job(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    damaged = plan({"m-1b": {"source": {"folder": str(tmp_path)}}})
    assert Requests(damaged).extract_mb("m-1b", "c") > 1


def test_ten_thousand_checkpoints_are_planned_in_linear_time() -> None:
    steps = [f"step{n}" for n in range(10_000)]
    many = plan({"m": {"source": {"hub": "x/m-1b"}, "revisions": steps}})
    start = time.process_time()
    assert len(many.swept) == len(many.score_files) == len(many.tasks) == len(steps)
    many.keys.explore()
    assert time.process_time() - start < 5
