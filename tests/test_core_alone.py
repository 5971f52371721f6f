"""The library without its add-ons, installed alone: it runs a study of texts."""

import os
import shutil
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from helpers import tiny
from helpers.forked import LAYERWISE

ADD_ONS = ("explorer", "media", "papers", "quickstart", "tools")
PROJECT = ("workflow", "scripts", "presets", "envs", "config.yaml", "config.schema.json")
IMPORTABLE = "import importlib.util as u, sys; sys.exit(any(map(u.find_spec, sys.argv[1:])))"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with the files of the core's wheel and no add-on."""
    place = tmp_path_factory.mktemp("core") / "venv"
    venv.create(place)
    (packages,) = place.glob("lib/python*/site-packages")
    for name in ("layerwise", "snakemake_logger_plugin_layerwise"):
        shutil.copytree(ROOT / "lib" / name, packages / name)
    for name in PROJECT:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (packages / "layerwise" / "_project").mkdir(exist_ok=True)
        copy(ROOT / name, packages / "layerwise" / "_project" / name)
    about = packages / "layerwise-0.1.0.dist-info"
    about.mkdir()
    metadata = distribution("layerwise").read_text("METADATA") or ""
    (about / "METADATA").write_text(metadata, encoding="utf-8")
    # Paths alone: an editable layerwise in them stays out.
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "libraries.pth").write_text("\n".join(libraries), encoding="utf-8")
    return place / "bin" / "python"


def call(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment['PATH']}"
    words = [str(python), *arguments]
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_study_of_texts_needs_no_add_on(python: Path, tmp_path: Path) -> None:
    assert call(python, tmp_path, "-c", IMPORTABLE, *ADD_ONS).returncode == 0
    tiny.save("llama", tmp_path / "model")
    texts = tiny.texts(40)
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    rows = [f"{text},{'ab'[n % 2]}" for n, text in enumerate(texts)]
    (tmp_path / "topic.csv").write_text("\n".join(["text,label", *rows]))
    config = {
        "models": {"m": {"source": {"folder": "model"}}},
        "corpora": {"c": {"source": {"file": "texts.txt"}, "views": {"n": 0}}},
        "tasks": {"topic": {"file": "topic.csv", "kind": "classification"}},
        "metrics": {"metrics": ["prompt_entropy"]},
        "studies": {"metrics": {"kind": "metrics_by_depth"}, "scores": {"kind": "score_by_depth"}},
    }
    config["corpora"]["c"]["filters"] = {"min_tokens": 0}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    ran = call(python, tmp_path, *LAYERWISE, "run", "--cores", "2")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (tmp_path / "results" / "report.html").exists()
    for study in config["studies"]:
        assert (tmp_path / "results" / "figures" / f"{study}.png").exists()


def test_images_are_refused_with_what_to_install(python: Path, tmp_path: Path) -> None:
    config = {
        "corpora": {"photos": {"images": {"package": "digits"}}},
        "studies": {"metrics": {"kind": "metrics_by_depth"}},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    ran = call(python, tmp_path, *LAYERWISE, "run", "--dry-run")
    assert ran.returncode == 1 and "corpora.photos" in ran.stderr
    assert "need the add-on media" in ran.stderr
