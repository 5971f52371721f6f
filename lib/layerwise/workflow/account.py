"""What a run has cost, and what the next one will: hours, memory and bytes by stage and model.

Every rule leaves a benchmark file, ``benchmarks/{stage}/{model}/{revision}/{item}.tsv`` (Snakemake
writes it: wall time, CPU time, memory), beside the log of the same name and the files that the
job made. Nothing else is needed.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from layerwise.errors import LayerwiseError
from layerwise.names import decode
from layerwise.workflow.plan import Bundle, Plan
from layerwise.workflow.stages import MARKER, STAGES
from layerwise.workflow.targets import Job

BUNDLED = {stage.rule for stage in STAGES.values() if stage.rule}
HOURS = ("wall_s", "cpu_s", "gpu_s")
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
        short to be measured), ``bytes`` of its files and, of a job that does several, their
        paths ``made``. Files of rules that there are no longer are left out.

    Raises
    ------
    LayerwiseError
        If a benchmark file is not one.
    """
    folder = Path(results) / "benchmarks"
    rows = [_past_job(Path(results), folder, path) for path in sorted(folder.rglob("*.tsv"))]
    columns = [*Place._fields, "wall_s", "cpu_s", "gpu_s", "peak_mb", "bytes", "made"]
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
        files, gpu = _made(results / "jobs" / path.relative_to(folder).with_suffix(".json"))
    else:
        own = _files(results, rule, parts)
        files, gpu = {str(f): f.stat().st_size for f in own if f.is_file()}, False
    size = float(sum(files.values()))
    cpu = wall if math.isnan(cpu) else cpu
    return (*Place.of(job), wall, cpu, wall if gpu else 0.0, peak, size, tuple(files))


def _made(marker: Path) -> tuple[dict[str, float], bool]:
    """The bytes of the files that a bundle has made, and whether on a GPU, as its marker says."""
    try:
        document = json.loads(marker.read_text(encoding="utf-8"))
        return {str(f): float(n) for f, n in document["made"].items()}, bool(document["gpu"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}, False  # killed, or still at work


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
        # NaN, not 0, where no job's hours are known.
        group["wall_s"].sum(min_count=1) / 3600,
        group["cpu_s"].sum(min_count=1) / 3600,
        group["gpu_s"].sum(min_count=1) / 3600,
        group["wall_s"].max() / 60,
        group["peak_mb"].max() / 1000,
        group["bytes"].sum(min_count=1) / 1e9,
    )


def estimate(plan: Plan, pending: Iterable[Job | Bundle], past: pd.DataFrame) -> pd.DataFrame:
    """What pending jobs will cost.

    Bytes go by shapes (`layerwise.workflow.sizes`). The time of a model's passes goes by the
    tokens a second that it was seen to take; other times by the mean of the earlier jobs of the
    same stage, model and corpus or task, or of the same stage and model; of stages without a
    model, of the same stage. Other models tell nothing of one.

    Returns
    -------
    DataFrame
        Columns `TABLE` and ``by`` (what the hours go by, or why they are not known) and
        ``unknown`` (number of jobs whose hours are not known and not in the sums); a total at
        the end.
    """
    levels: Sequence[tuple[str, tuple[str, ...]]] = (
        ("same model and data", ("rule", "model", "last")),
        ("same model", ("rule", "model")),
    )
    known = [(name, keys, _means(past, keys)) for name, keys in levels]
    rates = speeds(plan, past)
    rows = []
    for run in pending:
        place = Place.of(run)
        found = [float("nan")] * 4, "not known: no such job has run"
        if place.rule == "run_model" and isinstance(run, Bundle):
            found = _passes(plan, run, rates.get(place.model))
        else:
            for name, keys, means in known:
                mean = means.get(tuple(getattr(place, k) for k in keys))
                if mean is not None:
                    found = mean, name if place.model else "earlier runs"
                    break
        costs, by = found
        rows.append((*place, *costs, written(plan, run), by, math.isnan(costs[0])))
    columns = [*Place._fields, *HOURS, "peak_mb", "bytes", "by", "unknown"]
    return _estimated(pd.DataFrame(rows, columns=columns))


def written(plan: Plan, run: Job | Bundle) -> float:
    """Bytes that a job will write, as far as they are known before it runs; NaN if none are."""
    if not isinstance(run, Bundle):
        return 0.0
    if plan.sizes.shape(run.model) is None:
        return math.nan
    sizes = plan.sizes.bytes_of if run.rule == "run_model" else plan.sizes.stays
    return float(sum(sizes(job) or 0 for job in plan.members(run) if plan.needed(job)))


def speeds(plan: Plan, past: pd.DataFrame) -> dict[str, tuple[float, float, float]]:
    """Of each model that has run: tokens a second, the share of that time on a GPU, and the
    largest memory in MB. Starting and writing count; so it is a little less than the passes'."""
    found = {}
    for model, group in past[past["rule"] == "run_model"].groupby("model"):
        tokens = sum(_tokens(plan, path) for paths in group["made"] for path in paths)
        seconds = float(group["wall_s"].sum())
        if tokens and seconds:
            share = float(group["gpu_s"].sum()) / seconds
            found[str(model)] = (tokens / seconds, share, float(group["peak_mb"].max()))
    return found


def _tokens(plan: Plan, path: str) -> int:
    """Tokens that a file of activations or embeddings took; 0 for one of another config's."""
    try:
        job = plan.maker_of(path)
    except LayerwiseError:
        return 0
    return (plan.sizes.tokens(job) or 0) if job is not None else 0


def _passes(
    plan: Plan, bundle: Bundle, speed: tuple[float, float, float] | None
) -> tuple[list[float], str]:
    """Seconds and memory of a model's passes, and what they go by."""
    jobs = [job for job in plan.members(bundle) if plan.needed(job)]
    tokens = [plan.sizes.tokens(job) for job in jobs]
    if speed is None:
        return [float("nan")] * 4, f"not known: {bundle.model} has not run yet"
    if None in tokens:
        lacking = next(job.names[2] for job, n in zip(jobs, tokens, strict=True) if n is None)
        return [float("nan")] * 4, f"not known: the texts of {lacking} are not listed yet"
    rate, gpu, peak = speed
    wall = sum(n for n in tokens if n) / rate
    return [wall, wall, wall * gpu, peak], f"{rate:.3g} tokens a second"


def on_disk(plan: Plan) -> Iterator[str]:
    """What the due jobs take of the disk, a sentence each."""
    queue = list(plan.queue())
    total, largest = sum(size for _, size, _ in queue), max((n for _, n, _ in queue), default=0)
    limit = (plan.config.jobs.disk or math.inf) * 1e9
    by_checkpoint: Counter[tuple[str, str]] = Counter()
    for bundle, size, _ in queue:
        by_checkpoint[bundle.model, bundle.revision] += size
    if queue:
        most = "all of it at one time, if scoring is slower than the models"
        if limit < total:
            most = f"at most {max(limit, largest) / 1e9:.3g} GB of it at one time (jobs.disk)"
        yield (
            f"Until it is read: {total / 1e9:.3g} GB of activations and embeddings, {most}; "
            f"at most {largest / 1e9:.3g} GB of one job, {max(by_checkpoint.values()) / 1e9:.3g} "
            "GB of all jobs of a checkpoint."
        )
    stays: Counter[tuple[str, str]] = Counter()
    for job in filter(plan.needed, plan.wanted):
        about = (job.names[0], job.names[1]) if len(job.names) == 3 else ("", "")
        if job.stage in ("compute_metrics", "score_task"):
            stays[about] += plan.sizes.stays(job)
        elif job.stage in ("extract_activations", "embed_task") and not plan.passing(job):
            stays[about] += plan.sizes.bytes_of(job) or 0
    if any(stays.values()):
        yield (
            f"For good: about {sum(stays.values()) / 1e9:.3g} GB, at most "
            f"{max(stays.values()) / 1e6:.3g} MB of a checkpoint."
        )
    unknown = dict.fromkeys(
        job.names[2] if plan.sizes.shape(job.names[0]) else job.names[0]
        for job in plan.wanted
        if job.stage in ("extract_activations", "embed_task")
        and plan.needed(job) and plan.sizes.bytes_of(job) is None
    )  # fmt: skip
    if unknown:
        yield (
            f"Not in these sums: {', '.join(unknown)}, whose size is not known (a model's "
            "configuration is not on this machine, or texts are not listed yet)."
        )


def _means(past: pd.DataFrame, keys: Sequence[str]) -> dict[tuple[Hashable, ...], list[float]]:
    """The mean costs of the jobs that are alike in `keys`."""
    found = {}
    for key, group in past.groupby(list(keys)):
        found[key] = [float(group[cost].mean()) for cost in (*HOURS, "peak_mb")]
    return found


def _estimated(jobs: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for key, group in [*jobs.groupby(["rule", "model"], sort=True), (("all", ""), jobs)]:
        by = ", ".join(sorted(set(group["by"])))
        unknown = int(group["unknown"].sum())
        rows.append((*key, *_summary(group), by if key[0] != "all" else "", unknown))
    return pd.DataFrame(rows if len(jobs) else [], columns=[*TABLE, "by", "unknown"])
