"""Names of Snakemake that its manual does not promise: they are still what the workflow takes."""

from __future__ import annotations

from pathlib import Path

from helpers.project import snakemake

from layerwise.run.snakemake import PRIVATE

SNAKEFILE = """
from operator import attrgetter

assert workflow.current_basedir is not None  # which only files of rules have

def check(wildcards):
    for name in {names!r}:
        attrgetter(name)(workflow)
    assert workflow.is_main_process and workflow.output_settings.dryrun
    assert workflow.modifier.parent_modifier is None
    assert callable(workflow.dag.forcefiles.add), type(workflow.dag.forcefiles)
    assert callable(workflow.iocache.mtime.update), type(workflow.iocache.mtime)
    workflow.dag.forcefiles.add("made")
    return []

rule made:
    input: check
    output: "made"
    shell: "touch made"
"""


def test_the_private_names_of_snakemake_are_there(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(
        SNAKEFILE.format(names=sorted(PRIVATE.keys() - {"current_basedir"}))
    )
    (tmp_path / "made").touch()
    printed = snakemake(tmp_path, "--dry-run")
    assert "made" in printed and "Nothing to be done" not in printed
