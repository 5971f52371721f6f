"""What a run has cost, and what the next one will: hours, memory and bytes by stage and model.

Every rule leaves a benchmark file, ``benchmarks/{stage}/{model}/{revision}/{item}.tsv`` (Snakemake
writes it: wall time, CPU time, memory), beside the log of the same name and the files that the
job made. Nothing else is needed.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from layerwise.errors import LayerwiseError
from layerwise.paths import decode
from layerwise.workflow.plan import Bundle
from layerwise.workflow.stages import MARKER, STAGES
from layerwise.workflow.targets import Job

BUNDLED = {stage.rule for stage in STAGES.values() if stage.rule}
COSTS = ("wall_s", "cpu_s", "gpu_s", "bytes")
TABLE = (
    "rule", "model", "jobs", "wall_hours", "cpu_hours", "gpu_hours", "longest_minutes",
    "peak_memory_gb", "gigabytes",
)  # fmt: skip


class Place(NamedTuple):
    """What tells the cost of one of Snakemake's jobs from another's.

    Attributes
    ----------
    rule : str
    model : str
        Empty where the job belongs to none.
    item : str
        All of its names.
    last : str
        The last of them: the corpus, task or study, or which part of a model's it does.
    """

    rule: str
    model: str
    item: str
    last: str

    @classmethod
    def of(cls, job: Job | Bundle) -> Place:
        """Of one of Snakemake's jobs."""
        if isinstance(job, Bundle):
            return cls(job.rule, job.model, "/".join(job[1:]), job.part)
        about = dict(zip(STAGES[job.stage].names, job.names, strict=True))
        last = job.names[-1] if job.names else ""
        return cls(job.stage, about.get("model", ""), "/".join(job.names), last)


def past_jobs(results: Path) -> pd.DataFrame:
    """What each job of earlier runs has cost.

    Returns
    -------
    DataFrame
        A row a benchmark file: ``rule, model, item, last, wall_s, cpu_s, gpu_s`` (wall time on
        a GPU; 0 where the job found none), ``peak_mb`` (largest resident memory; NaN for jobs too
        short to be measured) and ``bytes`` of its files .

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
    rule, *parts = path.relative_to(folder).with_suffix("").parts
    names = tuple(map(decode, parts))
    job: Job | Bundle
    if rule in BUNDLED and len(names) == 3:
        job = Bundle(rule, *names)
    elif rule in STAGES and len(names) == len(STAGES[rule].names):
        job = Job(rule, names)
    else:
        return None
    try:
        measured = pd.read_csv(path, sep="\t", na_values=["-", "NA"]).iloc[-1]
        wall, cpu, peak = (float(measured[c]) for c in ("s", "cpu_time", "max_rss"))
    except (ValueError, KeyError, IndexError) as error:
        raise LayerwiseError(
            f"{path} is no benchmark file of Snakemake ({error}); delete it."
        ) from error
    if isinstance(job, Bundle):
        size, gpu = _made(results / "jobs" / path.relative_to(folder).with_suffix(".json"))
    else:
        files = _files(results, rule, parts)
        size, gpu = float(sum(f.stat().st_size for f in files if f.is_file())), False
    return (*Place.of(job), wall, cpu if cpu == cpu else wall, wall if gpu else 0.0, peak, size)


def _made(marker: Path) -> tuple[float, bool]:
    """Bytes that a bundle has made, and whether on a GPU, as its marker says."""
    try:
        document = json.loads(marker.read_text(encoding="utf-8"))
        return float(sum(document["made"].values())), bool(document["gpu"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0.0, False  # killed, or still at work


def _files(results: Path, stage: str, names: Sequence[str]) -> list[Path]:
    """What a job wrote: its files, and all in the folders that it made."""
    own = dict(zip(STAGES[stage].names, names, strict=True))
    found: list[Path] = []
    for pattern in STAGES[stage].files.values():
        path = results / pattern.format(**own)
        found.append(path)
        # A stamp stands for its folder.
        folder = path.parent if path.name == MARKER and names else None
        found += [f for f in folder.rglob("*") if f not in found] if folder else []
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
    grouped = past.groupby(["rule", "model"], sort=True)
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


def estimate(pending: Iterable[Job | Bundle], past: pd.DataFrame) -> pd.DataFrame:
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
        ("same model and data", ("rule", "model", "last")),
        ("same model", ("rule", "model")),
        ("other models, same data", ("rule", "last")),
        ("other models", ("rule",)),
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
    for key, group in [*jobs.groupby(["rule", "model"], sort=True), (("all", ""), jobs)]:
        by = ", ".join(sorted(set(group["by"])))
        unknown = int((group["by"] == "nothing").sum())
        rows.append((*key, *_summary(group), by if key[0] != "all" else "", unknown))
    return pd.DataFrame(rows if len(jobs) else [], columns=[*TABLE, "by", "unknown"])
