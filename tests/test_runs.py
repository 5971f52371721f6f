"""Runs of their own: as a module, of a model's own texts, of odd names; the order of jobs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
import transformers as hf
from conftest import ROOT
from helpers import tiny
from helpers.project import Project, snakemake

from layerwise.run.snakemake import config_of_run
from snakemake_logger_plugin_layerwise import Job


@pytest.mark.parametrize("from_git", [False, True])
def test_a_job_of_the_workflow_as_a_module_runs(from_git: bool, tmp_path: Path) -> None:
    checkout, outer = tmp_path / "checkout", tmp_path / "outer"
    outer.mkdir()
    for part in ("workflow", "scripts", "envs"):
        shutil.copytree(ROOT / part, checkout / part)
    snakefile = f'"{checkout}/workflow/Snakefile"'
    if from_git:
        who = ("-c", "user.name=me", "-c", "user.email=me@example.org")
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"], ["tag", "v1"]):
            subprocess.run(["git", "-C", checkout, *who, *words], check=True)
        snakefile = f'gitfile("{checkout}", path="workflow/Snakefile", tag="v1")'
    (outer / "Snakefile").write_text(
        f"""
config = {{"results": "mine", "studies": {{"law": {{"kind": "power_law"}}}}}}

module layerwise:
    snakefile: {snakefile}
    config: config

use rule * from layerwise as layerwise_*

rule figure_of_mine:
    default_target: True
    input: "mine/figures/law.png"
"""
    )
    # With the trigger `code`, Snakemake 9.27 cannot join the path of a script of `gitfile`.
    keys_alone = ("--rerun-triggers", "params") if from_git else ()
    snakemake(outer, *keys_alone, PYTHONPATH=str(ROOT / "lib"))
    assert (outer / "mine/tables/law.csv").is_file()
    # Without the workflow's profile, Snakemake compares commands, too.
    text = (outer / "Snakefile").read_text()
    more = '"again": {"kind": "power_law", "title": "Again"}, "law": {'
    (outer / "Snakefile").write_text(text.replace('"law": {', more))
    printed = snakemake(outer, *keys_alone, PYTHONPATH=str(ROOT / "lib"))
    assert "Nothing to be done" in printed
    assert (outer / "mine/config.json").is_file()


def test_a_job_reads_the_config_of_its_run(tmp_path: Path) -> None:
    run, edited = ({"results": str(tmp_path), "n": n} for n in (1, 2))
    assert config_of_run(run) == run  # a job that sees no file of the run
    (tmp_path / "config.json").write_text(json.dumps(run))
    assert config_of_run(edited) == run


def test_a_model_writes_its_own_corpus(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    folder = tiny.save("llama", project.folder / "models/chat", kind=hf.AutoModelForCausalLM)
    settings = {"eos_token_id": 0, "repetition_penalty": 1.5}
    hf.GenerationConfig(do_sample=True, **settings).save_pretrained(folder)
    prompts = {"file": "mine.txt"}
    project.config |= {
        "models": {"chat": {"source": {"folder": "models/chat"}}},
        "corpora": {
            "own chains": {
                "source": {"generate": {"model": "chat", "prompts": prompts, "max_new_tokens": 8}},
                "filters": {"min_tokens": 0},
                "views": {"n": 0},
            }
        },
        "tasks": {},
        "metrics": {"metrics": ["prompt_entropy"]},
        "studies": {"own": {"kind": "metrics_by_depth", "metrics": ["prompt_entropy"]}},
    }
    project.write()
    wanted = "results/corpora/own%20chains.parquet"
    printed = project.snakemake(wanted, check=False)
    assert "has no chat template" in printed
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{% for m in messages %}user: {{ m.content }}\n{% endfor %}a:"
    tokenizer.save_pretrained(folder)
    project.snakemake(wanted)

    network = hf.AutoModelForCausalLM.from_pretrained(folder)
    questions = (project.folder / "mine.txt").read_text().splitlines()
    expected = set()
    for question in questions:
        chat = f"user: {question}\na:"
        given = tokenizer(chat, return_tensors="pt", add_special_tokens=False)
        greedy = {"do_sample": False, "repetition_penalty": 1.0, "pad_token_id": 0}
        made = network.generate(**given, max_new_tokens=8, **greedy)[0, given.input_ids.shape[1] :]
        expected.add((chat + tokenizer.decode(made, skip_special_tokens=True)).strip())
    found = pd.read_parquet(project.folder / wanted)
    assert set(found["text"]) == expected
    assert set(found["prompt_id"]) <= {str(n) for n in range(len(questions))}

    assert project.jobs(wanted) == {}
    with (project.folder / "mine.txt").open("a") as file:
        file.write("\none more question about an old fox")
    assert project.jobs(wanted) == {"generate": 1, "corpus": 1}


def test_odd_names_reach_no_shell(tmp_path: Path) -> None:
    project = Project(tmp_path / """it's a $(touch x) "place" """)
    project.config["studies"] = {"law ~ a=b": {"kind": "power_law"}}
    project.write()
    project.snakemake("results/figures/law%20~%20a%3Db.png")
    assert not list(project.folder.parent.rglob("x"))


def test_the_largest_model_runs_first_and_few_activations_exist_at_once(tmp_path: Path) -> None:
    """With `keep_activations: false` the jobs that run bound the disk, not the sweep."""
    project = Project(tmp_path / "project")
    steps = [f"step{n}" for n in range(8)]
    source = {"hub": "EleutherAI/pythia-14m"}
    large = {"source": {"hub": "EleutherAI/pythia-1b"}}
    project.config["models"] = {"small": {"source": source, "revisions": steps}, "large": large}
    project.config["studies"] = {"sweep": {"kind": "metrics_over_checkpoints"}}
    project.config["extract"]["keep_activations"] = False
    project.write()
    stub = """
from pathlib import Path
with open("started", "a") as file:
    print(snakemake.wildcards.get("model"), file=file)
for output in snakemake.output:
    Path(output).write_text("")
with open("counts", "a") as file:
    print(len([*Path("results/activations").rglob("*.h5")]), file=file)
"""
    for script in (project.folder / "scripts").glob("*.py"):
        script.write_text(stub)
    project.snakemake("--until", "metrics", "--cores", "2")
    counts = [int(n) for n in (project.folder / "counts").read_text().split()]
    assert len(counts) == 2 + 2 * (len(steps) + 1)
    assert max(counts) <= 4
    # Two jobs start at once, after corpus and views; a short one may end before the other writes.
    assert "large" in (project.folder / "started").read_text().split()[2:5]


def test_a_job_shows_the_last_progress_in_its_log(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("1 INFO layerwise.progress: a: 3 of 9 texts\n2 INFO layerwise.x: done\n")
    assert Job("a", 0.0, (str(log),)).progress() == "a: 3 of 9 texts"
