"""Score every layer of one model at one checkpoint on all its tasks.

The main process embeds one group of units after the other (small tasks together, some sets of a
clustering), each distinct text of a group once, all layers in one pass. Vectors go to local
scratch; processes score their layers while the model embeds the next group. Only scores are kept.
Each finished task is a table with its own key: a killed job continues where it was.

Scratch holds at most `scoring.waiting_gb` of vectors, or one unit if that is larger. A group has
at most half of the limit.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from layerwise.config.scoring import ScoringSettings
from layerwise.config.tasks import ChoiceTask, LabelledTask
from layerwise.errors import DiskError, LayerwiseError
from layerwise.extras import require
from layerwise.io import tables
from layerwise.names import encode
from layerwise.progress import Progress
from layerwise.tasks import results
from layerwise.tasks.prompts import Prompts, normalizes, of_model
from layerwise.tasks.task import Key, Task, Unit, Vectors, normalized

if TYPE_CHECKING:
    from layerwise.activations.representation import Representation
    from layerwise.config.extraction import ExtractSettings
    from layerwise.config.models import Model
    from layerwise.models.load import LoadedModel
    from layerwise.tasks.choice import QuestionTask

log = logging.getLogger(__name__)

Place = tuple[int, int]
"""Representation and layer, by number."""


def open_task(
    name: str,
    entry: Any,
    *,
    folder: str | None = None,
    images: Path | None = None,
    paragraphs: Path | None = None,
) -> Task | QuestionTask:
    """The task that an entry of the config describes; its data are read later.

    Parameters
    ----------
    name : str
    entry : LabelledTask, ChoiceTask or other
        The config's entry; any other is a task of mteb or of the quickstart.
    folder : str, optional
        Local folder of the data of such a task; by default the entry's.
    images : Path, optional
        Table of images that own labels are of.
    paragraphs : Path, optional
        Table of Wikipedia paragraphs that questions are made of.
    """
    if isinstance(entry, LabelledTask):
        from layerwise.tasks.labelled import LabelTask

        return LabelTask(entry, images)
    if isinstance(entry, ChoiceTask):
        from layerwise.tasks.choice import QuestionTask

        return QuestionTask(entry, paragraphs)
    require("mteb", "tasks")
    from layerwise.tasks.mteb_task import MtebTask

    return MtebTask(name, folder or getattr(entry, "folder", None))


def texts_of(task: Task) -> list[str]:
    """Distinct texts of a task, in order of first use."""
    units = task.units(sys.maxsize)
    return list(dict.fromkeys(text for unit in units for _, text in unit.keys))


def evaluate(
    load: Callable[[], LoadedModel],
    tasks: Mapping[str, Task | QuestionTask],
    *,
    entry: Model,
    extraction: ExtractSettings,
    scoring: ScoringSettings,
    keys: Mapping[str, str],
    key: str,
    folder: Path,
    output: Path,
    probes: Path,
    threads: int = 1,
) -> None:
    """Score all layers on all tasks and write the tables of scores and of probes.

    Tasks whose table in `folder` has its key are not scored again. A task that fails does not stop
    the others.

    Parameters
    ----------
    load : callable
        Loads the model; called at most once, and only if a task has to be scored.
    tasks : mapping
        Tasks by name, as `open_task` makes them.
    entry : Model
        The model's entry in the config.
    keys : mapping
        Key of each task's table, by name.
    key : str
        Key of the tables that are assembled from these.
    folder : Path
        Folder of one table per task; tables of other tasks in it are left alone.
    output, probes : Path
        Table of scores, and of the details of probes.
    threads : int
        Processes that score, each with one thread; 1 scores in this process.

    Raises
    ------
    LayerwiseError
        After all tasks, if one failed: the first failure.
    """
    paths = {name: folder / f"{encode(name)}.parquet" for name in tasks}
    due = {name: task for name, task in tasks.items() if not _is_done(paths[name], keys[name])}
    if len(due) < len(tasks):
        log.info("%d of %d tasks are done already", len(tasks) - len(due), len(tasks))
    if due:
        with (
            _scorers(threads, sorted({type(task).__module__ for task in due.values()})) as pool,
            tempfile.TemporaryDirectory(prefix="layerwise-") as scratch,
        ):
            loaded = load()
            if scoring.normalize is None:
                normalize = normalizes(entry, loaded.revision)
                scoring = scoring.model_copy(update={"normalize": normalize})
            prompts = of_model(entry, loaded.revision)
            job = _Job(
                loaded, prompts, extraction, scoring, pool, threads, Path(scratch), paths, keys
            )
            job.run(due, entry)
    frame = tables.read(paths.values(), "scores of tasks", kind=results.PART)
    about = tables.facts(next(iter(paths.values())))
    facts = {name: about[name] for name in ("model", "revision", "dtype", "weights_sha256")}
    tables.write(probes, results.probes(frame), kind=results.PROBES, key=key, **facts)
    tables.write(output, results.scores(frame), kind=results.SCORES, key=key, **facts)


def _is_done(path: Path, key: str) -> bool:
    """True if a task's table is there, whole, and has this key."""
    try:
        if tables.facts(path).get("key") != key:
            return False
        tables.read(path, "scores of a task", kind=results.PART)
    except LayerwiseError:
        return False
    return True


@dataclass
class _Pending:
    """A task that is being scored; `scores` are of its units so far, by representation and
    layer."""

    name: str
    task: Task
    task_type: str
    n_units: int
    scores: list[dict[Place, Any]] = field(default_factory=list)


class _Part(NamedTuple):
    """A unit of a task, and the prompt and text of each of its keys."""

    pending: _Pending
    unit: Unit
    inputs: list[tuple[str, Any]]


class KilledError(LayerwiseError):
    """A scoring process was killed, and no other task can be scored."""

    code = "no_memory"


@dataclass
class _Job:
    """Embeds and scores tasks with one model.

    Attributes
    ----------
    paths, keys : mapping
        Table of each task and its key.
    scored : list of tuple
        Tasks of the last group's units, and their scores that are being computed.
    failures : dict
        Error of each task that failed.
    n_embedded, n_waiting : int
        Groups that were embedded, and inputs of the last one if it is being scored.
    """

    loaded: LoadedModel
    prompts: Prompts
    extraction: ExtractSettings
    scoring: ScoringSettings
    pool: Executor
    n_processes: int
    scratch: Path
    paths: Mapping[str, Path]
    keys: Mapping[str, str]
    scored: list[tuple[_Pending, list[Future[Any]]]] = field(default_factory=list)
    failures: dict[str, LayerwiseError] = field(default_factory=dict)
    n_embedded: int = 0
    n_waiting: int = 0

    @cached_property
    def ways(self) -> list[Representation]:
        """The representations that are scored."""
        from layerwise.activations.embedding import representations_of

        return representations_of(
            self.loaded, self.extraction.tokens, self.scoring.poolings, self.scoring.readouts
        )

    @cached_property
    def limit(self) -> int:
        """Number of inputs whose vectors may be on the scratch disk."""
        anatomy = self.loaded.anatomy
        n_bytes = 4 * len(self.ways) * anatomy.n_layers * anatomy.hidden
        return int(self.scoring.waiting_gb * 1e9) // n_bytes

    def run(self, due: Mapping[str, Task | QuestionTask], entry: Model) -> None:
        """Score tasks; raises the first failure at the end."""
        for group in self._groups(due, entry):
            self._embed_group(group)
        self._collect()
        if self.failures:
            (first, *_), n = self.failures.values(), len(self.failures)
            more = f" ({n} of {len(due)} tasks failed)" if n > 1 else ""
            raise LayerwiseError(f"{first}{more}", code=first.code) from first

    def _groups(
        self, due: Mapping[str, Task | QuestionTask], entry: Model
    ) -> Iterator[list[_Part]]:
        """Group units to embed together, up to half of the limit.

        Questions are answered on the way, since they need the model and no vectors.
        """
        from layerwise.tasks.choice import QuestionTask

        most = max(1, self.limit // 2)
        group: list[_Part] = []
        inputs: set[tuple[str, Any]] = set()
        for name, task in due.items():
            parts: list[_Part] = []
            with self._failing(name):
                if isinstance(task, QuestionTask):
                    budget = self.extraction.batch_tokens
                    self._write(name, task.rows(self.loaded, entry, self.scoring, budget))
                else:
                    parts = self._parts(name, task, most)
            for part in parts:
                # Texts, images and words are embedded apart.
                is_alike = group and part.unit.sort == group[0].unit.sort
                if not is_alike or len(inputs.union(part.inputs)) > most:
                    if group:
                        yield group
                    group, inputs = [], set()
                group.append(part)
                inputs.update(part.inputs)
        if group:
            yield group

    def _parts(self, name: str, task: Task, most: int) -> list[_Part]:
        """The units of a task, with the prompts in front of their texts."""
        units = list(task.units(most))
        kinds = dict.fromkeys(kind for unit in units for kind, _ in unit.keys)
        before = {kind: self.prompts.of(name, task, kind) for kind in kinds}
        for kind, prompt in before.items():
            if prompt:
                log.info("%s: in front of %s: %r", name, kind or "each text", prompt)
        pending = _Pending(name, task, task.task_type, len(units))
        return [
            _Part(pending, unit, [(before[kind], text) for kind, text in unit.keys])
            for unit in units
        ]

    def _embed_group(self, group: list[_Part]) -> None:
        """Embed units together. If that fails, embed each alone: the other tasks go on."""
        if len(group) == 1:
            with self._failing(group[0].pending.name):
                self._embed(group)
            return
        try:
            self._embed(group)
        except (DiskError, KilledError):
            raise
        except LayerwiseError:
            for part in group:
                self._embed_group([part])

    def _embed(self, group: list[_Part]) -> None:
        """Write the vectors of units to a file, and have them scored while others are embedded."""
        from layerwise.activations.embedding import embed_into

        places: dict[tuple[str, Any], int] = {}
        rows = [[places.setdefault(pair, len(places)) for pair in part.inputs] for part in group]
        pictures = {sha: p for part in group for sha, p in part.unit.pictures.items()}
        name, *others = dict.fromkeys(part.pending.name for part in group)
        what = f"{name} and {len(others)} other tasks" if others else name
        shape = len(self.ways), self.loaded.anatomy.n_layers, len(places)
        if len(places) + self.n_waiting > self.limit:
            self._collect()
        path = self.scratch / f"{self.n_embedded}.npy"
        done = embed_into(
            self.loaded,
            [pictures.get(text, text) for _, text in places],
            _allocate(path, (*shape, self.loaded.anatomy.hidden)),
            self.ways,
            prompts=[prompt for prompt, _ in places],
            include_prompt=self.prompts.include_prompt,
            budget=self.extraction.batch_tokens,
            sink_ratio=self.extraction.sink_ratio,
        )
        with Progress(len(places), f"{self.loaded.name} {what}", "text") as bar:
            for n in done:
                bar.update(n)
                self._collect(wait=False)
        self._collect()
        self.n_embedded, self.n_waiting = self.n_embedded + 1, len(places)
        layers = list(itertools.product(range(shape[0]), range(shape[1])))
        shares = [layers[k :: self.n_processes] for k in range(self.n_processes)]
        for part, own in zip(group, rows, strict=True):
            of_keys = dict(zip(part.unit.keys, own, strict=True))
            given = part.pending.task, replace(part.unit, pictures={}), of_keys, path
            futures = [
                self.pool.submit(_score, *given, share, self.scoring) for share in shares if share
            ]
            self.scored.append((part.pending, futures))
        self._collect(wait=False)

    def _collect(self, *, wait: bool = True) -> None:
        """Take the last group's scores and write the tables of complete tasks.

        Without `wait`, only if all of them are ready.
        """
        if not wait and not all(f.done() for _, futures in self.scored for f in futures):
            return
        for pending, futures in self.scored:
            with self._failing(pending.name):
                try:
                    scores = [future.result() for future in futures]
                except BrokenProcessPool as error:
                    raise KilledError(
                        "A scoring process was killed, most likely because memory ran out; lower "
                        "scoring.threads. Finished tasks are kept."
                    ) from error
                pending.scores.append({place: one[place] for one in scores for place in one})
                if len(pending.scores) == pending.n_units:
                    self._finish(pending)
        self.scored.clear()
        self.n_waiting = 0
        (self.scratch / f"{self.n_embedded - 1}.npy").unlink(missing_ok=True)

    def _finish(self, pending: _Pending) -> None:
        """Write the table of a task whose units are all scored."""
        last = max(self.loaded.anatomy.n_layers - 1, 1)
        rows: list[dict[str, Any]] = []
        for layer in range(self.loaded.anatomy.n_layers):
            for way, representation in enumerate(self.ways):
                about = {
                    "task_type": pending.task_type,
                    "layer": layer,
                    "depth": layer / last,
                    **representation._asdict(),
                }
                parts = [scores[way, layer] for scores in pending.scores]
                rows += [about | row for row in pending.task.rows(parts, self.scoring)]
        self._write(pending.name, rows)

    def _write(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        loaded = self.loaded
        about = {"model": loaded.name, "revision": loaded.revision, "task": name}
        made = [{**about, **row} for row in rows]
        for row in made:
            if row["main_score"] is None:
                log.warning("%s has no score at layer %d: %s", name, row["layer"], row["why"])
        tables.write(
            self.paths[name],
            results.part(made),
            kind=results.PART,
            key=self.keys[name],
            dtype=loaded.dtype,
            weights_sha256=loaded.weights,
            settings=self.scoring.plain(),
            **about,
        )

    @contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        """Note an error that concerns one task; the others go on."""
        try:
            yield
        except (DiskError, KilledError):
            raise
        except LayerwiseError as error:
            log.error("%s: %s", name, error)
            self.failures.setdefault(name, error)


def _allocate(path: Path, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Make a file of float32 on the scratch disk, mapped to memory.

    Raises
    ------
    DiskError
        If the disk has no room: a write to the mapped file would end the process.
    """
    into = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    if hasattr(os, "posix_fallocate"):
        try:
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            raise DiskError(
                f"{path.parent} has no room for {into.nbytes / 1e9:.1f} GB of vectors "
                f"({error.strerror}); free some space, set TMPDIR to another disk, or lower "
                "scoring.waiting_gb."
            ) from error
    return into


def _score(
    task: Task,
    unit: Unit,
    rows: Mapping[Key, int],
    path: Path,
    places: Sequence[Place],
    settings: ScoringSettings,
) -> dict[Place, Any]:
    """Score some layers of a unit, in a process that scores."""
    vectors = np.load(path, mmap_mode="r")
    found: dict[Place, Any] = {}
    with one_thread():
        for way, layer in places:
            values = np.array(vectors[way, layer])
            if settings.normalize:
                values = normalized(values)
            found[way, layer] = task.score(unit, Vectors(values, rows), settings)
    return found


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit all libraries to one thread; torch resets what others set when it first computes."""
    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


class _Here(Executor):
    """Runs what is submitted at once, in this process."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def _scorers(n: int, modules: list[str]) -> Iterator[Executor]:
    """Processes that score, forked off one that has imported `modules` and no model."""
    if n == 1:
        yield _Here()
        return
    method = "forkserver" if "forkserver" in get_all_start_methods() else "spawn"
    context: Any = get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(modules)
    pool = ProcessPoolExecutor(n, mp_context=context)
    pool.submit(int)  # Imports go on while the model is loaded.
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
