"""The jobs that Snakemake plans for a config with a bit of everything, as the rules make them."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers.project import Project

from layerwise.config import Config
from layerwise.names import decode
from layerwise.run.plan import Plan

FILE = Path(__file__).parent / "jobs.yaml"
CONFIG: dict[str, Any] = {
    "models": {
        "first": {"source": {"folder": "models/llama", "pickled": {}}, "dtype": "bfloat16"},
        "second": {"source": {"folder": "models/{revision}"}, "revisions": ["step0", "step1"]},
        "gpt-140b": {"source": {"hub": "x/gpt-140b"}, "device_map": "auto"},
    },
    "recipes": {"results/quickstart": "quickstart"},
    "corpora": {
        "mine": {"source": {"file": "mine.txt"}, "sample": {"n": 4000}, "views": {"n": 2}},
        "plain": {"source": {"file": "mine.txt"}, "views": {"n": 0}},
        "written": {
            "source": {"generate": {"model": "second", "prompts": {"file": "mine.txt"}}},
            "views": {"n": 1},
        },
        "topics": {"source": {"task": "topic"}, "views": {"n": 1}},
    },
    "tasks": {
        "topic": {"file": "topic.csv", "kind": "classification"},
        "STS12": {},
        "ArxivClusteringS2S": {},
        "LeeNewsSimilarity": {
            "folder": "results/quickstart/tasks/LeeNewsSimilarity",
            "type": "STS",
        },
    },
    "metrics": {"metrics": ["prompt_entropy", "curvature"]},
    "extract": {"device": "cuda", "threads": 3, "keep_activations": False},
    "scoring": {"threads": 2, "parts": 2},
    "published": {"released": {"scores": "released", "metrics": "released"}},
    "studies": {
        "both": {
            "kind": "metric_vs_score",
            "models": ["first", "gpt-140b"],
            "corpora": ["mine"],
            "metrics": ["prompt_entropy"],
        },
        "chosen": {
            "kind": "layer_selection",
            "models": ["second"],
            "corpora": ["written"],
            "tasks": ["topic"],
            "metrics": ["prompt_entropy"],
        },
        "topics": {
            "kind": "metrics_by_depth",
            "models": ["second"],
            "revisions": "all",
            "corpora": ["topics"],
            "metrics": ["curvature"],
        },
        "similar": {"kind": "layer_similarity", "models": ["second"], "corpora": ["plain"]},
        "published": {
            "kind": "score_by_depth",
            "published": "released",
            "models": ["Pythia-14m"],
        },
        "law": {"kind": "power_law"},
    },
}
# Appended to the Snakefile of a copy: writes what a dry run plans.
DUMP = """
@atexit.register
def dump():
    import json

    jobs = []
    for job in workflow._dag.jobs:
        described = {"rule": job.rule.name, "wildcards": job.wildcards_dict}
        named = {name: job.input.get(name) for name in job.input.keys() if name != "stale"}
        described["input"] = named if named else list(map(str, job.input))
        described["output"] = list(map(str, job.output))
        described["temporary"] = [str(f) for f in job.output if f.flags.get("temp")]
        described["benchmark"] = str(job.benchmark or "")
        described["key"] = getattr(job.params, "key", "")
        described["command"] = job.shellcmd
        described["priority"] = job.priority
        for attempt in (1, 2):
            job.attempt = attempt
            described[f"attempt {attempt}"] = {
                name: job.resources.get(name, 0)
                for name in ("_cores", "mem_mb", "runtime", "disk_mb", "gpu")
            }
        jobs.append(described)
    Path("jobs.json").write_text(json.dumps(jobs, default=str))
"""
STAGES = {"convert": "converted", "import_published": "published"}


def planned() -> dict[str, Any]:
    """Each job of the workflow's own rules by rule and wildcards, with the stage of its key."""
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder) / "project")
        project.config |= CONFIG
        project.write()
        weights = project.folder / "models" / "llama" / "model.safetensors"
        weights.with_name("pytorch_model.bin").write_bytes(weights.read_bytes())
        weights.unlink()
        with (project.folder / "workflow" / "Snakefile").open("a") as snakefile:
            snakefile.write(DUMP)
        project.snakemake("--dry-run", "--cores", "8")
        text = (project.folder / "jobs.json").read_text()
        jobs = json.loads(text.replace(f"{project.folder}/", ""))
        with chdir(project.folder):
            keys = Plan(Config.of(project.config)).keys
            described = dict(_described(job, keys) for job in jobs if _is_own(job))
    return dict(sorted(described.items()))


def _is_own(job: dict[str, Any]) -> bool:
    return job["rule"] != "all" and not job["rule"].startswith("quickstart")


def _described(job: dict[str, Any], keys: Any) -> tuple[str, dict[str, Any]]:
    wildcards = {name: decode(value) for name, value in job.pop("wildcards").items()}
    rule, stored = job.pop("rule"), job["key"]
    stage = STAGES.get(rule, rule)
    right = getattr(keys, stage)(**wildcards)
    job["key"] = stage if stored == right else "of another stage or name"
    job["command"] = job["command"].replace(stored, "KEY")
    job["priority"] = round(job["priority"], 6)
    return " ".join([rule, *wildcards.values()]), job


def write() -> None:
    """Write the golden jobs."""
    FILE.write_text(yaml.safe_dump(planned(), sort_keys=False, width=99))
