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

import itertools
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning

from layerwise.activations.representation import Representation
from layerwise.config.settings import ExtractSettings, ScoringSettings
from layerwise.errors import DiskError, LayerwiseError, first_line
from layerwise.io.files import disk_fault, memory_fault, scratch
from layerwise.models.load import LoadedModel
from layerwise.names import encode
from layerwise.progress import Progress
from layerwise.tasks.results import Cell, Score, TaskScores, has_key, join_tables, write_table
from layerwise.tasks.task import (
    Key,
    NoScoreError,
    Reader,
    Setup,
    Task,
    Unit,
    Vectors,
    one_thread,
    set_up,
)

log = logging.getLogger(__name__)


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
    due = {name: task for name, task in tasks.items() if not has_key(paths[name], keys[name])}
    if len(due) < len(tasks):
        log.info("%d of %d tasks are done already", len(tasks) - len(due), len(tasks))
    if due:
        with _scorers(threads, {type(task).__module__ for task in due.values()}) as pool:
            setup = set_up(load(), extraction, scoring)

            def write(scored: TaskScores) -> None:
                write_table(scored, setup, paths[scored.name], keys[scored.name])

            score(setup, due, write, pool, threads)
    join_tables(paths.values(), tasks, key=key, output=output)


def score(
    setup: Setup,
    tasks: Mapping[str, Task],
    take: Callable[[TaskScores], None],
    pool: Executor | None = None,
    threads: int = 1,
) -> None:
    """Score all layers of a model on tasks. A task that fails does not stop the others.

    Parameters
    ----------
    tasks : mapping
        Tasks by name.
    take : callable
        Is given the scores of each task when they are complete.
    pool : Executor, optional
        Processes that score, as many as `threads`; by default this one.

    Raises
    ------
    LayerwiseError
        After all tasks, if one failed: the first failure.
    """
    with scratch() as folder:
        scoring = _Scoring(setup, take, pool or _Here(), threads, folder)
        try:
            for group in scoring.record(tasks):
                scoring.embed(group)
            scoring.collect()
        except BrokenProcessPool as error:
            raise LayerwiseError(
                "A scoring process was killed, most likely because memory ran out; lower "
                "scoring.threads. Finished tasks are kept.",
                code="no_memory",
            ) from error
    failures = [error for error in scoring.ended.values() if error]
    if failures:
        first, n = failures[0], len(failures)
        more = f" ({n} of {len(tasks)} tasks failed)" if n > 1 else ""
        raise LayerwiseError(f"{first}{more}", code=first.code) from first


@dataclass(eq=False)
class _Recorded:
    """A task whose inputs are recorded, and the scores of its units so far.

    Attributes
    ----------
    prompts : dict
        By prompt type, the prompt in front of inputs.
    cells : list
        Every layer in every representation.
    n_unconverged : int
        Number of fits that warned that they did not converge.
    """

    name: str
    task: Task
    task_type: str
    prompts: dict[str, str]
    representations: list[Representation]
    cells: list[Cell]
    n_units: int
    n_unconverged: int = 0
    scores: list[dict[Cell, Any]] = field(default_factory=list)

    def inputs(self, unit: Unit) -> list[tuple[str, Any]]:
        """Prompt and text of each key of a unit."""
        return [(self.prompts[kind], text) for kind, text in unit.keys]


UnitScores = tuple[dict[Cell, Any], int]
"""Scores of layers on a unit, and the number of fits that did not converge."""
Group = list[tuple[_Recorded, Unit]]
"""Units that are embedded together: their tasks have equal readers."""


@dataclass
class _Scoring:
    """The scoring of a model: units of tasks are recorded, embedded in groups, and scored.

    Attributes
    ----------
    ended : dict
        Tasks that are scored or have failed, with their first error.
    pending : list
        Tasks of the last group, each with the scores of the layers of a unit as they come.
    n_files : int
        Number of files of vectors that were written; only the last may still be scored.
    n_waiting : int
        Number of inputs in that one.
    """

    setup: Setup
    take: Callable[[TaskScores], None]
    pool: Executor
    threads: int
    scratch: Path
    ended: dict[str, LayerwiseError | None] = field(default_factory=dict)
    pending: list[tuple[_Recorded, list[Future[UnitScores]]]] = field(default_factory=list)
    n_files: int = 0
    n_waiting: int = 0

    def record(self, tasks: Mapping[str, Task]) -> Iterator[Group]:
        """Group the units of all tasks, in order: up to half of the limit is embedded together."""
        group: Group = []
        inputs: set[tuple[str, Any]] = set()
        sort: Any = None
        for recorded, unit in self._units(tasks):
            reader, before = recorded.task.reader, sort
            sort = reader, *unit.sort
            inputs.update(recorded.inputs(unit))
            if group and (sort != before or len(inputs) > self._limit(reader) // 2):
                yield group
                group, inputs = [], set(recorded.inputs(unit))
            group.append((recorded, unit))
        if group:
            yield group

    def _units(self, tasks: Mapping[str, Task]) -> Iterator[tuple[_Recorded, Unit]]:
        for name, task in tasks.items():
            try:
                units = list(task.units(max(1, self._limit(task.reader) // 2)))
                recorded = self._recorded(name, task, units)
            except Exception as error:  # of libraries that read data, which may hold anything
                self._note(name, error)
                continue
            for kind, prompt in recorded.prompts.items():
                if prompt:
                    log.info("%s: in front of %s: %r", name, kind or "each text", prompt)
            yield from ((recorded, unit) for unit in units)

    def _recorded(self, name: str, task: Task, units: Sequence[Unit]) -> _Recorded:
        kinds = dict.fromkeys(kind for unit in units for kind, _ in unit.keys)
        prompts = {kind: task.prompt(self.setup.prompts, name, kind) for kind in kinds}
        representations = task.reader.representations(self.setup)
        layers = range(self.setup.loaded.anatomy.n_layers)
        cells = list(itertools.product(layers, range(len(representations))))
        return _Recorded(name, task, task.task_type, prompts, representations, cells, len(units))

    def _limit(self, reader: Reader) -> int:
        """Number of inputs whose vectors may be on the scratch disk."""
        n_vectors = len(reader.representations(self.setup)) * self.setup.loaded.anatomy.n_layers
        n_bytes = 4 * n_vectors * reader.width(self.setup)
        return int(self.setup.scoring.waiting_gb * 1e9) // n_bytes

    def embed(self, group: Group) -> None:
        """Embed a group and have it scored; if that fails, each of its units alone."""
        group = [(task, unit) for task, unit in group if task.name not in self.ended]
        if not group:
            return
        try:
            self._score(group, *self._embed(group))
        except Exception as error:  # of the model's code, or of texts of one of the tasks
            task = group[0][0]
            if isinstance(error, NoScoreError) and len(group) == 1:
                no_score = [Score(None, why=str(error))]
                self._hand_over(task, dict.fromkeys(task.cells, no_score))
            elif len(group) == 1 or _ends_all(error):
                self._note(task.name, error)
            else:
                for alone in group:
                    self.embed([alone])

    def _embed(self, group: Group) -> tuple[Path, dict[tuple[str, Any], int]]:
        """Write the vectors of a group to a file, with the row of each input in it."""
        loaded, reader = self.setup.loaded, group[0][0].task.reader
        inputs = dict.fromkeys(pair for task, unit in group for pair in task.inputs(unit))
        media = {sha: medium for _, unit in group for sha, medium in unit.media.items()}
        if len(inputs) + self.n_waiting > self._limit(reader):
            self.collect()
        path = self.scratch / f"{self.n_files}.npy"
        n_representations = len(group[0][0].representations)
        shape = n_representations, loaded.anatomy.n_layers, len(inputs), reader.width(self.setup)
        n_read = reader.read(
            self.setup,
            [media.get(text, text) for _, text in inputs],
            [prompt for prompt, _ in inputs],
            _allocate(path, shape),
        )
        names = ", ".join(dict.fromkeys(task.name for task, _ in group))
        with Progress(len(inputs), f"{loaded.name} {names:.60}", "text") as bar:
            for n in n_read:
                bar.update(n)
                self._collect_if_scored()
        return path, {pair: row for row, pair in enumerate(inputs)}

    def _score(self, group: Group, path: Path, rows: Mapping[tuple[str, Any], int]) -> None:
        """Have the layers of a group scored, when those of the last one are."""
        self.collect()
        self.n_files, self.n_waiting = self.n_files + 1, len(rows)
        for task, unit in group:
            pairs = zip(unit.keys, task.inputs(unit), strict=True)
            of_keys = {key: rows[pair] for key, pair in pairs}
            work = partial(_score, task.task, unit.selection, of_keys, path, self.setup.scoring)
            shares = [task.cells[start :: self.threads] for start in range(self.threads)]
            self.pending.append((task, [self.pool.submit(work, share) for share in shares]))
        self._collect_if_scored()

    def _collect_if_scored(self) -> None:
        if all(future.done() for _, futures in self.pending for future in futures):
            self.collect()

    def collect(self) -> None:
        """Wait for the scores of the last group, and hand over tasks that are complete."""
        pending, self.pending = self.pending, []
        for task, futures in pending:
            try:
                of_unit = dict[Cell, Any]()
                for future in futures:
                    scores, n_unconverged = future.result()
                    of_unit |= scores
                    task.n_unconverged += n_unconverged
                task.scores.append(of_unit)
                if len(task.scores) == task.n_units:
                    settings = self.setup.scoring
                    of_cell = {cell: [unit[cell] for unit in task.scores] for cell in task.cells}
                    scores = {c: task.task.scores(units, settings) for c, units in of_cell.items()}
                    self._hand_over(task, scores)
            except Exception as error:  # of mteb's or scikit-learn's code, on data of any sort
                self._note(task.name, error)
        self.n_waiting = 0
        (self.scratch / f"{self.n_files - 1}.npy").unlink(missing_ok=True)

    def _hand_over(self, task: _Recorded, scores: Mapping[Cell, Sequence[Score]]) -> None:
        self.ended[task.name] = None
        for (layer, _), of_subsets in scores.items():
            for each in of_subsets:
                if each.main_score is None:
                    log.warning("%s has no score at layer %s: %s", task.name, layer, each.why)
        if task.n_unconverged:
            log.warning("%s: %d fits did not converge", task.name, task.n_unconverged)
        self.take(TaskScores(task.name, task.task_type, task.representations, scores))

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
        self.ended[name] = self.ended.get(name) or error


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
    task: Task,
    selection: Any,
    rows: Mapping[Key, int],
    path: Path,
    settings: ScoringSettings,
    cells: Sequence[Cell],
) -> UnitScores:
    """Score some layers of a unit, in a process that scores; count fits that did not converge."""
    file = np.load(path, mmap_mode="r")
    scores: dict[Cell, Any] = {}
    with one_thread(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        for layer, number in cells:
            vectors = Vectors(np.array(file[number, layer]), rows)
            scores[layer, number] = task.score(selection, vectors, settings)
    others = [one for one in caught if not issubclass(one.category, ConvergenceWarning)]
    for one in others:
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return scores, len(caught) - len(others)


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
