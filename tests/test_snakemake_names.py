"""Names of Snakemake that its manual does not promise: they are still what the workflow takes."""

from __future__ import annotations

import re
from pathlib import Path

from conftest import ROOT
from helpers.project import snakemake

from layerwise.run.snakemake import PRIVATE

SNAKEFILE = """
from operator import attrgetter

for name in {names!r}:
    attrgetter(name)(workflow)
assert workflow.is_main_process and workflow.modifier.parent_modifier is None
assert [Path(file).name for file in workflow.configfiles] == ["given.yaml"]

rule made:
    output: "made"
    shell: "touch made"
"""


def test_the_private_names_of_snakemake_are_there(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(SNAKEFILE.format(names=sorted(PRIVATE)))
    (tmp_path / "given.yaml").write_text("a: 1")
    assert "made" in snakemake(tmp_path, "--dry-run", "--configfile", "given.yaml")


def test_no_other_private_name_is_used() -> None:
    files = [ROOT / "workflow/Snakefile", *(ROOT / "workflow/rules").glob("*.smk")]
    used = {n for f in files for n in re.findall(r"workflow\.(?!smk)([\w.]+)", f.read_text())}
    assert used <= PRIVATE.keys() and len(PRIVATE) <= 3
