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
from layerwise.workflow.stages import MARKER, STAGES
from layerwise.workflow.targets import Job

log = logging.getLogger(__name__)

COSTS = ("wall_s", "cpu_s", "gpu_s", "bytes")
TABLE = (
    "stage", "model", "jobs", "wall_hours", "cpu_hours", "gpu_hours", "longest_minutes",
    "peak_memory_gb", "gigabytes",
)  # fmt: skip


class Place(NamedTuple):
    """What tells the cost of one job from another's."""

    stage: str
    model: str
    item: str
    last: str

    @classmethod
    def of(cls, job: Job) -> Place:
        """Of a job: its model (or ''), its names together, and the last of them."""
        about = dict(zip(STAGES[job.stage].names, job.names, strict=True))
        last = job.names[-1] if job.names else ""
        return cls(job.stage, about.get("model", ""), "/".join(job.names), last)


def past_jobs(results: Path) -> pd.DataFrame:
    """What each job of earlier runs has cost.

    Returns
    -------
    DataFrame
        A row a benchmark file: ``stage, model, item, last, wall_s, cpu_s, gpu_s`` (wall time on
        a GPU; 0 where the job found none), ``peak_mb`` (largest resident memory; NaN for jobs too
        short to be measured) and ``bytes`` of its files. Files of stages that there are no longer
        are left out.

    Raises
    ------
    LayerwiseError
        If a benchmark file is not one.
    """
    folder = Path(results) / "benchmarks"
    rows = [_past_job(Path(results), folder, path) for path in sorted(folder.rglob("*.tsv"))]
    columns = [*Place._fields, "wall_s", "cpu_s", "gpu_s", "peak_mb", "bytes"]
    return pd.DataFrame([row for row in rows if row is not None], columns=columns)


def _past_job(results: Path, folder: Path, path: Path) -> tuple[object, ...] | None:
    stage, *names = path.relative_to(folder).with_suffix("").parts
    if stage not in STAGES or len(names) != len(STAGES[stage].names):
        return None
    job = Job(stage, tuple(map(decode, names)))
    try:
        measured = pd.read_csv(path, sep="\t", na_values=["-", "NA"]).iloc[-1]
        wall, cpu, peak = (float(measured[c]) for c in ("s", "cpu_time", "max_rss"))
    except (ValueError, KeyError, IndexError) as error:
        raise LayerwiseError(
            f"{path} is no benchmark file of Snakemake ({error}); delete it."
        ) from error
    files = _files(results, stage, names)
    gpu = wall if STAGES[stage].gpu and _on_gpu(files[0]) else 0.0
    size = float(sum(file.stat().st_size for file in files if file.is_file()))
    return (*Place.of(job), wall, cpu if cpu == cpu else wall, gpu, peak, size)


def _on_gpu(made: Path) -> bool:
    """Whether the file that a job made says that it was computed on a GPU."""
    if not made.is_file():
        return False
    try:
        with h5py.File(made, "r") as file:
            return str(file.attrs.get("device", "")).startswith("cuda")
    except OSError:
        log.warning("%s cannot be read; its job counts as one without a GPU", made)
        return False


def _files(results: Path, stage: str, names: Sequence[str]) -> list[Path]:
    """What a job wrote: its files, and all in the folders that it made."""
    own = dict(zip(STAGES[stage].names, names, strict=True))
    found: list[Path] = []
    for pattern in STAGES[stage].files.values():
        path = results / pattern.format(**own)
        found.append(path)
        # A stamp stands for its folder, a table of scores has a folder beside it.
        folder = path.parent if path.name == MARKER and names else path.with_suffix("")
        found += [f for f in folder.rglob("*") if f not in found] if folder.is_dir() else []
    return list(dict.fromkeys(found))


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
        rows.append(("all", "", *_summary(past)))
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
    for place in map(Place.of, pending):
        for name, keys, means in known:
            mean = means.get(tuple(getattr(place, k) for k in keys))
            if mean is not None:
                rows.append((*place, *mean, name if place.model else "earlier runs"))
                break
        else:
            rows.append((*place, *[float("nan")] * (len(COSTS) + 1), "nothing"))
    columns = [*Place._fields, *COSTS, "peak_mb", "by"]
    return _estimated(pd.DataFrame(rows, columns=columns))


def _means(past: pd.DataFrame, keys: Sequence[str]) -> dict[tuple[Hashable, ...], list[float]]:
    """The mean costs of the jobs that are alike in `keys`."""
    found = {}
    for key, group in past.groupby(list(keys)):
        found[key] = [float(group[cost].mean()) for cost in (*COSTS, "peak_mb")]
    return found


def _estimated(jobs: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for key, group in [*jobs.groupby(["stage", "model"], sort=True), (("all", ""), jobs)]:
        by = ", ".join(sorted(set(group["by"])))
        unknown = int((group["by"] == "nothing").sum())
        rows.append((*key, *_summary(group), by if key[0] != "all" else "", unknown))
    return pd.DataFrame(rows if len(jobs) else [], columns=[*TABLE, "by", "unknown"])
