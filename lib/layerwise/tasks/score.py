"""Score every layer of a model on a task with mteb's own evaluators, from stored embeddings.

All layers and readings of an embeddings file are one job. It is spread over processes, each of
which loads the task's data once. A layer whose result is there and still holds is not scored
again, so that a job that was stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from layerwise import tables
from layerwise.config.scoring import ScoringSettings
from layerwise.errors import LayerwiseError
from layerwise.progress import Progress
from layerwise.tables import Kind
from layerwise.tasks import joined, results
from layerwise.tasks.joined import Joiner, Unit, normalized
from layerwise.tasks.layout import Embeddings
from layerwise.tasks.names import PAIRWISE

log = logging.getLogger(__name__)

SCORES = Kind("layerwise.scores", 1)

# What computes mteb's numbers.
LIBRARIES = ("mteb", "scikit-learn", "scipy")

TEXTS_PER_PROCESS = 100_000

# Differences below this share of the largest value are rounding.
ROUNDING = 1e-5


class Worker:
    """Scores layers in one process: loads the task's data once.

    Parameters
    ----------
    file : Embeddings
    task : str
    layers : Path
        Folder for the results of the layers.
    folders : mapping
        Task name to the local folder of its data.
    settings : ScoringSettings
    code : mapping
        Version of each module that scores, as in a job's recipe.
    """

    def __init__(
        self,
        file: Embeddings,
        task: str,
        layers: Path,
        folders: Mapping[str, str],
        settings: ScoringSettings,
        code: Mapping[str, str],
    ) -> None:
        from layerwise.tasks import catalog, encoders

        self._layers, self._settings = layers, settings
        self._file = file
        self._joiner = Joiner(self._file, normalize=settings.normalize)
        self._task = catalog.get_task(task, folders)
        self._data = catalog.data_identity(self._task)
        self._seeds: Any = None
        self._common = [
            str(SCORES.version),
            json.dumps(code, sort_keys=True),
            *(f"{library} {version(library)}" for library in LIBRARIES),
            task,
            self._data,
            str(settings.normalize),
        ]
        meta = encoders.model_meta(self._file.model, self._file.revision)
        prompts = json.loads(self._file.attributes.get("prompts", "{}"))
        self._encoder = encoders.StoredEncoder(meta, file.keys, str(file.path), prompts)

    def score(self, unit: Unit) -> tuple[Unit, dict[str, Any], bool]:
        """Score one layer of one reading, or several joined, or find that it has been.

        Returns
        -------
        tuple
            The unit, the result's JSON, and whether it was scored now.

        Raises
        ------
        LayerwiseError
            If a text has no embedding, or the data cannot be loaded.
        """
        from layerwise.tasks.encoders import model_meta

        file = self._file
        embeddings = self._joiner.read(unit)
        about = results.experiment(unit, self._settings)
        (modality,) = self._task.metadata.modalities
        meta = model_meta(file.model, file.revision, about, embeddings.shape[1], modality)
        path = results.result_path(self._layers, meta, file.task)
        key = self._key(embeddings)
        known = results.read_result(path, key)
        if known is not None:
            return unit, known, False
        started = time.monotonic()
        if self._settings.normalize:
            embeddings = normalized(embeddings, into=embeddings)
        self._encoder.use(embeddings)
        scores = self._evaluate()
        document = results.write_result(
            path, self._task, scores,
            seconds=time.monotonic() - started, meta=meta, key=key, data=self._data,
            why=self._why(scores, embeddings),
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

    def _why(self, scores: Mapping[str, Any], embeddings: npt.NDArray[Any]) -> str | None:
        """Why some subset has no score; None if all have one."""
        lacking = [
            (split, subset)
            for split, subsets in scores.items()
            for subset, values in subsets.items()
            if not np.isfinite(values["main_score"])
        ]
        if not lacking:
            return None
        if all(labels_alike(self._task, split, subset) for split, subset in lacking):
            return "the task's labels are all alike"
        spread = np.ptp(embeddings, axis=0).max()
        if spread <= ROUNDING * np.abs(embeddings).max():
            return f"the embeddings of all {len(embeddings)} texts are alike"
        return "the similarities of all pairs are alike, or some of them is no number"

    def _key(self, embeddings: npt.NDArray[Any]) -> str:
        """Hash of all that a layer's numbers depend on."""
        known = [*self._common, self._file.fingerprint(embeddings)]
        return hashlib.sha256("\n".join(known).encode()).hexdigest()


def labels_alike(task: Any, split: str, subset: str) -> bool:
    """Whether all pairs of a loaded STS task have one and the same label."""
    data = task.dataset.get(subset, task.dataset)[split]
    column = "score"
    return column in data.column_names and len(set(data[column])) == 1


def score_task(
    embeddings: Path,
    task: str,
    output: Path,
    layers: Path,
    settings: ScoringSettings | None = None,
    *,
    folders: Mapping[str, str] | None = None,
    model: str | None = None,
    revision: str | None = None,
    threads: int = 1,
    recipe: Mapping[str, Any] | None = None,
    **facts: Any,
) -> None:
    """Score all layers and readings of an embeddings file, and joined ones as `settings.layers`
    asks for them, and write the tidy table.

    Those of the same embeddings are scored once. A layer at which the score is not defined has a
    row that says why.

    Parameters
    ----------
    embeddings : Path
        A file of `layerwise.tasks.layout`.
    task : str
    output : Path
        The table: one row for each reading, layer (with those read together), split and subset,
        with the columns of
        `layerwise.tasks.results.COLUMNS`.
    layers : Path
        Folder for the results of the layers, in MTEB's JSON.
    folders : mapping
        Task name to the local folder of its data.
    model, revision : str, optional
        Refuse a file about another one.
    threads : int
        Most processes to use, each with one thread; fewer where starting them would take longer
        than they save.
    recipe : mapping
        What the job's key was made of (`layerwise.workflow.stamps`). A layer's result is kept for
        as long as its ``code`` is the same.
    **facts
        More for the table's metadata: the job's key.

    Raises
    ------
    LayerwiseError
        If the file is not what it should be, a text has no embedding, or the task or its data
        cannot be had.
    """
    settings = settings or ScoringSettings()
    folders = dict(folders or {})
    code = (recipe or {}).get("code", {})
    documents: dict[Unit, dict[str, Any]] = {}
    kept = 0
    with Embeddings(embeddings, model=model, revision=revision, task=task) as file:
        units = joined.units(file, settings.layers)
        alike = joined.first_alike(units, file, file.alike())
        distinct = list(dict.fromkeys(alike[unit] for unit in units))
        about = {"model": file.model, "revision": file.revision}
        made_with: dict[str, Any] = {
            name: str(file.attributes[name])
            for name in ("dtype", "weights_sha256") if name in file.attributes
        }  # fmt: skip
        last = max(file.n_layers - 1, 1)
        start = partial(
            Worker, task=task, layers=layers, folders=folders, settings=settings, code=code
        )
        with Progress(len(distinct), f"scoring {task}", "layer") as bar:
            for unit, document, fresh in _scored(start, file, folders, distinct, threads):
                documents[unit] = document
                why = document["layerwise"].get("why")
                if why:
                    log.warning(
                        "%s has no score at layer %d of %s at %s, read as %s (layers: %s): %s",
                        task, unit.layer, *about.values(), unit.reading, unit.layers, why,
                    )  # fmt: skip
                kept += not fresh
                bar.update()
    if kept:
        log.info("%s: %d of %d results were there and are kept", task, kept, len(distinct))
    rows: list[dict[str, Any]] = []
    for unit in units:
        read = {**unit.reading._asdict(), "layers": unit.layers}
        own = {**about, **read, "layer": unit.layer, "depth": unit.layer / last}
        rows += results.rows(documents[alike[unit]], own, settings)
    facts |= {
        "recipe": recipe, "task": task, **about, **made_with, "settings": settings.plain()
    }  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=results.schema())
    tables.write(output, table, kind=SCORES, **facts)


def processes(threads: int, n_units: int, n_texts: int, task_type: str) -> int:
    """How many processes score fastest.

    Each takes about half a second to start; a layer's similarities of pairs take milliseconds per
    thousand texts.
    """
    if task_type in PAIRWISE:
        threads = min(threads, 1 + n_units * n_texts // TEXTS_PER_PROCESS)
    return max(1, min(threads, n_units))


def _scored(
    start: Callable[[Embeddings], Worker],
    file: Embeddings,
    folders: Mapping[str, str],
    units: Sequence[Unit],
    threads: int,
) -> Iterator[tuple[Unit, dict[str, Any], bool]]:
    """Score the units, in this process or over several; results come as they are ready."""
    # Imported before the processes start, so that forks have them.
    import mteb  # noqa: F401
    import torch  # noqa: F401

    from layerwise.tasks import catalog

    logging.getLogger("mteb").setLevel(logging.WARNING)
    task = file.task
    task_type = catalog.get_task(task, folders).metadata.type
    threads = processes(threads, len(units), len(file.keys), task_type)
    if threads == 1:
        with one_thread():
            yield from map(start(file).score, units)
        return
    # Forks would share its place in the file; each process opens its own.
    file.close()
    # A forked process has mteb's imports (4 s) already.
    context = multiprocessing.get_context("fork" if can_fork() else "spawn")
    pool = ProcessPoolExecutor(
        threads, mp_context=context, initializer=_start, initargs=(start, file.path)
    )
    try:
        waiting = [pool.submit(_score, unit) for unit in units]
        for future in as_completed(waiting):
            yield future.result()
    except BrokenProcessPool as error:
        raise LayerwiseError(
            f"A process that scored {task} was killed, most likely because memory ran out; lower "
            "scoring.threads. The layers that are done are kept."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def can_fork() -> bool:
    """Whether this process may be forked: on Linux, until polars has threads.

    mteb loads rerankings by polars, which in a fork would wait for those threads for ever.
    """
    if sys.platform != "linux":
        return False
    for comm in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # a thread may end meanwhile
            if re.match(r"polars-\d", comm.read_text()):
                return False
    return True


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for all libraries; torch resets what others set when it first computes."""
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

    start: Callable[[], Worker] | None = None
    worker: Worker | None = None
    threads = ExitStack()


def _start(start: Callable[[Embeddings], Worker], path: Path) -> None:
    """Set a process up. Its worker is made at the first unit: an error here would break the pool
    and be lost."""
    _Process.threads.enter_context(one_thread())
    _Process.start = lambda: start(Embeddings(path))


def _score(unit: Unit) -> tuple[Unit, dict[str, Any], bool]:
    if _Process.worker is None:
        assert _Process.start is not None
        _Process.worker = _Process.start()
    return _Process.worker.score(unit)
