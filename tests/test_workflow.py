"""The workflow on a small config: what each artefact needs, and what each change runs again."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import pandas as pd
import pytest
import torch
import yaml
from helpers.project import Project, assert_drawn_alike, layerwise, python
from helpers.refused import refused
from safetensors.torch import load_file

import layerwise as lw
from layerwise.activations.store import Activations
from layerwise.config import Config
from layerwise.io import tables
from layerwise.run.plan import Plan
from layerwise.run.script import Job
from layerwise.run.snakemake import CONFIG, RUNNING, Survey
from tools.publish import publish

REPORTS = {"report": 1, "explore": 1}


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose first run is done."""
    project = Project(tmp_path_factory.mktemp("complete") / "project")
    project.snakemake()
    return project


@pytest.fixture
def done(complete: Project) -> Iterator[Project]:
    """The project after its run, restored afterwards; dry runs only."""
    kept = complete.folder.parent / "kept"
    shutil.copytree(complete.folder, kept, symlinks=True)
    config = yaml.safe_load(yaml.safe_dump(complete.config))
    yield complete
    shutil.rmtree(complete.folder)
    kept.rename(complete.folder)
    complete.config = config


def test_every_artefact_can_be_requested_by_its_path(done: Project) -> None:
    wanted = {
        "corpora/mine.parquet": {"corpus"},
        "corpora/mine.views.parquet": {"corpus", "views"},
        "activations/first/main/mine.h5": {"corpus", "views", "extract"},
        "metrics/second/step1/mine.prompts.parquet": {"corpus", "views", "extract", "metrics"},
        "scores/first/main.parquet": {"evaluate"},
        "tables/law.csv": {"figure"},
    }
    shutil.rmtree(done.folder / "results")
    for path, rules in wanted.items():
        assert set(done.jobs(f"results/{path}")) == rules, path
    whole = done.jobs()
    assert whole["extract"] == whole["metrics"] == 3
    assert whole["evaluate"] == 2  # step0 is in no study of scores
    assert whole["figure"] == 3


def test_a_second_run_has_nothing_to_do(done: Project) -> None:
    assert done.jobs() == {}
    done.touch()
    assert done.jobs() == {}


def test_results_without_records_are_up_to_date(done: Project) -> None:
    done.forget()
    assert done.stale() == {}


def test_a_changed_table_is_made_again(done: Project) -> None:
    results = done.folder / "results"
    (results / "report/best_layers.csv").write_text("model\nother\n")
    (results / "report/weights.csv").write_bytes(b"\0")
    (results / "tables/law.csv").write_text("")
    prompts = results / "metrics/first/main/mine.prompts.parquet"
    prompts.write_bytes(prompts.read_bytes()[:-9])
    jobs = done.stale()
    assert {"best_layers": 1, "weights": 1, "metrics": 1, "report": 1}.items() <= jobs.items()
    assert jobs["figure"] >= 1


def test_a_deleted_table_is_made_again(done: Project) -> None:
    tables = {"metrics": "metrics/first/main/mine", "evaluate": "scores/first/main"}
    tables["associate"] = "associations/both"
    for table in tables.values():
        (done.folder / f"results/{table}.parquet").unlink()
    jobs = done.jobs()
    assert {rule: jobs.get(rule) for rule in tables} == dict.fromkeys(tables, 1)


def test_tables_of_the_report_follow_the_config_without_records(done: Project) -> None:
    done.forget()
    done.config["association"] = {"directions": {"curvature": -1}}
    del done.config["studies"]["sweep"]
    done.write()
    jobs = done.stale()
    assert jobs["best_layers"] == jobs["report"] == 1


def test_words_and_formatting_rerun_nothing(done: Project) -> None:
    for module in (done.own_library() / "layerwise").rglob("*.py"):
        module.write_text(module.read_text() + "\n# A comment.\n")
    assert done.jobs() == {}


def test_files_of_other_versions_are_kept_and_named_once(done: Project) -> None:
    for path in sorted((done.folder / "results/metrics").rglob("mine.parquet"))[:2]:
        facts = tables.facts(path)
        made_with = json.loads(facts["versions"]) | {"torch": "1.0"}
        tables.write(path, pd.read_parquet(path), **facts | {"versions": made_with})
    with contextlib.chdir(done.folder):
        found = Survey(Plan(Config.of(done.config)))
    assert found.stale == []
    warning = found.warning()
    assert "2 of metrics: torch 1.0)" in warning and warning.endswith("run with -R metrics.")


def test_a_changed_formula_reruns_the_metrics(done: Project) -> None:
    formula = done.own_library() / "layerwise/metrics/catalog/entropy.py"
    formula.write_text(formula.read_text() + "\n_UNUSED = 2\n")
    found = done.jobs()
    assert found["metrics"] == 3
    assert not {"extract", "evaluate", "corpus"} & set(found)


def test_forcing_the_metrics_reruns_all_of_them_and_their_figures(done: Project) -> None:
    found = done.jobs("-R", "metrics")
    assert found == {"metrics": 3, "associate": 1, "figure": 2, "weights": 1, **REPORTS}


def test_until_and_omit_from(done: Project) -> None:
    shutil.rmtree(done.folder / "results")
    assert set(done.jobs("--until", "extract")) == {"corpus", "views", "extract"}
    assert "extract" not in done.jobs("--omit-from", "extract")


def test_a_smaller_sample_reruns_what_reads_the_corpus(done: Project) -> None:
    done.config["corpora"]["mine"]["sample"]["n"] = 30
    done.write()
    expected = {"corpus": 1, "views": 1, "extract": 3, "metrics": 3}
    expected |= {"associate": 1, "figure": 2, "weights": 1, **REPORTS}
    assert done.jobs() == expected
    done.forget()
    assert done.stale() == expected


def test_a_single_view_is_made_and_read(done: Project) -> None:
    done.config["corpora"]["mine"]["views"]["n"] = 1
    done.write()
    assert {"views": 1, "extract": 3, "metrics": 3}.items() <= done.jobs().items()
    shutil.rmtree(done.folder / "results/corpora")
    assert done.jobs("results/activations/first/main/mine.h5")["views"] == 1


def test_a_new_checkpoint_runs_its_own_jobs_and_the_figures(done: Project) -> None:
    done.config["models"]["second"]["revisions"] = ["step0", "step1", "step2"]
    done.write()
    found = done.jobs()
    assert {rule: found[rule] for rule in ("extract", "metrics", "evaluate")} == dict.fromkeys(
        ("extract", "metrics", "evaluate"), 1
    )
    assert "corpus" not in found


def test_a_new_metric_runs_no_model_and_leaves_the_law(done: Project) -> None:
    """As docs/tutorial.md says of the quickstart; tests/test_docs.py counts its jobs."""
    done.config["metrics"]["metrics"].append("rankme")
    done.config["studies"]["sweep"]["metrics"] = ["prompt_entropy", "rankme"]
    done.write()
    once = dict.fromkeys(("associate", "explore", "report", "weights"), 1)
    assert done.jobs() == {"metrics": 3, "figure": 2} | once


def test_a_new_task_is_the_only_one_that_is_scored(done: Project) -> None:
    shutil.copy(done.folder / "topic.csv", done.folder / "again.csv")
    done.config["tasks"]["again"] = {"file": "again.csv", "kind": "classification"}
    done.write()
    found = done.jobs()
    assert found["evaluate"] == 2  # the checkpoints whose scores a study reads
    assert not {"extract", "metrics"} & set(found)
    part = done.folder / "results/scores/first/main/topic.parquet"
    before = part.stat().st_mtime_ns
    done.snakemake("results/scores/first/main.parquet")
    assert part.stat().st_mtime_ns == before
    tasks = pd.read_parquet(done.folder / "results/scores/first/main.parquet")["task"]
    assert set(tasks) == {"topic", "again"}


def test_a_task_less_keeps_the_scores_of_the_others(done: Project) -> None:
    done.config["tasks"]["again"] = done.config["tasks"]["topic"]
    done.write()
    table = "results/scores/first/main.parquet"
    done.snakemake(table)
    part = done.folder / "results/scores/first/main/topic.parquet"
    before = part.stat().st_mtime_ns
    del done.config["tasks"]["again"]
    done.write()
    done.snakemake(table)
    assert part.stat().st_mtime_ns == before
    assert set(pd.read_parquet(done.folder / table)["task"]) == {"topic"}


def test_a_new_study_draws_its_figure(done: Project) -> None:
    done.config["studies"]["more"] = {"kind": "metrics_by_depth", "models": ["first"]}
    done.write()
    assert done.jobs() == {"figure": 1, **REPORTS}


def test_python_draws_what_the_workflow_draws(done: Project) -> None:
    assert_drawn_alike(done.folder / "results")
    run = lw.open(done.folder / "results")
    narrowed = run.draw("both", models="second").table
    assert set(narrowed["model"]) == {"second"}
    with refused("missing_file"):
        run.draw("both", corpora=["mine"])  # associations are made for the study


def test_another_config_writes_to_its_own_folder(done: Project) -> None:
    other = {**done.config, "results": "elsewhere"}
    (done.folder / "other.yaml").write_text(yaml.safe_dump(other))
    assert done.jobs("--configfile", "other.yaml")["extract"] == 3
    assert done.jobs() == {}


def test_another_path_of_the_checkout_reruns_nothing(done: Project, tmp_path: Path) -> None:
    for part in ("workflow", "scripts", "envs"):
        shutil.copytree(done.folder / part, tmp_path / part)
    done.own_library().rename(tmp_path / "lib")
    assert done.jobs("--snakefile", str(tmp_path / "workflow/Snakefile")) == {}


def test_a_dry_run_writes_nothing(done: Project) -> None:
    done.config["corpora"]["mine"]["sample"]["n"] = 30
    done.write()
    results = done.folder / "results"
    times = {path: path.stat().st_mtime_ns for path in results.rglob("*")}
    assert done.jobs()["corpus"] == 1
    assert done.jobs()["corpus"] == 1  # the first leaves no records either
    assert {path: path.stat().st_mtime_ns for path in results.rglob("*")} == times


def test_only_a_run_with_jobs_writes_the_config_that_python_opens(done: Project) -> None:
    latest = done.folder / "results" / CONFIG
    before = latest.read_bytes()
    done.config["extract"]["threads"] = 2  # changes no key
    done.write()
    for options in (("--summary",), ("--dag",), ("--list-rules",), ("--unlock",), ()):
        done.snakemake(*options)
        assert latest.read_bytes() == before, options
    done.config["studies"]["more"] = {"kind": "power_law", "title": "More"}
    done.write()
    done.snakemake("--list-rules")
    assert "more" not in lw.open(done.folder / "results").studies
    done.snakemake("results/figures/more.png")
    assert "more" in lw.open(done.folder / "results").studies


def test_tables_of_another_config_are_named(
    done: Project, caplog: pytest.LogCaptureFixture
) -> None:
    results = done.folder / "results"
    done.config["metrics"]["seed"] = 5
    done.write()
    done.snakemake("results/metrics/first/main/mine.parquet")
    run = lw.open(results)
    assert len(run.metrics(model="first"))
    assert not caplog.records
    run.metrics(model="second")
    run.metrics(model="second")
    (warning,) = caplog.messages
    assert "metrics/second/step1/mine.parquet" in warning and "start it again" in warning
    with refused("mismatch"):
        publish(results, done.folder / "out", "other")
    assert not (done.folder / "out").exists()


def test_a_second_run_on_the_same_results_is_refused_and_a_killed_one_is_told(
    done: Project,
) -> None:
    running = done.folder / "results" / RUNNING
    assert not running.exists()
    (done.folder / "results/tables/law.csv").unlink()
    for host, pid in ((platform.node(), os.getpid()), ("elsewhere", 1)):
        running.write_text(json.dumps({"host": host, "pid": pid}))
        printed = done.snakemake("results/tables/law.csv", check=False)
        assert f"Process {pid} of {host} writes results" in printed and "Traceback" not in printed
        assert not (done.folder / "results/tables/law.csv").exists()
    assert done.jobs("results/tables/law.csv") == {"figure": 1}, "a dry run may look"
    gone = subprocess.Popen(["true"])
    gone.wait()
    running.write_text(json.dumps({"host": platform.node(), "pid": gone.pid}))
    assert "squeue" in done.snakemake("results/tables/law.csv")
    assert not running.exists()


def test_a_killed_run_is_unlocked_unless_its_jobs_wait_in_a_queue(done: Project) -> None:
    table, squeue = done.folder / "results/tables/law.csv", done.folder / "bin/squeue"
    running, lock = (
        done.folder / "results" / RUNNING,
        done.folder / ".snakemake/locks/0.output.lock",
    )
    squeue.parent.mkdir()
    gone = subprocess.Popen(["true"])
    gone.wait()

    def run(answer: str, *arguments: str) -> str:
        squeue.write_text(f"#!/bin/sh\n{answer}\n")
        squeue.chmod(0o755)
        table.unlink(missing_ok=True)
        running.write_text(json.dumps({"host": platform.node(), "pid": gone.pid}))
        lock.parent.mkdir(exist_ok=True)
        lock.write_text("results/tables/law.csv\n")
        path = f"{python().parent}:{squeue.parent}:{os.environ['PATH']}"
        wanted = [*arguments, "results/tables/law.csv"]
        ended = layerwise("run", *wanted, folder=done.folder, PATH=path)
        return ended.stdout + ended.stderr

    of_this_run = f"printf '7\\trule_extract_wildcards_first\\t{done.folder}\\n'"
    printed = run(of_this_run)
    assert "7 rule_extract_wildcards_first" in printed and "--resubmit" in printed
    assert lock.exists() and running.exists() and not table.exists()
    run(of_this_run, "--resubmit")
    assert table.exists() and not lock.exists() and not running.exists()
    run("printf '8\\trule_extract_wildcards_first\\t/elsewhere\\n9\\tother\\t/elsewhere\\n'")
    assert table.exists() and not lock.exists()
    assert "connection refused" in run("echo connection refused >&2; exit 1")
    assert lock.exists() and not table.exists()


def test_a_file_of_the_future_is_named_before_any_job(done: Project) -> None:
    os.utime(done.folder / "mine.txt", (time.time() + 7200,) * 2)
    printed = done.snakemake("--dry-run", check=False)
    assert "corpora.mine.source.file: mine.txt is dated in the future" in printed
    assert "touch mine.txt" in printed and "Traceback" not in printed


def test_a_job_refuses_an_input_of_another_config(done: Project) -> None:
    """Without Snakemake's records, whose trigger would make the input again."""
    corpus = done.folder / "results/corpora/mine.parquet"
    facts = tables.facts(corpus)
    views = done.folder / "results/corpora/mine.views.parquet"
    views.unlink()
    for others in (facts | {"key": "another"}, {}):
        tables.write(corpus, pd.read_parquet(corpus), **others)
        printed = done.snakemake("results/corpora/mine.views.parquet", check=False)
        assert "mine.parquet was made for another config" in printed and "-R corpus" in printed
        assert not views.exists()
    done.snakemake("results/corpora/mine.views.parquet", "-R", "corpus")
    assert tables.facts(corpus)["key"] == facts["key"] and views.exists()


@pytest.mark.slow
def test_a_config_edited_while_a_job_waits(done: Project) -> None:
    pytest.importorskip("snakemake_executor_plugin_cluster_generic")
    made = done.folder / "results/corpora/mine.parquet"
    before, rows = tables.facts(made)["key"], len(pd.read_parquet(made))
    made.unlink()
    submit = done.folder / "submit.sh"
    submit.write_text("#!/bin/sh\nsed -i 's/n: 40/n: 2/' config.yaml\nsh $1 >&2 && echo 1\n")
    submit.chmod(0o755)
    options = ["--executor", "cluster-generic", "--cluster-generic-submit-cmd", str(submit)]
    done.snakemake("results/corpora/mine.parquet", "--jobs", "1", *options)
    assert "n: 2" in (done.folder / "config.yaml").read_text()
    assert tables.facts(made)["key"] == before
    assert len(pd.read_parquet(made)) == rows


def test_a_metric_more_or_less_is_computed_alone(done: Project) -> None:
    path = "results/metrics/first/main/mine.parquet"
    table = done.folder / path
    stored = pd.read_parquet(table)
    marked = stored.assign(value=stored["value"].where(stored["metric"] != "curvature", 7.0))
    tables.write(table, marked, **tables.facts(table))
    done.config["metrics"]["metrics"] = ["prompt_entropy", "rankme", "curvature", "infonce"]
    done.write()
    done.snakemake(path)
    more = pd.read_parquet(table)
    assert set(more["metric"]) == {*stored["metric"], "rankme"}
    assert (more.loc[more["metric"] == "curvature", "value"] == 7.0).all()
    assert done.jobs(path) == {}
    # Without a metric, its rows are dropped.
    for study in ("both", "sweep"):
        done.config["studies"][study]["metrics"] = ["prompt_entropy"]
    done.config["metrics"]["metrics"] = ["prompt_entropy", "rankme", "infonce"]
    done.write()
    assert done.jobs(path) == {"metrics": 1}
    done.snakemake(path)
    less = pd.read_parquet(table)
    assert set(less["metric"]) == {"prompt_entropy", "rankme", "infonce"}
    # Computed at once, the tables are equal, and in the same order.
    names = [table, table.with_suffix(".prompts.parquet"), table.with_suffix(".positions.parquet")]
    before = [pd.read_parquet(name) for name in names]
    assert done.jobs(path, "-R", "metrics") == {"metrics": 1}
    done.snakemake(path, "-R", "metrics")
    for name, frame in zip(names, before, strict=True):
        pd.testing.assert_frame_equal(pd.read_parquet(name), frame)


def test_a_failed_job_leaves_the_finished_files(done: Project) -> None:
    results = done.folder / "results"
    files = [
        results / f"{name}.parquet" for name in ("metrics/first/main/mine", "scores/first/main")
    ]
    files += [results / "activations/first/main/mine.h5", results / "corpora/mine.parquet"]
    before = [file.read_bytes() for file in files]
    scripts = ("extract_activations", "compute_metrics", "evaluate_model", "make_corpus")
    for name in scripts:
        file = done.folder / "scripts" / f"{name}.py"
        file.write_text(
            file.read_text().replace(
                "\n    script.run(", "\n    raise SystemExit(3)\n    script.run("
            )
        )
    done.config["models"]["first"]["max_length"] = 9
    done.config["metrics"]["seed"] = 3
    done.write()
    for wanted in ("activations/first/main/mine.h5", "scores/first/main.parquet"):
        assert "Error in rule" in done.snakemake(f"results/{wanted}", check=False)
    done.config["corpora"]["mine"]["sample"]["n"] = 30
    done.write()
    assert "Error in rule" in done.snakemake("results/corpora/mine.parquet", check=False)
    assert [file.read_bytes() for file in files] == before
    done.config["corpora"]["mine"]["sample"]["n"] = 40
    del done.config["models"]["first"]["max_length"], done.config["metrics"]["seed"]
    done.write()
    # Snakemake has the keys of the failed jobs in its records, and runs these once more.
    assert {"corpus", "extract", "evaluate"} <= done.jobs().keys()


def test_a_failed_conversion_leaves_the_converted_model(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    models = project.folder / "models"
    weights = models / "llama/model.safetensors"
    torch.save(load_file(weights), models / "llama/pytorch_model.bin")
    weights.unlink()
    source: dict[str, Any] = {"folder": "models/llama", "pickled": {}}
    project.config["models"] = {"old": {"source": source}}
    project.config["studies"] = {"depth": {"kind": "metrics_by_depth"}}
    project.write()
    wanted = "results/activations/old/main/mine.h5"
    project.snakemake(wanted)
    folder = project.folder / "results/converted/old/main"
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert {"layerwise.json", "model.safetensors", "tokenizer.json"} <= before.keys()
    (models / "llama/other.bin").write_bytes(b"no pickle")
    source["pickled"] = {"file": "other.bin"}
    project.write()
    assert "cannot be read as tensors" in project.snakemake(wanted, check=False)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    source["pickled"] = {}
    project.write()
    assert project.jobs(wanted) == {"convert": 1, "extract": 1}
    # Another model takes the whole folder.
    (folder / "of_an_earlier_release.json").write_text("{}")
    (models / "llama/other.bin").write_bytes((models / "llama/pytorch_model.bin").read_bytes())
    source["pickled"] = {"file": "other.bin"}
    project.write()
    project.snakemake(wanted)
    assert {file.name for file in folder.iterdir()} == before.keys()
    assert [path.name for path in folder.parent.iterdir()] == ["main"]


# Changes of a config by the jobs that they run, as docs/cluster.md lists them.
# Beside a smaller sample, and a checkpoint, metric, task or study more, which are tested above.
CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("", {"extract": {"threads": 2, "batch_tokens": 99, "keep_activations": False}}),
    ("", {"scoring": {"threads": 2}}),
    ("", {"metrics": {"metrics": ["infonce", "curvature", "prompt_entropy"]}}),
    ("", {"association": {"directions": {"curvature": -1}}}),
    (
        "metrics",
        {
            "metrics": {"metrics": ["prompt_entropy", "curvature"]},
            "studies": {"both": {"metrics": ["curvature"]}, "sweep": {"metrics": ["curvature"]}},
        },
    ),
    ("metrics", {"metrics": {"settings": {"infonce": {"temperature": 0.5}}}}),
    ("evaluate", {"tasks": {"topic": None}}),
    ("evaluate", {"scoring": {"poolings": ["mean", "max"]}}),
    ("extract metrics evaluate", {"models": {"first": {"max_length": 9}}}),
    ("extract metrics evaluate", {"extract": {"tokens": ["all", "drop_first"]}}),
    ("views extract metrics", {"corpora": {"mine": {"views": {"n": 3}}}}),
]


def changed(config: Any, change: dict[str, Any]) -> Any:
    """A config with some keys changed; None removes one."""
    if not isinstance(config, dict):
        return change
    merged = config | {
        key: changed(config.get(key), value) if isinstance(value, dict) else value
        for key, value in change.items()
    }
    return {key: value for key, value in merged.items() if value is not None}


def test_a_change_runs_no_more_jobs_than_it_needs(done: Project) -> None:
    shutil.copy(done.folder / "topic.csv", done.folder / "again.csv")
    costly = {"corpus", "views", "extract", "metrics", "evaluate"}
    config = done.config
    config["tasks"]["other"] = {"file": "again.csv", "kind": "classification"}
    done.write()
    done.snakemake("--until", "evaluate")
    for jobs, change in CHANGES:
        done.config = changed(config, change)
        done.write()
        assert done.jobs().keys() & costly == {*jobs.split()}, change
    more = {"metrics": ["prompt_entropy", "curvature", "infonce", "rankme"]}
    done.config = changed(config, {"metrics": more, "extract": {"keep_activations": False}})
    done.write()
    shutil.rmtree(done.folder / "results/activations")
    assert {"extract", "metrics"} <= done.jobs().keys()


def test_an_array_more_is_extracted_alone(done: Project) -> None:
    place = "first/main/mine"
    path = done.folder / f"results/activations/{place}.h5"
    with h5py.File(path, "r+") as file:
        file["pooled"][...] = 1  # what another pass would replace
    wanted = ["prompt_entropy", "curvature", "infonce", "largest_dimension"]
    done.config = changed(done.config, {"metrics": {"metrics": wanted}})
    done.write()
    table = done.folder / f"results/metrics/{place}.parquet"
    before = tables.read(table, "metrics")
    done.snakemake(f"results/metrics/{place}.parquet")
    with Activations(path) as file:
        assert (file.pooled("paper", "all", 1) == 1).all()
    after = tables.read(table, "metrics")
    assert set(after["metric"]) == set(wanted)
    stays = after[after["metric"] != "largest_dimension"]
    pd.testing.assert_frame_equal(stays.reset_index(drop=True), before)
    done.snakemake("-R", "extract", "--", f"results/activations/{place}.h5")
    with Activations(path) as file:
        assert not (file.pooled("paper", "all", 1) == 1).any()


def test_a_corpus_without_views_has_no_job_for_them(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.config["corpora"]["mine"]["views"]["n"] = 0
    project.config["metrics"]["metrics"] = ["prompt_entropy"]
    project.config["studies"] = {"law": {"kind": "power_law"}}
    project.write()
    path = "results/activations/first/main/mine.h5"
    assert project.jobs(path).keys() == {"corpus", "extract"}
    project.snakemake(path)
    with Activations(project.folder / path) as file:
        assert file.n_views == 1


def test_a_revision_that_the_config_lacks_is_one_sentence(done: Project) -> None:
    printed = done.snakemake("-n", "results/activations/first/nope/mine.h5", check=False)
    assert "first has no revision nope" in printed and "Traceback" not in printed


def test_results_dated_in_the_future_rerun_and_fail_nothing(done: Project) -> None:
    later = time.time() + 7200
    os.utime(done.folder / "results/activations/first/main/mine.h5", (later, later))
    done.snakemake("results/metrics/first/main/mine.parquet", "-R", "metrics")


def test_a_job_refuses_a_config_of_another_key(
    done: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(done.folder)
    path = "results/corpora/mine.parquet"
    planned = SimpleNamespace(
        input=[],
        output=[path],
        params=SimpleNamespace(key=tables.facts(Path(path))["key"]),
        wildcards={"corpus": "mine"},
        config=done.config,
        threads=1,
    )
    assert Job(planned).names == {"corpus": "mine"}
    done.config["corpora"]["mine"]["sample"]["n"] = 30
    with refused("mismatch") as caught:
        Job(planned)
    assert "start the run again" in str(caught.value)
