"""Score every layer of one model at one checkpoint on all its tasks.

The main process embeds one unit of work after the other (a small task, some sets of a clustering),
each distinct text of it once, all layers in one pass. Vectors go to local scratch; processes score
their layers while the model embeds the next unit. Only scores are kept. Each finished task is a
table with its own key: a killed job continues where it was.

Scratch holds at most `scoring.waiting_gb` of vectors, or one unit if that is larger. A unit has at
most a quarter of the limit, unless the task cannot be divided.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerwise.config.scoring import ScoringSettings
from layerwise.config.tasks import ChoiceTask, LabelledTask
from layerwise.errors import DiskError, LayerwiseError
from layerwise.extras import require
from layerwise.io import tables
from layerwise.names import encode
from layerwise.progress import Progress
from layerwise.tasks import results
from layerwise.tasks.prompts import Prompts, normalizes, of_model
from layerwise.tasks.task import Key, LoadedTask, Task, Unit, Vectors, normalized

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
            facts: dict[str, Any] = {
                "model": loaded.name,
                "revision": loaded.revision,
                "dtype": loaded.dtype,
                "weights_sha256": loaded.weights,
                "settings": scoring.plain(),
            }
            job = _Job(
                loaded,
                of_model(entry, loaded.revision),
                extraction,
                scoring,
                pool,
                threads,
                Path(scratch),
                paths,
                keys,
                facts,
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
    """A task whose units are being embedded and scored.

    Attributes
    ----------
    scores : list of dict
        For each unit the task's scores by representation and layer.
    n_open : int
        Units that are not scored yet.
    is_embedded : bool
        True once all units are embedded.
    """

    name: str
    task: LoadedTask
    scores: list[dict[Place, Any]] = field(default_factory=list)
    n_open: int = 0
    is_embedded: bool = False


@dataclass
class _Waiting:
    """Vectors on the scratch disk, until all their layers are scored."""

    pending: _Pending
    number: int
    path: Path
    n_bytes: int
    n_futures: int


class KilledError(LayerwiseError):
    """A scoring process was killed, and no other task can be scored."""


@dataclass
class _Job:
    """Embeds and scores tasks with one model.

    Attributes
    ----------
    paths, keys : mapping
        Table of each task and its key.
    facts : mapping
        Metadata of the tables.
    waiting : dict
        Vectors that scoring processes are at work on.
    failures : dict
        Error of each task that failed.
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
    facts: Mapping[str, Any]
    waiting: dict[Future[Any], _Waiting] = field(default_factory=dict)
    failures: dict[str, LayerwiseError] = field(default_factory=dict)

    @cached_property
    def ways(self) -> list[Representation]:
        """The representations that are scored."""
        from layerwise.activations.embedding import representations_of

        return representations_of(
            self.loaded, self.extraction.tokens, self.scoring.poolings, self.scoring.readouts
        )

    def run(self, due: Mapping[str, Task | QuestionTask], entry: Model) -> None:
        """Score tasks; raises the first failure at the end."""
        from layerwise.tasks.choice import QuestionTask

        for name, task in due.items():
            try:
                if isinstance(task, QuestionTask):
                    budget = self.extraction.batch_tokens
                    self._write(name, task.rows(self.loaded, entry, self.scoring, budget))
                else:
                    self._embed_task(name, task)
            except (DiskError, KilledError):
                raise
            except LayerwiseError as error:
                self._fail(name, error)
        while self.waiting:
            self._collect(block=True)
        if self.failures:
            (first, *_), n = self.failures.values(), len(self.failures)
            more = f" ({n} of {len(due)} tasks failed)" if n > 1 else ""
            raise LayerwiseError(f"{first}{more}") from first

    def _embed_task(self, name: str, task: Task) -> None:
        """Embed a task unit by unit and hand the vectors to the scoring processes."""
        shape = len(self.ways), self.loaded.anatomy.n_layers, self.loaded.anatomy.hidden
        bytes_per_text = 4 * math.prod(shape)
        limit = int(self.scoring.waiting_gb * 1e9)
        pending = _Pending(name, task.load(self.scoring))
        for number, unit in enumerate(pending.task.units(max(1, limit // 4 // bytes_per_text))):
            texts, rows = self._inputs(pending, unit)
            n_bytes = bytes_per_text * len(texts)
            while self.waiting and self._n_bytes() + n_bytes > limit:
                self._collect(block=True)
            path = self.scratch / f"{encode(name)}.{number}.npy"
            self._embed(f"{name} {number + 1}" if number else name, texts, path)
            pending.scores.append({})
            pending.n_open += 1
            unit = replace(unit, pictures={})
            places = list(itertools.product(range(shape[0]), range(shape[1])))
            shares = [places[k :: self.n_processes] for k in range(self.n_processes)]
            waiting = _Waiting(pending, number, path, n_bytes, sum(map(bool, shares)))
            for share in filter(None, shares):
                future = self.pool.submit(_score, task, unit, rows, path, share, self.scoring)
                self.waiting[future] = waiting
        pending.is_embedded = True
        self._finish(pending)
        self._collect(block=False)

    def _inputs(
        self, pending: _Pending, unit: Unit
    ) -> tuple[list[tuple[str, Any]], dict[Key, int]]:
        """Distinct pairs of prompt and text, or image, and the row of each of a unit's keys."""
        kinds = dict.fromkeys(kind for kind, _ in unit.keys)
        before = {kind: self.prompts.of(pending.name, pending.task, kind) for kind in kinds}
        for kind, prompt in before.items():
            if prompt:
                log.info("%s: in front of %s: %r", pending.name, kind or "each text", prompt)
        places: dict[tuple[str, Any], int] = {}
        rows = {
            (kind, text): places.setdefault((before[kind], text), len(places))
            for kind, text in unit.keys
        }
        if unit.pictures:
            return [(prompt, unit.pictures[sha]) for prompt, sha in places], rows
        return list(places), rows

    def _embed(self, what: str, texts: list[tuple[str, Any]], path: Path) -> None:
        """Write the vectors of inputs to a file, shape (representations, layers, inputs, D)."""
        from layerwise.activations.embedding import embed_into

        anatomy = self.loaded.anatomy
        into = _allocate(path, (len(self.ways), anatomy.n_layers, len(texts), anatomy.hidden))
        done = embed_into(
            self.loaded,
            [text for _, text in texts],
            into,
            self.ways,
            prompts=[prompt for prompt, _ in texts],
            include_prompt=self.prompts.include_prompt,
            budget=self.extraction.batch_tokens,
            sink_ratio=self.extraction.sink_ratio,
        )
        with Progress(len(texts), f"{self.loaded.name} {what}", "text") as bar:
            for n in done:
                bar.update(n)
                self._collect(block=False)

    def _n_bytes(self) -> int:
        """Bytes of vectors on the scratch disk."""
        return sum({w.path: w.n_bytes for w in self.waiting.values()}.values())

    def _collect(self, *, block: bool) -> None:
        """Take the scores that are ready; with `block`, wait for the next ones."""
        if not self.waiting:
            return
        for future in wait(self.waiting, None if block else 0, FIRST_COMPLETED).done:
            waiting = self.waiting.pop(future)
            pending = waiting.pending
            waiting.n_futures -= 1
            if not waiting.n_futures:
                waiting.path.unlink()
                pending.n_open -= 1
            try:
                pending.scores[waiting.number] |= future.result()
                self._finish(pending)
            except BrokenProcessPool as error:
                raise KilledError(
                    "A scoring process was killed, most likely because memory ran out; lower "
                    "scoring.threads. Finished tasks are kept."
                ) from error
            except DiskError:
                raise
            except LayerwiseError as error:
                self._fail(pending.name, error)

    def _finish(self, pending: _Pending) -> None:
        """Write a task's table if all its units are scored."""
        if pending.n_open or not pending.is_embedded or pending.name in self.failures:
            return
        last = max(self.loaded.anatomy.n_layers - 1, 1)
        rows: list[dict[str, Any]] = []
        for layer in range(self.loaded.anatomy.n_layers):
            for way, representation in enumerate(self.ways):
                about = {
                    "task_type": pending.task.task_type,
                    "layer": layer,
                    "depth": layer / last,
                    **representation._asdict(),
                }
                parts = [scores[way, layer] for scores in pending.scores]
                rows += [about | row for row in pending.task.rows(parts)]
        self._write(pending.name, rows)

    def _write(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        about = {"model": self.loaded.name, "revision": self.loaded.revision, "task": name}
        made = [results.part_row({**about, **row}) for row in rows]
        for row in made:
            if row["main_score"] is None:
                log.warning("%s has no score at layer %d: %s", name, row["layer"], row["why"])
        table = pa.Table.from_pylist(made, schema=results.part_schema())
        tables.write(
            self.paths[name],
            table,
            kind=results.PART,
            key=self.keys[name],
            task=name,
            **self.facts,
        )

    def _fail(self, name: str, error: LayerwiseError) -> None:
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
    loaded = _loaded(task, settings)
    vectors = np.load(path, mmap_mode="r")
    found: dict[Place, Any] = {}
    with one_thread():
        for way, layer in places:
            values = np.array(vectors[way, layer])
            if settings.normalize:
                values = normalized(values)
            found[way, layer] = loaded.score(unit, Vectors(values, rows))
    return found


@lru_cache(maxsize=1)
def _loaded(task: Task, settings: ScoringSettings) -> LoadedTask:
    """The task's data, which stay in the process for its next layers."""
    return task.load(settings)


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
