"""Every rule runs: texts of each source, images, and each table of a study.

`.ci/run` runs it after `make test`.
"""

import re
from pathlib import Path

import pandas as pd
import pytest
from helpers import tiny, tiny_images
from helpers.project import Project

from layerwise.config import Config
from layerwise.run.plan import Plan


def test_rules_whose_scripts_spread_work_have_threads() -> None:
    """Without `threads:` a job gets one, whatever the config says."""
    root = Path(__file__).parents[1]
    rules = "".join(p.read_text() for p in sorted((root / "workflow" / "rules").glob("*.smk")))
    texts = dict(re.findall(r"^rule (\w+):\n(.*?)(?=^\S|\Z)", rules, re.M | re.S))
    for rule in ("extract", "metrics", "views", "evaluate"):
        assert re.search(r"^    threads: .*(CONFIG|REQUESTS)", texts[rule], re.M), rule


@pytest.mark.slow
def test_every_rule_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(tmp_path / "project")
    quotes = {"quote": tiny.texts(40, seed=3, shortest=8)}
    (project.folder / "quotes").mkdir()
    pd.DataFrame(quotes).to_parquet(project.folder / "quotes" / "train.parquet")
    tiny_images.save("vit", project.folder / "models" / "vit")
    small = {"sample": {"n": 30}, "views": {"n": 2}, "filters": {"min_tokens": 3}}
    project.config |= {
        "models": {
            "first": {"source": {"folder": "models/llama"}},
            "vit": {"source": {"folder": "models/vit"}},
        },
        "corpora": {
            "quotes": {"source": {"hub": "./quotes", "column": "quote"}, **small},
            "topics": {"source": {"task": "topic"}, **small},
            "news": {"source": {"task": "LeeNewsSimilarity"}, **small},
            "digits": {"images": {"package": "digits"}, "sample": {"n": 100}, "classes": 2},
        },
        "recipes": {"results/quickstart": "quickstart"},
        "tasks": {
            **project.config["tasks"],
            "LeeNewsSimilarity": {
                "folder": "results/quickstart/tasks/LeeNewsSimilarity",
                "type": "STS",
            },
            "digit": {"corpus": "digits", "kind": "classification"},
        },
        "published": {"released": {"scores": "released", "metrics": "released"}},
        "studies": {
            "images": {"kind": "metrics_by_depth", "corpora": ["digits"], "models": ["vit"]},
            "digits": {"kind": "probes_by_depth", "models": ["vit"], "tasks": ["digit"]},
            "similar": {"kind": "layer_similarity", "models": ["first"], "corpora": ["quotes"]},
            "selection": {
                "kind": "layer_selection",
                "models": ["first"],
                "tasks": ["topic"],
                "corpora": ["quotes"],
            },
            "published": {
                "kind": "score_by_depth",
                "published": "released",
                "models": ["Pythia-14m"],
            },
        },
    }
    project.write()
    project.snakemake("all", "results/corpora/topics.parquet", "results/corpora/news.parquet")
    for name in project.config["corpora"]:
        made = pd.read_parquet(project.folder / f"results/corpora/{name}.parquet")
        assert len(made) == 100 if name == "digits" else len(made) >= 20, name
    ran = {path.name for path in (project.folder / "results/logs").iterdir()}
    rules = (project.folder / "workflow/rules").glob("*.smk")
    logs = set(re.findall(r"<results>/logs/([^/\"{]+)", "".join(p.read_text() for p in rules)))
    elsewhere = {"associate", "convert", "generate", "weights.log"}
    assert logs - ran <= elsewhere
    # What other jobs read is checked for its key; the rest is for people, or of single tasks.
    monkeypatch.chdir(project.folder)
    plan = Plan(Config.of(project.config))
    shown = [path for path in Path("results").rglob("[!.]*.*") if path.is_file()]
    unchecked = {path.parts[1] + path.suffix for path in shown if plan.expected(path) is None}
    assert unchecked == {
        *("benchmarks.tsv", "figures.pdf", "figures.rst", "logs.log", "scores.parquet"),
        *("config.json.json", ".config.json"),
    }
