"""Score every layer of a model on tasks: one function for the workflow and for models in memory.

Each task records the inputs that it needs, in units. The model embeds a group of units (small
tasks together, some sets of a clustering), each distinct input once, all layers in one pass. While
it embeds the next group, processes score the layers of the last one from a file on local scratch.
Only scores are kept.

`evaluate` writes a table with its own key for each finished task: a killed job continues where it
was.

Scratch holds at most `scoring.waiting_gb` of vectors, or one unit if that is larger. A group has
at most half of the limit.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from layerwise.activations.representation import Representation
from layerwise.config.settings import ExtractSettings, ScoringSettings
from layerwise.errors import DiskError, LayerwiseError, first_line
from layerwise.io import tables
from layerwise.io.files import disk_fault, memory_fault, scratch
from layerwise.models.load import LoadedModel
from layerwise.names import encode
from layerwise.progress import Progress
from layerwise.tasks.reading import Setup, of_model
from layerwise.tasks.results import KIND, SCHEMA, Score, join_tables
from layerwise.tasks.task import Key, NoScoreError, Reader, Task, Unit, Vectors

log = logging.getLogger(__name__)

Cell = tuple[int, int]
"""Numbers of a layer and of a representation."""


def evaluate(
    load: Callable[[], LoadedModel],
    tasks: Mapping[str, Task],
    *,
    extraction: ExtractSettings,
    scoring: ScoringSettings,
    keys: Mapping[str, str],
    key: str,
    output: Path,
    folder: Path | None = None,
    threads: int = 1,
) -> None:
    """Score all layers on all tasks and write the table of scores.

    Each task has a table in a folder. Those that have their key are not scored
    again. A task that fails does not stop the others.

    Parameters
    ----------
    load : callable
        Loads the model; called at most once, and only if a task has to be scored.
    tasks : mapping
        Tasks by name.
    keys : mapping
        Key of each task's table, by name.
    key : str
        Key of the table that is assembled from these.
    output : Path
        Table of scores.
    folder : Path, optional
        Folder of the tasks' tables; by default next to `output`, with its name.
    threads : int
        Processes that score, each with one thread; 1 scores in this process.

    Raises
    ------
    LayerwiseError
        After all tasks, if one failed: the first failure.
    """
    folder = folder or output.with_suffix("")
    paths = {name: folder / f"{encode(name)}.parquet" for name in tasks}
    due = {name: task for name, task in tasks.items() if not _is_done(paths[name], keys[name])}
    if len(due) < len(tasks):
        log.info("%d of %d tasks are done already", len(tasks) - len(due), len(tasks))
    if due:
        with _scorers(threads, {type(task).__module__ for task in due.values()}) as pool:
            setup = set_up(load(), extraction, scoring)

            def write(scored: TaskScores) -> None:
                _write(scored, setup, paths[scored.name], keys[scored.name])

            score(setup, due, write, Pool(pool, threads))
    join_tables(paths.values(), tasks, key=key, output=output)


def _write(scored: TaskScores, setup: Setup, path: Path, key: str) -> None:
    """Write the table of a task."""
    loaded = setup.loaded
    about = {"model": loaded.name, "revision": loaded.revision, "task": scored.name}
    last = max(loaded.anatomy.n_layers - 1, 1)
    rows = [
        about
        | {"task_type": scored.task_type, "layer": layer, "depth": layer / last}
        | scored.representations[number]._asdict()
        | vars(of_subset)
        for (layer, number), scores in scored.scores.items()
        for of_subset in scores
    ]
    tables.write(
        path,
        pa.Table.from_pylist(rows, schema=SCHEMA),
        kind=KIND,
        key=key,
        dtype=loaded.dtype,
        weights_sha256=loaded.weights,
        settings=setup.scoring.plain(),
        **about,
    )


def _is_done(path: Path, key: str) -> bool:
    """True if a task's table is there, whole, and has this key."""
    try:
        tables.read(path, "scores", kind=KIND)
        return tables.facts(path).get("key") == key
    except LayerwiseError:
        return False


# Scoring


@dataclass(frozen=True)
class TaskScores:
    """Scores of one task.

    Attributes
    ----------
    representations : list of Representation
    scores : mapping
        Scores by layer and representation, both by number: one for each split and subset.
    """

    name: str
    task_type: str
    representations: list[Representation]
    scores: Mapping[Cell, Sequence[Score]]


def set_up(loaded: LoadedModel, extraction: ExtractSettings, scoring: ScoringSettings) -> Setup:
    """A model with its prompts; vectors are scaled as the model does, unless the settings say."""
    if scoring.normalize is None:
        scoring = scoring.model_copy(update={"normalize": loaded.normalizes})
    return Setup(loaded, extraction, scoring, of_model(loaded.entry, loaded.revision))


class Pool(NamedTuple):
    """Processes that score, and their number."""

    executor: Executor
    size: int


def score(
    setup: Setup,
    tasks: Mapping[str, Task],
    take: Callable[[TaskScores], None],
    pool: Pool | None = None,
) -> None:
    """Score all layers of a model on tasks. A task that fails does not stop the others.

    Parameters
    ----------
    tasks : mapping
        Tasks by name.
    take : callable
        Is given the scores of each task when they are complete.
    pool : Pool, optional
        Processes that score; by default this one.

    Raises
    ------
    LayerwiseError
        After all tasks, if one failed: the first failure.
    """
    with scratch() as folder:
        scoring = _Scoring(setup, take, pool or Pool(_Here(), 1), folder)
        try:
            for group in scoring.record(tasks):
                scoring.embed(group)
            scoring.wait()
        except BrokenProcessPool as error:
            raise LayerwiseError(
                "A scoring process was killed, most likely because memory ran out; lower "
                "scoring.threads. Finished tasks are kept.",
                code="no_memory",
            ) from error
    if scoring.failures:
        (first, *_), n = scoring.failures.values(), len(scoring.failures)
        more = f" ({n} of {len(tasks)} tasks failed)" if n > 1 else ""
        raise LayerwiseError(f"{first}{more}", code=first.code) from first


@dataclass(eq=False)
class _OpenTask:
    """A task without its scores.

    Attributes
    ----------
    n_units : int
        Number of its units.
    scores : list
        Of each unit that is embedded, the futures of the scores of its layers.
    """

    name: str
    task: Task
    task_type: str
    reader: Reader
    representations: list[Representation]
    n_units: int
    scores: list[list[Future[dict[Cell, Any]]]] = field(default_factory=list)

    def is_scored(self) -> bool:
        """True if all layers are scored on all units."""
        futures = [future for unit in self.scores for future in unit]
        return len(self.scores) == self.n_units and all(future.done() for future in futures)


class _Recorded(NamedTuple):
    """A unit of a task, and the prompt and text of each of its keys."""

    task: _OpenTask
    unit: Unit
    inputs: list[tuple[str, Any]]

    @property
    def sort(self) -> tuple[Any, ...]:
        """Equal for units that can be embedded together."""
        return self.task.reader, *self.unit.sort


class _EmbeddedUnit(NamedTuple):
    """A unit of a task whose inputs are embedded: the row of each in a file of vectors."""

    task: Task
    selection: Any
    rows: Mapping[Key, int]
    path: Path


@dataclass
class _Scoring:
    """The scoring of a model: tasks are recorded, embedded and scored.

    Attributes
    ----------
    open : dict
        Tasks that are not scored yet, by name.
    failures : dict
        The first error of each task that failed.
    n_files : int
        Number of files of vectors that were written; only the last may still be scored.
    n_waiting : int
        Number of inputs in that one.
    """

    setup: Setup
    take: Callable[[TaskScores], None]
    pool: Pool
    scratch: Path
    open: dict[str, _OpenTask] = field(default_factory=dict)
    failures: dict[str, LayerwiseError] = field(default_factory=dict)
    n_files: int = 0
    n_waiting: int = 0

    def record(self, tasks: Mapping[str, Task]) -> Iterator[list[_Recorded]]:
        """Group the units of all tasks, in order: up to half of the limit is embedded together."""
        group: list[_Recorded] = []
        inputs: set[tuple[str, Any]] = set()
        for recorded in self._units(tasks):
            most = max(1, self._limit(recorded.task.reader) // 2)
            fits = len(inputs.union(recorded.inputs)) <= most
            if group and not (fits and recorded.sort == group[0].sort):
                yield group
                group, inputs = [], set()
            group.append(recorded)
            inputs.update(recorded.inputs)
        if group:
            yield group

    def _units(self, tasks: Mapping[str, Task]) -> Iterator[_Recorded]:
        """The units of all tasks, with the prompts in front of their texts."""
        for name, task in tasks.items():
            try:
                reader = task.reader
                representations = reader.representations(self.setup)
                units = list(task.units(max(1, self._limit(reader) // 2)))
                kinds = dict.fromkeys(kind for unit in units for kind, _ in unit.keys)
                before = {kind: task.prompt(self.setup.prompts, name, kind) for kind in kinds}
                recorded = _OpenTask(
                    name, task, task.task_type, reader, representations, len(units)
                )
            except Exception as error:
                self._note(name, error)
                continue
            for kind, prompt in before.items():
                if prompt:
                    log.info("%s: in front of %s: %r", name, kind or "each text", prompt)
            self.open[name] = recorded
            for unit in units:
                yield _Recorded(recorded, unit, [(before[kind], text) for kind, text in unit.keys])

    def _limit(self, reader: Reader) -> int:
        """Number of inputs whose vectors may be on the scratch disk."""
        n_vectors = len(reader.representations(self.setup)) * self.setup.loaded.anatomy.n_layers
        n_bytes = 4 * n_vectors * reader.width(self.setup)
        return int(self.setup.scoring.waiting_gb * 1e9) // n_bytes

    def embed(self, group: Sequence[_Recorded]) -> None:
        """Embed a group and have it scored; if that fails, each of its units alone."""
        group = [recorded for recorded in group if recorded.task.name in self.open]
        if not group:
            return
        try:
            self._score(group, *self._embed(group))
        except Exception as error:
            if _ends_all(error):
                raise
            if len(group) > 1:
                for recorded in group:
                    self.embed([recorded])
                return
            task = self.open.pop(group[0].task.name)
            if isinstance(error, NoScoreError):
                no_score = [Score(None, why=str(error))]
                self._hand_over(task, dict.fromkeys(self._cells(task), no_score))
            else:
                self._note(task.name, error)

    def _embed(self, group: Sequence[_Recorded]) -> tuple[Path, dict[tuple[str, Any], int]]:
        """Write the vectors of a group to a file, with the row of each input in it."""
        loaded, reader = self.setup.loaded, group[0].task.reader
        inputs = dict.fromkeys(pair for recorded in group for pair in recorded.inputs)
        media = {sha: one for recorded in group for sha, one in recorded.unit.media.items()}
        if len(inputs) + self.n_waiting > self._limit(reader):
            self.wait()
        path = self.scratch / f"{self.n_files}.npy"
        n_representations = len(group[0].task.representations)
        shape = n_representations, loaded.anatomy.n_layers, len(inputs), reader.width(self.setup)
        n_read = reader.read(
            self.setup,
            [media.get(text, text) for _, text in inputs],
            [prompt for prompt, _ in inputs],
            _allocate(path, shape),
        )
        names = ", ".join(dict.fromkeys(recorded.task.name for recorded in group))
        with Progress(len(inputs), f"{loaded.name} {names:.60}", "text") as bar:
            for n in n_read:
                bar.update(n)
                self.finish()
        return path, {pair: row for row, pair in enumerate(inputs)}

    def _score(
        self, group: Sequence[_Recorded], path: Path, rows: Mapping[tuple[str, Any], int]
    ) -> None:
        """Have the layers of a group scored, when those of the last one are."""
        self.wait()
        self.n_files, self.n_waiting = self.n_files + 1, len(rows)
        for recorded in group:
            pairs = zip(recorded.unit.keys, recorded.inputs, strict=True)
            rows_of_keys = {key: rows[pair] for key, pair in pairs}
            unit = _EmbeddedUnit(recorded.task.task, recorded.unit.selection, rows_of_keys, path)
            score_cells = partial(_score, unit, settings=self.setup.scoring)
            cells, n = self._cells(recorded.task), self.pool.size
            shares = [cells[start::n] for start in range(n)]
            recorded.task.scores.append(
                [self.pool.executor.submit(score_cells, share) for share in shares]
            )
        self.finish()

    def wait(self) -> None:
        """Wait until all that is embedded is scored, and remove the vectors."""
        wait(future for task in self.open.values() for unit in task.scores for future in unit)
        self.finish()
        self.n_waiting = 0
        (self.scratch / f"{self.n_files - 1}.npy").unlink(missing_ok=True)

    def finish(self) -> None:
        """Hand over the scores of tasks that are scored by now."""
        for task in [task for task in self.open.values() if task.is_scored()]:
            del self.open[task.name]
            try:
                units: list[dict[Cell, Any]] = []
                for futures in task.scores:
                    units.append({})
                    for future in futures:
                        units[-1] |= future.result()
                scores = {
                    cell: task.task.scores([unit[cell] for unit in units], self.setup.scoring)
                    for cell in self._cells(task)
                }
                self._hand_over(task, scores)
            except Exception as error:
                self._note(task.name, error)

    def _hand_over(self, task: _OpenTask, scores: Mapping[Cell, Sequence[Score]]) -> None:
        for (layer, _), of_subsets in scores.items():
            for each in of_subsets:
                if each.main_score is None:
                    log.warning("%s has no score at layer %s: %s", task.name, layer, each.why)
        self.take(TaskScores(task.name, task.task_type, task.representations, scores))

    def _cells(self, task: _OpenTask) -> list[Cell]:
        """Every layer in every representation."""
        n_layers, n = self.setup.loaded.anatomy.n_layers, len(task.representations)
        return [(layer, number) for layer in range(n_layers) for number in range(n)]

    def _note(self, name: str, error: Exception) -> None:
        """Note an error that concerns one task, so that the others go on; raise any other."""
        if _ends_all(error):
            raise error
        if not isinstance(error, LayerwiseError):
            log.error("%s: the traceback", name, exc_info=error)
            failure = LayerwiseError(
                f"{name} failed ({type(error).__name__}: {first_line(error)}); check its data, or "
                "leave the task out. The log has the traceback.",
                code="no_memory" if memory_fault(error) else "invalid",
            )
            failure.__cause__ = error
            error = failure
        log.error("%s: %s", name, error)
        self.failures.setdefault(name, error)


def _ends_all(error: Exception) -> bool:
    """True for an error that other tasks would meet too."""
    return isinstance(error, DiskError | BrokenProcessPool) or disk_fault(error) is not None


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
    unit: _EmbeddedUnit, cells: Sequence[Cell], settings: ScoringSettings
) -> dict[Cell, Any]:
    """Score some layers of a unit, in a process that scores."""
    file = np.load(unit.path, mmap_mode="r")
    scores: dict[Cell, Any] = {}
    with one_thread():
        for layer, number in cells:
            vectors = Vectors(np.array(file[number, layer]), unit.rows)
            scores[layer, number] = unit.task.score(unit.selection, vectors, settings)
    return scores


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit all libraries to one thread; torch resets what others set when it first computes."""
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


def _end_with_job() -> None:
    """Let a process that scores end when the job is killed: it would wait for work for good."""

    def watch() -> None:
        if job := parent_process():
            job.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()


@contextmanager
def _scorers(n: int, modules: set[str]) -> Iterator[Executor]:
    """Processes that score, forked off one that has imported `modules` and no model."""
    if n == 1:
        yield _Here()
        return
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__, *sorted(modules)])
    pool = ProcessPoolExecutor(n, mp_context=context, initializer=_end_with_job)
    pool.submit(int)  # Imports go on while the model is loaded.
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
