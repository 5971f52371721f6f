"""Score every layer of a model on tasks: one function for the workflow and for models in memory.

A task records the inputs that it needs, in units (a task, or some sets of a clustering). The model
embeds a unit, all layers in one pass, to a file on local scratch, and processes score its layers
while the next ones are embedded. Inputs that the unit before had too are not embedded again. Only
scores are kept.

`evaluate` writes a table with its own key for each finished task: a killed job continues where it
was.

Scratch holds at most `WAITING_BYTES` of vectors, or one unit if that is larger. A unit has
at most half of the limit where it can be divided.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sklearn.exceptions import ConvergenceWarning

from layerwise.activations.representation import Representation
from layerwise.config.settings import ExtractSettings, ScoringSettings
from layerwise.errors import DiskError, LayerwiseError, first_line
from layerwise.io import tables
from layerwise.io.files import disk_fault, memory_fault, scratch
from layerwise.models.load import LoadedModel
from layerwise.names import encode
from layerwise.progress import Progress
from layerwise.tasks.task import (
    Key,
    NoScoreError,
    Setup,
    Task,
    Unit,
    Vectors,
    allocate,
    one_thread,
    set_up,
)

KIND = tables.Kind("layerwise.scores", 3)

# As in mteb's own JSON.
DECIMALS = 6
# Of the bootstrap interval of a score with several runs.
RESAMPLES = 1000


@dataclass(frozen=True)
class Score:
    """Score of one layer on a task, in the columns of the table.

    Attributes
    ----------
    main_score : float or None
        At most 1; None if it is not defined.
    score_low, score_high : float or None
        Interval; None for a score of one run.
    n_runs : int
        Number of values behind the interval. Of a probe: rows tested.
    why : str or None
        Reason why there is no score.
    chance : float or None
        Score of guessing; None where that is 0 or not known.
    neighbours, neighbours_low, neighbours_high : float, optional
        Of a probe: score of nearest neighbours, with its interval.
    control, selectivity : float, optional
        Of a probe: score on control labels, and the main score less this.
    baseline : float, optional
        Of a probe: score of predicting the training rows' most frequent class, or their mean.
    penalty : float, optional
        Of a probe: L2 penalty, the median over splits.
    n_train : int, optional
        Of a probe: rows behind one fit.
    sub_scores : str, optional
        Of a task of mteb's: all of its scores as JSON, if they are asked for.
    values : array, shape (groups,), optional
        Pseudo-values of the main score, which is their mean, if they are asked for
        (`layerwise.tasks.probes.pseudo_values`). Not in the table.
    """

    main_score: float | None
    score_low: float | None = None
    score_high: float | None = None
    n_runs: int = 1
    why: str | None = None
    chance: float | None = None
    subset: str = "default"
    split: str = "test"
    neighbours: float | None = None
    neighbours_low: float | None = None
    neighbours_high: float | None = None
    control: float | None = None
    selectivity: float | None = None
    baseline: float | None = None
    penalty: float | None = None
    n_train: int | None = None
    sub_scores: str | None = None
    values: npt.NDArray[Any] | None = field(default=None, compare=False, repr=False)


_NAMES = ("model", "revision", "task", "task_type", "tokens", "pooling", "readout")
_TYPES = {"str": pa.string(), "int": pa.int32(), "float": pa.float64()}
# Columns of the table of scores.
SCHEMA = pa.schema(
    [(name, pa.string()) for name in _NAMES]
    + [("layer", pa.int32()), ("depth", pa.float64())]
    + [(f.name, _TYPES[str(f.type).split()[0]]) for f in fields(Score) if f.compare]
)


def schema_of(columns: Container[str]) -> pa.Schema:
    """Columns of a table of scores; the stream is one of them for a model that has several."""
    return SCHEMA.append(pa.field("stream", pa.string())) if "stream" in columns else SCHEMA


# Numbers of a layer and of a representation.
Cell = tuple[int, int]


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


def write_table(
    scored: TaskScores, loaded: LoadedModel, settings: ScoringSettings, path: Path, key: str
) -> None:
    """Write the table of a task, with its key."""
    about = {"model": loaded.name, "revision": loaded.revision, "task": scored.name}
    if loaded.anatomy.layout.streams > 1:
        about["stream"] = str(loaded.entry.stream)
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
        pa.Table.from_pylist(rows, schema=schema_of(about)),
        kind=KIND,
        key=key,
        dtype=loaded.dtype,
        weights_sha256=loaded.weights,
        settings=settings.plain(),
        **about,
    )


def has_key(path: Path, key: str) -> bool:
    """True if a table of scores is there, whole, and has this key."""
    try:
        tables.read(path, "scores", kind=KIND)
        return tables.facts(path).get("key") == key
    except LayerwiseError:
        return False


def join_tables(parts: Iterable[Path], tasks: Iterable[str], *, key: str, output: Path) -> None:
    """Write the table of scores of a model from the tables of its tasks.

    Parameters
    ----------
    parts : iterable of Path
        The tables of the tasks.
    tasks : iterable of str
        Names of the tasks in the order of the rows.
    key : str
        Key of the table that is written.

    Raises
    ------
    LayerwiseError
        If the tables do not have each task once.
    """
    paths, order = list(parts), {task: number for number, task in enumerate(tasks)}
    names = [tables.read(path, "scores", ["task"], kind=KIND)["task"].unique() for path in paths]
    if sorted(np.concatenate(names)) != sorted(order):
        raise LayerwiseError(
            f"{paths[0].parent}: the tables are not of the tasks that their names say; delete "
            "the folder and run again.",
            code="mismatch",
        )
    rows = tables.read(paths, "scores", kind=KIND)
    rows = rows.iloc[rows["task"].map(order).argsort(kind="stable")]
    scores = pa.Table.from_pandas(rows, schema=schema_of(rows), preserve_index=False)
    about = [tables.facts(path) for path in paths]
    shared = ("model", "revision", "dtype", "weights_sha256")
    facts = {name: about[0][name] for name in shared}
    if any(facts.items() - each.items() for each in about):
        raise LayerwiseError(
            f"{paths[0].parent}: the tasks were scored with different weights; delete the folder "
            "and run again.",
            code="mismatch",
        )
    facts["versions"] = tables.joined_versions(about)
    tables.write(output, scores, kind=KIND, key=key, **facts)


def runs(scores: Mapping[str, Any], main_score: str) -> list[float]:
    """The values that one of mteb's main scores is the mean of; empty where there are none.

    Classification: one per experiment. Clustering: one per set of documents, or per sample and
    level of labels.
    """
    if "scores_per_experiment" in scores:
        values: Any = [run[main_score] for run in scores["scores_per_experiment"]]
    else:
        name = "v_measures" if main_score == "v_measure" else f"{main_score}_scores"
        values = scores.get(name, [])
    if isinstance(values, Mapping):
        values = [value for level in values.values() for value in level]
    return [float(value) for value in values] if isinstance(values, list) else []


def joined(runs: Sequence[float], main_score: str) -> dict[str, Any]:
    """mteb's scores of a clustering whose sets were scored apart, from the score of each set."""
    mean = float(np.mean(runs))
    return {
        "v_measures": list(runs),
        "v_measure_std": float(np.std(runs)),
        main_score: mean,
        "main_score": mean,
    }


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """95% percentile bootstrap interval of the mean of `values`; (None, None) for fewer than two.

    Efron & Tibshirani 1993, chapter 13. The same resamples are drawn for every layer.
    """
    if len(values) < 2:
        return None, None
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(values), size=(RESAMPLES, len(values)))
    means = np.round(values, DECIMALS)[drawn].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


log = logging.getLogger(__name__)

# Tasks whose data are read at one time, that of the task that is embedded among them:
# MindSmallReranking takes minutes.
AHEAD = 16
# Limit on vectors that wait on local disk for their scores.
WAITING_BYTES = 4e9


def evaluate(
    load: Callable[[], LoadedModel],
    tasks: Mapping[str, Task],
    *,
    extraction: ExtractSettings,
    scoring: ScoringSettings,
    keys: Mapping[str, str],
    key: str,
    output: Path,
    threads: int = 1,
) -> None:
    """Score all layers on all tasks and write the table of scores.

    Each task has a table in a folder beside `output`. Those that have their key are not scored
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
    threads : int
        Processes that score, each with one thread; 1 scores in this process.

    Raises
    ------
    LayerwiseError
        After all tasks, if one failed: the first failure.
    """
    paths = {name: output.with_suffix("") / f"{encode(name)}.parquet" for name in tasks}
    due = {name: task for name, task in tasks.items() if not has_key(paths[name], keys[name])}
    if len(due) < len(tasks):
        log.info("%d of %d tasks are done already", len(tasks) - len(due), len(tasks))
    if due:
        with _scorers(threads, {type(task).__module__ for task in due.values()}) as pool:
            setup = set_up(load(), extraction, scoring)

            def write(scored: TaskScores) -> None:
                path, task_key = paths[scored.name], keys[scored.name]
                write_table(scored, setup.loaded, setup.scoring, path, task_key)

            score_tasks(setup, due, write, pool, threads)
    join_tables(paths.values(), tasks, key=key, output=output)


def score_tasks(
    setup: Setup,
    tasks: Mapping[str, Task],
    write: Callable[[TaskScores], None],
    pool: Executor | None = None,
    threads: int = 1,
) -> None:
    """Score all layers of a model on tasks. A task that fails does not stop the others.

    Parameters
    ----------
    tasks : mapping
        Tasks by name.
    write : callable
        Gets the scores of each task when they are complete.
    pool : Executor, optional
        Processes that score, as many as `threads`; by default this one.

    Raises
    ------
    LayerwiseError
        After all tasks, if one failed: the first failure.
    """
    with scratch() as folder:
        run = _Run(setup, write, pool or SerialExecutor(), threads, folder)
        try:
            for number, (name, task) in enumerate(tasks.items()):
                for coming in itertools.islice(tasks, number, number + AHEAD):
                    run.record_ahead(coming, tasks[coming])
                run.add(name, task)
            run.collect(math.inf)
        except BrokenProcessPool as error:
            raise LayerwiseError(
                "A scoring process was killed, most likely because memory ran out; lower "
                "scoring.threads. Finished tasks are kept.",
                code="no_memory",
            ) from error
    if failures := list(run.failures.values()):
        first, n = failures[0], len(failures)
        more = f" ({n} of {len(tasks)} tasks failed)" if n > 1 else ""
        raise LayerwiseError(f"{first}{more}", code=first.code) from first


# Scores of layers on a unit, and the number of fits that did not converge.
UnitScores = tuple[dict[Cell, Any], int]


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
    units: list[Unit]
    prompts: dict[str, str]
    representations: list[Representation]
    cells: list[Cell]
    n_unconverged: int = 0
    unit_scores: list[dict[Cell, Any]] = field(default_factory=list)


@dataclass(eq=False)
class _Embedded:
    """A unit whose vectors are on the scratch disk.

    Attributes
    ----------
    row_of : dict
        Row of each prompt and input.
    pending : list
        Scores of the unit's layers as they come; empty when they are taken.
    """

    recorded: _Recorded
    path: Path
    row_of: dict[tuple[str, Any], int]
    pending: list[Future[UnitScores]] = field(default_factory=list)


@dataclass
class _Run:
    """A model on its way through tasks.

    Attributes
    ----------
    failures : dict
        The first error of each task that failed.
    embedded : list
        Units on the scratch disk, oldest first: those that wait for scores, and the
        last one, whose vectors the next unit may share.
    n_files : int
        Number of files of vectors that were written.
    coming : dict
        Units of the next tasks, as scoring processes record them.
    """

    setup: Setup
    write: Callable[[TaskScores], None]
    pool: Executor
    threads: int
    scratch: Path
    failures: dict[str, LayerwiseError] = field(default_factory=dict)
    embedded: list[_Embedded] = field(default_factory=list)
    n_files: int = 0
    coming: dict[str, Future[list[Unit]]] = field(default_factory=dict)

    def record_ahead(self, name: str, task: Task) -> None:
        """Have a process record a task, if reading its data may take long."""
        with suppress(LayerwiseError):  # raised again when it is the task's turn
            if self.threads > 1 and name not in self.coming and task.is_read_ahead:
                self.coming[name] = self.pool.submit(_units, task, self._most(task))

    def add(self, name: str, task: Task) -> None:
        """Record a task, embed its units, and have them scored."""
        try:
            recorded = self._record(name, task)
            try:
                for unit in recorded.units:
                    if name not in self.failures:  # an earlier unit may have failed
                        self._embed(recorded, unit)
            except NoScoreError as error:  # of `task.read`
                no_score = [Score(None, why=str(error))]
                self._hand_over(recorded, dict.fromkeys(recorded.cells, no_score))
        except Exception as error:  # of libraries that read data, of the model's code, or of texts
            self._note(name, error)

    def _record(self, name: str, task: Task) -> _Recorded:
        future = self.coming.pop(name, None)
        units = future.result() if future else list(task.units(self._most(task)))
        prompt_types = dict.fromkeys(prompt_type for unit in units for prompt_type, _ in unit.keys)
        prompts = {t: task.prompt(self.setup.prompts, name, t) for t in prompt_types}
        for prompt_type, prompt in prompts.items():
            if prompt:
                log.info("%s: in front of %s: %r", name, prompt_type or "each text", prompt)
        representations = task.representations(self.setup)
        n_layers = self.setup.loaded.anatomy.n_layers
        cells = list(itertools.product(range(n_layers), range(len(representations))))
        return _Recorded(name, task, units, prompts, representations, cells)

    def _most(self, task: Task) -> int:
        """Inputs of a unit: half of the limit, so that the next unit fits beside it."""
        n_vectors = len(task.representations(self.setup)) * self.setup.loaded.anatomy.n_layers
        of_input = 4 * n_vectors * task.width(self.setup)  # 4 bytes a number
        return max(1, int(WAITING_BYTES / of_input) // 2)

    def _embed(self, recorded: _Recorded, unit: Unit) -> None:
        """Write the vectors of a unit to a file, and have its layers scored."""
        loaded, task, width = self.setup.loaded, recorded.task, recorded.task.width(self.setup)
        inputs = dict.fromkeys((recorded.prompts[t], text) for t, text in unit.keys)
        shape = len(recorded.representations), loaded.anatomy.n_layers, len(inputs)
        path = self.scratch / f"{self.n_files}.npy"
        self.n_files += 1
        # Before `last`: making room may drop the unit that vectors would be copied from.
        self.collect(4 * math.prod(shape) * width)
        into = allocate(path, (*shape, width))
        last = self.embedded[-1] if self.embedded else None
        shared = last.row_of if last and last.recorded.task.reader == task.reader else {}
        to_read = [pair for pair in inputs if pair not in shared]
        copied = [pair for pair in inputs if pair in shared]
        if last and copied:
            vectors = np.load(last.path, mmap_mode="r")
            into[:, :, len(to_read) :] = vectors[:, :, [shared[pair] for pair in copied]]
        if to_read:
            n_read = task.read(
                self.setup,
                [unit.media.get(text, text) for _, text in to_read],
                [prompt for prompt, _ in to_read],
                into[:, :, : len(to_read)],
            )
            with Progress(len(to_read), f"{loaded.name} {recorded.name:.60}", "text") as bar:
                for n in n_read:
                    bar.update(n)
                    self.collect()
        row_of = {pair: row for row, pair in enumerate([*to_read, *copied])}
        rows = {(t, text): row_of[recorded.prompts[t], text] for t, text in unit.keys}
        work = partial(_score_cells, task, unit.selection, rows, path, self.setup.scoring)
        shares = [recorded.cells[start :: self.threads] for start in range(self.threads)]
        pending = [self.pool.submit(work, share) for share in shares]
        self.embedded.append(_Embedded(recorded, path, row_of, pending))
        self.collect()

    def collect(self, n_bytes: float = 0) -> None:
        """Take the scores that have come, of the oldest unit first, and drop its vectors.

        Wait for scores until so many bytes fit beside the vectors that are left. Those of the last
        unit stay if they do.
        """
        while self.embedded:
            oldest, others = self.embedded[0], self.embedded[1:]
            sizes = [embedded.path.stat().st_size for embedded in self.embedded]
            is_full = n_bytes + sum(sizes) > WAITING_BYTES
            if not (is_full or all(future.done() for future in oldest.pending)):
                return
            self._take_scores(oldest)
            if not (is_full or others):
                return
            self.embedded = others
            oldest.path.unlink()

    def _take_scores(self, embedded: _Embedded) -> None:
        """Wait for the scores of a unit, and hand over its task if that is complete."""
        recorded, settings = embedded.recorded, self.setup.scoring
        pending, embedded.pending = embedded.pending, []
        if not pending:
            return
        try:
            unit_scores = dict[Cell, Any]()
            for future in pending:
                of_share, n_unconverged = future.result()
                unit_scores |= of_share
                recorded.n_unconverged += n_unconverged
            recorded.unit_scores.append(unit_scores)
            if len(recorded.unit_scores) == len(recorded.units):
                combine, finished = recorded.task.combine, recorded.unit_scores
                scores = {c: combine([u[c] for u in finished], settings) for c in recorded.cells}
                self._hand_over(recorded, scores)
        except Exception as error:  # of mteb's or scikit-learn's code, on data of any sort
            self._note(recorded.name, error)

    def _hand_over(self, recorded: _Recorded, scores: Mapping[Cell, Sequence[Score]]) -> None:
        name, task = recorded.name, recorded.task
        for (layer, _), of_subsets in scores.items():
            for each in of_subsets:
                if each.main_score is None:
                    log.warning("%s has no score at layer %s: %s", name, layer, each.why)
        if recorded.n_unconverged:
            log.warning("%s: %d fits did not converge", name, recorded.n_unconverged)
        self.write(TaskScores(name, task.task_type, recorded.representations, scores))

    def _note(self, name: str, error: Exception) -> None:
        """Note an error that concerns one task, so that the others go on; raise any other."""
        # Other tasks would meet a full disk too.
        if isinstance(error, DiskError | BrokenProcessPool) or disk_fault(error) is not None:
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
        log.error("%s: %s", name, error)  # at once, as a job may be killed before it ends
        self.failures.setdefault(name, error)


def _units(task: Task, most: int) -> list[Unit]:
    """Record a task, in a process that scores."""
    with one_thread():
        return list(task.units(most))


def _score_cells(
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


class SerialExecutor(Executor):
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
        yield SerialExecutor()
        return
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__, *sorted(modules)])
    pool = ProcessPoolExecutor(n, mp_context=context, initializer=_end_with_job)
    pool.submit(int)  # Imports go on while the model is loaded.
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
