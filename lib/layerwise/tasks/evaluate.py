"""Score every layer of one model at one checkpoint on all its tasks.

The main process embeds one group of units after the other (small tasks together, some sets of a
clustering), each distinct text of a group once, all layers in one pass. Vectors go to local
scratch; processes score their layers while the model embeds the next group. Only scores are kept.
Each finished task is a table with its own key: a killed job continues where it was.

Scratch holds at most `scoring.waiting_gb` of vectors, or one unit if that is larger. A group has
at most half of the limit.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from layerwise.activations import embedding
from layerwise.activations.representation import Representation
from layerwise.config.extraction import ExtractSettings
from layerwise.config.models import Model
from layerwise.config.scoring import ScoringSettings
from layerwise.errors import DiskError, LayerwiseError
from layerwise.io import tables
from layerwise.models.load import LoadedModel
from layerwise.names import encode
from layerwise.progress import Progress
from layerwise.tasks.choice import ChoiceTask
from layerwise.tasks.prompts import Prompts, normalizes, of_model
from layerwise.tasks.results import KIND, SCHEMA, Score
from layerwise.tasks.task import Key, Task, Unit, Vectors, normalized

log = logging.getLogger(__name__)

Place = tuple[int, int]
"""Layer and representation, by number."""


def texts_of(task: Task) -> list[str]:
    """Distinct texts of a task, in order of first use."""
    units = task.units(sys.maxsize)
    return list(dict.fromkeys(text for unit in units for _, text in unit.keys))


def evaluate(
    load: Callable[[], LoadedModel],
    tasks: Mapping[str, Task | ChoiceTask],
    *,
    entry: Model,
    extraction: ExtractSettings,
    scoring: ScoringSettings,
    keys: Mapping[str, str],
    key: str,
    output: Path,
    threads: int = 1,
) -> None:
    """Score all layers on all tasks and write the table of scores.

    Each task has a table in the folder beside `output`. Those that have their key are not scored
    again. A task that fails does not stop the others.

    Parameters
    ----------
    load : callable
        Loads the model; called at most once, and only if a task has to be scored.
    tasks : mapping
        Tasks by name.
    entry : Model
        The model's entry in the config.
    keys : mapping
        Key of each task's table, by name.
    key : str
        Key of the table that is assembled from these.
    output : Path
        Table of scores.
    threads : int
        Processes that score, each with one thread; 1 scores in this process.

    Raises
    ------
    LayerwiseError
        After all tasks, if one failed: the first failure.
    """
    folder = output.with_suffix("")
    paths = {name: folder / f"{encode(name)}.parquet" for name in tasks}
    due = {name: task for name, task in tasks.items() if not _is_done(paths[name], keys[name])}
    if len(due) < len(tasks):
        log.info("%d of %d tasks are done already", len(tasks) - len(due), len(tasks))
    if due:
        with (
            _scorers(threads, {type(task).__module__ for task in due.values()}) as pool,
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
            try:
                job.run(due, entry)
            except BrokenProcessPool as error:
                raise LayerwiseError(
                    "A scoring process was killed, most likely because memory ran out; lower "
                    "scoring.threads. Finished tasks are kept.",
                    code="no_memory",
                ) from error
    scores = pa.Table.from_pandas(tables.read(paths.values(), "scores", kind=KIND), schema=SCHEMA)
    about = tables.facts(next(iter(paths.values())))
    facts = {name: about[name] for name in ("model", "revision", "dtype", "weights_sha256")}
    tables.write(output, scores, kind=KIND, key=key, **facts)


def _is_done(path: Path, key: str) -> bool:
    """True if a task's table is there, whole, and has this key."""
    try:
        tables.read(path, "scores", kind=KIND)
        return tables.facts(path).get("key") == key
    except LayerwiseError:
        return False


@dataclass
class _Pending:
    """A task that is being scored.

    Attributes
    ----------
    scores : list
        Of each unit that is embedded, the futures of the scores of its layers.
    """

    name: str
    task: Task
    task_type: str
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


@dataclass
class _Job:
    """The evaluation of a model.

    Attributes
    ----------
    pending : list
        Tasks whose table is not written yet.
    failures : dict
        The first error of each task that failed.
    n_embedded : int
        Number of groups that were embedded; each has a file of vectors until it is scored.
    n_waiting : int
        Number of inputs in the last of these files.
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
    pending: list[_Pending] = field(default_factory=list)
    failures: dict[str, LayerwiseError] = field(default_factory=dict)
    n_embedded: int = 0
    n_waiting: int = 0

    @cached_property
    def ways(self) -> list[Representation]:
        """The representations that are scored."""
        return embedding.representations_of(
            self.loaded, self.extraction.tokens, self.scoring.poolings, self.scoring.readouts
        )

    @cached_property
    def limit(self) -> int:
        """Number of inputs whose vectors may be on the scratch disk."""
        anatomy = self.loaded.anatomy
        n_bytes = 4 * len(self.ways) * anatomy.n_layers * anatomy.hidden
        return int(self.scoring.waiting_gb * 1e9) // n_bytes

    def run(self, due: Mapping[str, Task | ChoiceTask], entry: Model) -> None:
        """Score tasks; raises the first failure at the end."""
        to_embed: dict[str, Task] = {}
        for name, task in due.items():
            if not isinstance(task, ChoiceTask):
                to_embed[name] = task
                continue
            with self._failing(name):
                ways = [Representation("all", form, "final_norm") for form in task.entry.forms]
                budget = self.extraction.batch_tokens
                answered = task.scores(self.loaded, entry, budget)
                scores = {place: [score] for place, score in answered.items()}
                self._write(name, "MultipleChoice", ways, scores)
        for group in self._groups(to_embed):
            try:
                self._embed(group)
            except DiskError:
                raise
            except LayerwiseError:
                for part in group:  # Each alone: the other tasks go on.
                    with self._failing(part.pending.name):
                        self._embed([part])
        self._wait()
        if self.failures:
            (first, *_), n = self.failures.values(), len(self.failures)
            more = f" ({n} of {len(due)} tasks failed)" if n > 1 else ""
            raise LayerwiseError(f"{first}{more}", code=first.code) from first

    def _groups(self, tasks: Mapping[str, Task]) -> Iterator[list[_Part]]:
        """Group the units of all tasks, in order: up to half of the limit is embedded together."""
        most = max(1, self.limit // 2)
        group: list[_Part] = []
        inputs: set[tuple[str, Any]] = set()
        for part in self._parts(tasks, most):
            # Texts, images and words are embedded apart.
            is_alike = group and part.unit.sort == group[0].unit.sort
            if group and not (is_alike and len(inputs.union(part.inputs)) <= most):
                yield group
                group, inputs = [], set()
            group.append(part)
            inputs.update(part.inputs)
        if group:
            yield group

    def _parts(self, tasks: Mapping[str, Task], most: int) -> Iterator[_Part]:
        """The units of all tasks, with the prompts in front of their texts."""
        for name, task in tasks.items():
            units: list[Unit] = []
            with self._failing(name):
                units = list(task.units(most))
                kinds = dict.fromkeys(kind for unit in units for kind, _ in unit.keys)
                before = {kind: self.prompts.of(name, task, kind) for kind in kinds}
                pending = _Pending(name, task, task.task_type, len(units))
                for kind, prompt in before.items():
                    if prompt:
                        log.info("%s: in front of %s: %r", name, kind or "each text", prompt)
                self.pending.append(pending)
            for unit in units:
                yield _Part(pending, unit, [(before[kind], text) for kind, text in unit.keys])

    def _embed(self, group: list[_Part]) -> None:
        """Write the vectors of units to a file, and have them scored while others are embedded."""
        inputs = dict.fromkeys(pair for part in group for pair in part.inputs)
        places = {pair: place for place, pair in enumerate(inputs)}
        pictures = {sha: p for part in group for sha, p in part.unit.pictures.items()}
        if len(inputs) + self.n_waiting > self.limit:
            self._wait()
        anatomy, path = self.loaded.anatomy, self.scratch / f"{self.n_embedded}.npy"
        done = embedding.embed_into(
            self.loaded,
            [pictures.get(text, text) for _, text in inputs],
            _allocate(path, (len(self.ways), anatomy.n_layers, len(inputs), anatomy.hidden)),
            self.ways,
            prompts=[prompt for prompt, _ in inputs],
            include_prompt=self.prompts.include_prompt,
            budget=self.extraction.batch_tokens,
            sink_ratio=self.extraction.sink_ratio,
        )
        names = ", ".join(dict.fromkeys(part.pending.name for part in group))
        with Progress(len(inputs), f"{self.loaded.name} {names:.60}", "text") as bar:
            for n in done:
                bar.update(n)
                self._write_scored()
        self._wait()
        self.n_embedded, self.n_waiting = self.n_embedded + 1, len(inputs)
        layers = list(np.ndindex(anatomy.n_layers, len(self.ways)))
        for pending, unit, own in group:
            rows = {key: places[pair] for key, pair in zip(unit.keys, own, strict=True)}
            given = pending.task, unit.selection, rows, path, self.scoring
            shares = [layers[k :: self.n_processes] for k in range(self.n_processes)]
            pending.scores.append([self.pool.submit(_score, share, *given) for share in shares])
        self._write_scored()

    def _wait(self) -> None:
        """Wait until all that is embedded is scored."""
        wait(future for one in self.pending for futures in one.scores for future in futures)
        self._write_scored()
        self.n_waiting = 0
        (self.scratch / f"{self.n_embedded - 1}.npy").unlink(missing_ok=True)

    def _write_scored(self) -> None:
        """Write the tables of tasks that are scored by now."""
        for one in [one for one in self.pending if one.is_scored()]:
            self.pending.remove(one)
            with self._failing(one.name):
                units = [
                    {place: part for future in futures for place, part in future.result().items()}
                    for futures in one.scores
                ]
                scores = {
                    place: one.task.scores([unit[place] for unit in units], self.scoring)
                    for place in sorted(units[0])
                }
                self._write(one.name, one.task_type, self.ways, scores)

    def _write(
        self,
        name: str,
        task_type: str,
        ways: Sequence[Representation],
        scores: Mapping[Place, Sequence[Score]],
    ) -> None:
        """Write the table of a task from the scores of every layer and representation."""
        loaded, rows = self.loaded, []
        about = {"model": loaded.name, "revision": loaded.revision, "task": name}
        for (layer, way), found in scores.items():
            depth = layer / max(loaded.anatomy.n_layers - 1, 1)
            place = {"task_type": task_type, "layer": layer, "depth": depth, **ways[way]._asdict()}
            for score in found:
                if score.main_score is None:
                    log.warning("%s has no score at layer %d: %s", name, layer, score.why)
                rows.append(about | place | vars(score))
        tables.write(
            self.paths[name],
            pa.Table.from_pylist(rows, schema=SCHEMA),
            kind=KIND,
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
        except DiskError:
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
    places: Sequence[Place],
    task: Task,
    selection: Any,
    rows: Mapping[Key, int],
    path: Path,
    settings: ScoringSettings,
) -> dict[Place, Any]:
    """Score some layers of a unit, in a process that scores."""
    vectors = np.load(path, mmap_mode="r")
    scores: dict[Place, Any] = {}
    with one_thread():
        for layer, way in places:
            values = np.array(vectors[way, layer])
            if settings.normalize:
                values = normalized(values)
            scores[layer, way] = task.score(selection, Vectors(values, rows), settings)
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


@contextmanager
def _scorers(n: int, modules: set[str]) -> Iterator[Executor]:
    """Processes that score, forked off one that has imported `modules` and no model."""
    if n == 1:
        yield _Here()
        return
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__, *sorted(modules)])
    pool = ProcessPoolExecutor(n, mp_context=context)
    pool.submit(int)  # Imports go on while the model is loaded.
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
