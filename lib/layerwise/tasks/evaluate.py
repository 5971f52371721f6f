"""Score every layer of a model on tasks: one function for the workflow and for models in memory.

The main process reads one group of units after the other (small tasks together, some sets of a
clustering), each distinct input of a group once, all layers in one pass. Vectors go to local
scratch; processes score their layers while the model reads the next group. Only scores are kept.

`evaluate` writes a table with its own key for each finished task: a killed job continues where it
was.

Scratch holds at most `scoring.waiting_gb` of vectors, or one unit if that is larger. A group has
at most half of the limit.

Combinations of layers (`scoring.layers`) are scored from the same vectors, averaged and
concatenated.
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
from layerwise.tasks.prompts import of_model
from layerwise.tasks.reading import Embedder, Setup
from layerwise.tasks.results import KIND, Combination, Score, join_tables, schema
from layerwise.tasks.task import Key, NoScoreError, Reader, Task, Unit, Vectors, combined
from layerwise.vocabulary import COMBINES

log = logging.getLogger(__name__)

Place = tuple[Combination, int]
"""A layer or several together, and the number of a representation."""


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
    places: list[tuple[dict[str, Any], int, Sequence[Score]]] = [
        ({"layer": layer, "depth": layer / last}, way, found)
        for (layer, way), found in scored.scores.items()
    ]
    places += [(one.columns, way, found) for (one, way), found in scored.together.items()]
    rows = [
        about
        | {"task_type": scored.task_type}
        | place
        | scored.representations[way]._asdict()
        | vars(one)
        for place, way, found in places
        for one in found
    ]
    tables.write(
        path,
        pa.Table.from_pylist(rows, schema=schema(together=bool(scored.together))),
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
    together : mapping
        The same of combinations of layers.
    """

    name: str
    task_type: str
    representations: list[Representation]
    scores: Mapping[tuple[int, int], Sequence[Score]]
    together: Mapping[Place, Sequence[Score]] = field(default_factory=dict)


def set_up(loaded: LoadedModel, extraction: ExtractSettings, scoring: ScoringSettings) -> Setup:
    """A model with its prompts; vectors are scaled as the model does, unless the settings say.

    Raises
    ------
    LayerwiseError
        If `scoring.layers` has a layer that the model lacks.
    """
    last = loaded.anatomy.n_layers - 1
    for layers in scoring.combinations:
        if layers[-1] > last:
            raise LayerwiseError(
                f"scoring.layers: {loaded.name} has the layers 0 to {last}, not {layers[-1]}; "
                f"correct {list(layers)}.",
                code="out_of_range",
            )
    if scoring.normalize is None:
        scoring = scoring.model_copy(update={"normalize": loaded.normalizes})
    return Setup(loaded, extraction, scoring, of_model(loaded.entry, loaded.revision))


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
        job = _Job(setup, take, pool or Pool(_Here(), 1), folder)
        try:
            job.run(tasks)
        except BrokenProcessPool as error:
            raise LayerwiseError(
                "A scoring process was killed, most likely because memory ran out; lower "
                "scoring.threads. Finished tasks are kept.",
                code="no_memory",
            ) from error
    if job.failures:
        (first, *_), n = job.failures.values(), len(job.failures)
        more = f" ({n} of {len(tasks)} tasks failed)" if n > 1 else ""
        raise LayerwiseError(f"{first}{more}", code=first.code) from first


class Pool(NamedTuple):
    """Processes that score, and their number."""

    executor: Executor
    size: int


@dataclass(eq=False)
class _Pending:
    """A task that is being scored.

    Attributes
    ----------
    representations : list of Representation
    scores : list
        Of each unit that is read, the futures of the scores of its layers.
    """

    name: str
    task: Task
    task_type: str
    reader: Reader
    representations: list[Representation]
    n_units: int
    scores: list[list[Future[dict[Place, Any]]]] = field(default_factory=list)

    def is_scored(self) -> bool:
        """True if all layers are scored on all units."""
        return len(self.scores) == self.n_units and all(
            future.done() for futures in self.scores for future in futures
        )


class _Part(NamedTuple):
    """A unit of a task, and the prompt and text of each of its keys."""

    pending: _Pending
    unit: Unit
    inputs: list[tuple[str, Any]]

    @property
    def sort(self) -> tuple[Any, ...]:
        """Equal for parts that can be read together."""
        return self.pending.reader, *self.unit.sort


@dataclass
class _Job:
    """The scoring of a model.

    Attributes
    ----------
    pending : list
        Tasks that are not scored yet.
    failures : dict
        The first error of each task that failed.
    n_read : int
        Number of groups that were read; each has a file of vectors until it is scored.
    n_waiting : int
        Number of inputs in the last of these files.
    """

    setup: Setup
    take: Callable[[TaskScores], None]
    pool: Pool
    scratch: Path
    pending: list[_Pending] = field(default_factory=list)
    failures: dict[str, LayerwiseError] = field(default_factory=dict)
    n_read: int = 0
    n_waiting: int = 0

    def limit(self, reader: Reader) -> int:
        """Number of inputs whose vectors may be on the scratch disk."""
        n_ways, n_layers = len(reader.representations(self.setup)), self._n_layers
        n_bytes = 4 * n_ways * n_layers * reader.width(self.setup)
        return int(self.setup.scoring.waiting_gb * 1e9) // n_bytes

    @property
    def _n_layers(self) -> int:
        return self.setup.loaded.anatomy.n_layers

    def run(self, tasks: Mapping[str, Task]) -> None:
        """Score tasks, and note the failures."""
        for group in self._groups(tasks):
            try:
                self._read(group)
            except Exception as error:
                if _ends_all(error):
                    raise
                for part in group:  # Each alone: the other tasks go on.
                    self._read_alone(part)
        self._wait()

    def _read_alone(self, part: _Part) -> None:
        """Read a unit of a group that failed, unless its task has failed already."""
        if part.pending not in self.pending:
            return
        try:
            self._read([part])
        except NoScoreError as error:
            self._take(part.pending, self._without_scores(part.pending, str(error)))
        except Exception as error:
            self._note(part.pending.name, error)
        else:
            return
        if part.pending in self.pending:
            self.pending.remove(part.pending)

    def _groups(self, tasks: Mapping[str, Task]) -> Iterator[list[_Part]]:
        """Group the units of all tasks, in order: up to half of the limit is read together."""
        group: list[_Part] = []
        inputs: set[tuple[str, Any]] = set()
        for part in self._parts(tasks):
            most = max(1, self.limit(part.pending.reader) // 2)
            is_alike = group and part.sort == group[0].sort
            if part.pending.name in self.failures:
                continue
            if group and not (is_alike and len(inputs.union(part.inputs)) <= most):
                yield group
                group, inputs = [], set()
            group.append(part)
            inputs.update(part.inputs)
        if group:
            yield group

    def _parts(self, tasks: Mapping[str, Task]) -> Iterator[_Part]:
        """The units of all tasks, with the prompts in front of their texts."""
        for name, task in tasks.items():
            try:
                reader = task.reader
                ways = reader.representations(self.setup)
                units = list(task.units(max(1, self.limit(reader) // 2)))
                kinds = dict.fromkeys(kind for unit in units for kind, _ in unit.keys)
                before = {kind: task.prompt(self.setup.prompts, name, kind) for kind in kinds}
                pending = _Pending(name, task, task.task_type, reader, ways, len(units))
            except Exception as error:
                self._note(name, error)
                continue
            for kind, prompt in before.items():
                if prompt:
                    log.info("%s: in front of %s: %r", name, kind or "each text", prompt)
            self.pending.append(pending)
            for unit in units:
                yield _Part(pending, unit, [(before[kind], text) for kind, text in unit.keys])

    def _read(self, group: list[_Part]) -> None:
        """Write the vectors of units to a file, and have them scored while others are read."""
        loaded, reader = self.setup.loaded, group[0].pending.reader
        ways = group[0].pending.representations
        inputs = dict.fromkeys(pair for part in group for pair in part.inputs)
        media = {sha: one for part in group for sha, one in part.unit.media.items()}
        if len(inputs) + self.n_waiting > self.limit(reader):
            self._wait()
        path = self.scratch / f"{self.n_read}.npy"
        shape = len(ways), self._n_layers, len(inputs), reader.width(self.setup)
        done = reader.read(
            self.setup,
            [media.get(text, text) for _, text in inputs],
            [prompt for prompt, _ in inputs],
            _allocate(path, shape),
        )
        names = ", ".join(dict.fromkeys(part.pending.name for part in group))
        with Progress(len(inputs), f"{loaded.name} {names:.60}", "text") as bar:
            for n in done:
                bar.update(n)
                self._hand_over()
        self._wait()
        self.n_read, self.n_waiting = self.n_read + 1, len(inputs)
        places = {pair: place for place, pair in enumerate(inputs)}
        layers = self._places(group[0].pending)
        shares = [layers[k :: self.pool.size] for k in range(self.pool.size)]
        for part in group:
            rows = {k: places[pair] for k, pair in zip(part.unit.keys, part.inputs, strict=True)}
            unit = _ReadUnit(part.pending.task, part.unit.selection, rows, path)
            score_layers = partial(_score, unit, settings=self.setup.scoring)
            part.pending.scores.append(
                [self.pool.executor.submit(score_layers, share) for share in shares]
            )
        self._hand_over()

    def _wait(self) -> None:
        """Wait until all that is read is scored."""
        wait(future for one in self.pending for futures in one.scores for future in futures)
        self._hand_over()
        self.n_waiting = 0
        (self.scratch / f"{self.n_read - 1}.npy").unlink(missing_ok=True)

    def _hand_over(self) -> None:
        """Hand over the scores of tasks that are scored by now."""
        for one in [one for one in self.pending if one.is_scored()]:
            self.pending.remove(one)
            try:
                units = [
                    {place: part for future in futures for place, part in future.result().items()}
                    for futures in one.scores
                ]
                scores = {
                    place: one.task.scores([unit[place] for unit in units], self.setup.scoring)
                    for place in self._places(one)
                }
                self._take(one, scores)
            except Exception as error:
                self._note(one.name, error)

    def _take(self, one: _Pending, scores: Mapping[Place, Sequence[Score]]) -> None:
        for (layers, _), found in scores.items():
            for each in found:
                if each.main_score is None:
                    log.warning("%s has no score at layer %s: %s", one.name, layers, each.why)
        single = {(c.layers[0], way): found for (c, way), found in scores.items() if not c.combine}
        together = {place: found for place, found in scores.items() if place[0].combine}
        self.take(TaskScores(one.name, one.task_type, one.representations, single, together))

    def _without_scores(self, one: _Pending, why: str) -> Mapping[Place, Sequence[Score]]:
        return {place: [Score(None, why=why)] for place in self._places(one)}

    def _places(self, one: _Pending) -> list[Place]:
        """All that is scored of a task: layers first, then several together."""
        found = [Combination((layer,)) for layer in range(self._n_layers)]
        if isinstance(one.reader, Embedder):
            several = self.setup.scoring.combinations
            found += [Combination(layers, way) for layers in several for way in COMBINES]
        return [(each, way) for each in found for way in range(len(one.representations))]

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


class _ReadUnit(NamedTuple):
    """A unit of a task whose inputs have been read: the row of each input in a file of vectors."""

    task: Task
    selection: Any
    rows: Mapping[Key, int]
    path: Path


def _score(
    unit: _ReadUnit, places: Sequence[Place], settings: ScoringSettings
) -> dict[Place, Any]:
    """Score some layers of a unit, in a process that scores."""
    file = np.load(unit.path, mmap_mode="r")
    scores: dict[Place, Any] = {}
    with one_thread():
        for together, way in places:
            layers = [np.array(file[way, layer]) for layer in together.layers]
            vectors = Vectors(combined(layers, together.combine), unit.rows)
            scores[together, way] = unit.task.score(unit.selection, vectors, settings)
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
