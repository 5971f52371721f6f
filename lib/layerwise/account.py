"""What a run has cost, and what the next one will: hours, memory and bytes by stage and model.

Every rule leaves a benchmark file, ``benchmarks/{stage}/{model}/{revision}/{item}.tsv`` (Snakemake
writes it: wall time, CPU time, memory), beside the log of the same name and the files that the
job made. Nothing else is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import h5py
import pandas as pd

from layerwise.errors import LayerwiseError
from layerwise.paths import decode

log = logging.getLogger(__name__)

# What a job of each stage writes, for the item {0} of its benchmark's path.
OUTPUTS: dict[str, tuple[str, ...]] = {
    "unpack_wikipedia": ("texts/wikipedia.parquet",),
    "make_corpus": ("corpora/{0}.parquet",),
    "make_views": ("corpora/{0}.views.parquet",),
    "train_nano": ("nano/{0}",),
    "convert_gguf": ("converted/{0}",),
    "extract_activations": ("activations/{0}.h5",),
    "compute_metrics": ("metrics/{0}.parquet", "metrics/{0}.prompts.parquet"),
    "list_task_texts": ("tasks/{0}.texts.parquet",),
    "embed_task": ("embeddings/{0}.h5",),
    "score_task": ("scores/{0}.parquet", "scores/{0}"),
    "associate_metrics": ("associations/{0}.parquet",),
    "compare_choices": ("choices/{0}.parquet", "choices/{0}.csv"),
    "draw_study": ("figures/{0}.png", "figures/{0}.pdf", "figures/{0}.rst", "tables/{0}.csv"),
    "compare_weights": ("report/weights.csv",),
    "import_published": ("published/{0}.scores.parquet", "published/{0}.metrics.parquet"),
    "find_best_layers": ("report/best_layers.csv", "report/best_layers.rst"),
}
# Of stages that make a folder, how many parts of its path tell their jobs apart.
FOLDER_DEPTH = {"train_nano": 1, "convert_gguf": 2}
# Stages whose jobs belong to a model, the first part of the item.
WITH_MODEL = {
    "train_nano", "convert_gguf", "extract_activations", "compute_metrics", "embed_task",
    "score_task",
}  # fmt: skip
NO_MODEL = ""

COSTS = ("wall_s", "cpu_s", "gpu_s", "bytes")
TABLE = (
    "stage", "model", "jobs", "wall_hours", "cpu_hours", "gpu_hours", "longest_minutes",
    "peak_memory_gb", "gigabytes",
)  # fmt: skip


class Job(NamedTuple):
    """A job by what its paths say: stage, model (or ''), and the rest, such as a revision."""

    stage: str
    model: str
    item: str

    @classmethod
    def of(cls, path: str) -> Job:
        """From a path below ``logs`` or ``benchmarks``, without its suffix."""
        stage, _, item = path.partition("/")
        model = decode(item.partition("/")[0]) if stage in WITH_MODEL else NO_MODEL
        return cls(stage, model, item)

    @property
    def last(self) -> str:
        """The corpus or task, if the job has one."""
        return self.item.rpartition("/")[2]


def past_jobs(results: Path) -> pd.DataFrame:
    """What each job of earlier runs has cost.

    Returns
    -------
    DataFrame
        A row a benchmark file: ``stage, model, item, last, wall_s, cpu_s, gpu_s`` (wall time on
        a GPU; 0 where the job found none), ``peak_mb`` (largest resident memory; NaN for jobs too
        short to be measured) and ``bytes`` of its files (NaN for stages that we do not know).

    Raises
    ------
    LayerwiseError
        If a benchmark file is not one.
    """
    folder = Path(results) / "benchmarks"
    rows = [_past_job(Path(results), folder, path) for path in sorted(folder.rglob("*.tsv"))]
    columns = [*Job._fields, "last", "wall_s", "cpu_s", "gpu_s", "peak_mb", "bytes"]
    return pd.DataFrame(rows, columns=columns)


def _past_job(results: Path, folder: Path, path: Path) -> tuple[object, ...]:
    job = Job.of(path.relative_to(folder).with_suffix("").as_posix())
    try:
        measured = pd.read_csv(path, sep="\t", na_values=["-", "NA"]).iloc[-1]
        wall, cpu, peak = (float(measured[c]) for c in ("s", "cpu_time", "max_rss"))
    except (ValueError, KeyError, IndexError) as error:
        raise LayerwiseError(
            f"{path} is no benchmark file of Snakemake ({error}); delete it."
        ) from error
    gpu = wall if _on_gpu(results, job) else 0.0
    return (*job, job.last, wall, cpu if cpu == cpu else wall, gpu, peak, _size(results, job))


def _on_gpu(results: Path, job: Job) -> bool:
    """Whether the file that the job made says that it was computed on a GPU."""
    if job.stage not in ("extract_activations", "embed_task"):
        return False
    made = results / OUTPUTS[job.stage][0].format(job.item)
    if not made.is_file():
        return False
    try:
        with h5py.File(made, "r") as file:
            return str(file.attrs.get("device", "")).startswith("cuda")
    except OSError:
        log.warning("%s cannot be read; its job counts as one without a GPU", made)
        return False


def _size(results: Path, job: Job) -> float:
    if job.stage not in OUTPUTS:
        return float("nan")
    made = [results / pattern.format(job.item) for pattern in OUTPUTS[job.stage]]
    files = [f for p in made for f in (p.rglob("*") if p.is_dir() else [p]) if f.is_file()]
    return float(sum(file.stat().st_size for file in files))


def account(past: pd.DataFrame) -> pd.DataFrame:
    """The table of costs by stage and model, a total at the end.

    Parameters
    ----------
    past : as `past_jobs` gives it

    Returns
    -------
    DataFrame
        Columns `TABLE`; hours summed over jobs, memory and minutes of the largest one, gigabytes
        of 10^9 bytes. The last row has the stage ``all``.
    """
    grouped = past.groupby(["stage", "model"], sort=True)
    rows = [(*key, *_summary(group)) for key, group in grouped]
    if len(past):
        rows.append(("all", NO_MODEL, *_summary(past)))
    return pd.DataFrame(rows, columns=list(TABLE))


def _summary(group: pd.DataFrame) -> tuple[float, ...]:
    return (
        len(group),
        group["wall_s"].sum() / 3600,
        group["cpu_s"].sum() / 3600,
        group["gpu_s"].sum() / 3600,
        group["wall_s"].max() / 60,
        group["peak_mb"].max() / 1000,
        group["bytes"].sum() / 1e9,
    )


def pending_jobs(summary: str, results: Path) -> list[Job]:
    """The jobs that a run would do, each once.

    Parameters
    ----------
    summary : what ``snakemake --summary`` writes: tab-separated, a row an output file
    results : the folder that the run writes to

    Raises
    ------
    LayerwiseError
        If it is not such a table.
    """
    lines = [line.split("\t") for line in summary.splitlines() if "\t" in line]
    columns = ("output_file", "rule", "plan")
    if not lines or not set(columns) <= set(lines[0]):
        raise LayerwiseError(
            "snakemake --summary gave no table of files with the columns output_file, rule and "
            "plan; run it by hand to see what it says."
        )
    file, rule, plan = (lines[0].index(column) for column in columns)
    found = (
        _job_of(row[rule], Path(row[file]), Path(results))
        for row in lines[1:]
        if row[plan] == "update pending"
    )
    return list(dict.fromkeys(found))


def _job_of(rule: str, made: Path, results: Path) -> Job:
    """The job of a rule that makes a file. Files of one job give one and the same."""
    stage = "train_nano" if rule.startswith("train_") else rule
    path = made.relative_to(results).as_posix() if made.is_relative_to(results) else str(made)
    # The longest ending first: a table of prompts ends as any other table does.
    for pattern in sorted(OUTPUTS.get(stage, ()), key=len, reverse=True):
        before, _, after = pattern.partition("{0}")
        if "{0}" in pattern and path.startswith(before) and path.endswith(after):
            item = path[len(before) : len(path) - len(after)]
            if stage in FOLDER_DEPTH:
                item = "/".join(item.split("/")[: FOLDER_DEPTH[stage]])
            return Job.of(f"{stage}/{item}")
    return Job.of(stage)


def estimate(pending: Iterable[Job], past: pd.DataFrame) -> pd.DataFrame:
    """What pending jobs will cost, going by the nearest earlier ones.

    A job costs what the mean of the earlier jobs of its stage, model and corpus or task did; if
    there are none, of its stage and model; if there are none, of its stage and corpus or task;
    then of its stage. Sizes of models are not taken into account: where only other models were
    run, the column ``by`` says so.

    Returns
    -------
    DataFrame
        Columns `TABLE` and ``by`` (the jobs that the estimate goes by) and ``unknown`` (number of
        jobs whose stage was never run, not in the sums); a total at the end.
    """
    levels: Sequence[tuple[str, tuple[str, ...]]] = (
        ("same model and data", ("stage", "model", "last")),
        ("same model", ("stage", "model")),
        ("other models, same data", ("stage", "last")),
        ("other models", ("stage",)),
    )
    known = [(name, keys, _means(past, keys)) for name, keys in levels]
    rows = []
    for job in pending:
        place = {"stage": job.stage, "model": job.model, "last": job.last}
        for name, keys, means in known:
            mean = means.get(tuple(place[k] for k in keys))
            if mean is not None:
                rows.append((*job, *mean, name if job.model else "earlier runs"))
                break
        else:
            rows.append((*job, *[float("nan")] * (len(COSTS) + 1), "nothing"))
    columns = [*Job._fields, *COSTS, "peak_mb", "by"]
    return _estimated(pd.DataFrame(rows, columns=columns))


def _means(past: pd.DataFrame, keys: Sequence[str]) -> dict[tuple[Hashable, ...], list[float]]:
    """The mean costs of the jobs that are alike in `keys`."""
    found = {}
    for key, group in past.groupby(list(keys)):
        found[key] = [float(group[cost].mean()) for cost in (*COSTS, "peak_mb")]
    return found


def _estimated(jobs: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for key, group in [*jobs.groupby(["stage", "model"], sort=True), (("all", NO_MODEL), jobs)]:
        by = ", ".join(sorted(set(group["by"])))
        unknown = int((group["by"] == "nothing").sum())
        rows.append((*key, *_summary(group), by if key[0] != "all" else "", unknown))
    return pd.DataFrame(rows if len(jobs) else [], columns=[*TABLE, "by", "unknown"])
