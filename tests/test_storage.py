"""Runs without a shared file system: jobs in folders of their own, results in a storage."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.project import Project, snakemake
from helpers.refused import refused
from safetensors.torch import load_file
from snakemake.settings.types import SharedFSUsage

import layerwise as lw
from layerwise.config import Config
from layerwise.run.script import check_activations
from layerwise.run.snakemake import Storage
from layerwise.run.validate import local_files

# A node: an empty folder, and no environment of the submitting process.
SUBMIT = """#!/bin/sh
node=$(mktemp -d {nodes}/XXXX)
cp "$1" "$node/job.sh"
cd "$node"
env -i PATH="$PATH" HOME="$HOME" HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 sh ./job.sh >log 2>&1
echo $? >status
echo "$node"
"""
STATUS = """#!/bin/sh
[ "$(cat "$1/status")" = 0 ] && echo success || echo failed
"""
# Several small jobs share a node, since each start of Snakemake takes seconds.
GROUPS = {
    "models": ("convert", "evaluate"),
    "activations": ("corpus", "views", "extract"),
    "tables": ("metrics", "associate"),
    "pages": ("figure", "best_layers", "report", "explore"),
}


@pytest.fixture(params=["fs", "s3"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A storage provider and a prefix in it."""
    pytest.importorskip("snakemake_executor_plugin_cluster_generic")
    pytest.importorskip(f"snakemake_storage_plugin_{request.param}")
    if request.param == "fs":
        if not shutil.which("rsync"):
            pytest.skip("the storage plugin fs needs rsync")
        yield "fs", str(tmp_path / "bucket")
        return
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    given = {"ENDPOINT_URL": f"http://{host}:{port}", "ACCESS_KEY": "a", "SECRET_KEY": "a"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(f"SNAKEMAKE_STORAGE_S3_{name}", value)
        yield "s3", "s3://layerwise/some/prefix"
    server.stop()


@pytest.fixture
def cluster(bucket: tuple[str, str], tmp_path: Path) -> Project:
    """A project of which jobs see no file but the user's, by their absolute paths."""
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    for name, text in (("submit", SUBMIT), ("status", STATUS)):
        (tmp_path / name).write_text(text.format(nodes=nodes) if name == "submit" else text)
        (tmp_path / name).chmod(0o755)
    provider, prefix = bucket
    options = {
        "executor": "cluster-generic",
        "cluster-generic-submit-cmd": tmp_path / "submit",
        "cluster-generic-status-cmd": tmp_path / "status",
        "seconds-between-status-checks": 1,
        "shared-fs-usage": "none",
        "default-storage-provider": provider,
        "default-storage-prefix": prefix,
        "jobs": 1,
    }
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    groups = [f"{rule}={group}" for group, rules in GROUPS.items() for rule in rules]
    given += ["--groups", *groups, "--group-components", *(f"{group}=9" for group in GROUPS)]

    project = Project(tmp_path / "project")
    models = project.folder / "models"
    weights = load_file(models / "llama" / "model.safetensors")
    (models / "llama" / "model.safetensors").unlink()
    torch.save(weights, models / "llama" / "pytorch_model.bin")
    source: dict[str, Any] = {"folder": f"{models}/llama", "pickled": {}}
    project.config["models"] = {"first": {"source": source}}
    project.config["corpora"]["mine"]["source"] = {"file": f"{project.folder}/mine.txt"}
    project.config["tasks"]["topic"]["file"] = f"{project.folder}/topic.csv"
    project.config["studies"] = {"both": {"kind": "metric_vs_score"}}
    project.write()
    git = ("git", "-C", str(project.folder))
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "lib", "workflow", "scripts", "config.yaml"], check=True)
    project.snakemake = partial(snakemake, project.folder, *given, "--job-deploy-sources")
    return project


@pytest.mark.slow
def test_a_run_without_a_shared_file_system(
    cluster: Project, bucket: tuple[str, str], tmp_path: Path
) -> None:
    cluster.snakemake()
    kept = {path.name for path in (cluster.folder / "results").iterdir()}
    assert kept == {".config", "config.json"}  # all else is in the storage
    assert cluster.jobs() == {}
    cluster.config["extract"]["dtype"] = "bfloat16"
    cluster.write()
    expected = dict.fromkeys(
        ("extract", "metrics", "evaluate", "associate", "figure", "best_layers"), 1
    )
    expected |= {"report": 1, "explore": 1}
    assert cluster.jobs() == expected
    cluster.forget()
    assert cluster.jobs() == expected  # by the keys of the stored files
    provider, prefix = bucket
    if provider == "fs":
        assert lw.open(f"{prefix}/results").metrics("curvature")["value"].notna().any()


def storage(provider: str | None, *shared: str) -> Storage:
    """A storage as Snakemake's options describe it."""
    settings = SimpleNamespace(shared_fs_usage=[SharedFSUsage.parse_choice(s) for s in shared])
    registry = SimpleNamespace(default_storage_provider=provider)
    workflow = {"storage_registry": registry, "storage_settings": settings}
    return Storage(SimpleNamespace(modifier=SimpleNamespace(path_modifier=None), **workflow))


def reading(file: str, results: str = "results") -> Config:
    """A config that reads a file."""
    corpora = {"mine": {"source": {"file": file}}}
    studies = {"law": {"kind": "power_law"}}
    return Config.of({"results": results, "corpora": corpora, "studies": studies})


def test_files_that_jobs_cannot_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    relative, absolute, rules = reading("mine.txt"), reading("/data/mine.txt"), "workflow/rules"
    storage(None).check(relative, rules)
    storage("s3", "sources").check(relative, rules)
    alone = storage("s3")
    alone.check(absolute, rules)
    with refused("conflict"):
        alone.check(relative, rules)
    with refused("conflict"):
        alone.check(absolute, "../elsewhere/workflow/rules")
    with refused("bad_name"):
        alone.check(reading("/data/mine.txt", results=str(tmp_path)), rules)
    (tmp_path / "results" / "fetched").mkdir(parents=True)
    with refused("conflict"):
        alone.check(absolute, rules)


def test_folders_with_braces_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snakemake would take them for wildcards."""
    monkeypatch.chdir(tmp_path)
    with refused("bad_name"):
        storage(None).check(reading("mine.txt"), "/data/{mine}/workflow/rules")
    (tmp_path / "{1}").mkdir()
    monkeypatch.chdir(tmp_path / "{1}")
    with refused("bad_name"):
        storage(None).check(reading("mine.txt"), "workflow/rules")


def test_files_of_the_user_are_all_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quotes").mkdir()
    models = {
        "little": {"source": {"folder": "made/little/{revision}"}},
        "own": {"source": {"folder": "own"}, "adapters": [{"folder": "adapter"}]},
        "old": {"source": {"folder": "old", "pickled": {"file": "pytorch_model.bin"}}},
        "states": {"source": {"states": "states.h5"}},
        "hub": {"source": {"hub": "x/y"}},
    }
    corpora = {
        "mine": {"source": {"file": "mine.txt"}},
        "quotes": {"source": {"hub": "quotes"}},
        "far": {"source": {"hub": "x/texts"}},
    }
    given = {
        "recipes": {"made": "quickstart"},
        "models": models,
        "corpora": corpora,
        "tasks": {"topic": {"file": "topic.csv", "kind": "classification"}},
        "published": {"theirs": {"scores": "theirs", "metrics": "theirs"}},
        "studies": {"law": {"kind": "power_law"}},
    }
    where = {path: key for key, path in local_files(Config.of(given))}
    expected = {"own", "adapter", "old", "states.h5", "mine.txt", "quotes", "topic.csv", "theirs"}
    assert where.keys() == expected
    assert where["adapter"].endswith(".adapters[0].folder")


def test_activations_of_another_config_are_refused() -> None:
    plan: Any = SimpleNamespace(keys=SimpleNamespace(extract=lambda *names: "/".join(names)))
    names = {"model": "a", "revision": "main", "corpus": "c"}
    found: Any = SimpleNamespace(**names, attributes={"key": "a/main/c"})
    check_activations(plan, found)
    found.attributes["key"] = "b"
    with refused("mismatch"):
        check_activations(plan, found)
