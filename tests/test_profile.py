"""The profile for SLURM: Snakemake reads it, and scoring has the CPUs that come with a GPU."""

import re
from pathlib import Path

import yaml
from conftest import ROOT
from helpers.project import Project

PROFILE = "workflow/profiles/slurm/profile.yaml"


def test_every_line_of_the_profile_is_an_option(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    file = project.folder / PROFILE
    text = file.read_text()
    # Lines in comments that are YAML are those that a user may take.
    taken = re.sub(r"(?m)^# (?=( *)[a-z][\w-]*:( [^ ].*)?$)", "", text)
    blocks = [yaml.safe_load(block) or {} for block in taken.split("\n\n")]
    profile = {key: value for block in blocks for key, value in block.items()}
    assert {"group-components", "set-threads"} <= set(profile)
    file.write_text(yaml.safe_dump(profile))
    printed = project.snakemake(
        "-n", "--workflow-profile", str(file.parent), "--until", "evaluate"
    )
    assert "evaluate" in printed


def test_scoring_has_the_cpus_that_come_with_a_gpu(tmp_path: Path) -> None:
    profile = yaml.safe_load((ROOT / PROFILE).read_text())
    project = Project(tmp_path / "project")
    folder = str(project.folder / Path(PROFILE).parent)
    rules = project.folder / "workflow/rules/evaluate.smk"
    # Snakemake prints the threads of jobs that have no message.
    rules.write_text(re.sub(r"    message:\n.*\n", "", rules.read_text()))
    taken = ("-n", "--cores", "64", "--workflow-profile", folder)
    printed = project.snakemake(*taken, "--until", "evaluate")
    threads = re.findall(r"^ +threads: (\d+)", printed, re.M)
    assert set(threads) == {str(profile["set-threads"]["evaluate"])}, printed
