"""The jobs of one config: their files, their keys, and which of them are due, and why.

A job's key is a hash of all that its files depend on: its stage, the version of the code, the
settings, the keys of the files it reads, and what it reads from outside the workflow. Each file
carries the key of the job that made it. A job is due if one of its files is missing or carries
another key than the planned one; nothing else counts, neither the times of files nor Snakemake's
own records.

Nothing here imports Snakemake, torch or transformers.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from layerwise.config import Config, read_config
from layerwise.errors import LayerwiseError, closest
from layerwise.files import replacing
from layerwise.names import decode, encode
from layerwise.workflow import stamps, targets
from layerwise.workflow.fingerprint import state_of_files, versions
from layerwise.workflow.sizes import Sizes
from layerwise.workflow.stages import STAGES, Stage
from layerwise.workflow.stamps import Stamp
from layerwise.workflow.targets import Job

Code = Mapping[str, Mapping[str, str]]
# What a job of a model is about: ``corpus`` or ``task``, and its name. A corpus of a task's texts
# may well have the task's name.
Item = tuple[str, str]

MISSING = "not there yet"
UNSTAMPED = "does not say what it was made from"


class Bundle(NamedTuple):
    """Jobs of a model that one job of Snakemake's does, one after the other.

    Its checkpoints are told by the first of them, its corpora and tasks by a number.
    """

    rule: str
    model: str
    revision: str
    part: str


class Plan:
    """The jobs of a config.

    Parameters
    ----------
    config : Config
    code : mapping from stage to mapping from module to version, optional
        Where that has been read already: reading the source takes a moment.
    sizes : mapping, optional
        As `layerwise.workflow.sizes.Sizes.plain` gave them when the run started: what a job does
        must not change while texts are listed and models come.
    """

    def __init__(
        self, config: Config, code: Code | None = None, sizes: Mapping[str, Any] | None = None
    ) -> None:
        self.config = config
        self.sizes = Sizes(config, sizes)
        self._code = dict(code or {})
        self._inputs: dict[Job, dict[str, list[str]]] = {}
        self._keys: dict[Job, str] = {}
        self._recipes: dict[Job, dict[str, Any]] = {}
        self._due: dict[Job, str | None] = {}
        self._is_needed: dict[Job, bool] = {}
        self._outside: dict[tuple[Any, ...], Any] = {}
        self._grouped: dict[str, dict[Item, int]] = {}
        self._lotted: dict[str, dict[Item, int]] = {}

    @cached_property
    def _targets(self) -> frozenset[Job]:
        return frozenset(targets.targets(self.config))

    # Files

    def paths(self, job: Job) -> dict[str, str]:
        """The files of a job by role; the first carries its stamp."""
        return self._stage(job).paths(self.config, job.names)

    def stamped(self, job: Job) -> Path:
        """The file that carries the job's stamp."""
        return Path(next(iter(self.paths(job).values())))

    def inputs(self, job: Job) -> dict[str, list[str]]:
        """The files of other jobs that a job reads, by role."""
        if job not in self._inputs:
            needed = self._stage(job).inputs(self.config, *job.names)
            self._inputs[job] = {
                role: list(dict.fromkeys(self.paths(i.job)[i.role] for i in files))
                for role, files in needed.items()
            }
        return self._inputs[job]

    def before(self, job: Job) -> list[Job]:
        """The jobs whose files a job reads, each once."""
        needed = self._stage(job).inputs(self.config, *job.names)
        return list(dict.fromkeys(i.job for files in needed.values() for i in files))

    def job(self, stage: str, **parts: str) -> Job:
        """A job by the parts of its paths.

        Raises
        ------
        LayerwiseError
            If the config has no such model, revision, corpus, task or study.
        """
        names = tuple(decode(parts[name]) for name in STAGES[stage].names)
        self.check(dict(zip(STAGES[stage].names, names, strict=True)))
        return Job(stage, names)

    def maker_of(self, path: str) -> Job | None:
        """The job that makes a file, going by its path; None if none does.

        Raises
        ------
        LayerwiseError
            If it would be about something that the config doesn't have.
        """
        unknown: LayerwiseError | None = None
        for stage in STAGES.values():
            for pattern in stage.files.values():
                found = _matcher(f"{self.config.results}/{pattern}").fullmatch(path)
                try:
                    if found:
                        return self.job(stage.name, **found.groupdict())
                except LayerwiseError as error:
                    unknown = error
        if unknown is not None:
            raise unknown
        return None

    def check(self, names: Mapping[str, str]) -> None:
        """Make sure that the config has what a job is about.

        Parameters
        ----------
        names : mapping
            Of ``model``, ``revision``, ``corpus``, ``shard``, ``task``, ``study``, ``published``.

        Raises
        ------
        LayerwiseError
            Naming what there is.
        """
        there: dict[str, tuple[str, Iterable[str]]] = {
            "model": ("models", self.config.models),
            "corpus": ("corpora", self.config.corpora),
            "shard": ("extract.shards", map(str, range(self.config.extract.shards))),
            "task": ("tasks", [*targets.all_tasks(self.config), *targets.mteb_tasks(self.config)]),
            "study": ("studies", self.config.studies),
            "published": ("published", self.config.published),
        }
        for kind, name in names.items():
            section, known = there.get(kind, ("", ()))
            if kind == "revision":
                model = names["model"]
                section = f"models.{model}.revisions"
                known = self.config.models[model].revisions
            if name not in known:
                raise LayerwiseError(
                    f"There is no {name!r} under {section} in this config"
                    f"{closest(name, known)}; add it there."
                )

    # Bundles

    @cached_property
    def wanted(self) -> dict[Job, list[Job]]:
        """Every job that the studies want, and what is made of its files."""
        found: dict[Job, list[Job]] = {job: [] for job in targets.targets(self.config)}
        pending = list(found)
        while pending:
            job = pending.pop()
            for earlier in self.before(job):
                if earlier not in found:
                    found[earlier] = []
                    pending.append(earlier)
                found[earlier].append(job)
        return found

    @cached_property
    def _items(self) -> dict[Item, int]:
        items = [("corpus", name) for name in self.config.corpora]
        items += [("task", name) for name in targets.all_tasks(self.config)]
        return {item: place for place, item in enumerate(items)}

    def _item(self, job: Job) -> Item:
        return self._stage(job).names[-1], job.names[-1]

    def jobs_of(self, stage: str) -> list[Job]:
        """The jobs of a stage that the studies want."""
        return [job for job in self.wanted if job.stage == stage]

    def bundle(self, job: Job) -> Bundle | None:
        """The bundle that a job belongs to; None if it is one of Snakemake's own."""
        rule = self._stage(job).rule
        if not rule:
            return None
        model, revision, _name = job.names
        place = self._places[model][revision]
        first = place // self.config.jobs.checkpoints * self.config.jobs.checkpoints
        parts = self._lots(model) if rule == "score_tasks" else self._groups(model)
        part = str(parts[self._item(job)])
        return Bundle(rule, model, self.config.models[model].revisions[first], part)

    @cached_property
    def _places(self) -> dict[str, dict[str, int]]:
        """The places of a model's checkpoints in the order of training."""
        models = self.config.models.items()
        return {m: {r: k for k, r in enumerate(entry.revisions)} for m, entry in models}

    def _groups(self, model: str) -> dict[Item, int]:
        """Which of a checkpoint's jobs takes each corpus and task: the first, in the config's
        order, that has room for it by the limits of `jobs`."""
        if model not in self._grouped:
            jobs = self.config.jobs
            limit = jobs.gigabytes * 1e9 if jobs.gigabytes else math.inf
            most = jobs.items or math.inf
            groups: list[tuple[int, int]] = []
            found = {}
            for item in self._items:
                size = self._written(model, item) if jobs.gigabytes else 0
                fits = (k for k, (count, filled) in enumerate(groups)
                        if count < most and filled + size <= limit)  # fmt: skip
                part = next(fits, len(groups))
                count, filled = groups[part] if part < len(groups) else (0, 0)
                groups[part : part + 1] = [(count + 1, filled + size)]
                found[item] = part
            self._grouped[model] = found
        return self._grouped[model]

    def _lots(self, model: str) -> dict[Item, int]:
        """Which of a checkpoint's scoring jobs takes each task, of those that one job embeds: the
        longest apart, the others where there is time left."""
        if model not in self._lotted:
            groups, limit = self._groups(model), self.config.jobs.minutes
            self._lotted[model] = groups
            if limit is not None:
                threads, checkpoints = self.config.scoring.threads, self.config.jobs.checkpoints
                known = {
                    (kind, name): self.sizes.score_seconds(model, name) or 0.0
                    if kind == "task" else 0.0 for kind, name in groups
                }  # fmt: skip
                lots: list[tuple[int, float]] = []
                found = {}
                for item in sorted(groups, key=lambda i: (groups[i], -known[i])):
                    minutes = known[item] / 60 / threads * checkpoints
                    fits = (k for k, (group, taken) in enumerate(lots)
                            if group == groups[item] and taken + minutes <= limit)  # fmt: skip
                    lot = next(fits, len(lots))
                    if lot == len(lots):
                        lots.append((groups[item], 0.0))
                    lots[lot] = (groups[item], lots[lot][1] + minutes)
                    found[item] = lot
                self._lotted[model] = found
        return self._lotted[model]

    def _written(self, model: str, item: Item) -> int:
        """Bytes that the activations of a corpus, or the embeddings of a task, of a checkpoint
        take until they are read; 0 if the studies want none, or if nobody knows."""
        return self._sizes_of_items.get((model, item), 0)

    @cached_property
    def _sizes_of_items(self) -> dict[tuple[str, Item], int]:
        found: dict[tuple[str, Item], int] = {}
        for job in self.wanted:
            if self._stage(job).rule == "run_model":
                about = (job.names[0], self._item(job))
                if about not in found:
                    found[about] = self.sizes.bytes_of(job) or 0
        return found

    def scoring_megabytes(self, bundle: Bundle) -> int:
        """Megabytes of memory that a job of ``score_tasks`` takes, as far as that is known: the
        largest of its tasks, in all processes."""
        tasks = dict.fromkeys(job.names[2] for job in self.members(bundle))
        known = [self.sizes.score_memory(bundle.model, task) or 0.0 for task in tasks]
        threads = self.config.scoring.threads
        return round(threads * max(known, default=0.0) / 1e6)

    def passing(self, job: Job) -> int:
        """Bytes of a job's files that go when they have been read; 0 if they stay."""
        keep = self.config.jobs
        stays = keep.keep_embeddings if job.stage == "embed_task" else keep.keep_activations
        return 0 if stays else self._written(job.names[0], self._item(job))

    @cached_property
    def turns(self) -> dict[Bundle, list[str]]:
        """The markers that each job of ``run_model`` has to wait for, so that what waits to be
        read never takes more than ``jobs.disk``."""
        limit = self.config.jobs.disk
        return {} if limit is None else in_turn(self.queue(), limit * 1e9)

    def queue(self) -> Iterator[tuple[Bundle, int, list[str]]]:
        """Jobs of ``run_model`` whose files pass, with their bytes and the markers of the jobs
        that read them, in the order in which they are to take turns: first those whose files lie
        there already."""
        order = {model: place for place, model in enumerate(self.config.models)}

        def turn(bundle: Bundle) -> tuple[bool, int, int, int]:
            place = self._places[bundle.model][bundle.revision]
            waits = any(map(self.needed, self.members(bundle)))
            return waits, order[bundle.model], int(bundle.part), place

        for bundle in sorted((b for b in self._bundles if b.rule == "run_model"), key=turn):
            size, readers = 0, dict[str, None]()
            for job in self.members(bundle):
                after = [b for reader in self.wanted[job] if self.needed(reader)
                         if (b := self.bundle(reader)) is not None]  # fmt: skip
                if self.passing(job) and after:
                    size += self.passing(job)
                    readers.update((self.marker(b), None) for b in after)
            if size:
                yield bundle, size, list(readers)

    @cached_property
    def _bundles(self) -> dict[Bundle, list[Job]]:
        found: dict[Bundle, list[Job]] = defaultdict(list)
        order = self._items
        for job in sorted(
            (j for j in self.wanted if self._stage(j).rule),
            key=lambda j: (self._places[j.names[0]][j.names[1]], order[self._item(j)]),
        ):
            bundle = self.bundle(job)
            if bundle is not None:
                found[bundle].append(job)
        return found

    def members(self, bundle: Bundle) -> list[Job]:
        """The jobs of a bundle, in the config's order."""
        return self._bundles.get(bundle, [])

    def runs(self, due: Iterable[Job]) -> list[Job | Bundle]:
        """Snakemake's jobs that do some jobs, each once."""
        return list(dict.fromkeys(self.bundle(job) or job for job in due))

    def marker(self, bundle: Bundle) -> str:
        """The file that says that a bundle was done; Snakemake knows it by that."""
        names = "/".join(map(encode, bundle[1:]))
        return f"{self.config.results}/jobs/{bundle.rule}/{names}.json"

    def bundle_key(self, bundle: Bundle) -> str:
        """Hash of the keys of a bundle's jobs."""
        return _digest([self.key(job) for job in self.members(bundle)])

    def waits_for(self, jobs: Iterable[Job]) -> list[str]:
        """The files that have to be made before some jobs can run: bundles by their markers."""
        jobs = list(jobs)
        own = {self.bundle(job) for job in jobs}
        found: dict[str, None] = {}
        for job in jobs:
            for needed in self._reads(job):
                if self.needed(needed.job):
                    bundle = self.bundle(needed.job)
                    path = self.marker(bundle) if bundle else self.paths(needed.job)[needed.role]
                    if bundle is None or bundle not in own:
                        found[path] = None
        return list(found)

    # Keys

    def key(self, job: Job) -> str:
        """Hash of all that the job's files depend on, 16 hexadecimal digits."""
        if job not in self._keys:
            stage = self._stage(job)
            # By their names too: a table of several models says which is which.
            before = {
                (i.job.stage, *i.job.names, i.role): self.key(i.job) for i in self._reads(job)
            }
            self._keys[job] = _digest(
                job.stage, self.code(job.stage), self._settings(job), self._hashes(job),
                sorted(before.items()), list(stage.names),
            )  # fmt: skip
        return self._keys[job]

    def code(self, stage: str) -> Mapping[str, str]:
        """The version of each module that a stage computes with."""
        if stage not in self._code:
            self._code[stage] = versions(*STAGES[stage].code, words=STAGES[stage].words)
        return self._code[stage]

    def recipe(self, job: Job) -> dict[str, Any]:
        """What the key was made of."""
        if job not in self._recipes:
            self._recipes[job] = {
                "settings": self._settings(job),
                "code": dict(self.code(job.stage)),
                "inputs": {self.paths(i.job)[i.role]: self.key(i.job) for i in self._reads(job)},
                "outside": self._hashes(job),
            }
        return self._recipes[job]

    def stamp(self, job: Job) -> Stamp:
        """The stamp of the files that the job writes now: with the versions of libraries.

        ``libraries`` are those of this job, ``versions`` those of all that the file comes from.
        """
        own = _installed(self._stage(job).libraries)
        seen: dict[str, set[str]] = defaultdict(set)
        for name, found in own.items():
            seen[name].add(found)
        for earlier in self.before(job):
            stamp = stamps.read(self.stamped(earlier))
            for name, several in (stamp.recipe if stamp else {}).get("versions", {}).items():
                seen[name].update(several)
        together = {name: sorted(several) for name, several in sorted(seen.items())}
        recipe = {**self.recipe(job), "libraries": own, "versions": together}
        return Stamp(self.key(job), recipe)

    # What is due

    def due(self, job: Job) -> str | None:
        """Why a job must run; None if its files are there and are the planned ones."""
        if job not in self._due:
            self._due[job] = self._reason(job)
        return self._due[job]

    def needed(self, job: Job) -> bool:
        """Whether a run would do a job: it is due, and so is something made of it, if it is not
        a result in its own right."""
        if job not in self._is_needed:
            after = self.wanted.get(job)
            self._is_needed[job] = self.due(job) is not None and (
                after is None or job in self._targets or any(map(self.needed, after))
            )
        return self._is_needed[job]

    def jobs_due(self, wanted: Iterable[Job] | None = None) -> dict[Job, str]:
        """The jobs that a run would do, with the reason of each, inputs first.

        Parameters
        ----------
        wanted : jobs, optional
            Those whose files are asked for; by default all that the studies want.
        """
        found: dict[Job, str] = {}
        seen: set[Job] = set()

        def visit(job: Job) -> None:
            if job in seen:
                return
            seen.add(job)
            reason = self.due(job)
            if reason is None:
                return
            for earlier in self.before(job):
                visit(earlier)
            found[job] = reason

        for job in targets.targets(self.config) if wanted is None else wanted:
            visit(job)
        return found

    def read_by_all(self, job: Job, role: str) -> list[Path]:
        """The files that a job read in a role, and their shards, that nobody has still to read."""
        found: list[Path] = []
        for needed in self._stage(job).inputs(self.config, *job.names)[role]:
            # As it is now, and not as it was when this job began.
            if all(self._reason(reader) is None for reader in self.wanted.get(needed.job, [])):
                shards = self.inputs(needed.job).get("shards", [])
                found += map(Path, [self.paths(needed.job)[needed.role], *shards])
        return found

    def stale(self, jobs: Mapping[Job, str]) -> list[Job]:
        """Those of some due jobs whose files are there, made otherwise."""
        return [job for job, reason in jobs.items() if reason != MISSING]

    # Snapshots

    def save(self, path: Path, source: str) -> None:
        """Write the config and the versions of the code, for the jobs of a run to read.

        Parameters
        ----------
        source : str
            The file that the config came from.
        """
        code = {stage: dict(self.code(stage)) for stage in STAGES}
        document = {
            "source": source, "code": code, "files": state_of_files(),
            "sizes": self.sizes.plain(), "config": self.config.plain(),
        }  # fmt: skip
        with replacing(path) as partial:
            partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def open(cls, path: Path) -> Plan:
        """The plan of a config, or of one that `save` wrote.

        The versions of the code are taken from there while none of its files was touched since.

        Raises
        ------
        LayerwiseError
            If the file is missing or wrong.
        """
        if path.suffix == ".json" and path.is_file():
            try:
                document = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise LayerwiseError(
                    f"{path} is no whole JSON ({error}); start the run again, which writes it."
                ) from error
            if "code" in document:
                config = Config.of(document["config"])
                code = document["code"] if document.get("files") == state_of_files() else None
                return cls(config, code, document.get("sizes"))
        return cls(read_config([path]))

    def _stage(self, job: Job) -> Stage:
        return STAGES[job.stage]

    def _reads(self, job: Job) -> list[Any]:
        needed = self._stage(job).inputs(self.config, *job.names)
        return [i for files in needed.values() for i in files]

    def _settings(self, job: Job) -> Any:
        return self._stage(job).settings(self.config, *job.names)

    def _hashes(self, job: Job) -> Any:
        """What the job reads from outside; jobs on one model ask for the same."""
        stage = self._stage(job)
        about = dict(zip(stage.names, job.names, strict=True))
        place = (stage.outside, job.names)
        # A stage on a GPU loads a model, whose files are all that it reads from outside.
        if stage.gpu:
            place = ("model", (about["model"], about["revision"]))  # type: ignore[assignment]
        if place not in self._outside:
            self._outside[place] = stage.outside(self.config, *job.names)
        return self._outside[place]

    def _reason(self, job: Job) -> str | None:
        paths = [Path(p) for p in self.paths(job).values()]
        if not all(path.is_file() for path in paths):
            return MISSING
        stamp = stamps.read(paths[0])
        if stamp is None:
            return UNSTAMPED
        if stamp.key != self.key(job):
            return _difference(stamp.recipe, self.recipe(job))
        if self.config.libraries == "rerun":
            now = _installed(self._stage(job).libraries)
            then = stamp.recipe.get("libraries", {})
            other = [f"{n} {then.get(n, '?')} -> {v}" for n, v in now.items() if then.get(n) != v]
            if other:
                return ", ".join(other)
            if any(self.due(earlier) not in (None, MISSING) for earlier in self.before(job)):
                return "made from files that are made again"
        return None


def in_turn(
    queue: Iterable[tuple[Bundle, int, list[str]]], limit: float
) -> dict[Bundle, list[str]]:
    """Share a disk among jobs whose files pass.

    Bytes are handed on in the order of the queue: a job takes those that were free longest, and
    waits for whoever had them. So at no time do all that have started and are not yet read take
    more than there is. A job that needs more than all of it has it alone.

    Parameters
    ----------
    queue : iterable
        Of each job its bytes, and what has to be done until they are free again.
    limit : float
        Bytes of the disk.

    Returns
    -------
    dict
        What each job has to wait for.
    """
    found: dict[Bundle, list[str]] = {}
    free: deque[tuple[float, list[str]]] = deque([(limit, [])])
    for bundle, size, until in queue:
        taken, waits = 0.0, dict[str, None]()
        last: list[str] = []
        while free and taken < size:
            part, last = free.popleft()
            taken += part
            waits.update(dict.fromkeys(last))
        own = min(size, taken)
        if taken > own:
            free.appendleft((taken - own, last))
        free.append((own, until))
        found[bundle] = list(waits)
    return found


def explain(due: Mapping[Job, str]) -> Iterator[str]:
    """Why jobs run, a line a stage, the most common reasons first."""
    by_stage: dict[str, Counter[str]] = defaultdict(Counter)
    for job, reason in due.items():
        by_stage[job.stage][reason] += 1
    for stage, reasons in by_stage.items():
        told = [f"{reason} ({n})" for reason, n in reasons.most_common(3)]
        more = len(reasons) - len(told)
        tail = f"; and {more} other reasons" if more else ""
        yield f"{stage}: {sum(reasons.values())} to do: {'; '.join(told)}{tail}"


def _difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What has changed from one recipe to another, nearest cause first, in a line."""
    told: list[str] = []
    before, after = (dict(_flat(r.get("settings"))) for r in (then, now))
    for name in [*after, *(n for n in before if n not in after)]:
        if before.get(name) != after.get(name):
            told.append(f"{name}: {_show(before.get(name))} -> {_show(after.get(name))}")
    before, after = then.get("code") or {}, now["code"]
    told += [f"{m} changed" for m in {**before, **after} if before.get(m) != after.get(m)]
    before, after = (dict(_flat(r.get("outside"))) for r in (then, now))
    told += [f"{n or 'the file'} changed" for n in {**before, **after}
             if before.get(n) != after.get(n)]  # fmt: skip
    if not told:
        before, after = then.get("inputs") or {}, now["inputs"]
        changed = [p for p in after if p in before and before[p] != after[p]]
        added = [p for p in after if p not in before]
        gone = [p for p in before if p not in after]
        told += [f"its {_kinds(changed)} changed"] if changed else []
        told += [f"{len(added)} more {_kinds(added)}"] if added else []
        told += [f"{len(gone)} fewer {_kinds(gone)}"] if gone else []
    if len(told) > 4:
        told = [*told[:4], f"{len(told) - 4} more"]
    return ", ".join(told) or "made by another layerwise"


def _kinds(paths: Iterable[str]) -> str:
    """The folders below the results folder that files lie in: ``metrics``, ``scores``."""
    return " and ".join(dict.fromkeys(Path(p).parts[1] for p in paths if len(Path(p).parts) > 1))


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, sub in value.items():
            yield from _flat(sub, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _show(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _digest(*parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _matcher(pattern: str) -> re.Pattern[str]:
    """A pattern with names in braces as a regular expression."""
    parts = re.split(r"\{(\w+)\}", pattern)
    named = (f"(?P<{part}>[^/]+?)" if k % 2 else re.escape(part) for k, part in enumerate(parts))
    return re.compile("".join(named))


@cache
def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"


def _installed(libraries: Iterable[str]) -> dict[str, str]:
    return {library: _version(library) for library in libraries}


def encoded(job: Job) -> str:
    """A job's names as parts of a path, for its log."""
    return "/".join(map(encode, job.names))
