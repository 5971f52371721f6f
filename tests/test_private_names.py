"""Names of Snakemake, mteb and datasets that no manual promises: they are what the code takes."""

import inspect
import re
from pathlib import Path
from pydoc import locate

from conftest import ROOT
from helpers.project import snakemake

from layerwise.run.snakemake import PRIVATE
from layerwise.tasks import mteb_task

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


PARAMETERS = """
dataset task_metadata prompt_type input_column batch_size num_proc kwargs
n_clusters init max_iter batch_size verbose compute_labels random_state tol max_no_improvement
n_clusters init max_iter batch_size verbose compute_labels random_state tol max_no_improvement
results metric_scores
self y_test y_pred
self config num_proc
self num_proc
self num_proc
self key
"""


def test_the_names_of_mteb_and_datasets_take_what_they_took() -> None:
    expected = PARAMETERS.strip().splitlines()
    for name, parameters in zip(mteb_task.PRIVATE, expected, strict=True):
        found = list(inspect.signature(locate(name)).parameters)
        assert found[: len(parameters.split())] == parameters.split(), name


def test_no_other_private_name_of_mteb_is_used() -> None:
    code = "".join(path.read_text() for path in (ROOT / "lib/layerwise/tasks").glob("*.py"))
    used = re.findall(r"(?:loader|fast|RetrievalDatasetLoader, \")\.?(_\w+)", code)
    used += re.findall(r"from (mteb\._\w+)", code)
    listed = " ".join(mteb_task.PRIVATE)
    assert used and [name for name in used if name not in listed] == []
    patched = re.findall(r"patch\.object\((\w+), \"(\w+)\"", code)
    assert len(patched) > 4 and [name for _, name in patched if name not in listed] == []
