"""Keys of results: each changes with what its file is made of, and with nothing else."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

from layerwise.config import Config
from layerwise.run.plan import Plan

CONFIG: dict[str, Any] = {
    "models": {"m": {"source": {"hub": "o/m"}}},
    "corpora": {"c": {"source": {"package": "lee"}, "sample": {"n": 40}, "views": {"n": 2}}},
    "tasks": ["STS12"],
    "extract": {"tokens": ["all"]},
    "metrics": {},
    "scoring": {},
    "studies": {"s": {"kind": "metric_vs_score"}},
}
OF_TEXTS = {"corpus", "views", "extract", "metrics"}


def keys(place: str = "", value: Any = None) -> dict[str, str]:
    """Keys of a config with one setting changed; ``/`` separates keys."""
    given = copy.deepcopy(CONFIG)
    inside: Any = given
    *parents, last = place.split("/")
    for part in parents:
        inside = inside.setdefault(part, {})
    if place:
        inside[last] = value
    made = Plan(Config.of(given)).keys
    return {
        "corpus": made.corpus("c"),
        "views": made.views("c"),
        "extract": made.extract("m", "main", "c"),
        "metrics": made.metrics("m", "main", "c"),
        "score": made.score("m", "main", "STS12"),
    }


@pytest.mark.parametrize(
    ("place", "value", "changed"),
    [
        ("corpora/c/sample", {"n": 30}, OF_TEXTS),
        ("corpora/c/filters", {"min_tokens": 7}, OF_TEXTS),
        ("corpora/c/views", {"n": 3}, OF_TEXTS - {"corpus"}),
        ("corpora/c/views", {"n": 2, "seed": 1}, OF_TEXTS - {"corpus"}),
        ("models/m/source", {"hub": "o/other"}, {"extract", "metrics", "score"}),
        ("models/m/max_length", 50, {"extract", "metrics", "score"}),
        ("extract/tokens", ["all", "drop_first"], {"extract", "metrics", "score"}),
        ("extract/dtype", "bfloat16", {"extract", "metrics", "score"}),
        ("extract/prefixes", True, {"extract", "metrics"}),
        ("metrics/metrics", ["rankme"], {"metrics"}),
        ("scoring/poolings", ["max"], {"score"}),
        ("extract/threads", 3, set()),
        ("extract/batch_tokens", 64, set()),
        ("scoring/waiting_gb", 3, set()),
        ("studies/s", {"kind": "score_by_depth"}, set()),
    ],
)
def test_keys_follow_settings(place: str, value: Any, changed: set[str]) -> None:
    before, after = keys(), keys(place, value)
    assert {name for name in before if before[name] != after[name]} == changed


@pytest.mark.parametrize("source", ["images", "hub", "questions", "task"])
def test_local_data_are_compared_by_content(tmp_path: Path, source: str) -> None:
    file = tmp_path / "a" / "train.jsonl"
    file.parent.mkdir()
    file.write_text('{"text": "one"}')
    folder = str(file.parent)
    entries: dict[str, Any] = {
        "images": {"images": {"folder": folder}},
        "hub": {"source": {"hub": folder}},
        "questions": {"questions": {"hub": folder}},
        "task": {"folder": folder},
    }
    section = "tasks" if source in ("questions", "task") else "corpora"

    def key() -> str:
        config = Config.of({section: {"c": entries[source]}, "studies": CONFIG["studies"]})
        made = Plan(config).keys
        return made.task_data("c") if section == "tasks" else made.corpus("c")

    before, state = key(), file.stat()
    file.write_text('{"text": "two"}')
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert key() != before
    changed = key()
    (file.parent / "README.md").write_text("---\nconfigs: []\n---\n")
    assert key() != changed
