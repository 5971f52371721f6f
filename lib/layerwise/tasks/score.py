"""Score every layer of a model on a task with mteb's own evaluators, from stored embeddings.

All layers and readings of an embeddings file are one job. It is spread over processes, each of
which loads the task's data once; a layer whose result is there and still holds is not scored
again, so that a job that was stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from layerwise import sealed
from layerwise.errors import LayerwiseError
from layerwise.files import provenance
from layerwise.progress import Progress
from layerwise.tasks import results
from layerwise.tasks.layout import Embeddings, Reading
from layerwise.tasks.results import Settings

log = logging.getLogger(__name__)

SCHEMA = "layerwise.scores"
VERSION = "1"

# What mteb's numbers come out of.
LIBRARIES = ("mteb", "scikit-learn", "scipy")

PAIRWISE = ("PairClassification", "STS")
TEXTS_PER_PROCESS = 100_000

Unit = tuple[Reading, int]


@dataclass(frozen=True)
class Job:
    """One embeddings file to be scored.

    Attributes
    ----------
    embeddings : the file of `layerwise.tasks.layout`
    task : name of the task
    folders : task name to the local folder of its data
    layers : folder for the results of the layers
    """

    embeddings: Path
    task: str
    layers: Path
    folders: dict[str, str] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)


class Worker:
    """Scores layers in one process: opens the file and loads the task's data once."""

    def __init__(self, job: Job) -> None:
        from layerwise.tasks import catalog, encoders

        self._job = job
        self._file = Embeddings(job.embeddings, task=job.task)
        self._task = catalog.get_task(job.task, job.folders)
        self._data = catalog.data_identity(self._task)
        self._seeds: Any = None
        self._common = [
            VERSION,
            *(f"{library} {version(library)}" for library in LIBRARIES),
            job.task,
            self._data,
            str(job.settings.normalize),
        ]
        meta = encoders.model_meta(self._file.model, self._file.revision)
        self._encoder = encoders.StoredEncoder(meta, self._file.keys, str(job.embeddings))

    def score(self, unit: Unit) -> tuple[Unit, dict[str, Any], bool]:
        """Score one layer of one reading, or find that it has been.

        Returns
        -------
        tuple
            The unit, the result's JSON, and whether it was scored now.

        Raises
        ------
        LayerwiseError
            If a text has no embedding, the score is undefined, or the data cannot be loaded.
        """
        from layerwise.tasks.encoders import model_meta

        reading, layer = unit
        job, file = self._job, self._file
        about = results.experiment(reading, layer, job.settings)
        meta = model_meta(file.model, file.revision, about, file.hidden)
        path = results.result_path(job.layers, meta, job.task)
        embeddings = file.layer(reading, layer)
        key = self._key(embeddings)
        known = results.read_result(path, key)
        if known is not None:
            return unit, known, False
        started = time.monotonic()
        if job.settings.normalize:
            embeddings = normalized(embeddings)
        self._encoder.use(embeddings)
        scores = self._evaluate()
        for split, subsets in scores.items():
            for subset, values in subsets.items():
                if not np.isfinite(values["main_score"]):
                    raise LayerwiseError(
                        f"{job.task} ({split}, {subset}) has no score at layer {layer} of "
                        f"{file.model} at {file.revision!r}, read as {'/'.join(reading)}: its "
                        "embeddings are all alike; choose another pooling or choice of tokens."
                    )
        document = results.write_result(
            path, self._task, scores,
            seconds=time.monotonic() - started, meta=meta, key=key, data=self._data,
        )  # fmt: skip
        return unit, document, True

    def _evaluate(self) -> dict[str, Any]:
        from layerwise.tasks import catalog
        from layerwise.tasks.evaluation import Seeds, evaluate

        if self._seeds is None:
            catalog.load(self._task)
            self._seeds = Seeds(self._task)
        self._seeds.restore()
        return evaluate(self._task, self._encoder)

    def _key(self, embeddings: npt.NDArray[Any]) -> str:
        """Hash of all that a layer's numbers depend on."""
        parts = [*self._common, self._file.fingerprint(embeddings)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def normalized(embeddings: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rows scaled to unit length, shape (N, D), float32; a zero row stays zero."""
    norms = np.sqrt(np.einsum("nd,nd->n", embeddings, embeddings, dtype=np.float64))
    return np.asarray(embeddings / np.where(norms > 0, norms, 1)[:, None], dtype=np.float32)


def score_task(
    job: Job,
    output: Path,
    *,
    model: str | None = None,
    revision: str | None = None,
    threads: int = 1,
) -> None:
    """Score all layers and readings of an embeddings file and write the tidy table.

    Parameters
    ----------
    output : Path
        The table: one row for each reading, layer, split and subset, with the columns of
        `layerwise.tasks.results.COLUMNS`.
    model, revision : str, optional
        Refuse a file about another one.
    threads : int
        Most processes to use, each with one thread; fewer where they would cost more than they
        bring.

    Raises
    ------
    LayerwiseError
        If the file is not what it should be, a text has no embedding, the task or its data
        cannot be had, or a score is undefined.
    """
    with Embeddings(job.embeddings, model=model, revision=revision, task=job.task) as file:
        units = [(reading, layer) for layer in range(file.n_layers) for reading in file.readings]
        about = {"model": file.model, "revision": file.revision}
        last = max(file.n_layers - 1, 1)
        n_texts = len(file.keys)
    documents: dict[Unit, dict[str, Any]] = {}
    kept = 0
    with Progress(len(units), f"scoring {job.task}", "layer") as bar:
        for unit, document, fresh in _scored(job, units, n_texts, threads):
            documents[unit] = document
            kept += not fresh
            bar.update()
    if kept:
        log.info("%s: %d of %d results were there and are kept", job.task, kept, len(units))
    table: list[dict[str, Any]] = []
    for reading, layer in units:
        own = {**about, **reading._asdict(), "layer": layer, "depth": layer / last}
        table += results.rows(documents[reading, layer], own, job.settings)
    facts = provenance(
        schema=SCHEMA, schema_version=VERSION, task=job.task, **about,
        normalize=job.settings.normalize, bootstrap=job.settings.bootstrap,
        confidence=job.settings.confidence, seed=job.settings.seed,
    )  # fmt: skip
    sealed.write(output, pa.Table.from_pylist(table, schema=results.schema()), facts)


def processes(threads: int, n_units: int, n_texts: int, task_type: str) -> int:
    """How many processes score fastest: a process of its own takes about half a second to start.

    Where scores are similarities of pairs, a layer takes milliseconds per thousand texts.
    """
    if task_type in PAIRWISE:
        threads = min(threads, 1 + n_units * n_texts // TEXTS_PER_PROCESS)
    return max(1, min(threads, n_units))


def _scored(
    job: Job, units: Sequence[Unit], n_texts: int, threads: int
) -> Iterator[tuple[Unit, dict[str, Any], bool]]:
    """Score the units, in this process or over several; results come as they are ready."""
    # Imported before processes are made, so that they need not import them again.
    import mteb  # noqa: F401
    import torch  # noqa: F401

    from layerwise.tasks import catalog

    logging.getLogger("mteb").setLevel(logging.WARNING)
    task_type = catalog.get_task(job.task, job.folders).metadata.type
    threads = processes(threads, len(units), n_texts, task_type)
    if threads == 1:
        with one_thread():
            worker = Worker(job)
            yield from map(worker.score, units)
        return
    # A forked process has mteb's imports (4 s) already.
    context = multiprocessing.get_context("fork" if can_fork() else "spawn")
    pool = ProcessPoolExecutor(threads, mp_context=context, initializer=_start, initargs=(job,))
    try:
        waiting = [pool.submit(_score, unit) for unit in units]
        for future in as_completed(waiting):
            yield future.result()
    except BrokenProcessPool as error:
        raise LayerwiseError(
            f"A process that scored {job.task} was killed, most likely for want of memory; lower "
            "scoring.threads. The layers that are done are kept."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def can_fork() -> bool:
    """Whether this process may be forked: on Linux, until polars (which loads rerankings) has
    threads, since in a fork it would wait for them for ever."""
    if sys.platform != "linux":
        return False
    for comm in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # a thread may end meanwhile
            if re.match(r"polars-\d", comm.read_text()):
                return False
    return True


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for all libraries; torch, when it first computes, undoes what others set."""
    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


class _Process:
    """What a process of the pool keeps between units."""

    job: Job | None = None
    worker: Worker | None = None
    threads = ExitStack()


def _start(job: Job) -> None:
    """Set a process up. Its worker is made at the first unit: an error here would break the
    pool, and be lost."""
    _Process.threads.enter_context(one_thread())
    _Process.job = job


def _score(unit: Unit) -> tuple[Unit, dict[str, Any], bool]:
    if _Process.worker is None:
        assert _Process.job is not None
        _Process.worker = Worker(_Process.job)
    return _Process.worker.score(unit)
