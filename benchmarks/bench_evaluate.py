"""A job that scores a model, without the model: shares of its time, and its memory and scratch.

shares
    Recording (which reads the data), embedding and scoring of tasks, for a model of Pythia-410m's
    shape: 25 layers of 1,024 dimensions in two readouts. Recording and scoring are measured, in
    processor seconds, on noise around a few directions; embedding is computed from the sizes of
    tasks, as `layerwise plan` does. For all 32 tasks of the paper, scoring is computed too. A GPU
    is held while texts are recorded or embedded, and while it waits for scores.

    With --run, `evaluate` scores the tasks with two processes while a stand-in for the GPU
    computes for as long as embedding takes: slower, for two processes in place of so many cores,
    and so that scoring and embedding are to each other as in the 32 tasks.
memory
    Peak memory and scratch of an evaluation of a clustering with the shape of ArxivClusteringS2S:
    31 sets, 25 layers, 1,024 wide. The stand-in takes no time, so only vectors count. Texts, and
    the limit on vectors that wait, are scaled down together.

python benchmarks/bench_evaluate.py shares --tasks ../shared/tasks --run
python benchmarks/bench_evaluate.py memory --texts 7327 --waiting-gb 0.04
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import layerwise.run.script  # isort: skip  # noqa: F401  (before numpy: it sets threads)
import numpy as np
import pandas as pd

from layerwise.activations.representation import Representation
from layerwise.config.models import FolderSource, Model
from layerwise.config.settings import ExtractSettings, ScoringSettings
from layerwise.tasks import evaluate
from layerwise.tasks.catalog import PAPER
from layerwise.tasks.mteb_task import MtebTask
from layerwise.tasks.task import Vectors, one_thread
from tools.forecast import task_size

WIDTH, N_LAYERS, PARAMETERS = 1024, 25, 410e6
READOUTS = ("residual", "final_norm")
UNIT_BYTES = 2e9  # half of scoring.waiting_gb
# Of a run: few layers, so that it takes minutes.
RUN_LAYERS, RUN_PROCESSES = 2, 2
N_SETS, N_LABELS = 31, 20


@dataclass(frozen=True)
class StandIn(MtebTask):
    """A task that a stand-in for a GPU embeds: it computes for some seconds and writes noise."""

    readouts: tuple[str, ...] = READOUTS
    seconds: float = 0.0
    log: str = ""

    def representations(self, _: Any) -> list[Representation]:
        return [Representation(readout=readout) for readout in self.readouts]

    def width(self, _: Any) -> int:
        return WIDTH

    def read(self, _setup: Any, inputs: Any, _prompts: Any, into: Any) -> Iterator[int]:
        start = time.monotonic()
        end = time.process_time() + self.seconds
        into[:] = noise(len(inputs))
        while time.process_time() < end:
            pass
        if self.log:
            with Path(self.log).open("a") as file:
                file.write(f"{time.monotonic() - start}\n")
        yield len(inputs)


def noise(n: int) -> Any:
    """Vectors around a few directions, shape (n, WIDTH), float32."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(n, 20)) @ rng.normal(size=(20, WIDTH))
    return (values + rng.normal(size=values.shape)).astype(np.float32)


def score(tasks: Mapping[str, StandIn], folder: Path, n_layers: int, **options: Any) -> None:
    """Score the layers of a model that is not there, in processes (`threads`)."""
    anatomy = SimpleNamespace(
        n_layers=n_layers, hidden=WIDTH, kind="noise", layout=SimpleNamespace(streams=1)
    )
    loaded: Any = SimpleNamespace(
        name="noise",
        revision="main",
        dtype="float32",
        weights="",
        device="cpu",
        anatomy=anatomy,
        embedder=SimpleNamespace(normalizes=False),
        entry=Model(source=FolderSource(folder="none")),
    )
    evaluate.evaluate(
        lambda: loaded,
        tasks,
        extraction=ExtractSettings(),
        keys=dict.fromkeys(tasks, ""),
        key="",
        output=folder / "scores.parquet",
        **options,
    )


# Memory


def print_memory(n_texts: int, waiting_gb: float, threads: int) -> None:
    """Write a clustering, evaluate it, and print the peaks."""
    scratch: list[int] = []
    allocate = evaluate.allocate

    def watched(path: Path, shape: tuple[int, ...]) -> Any:
        into = allocate(path, shape)
        scratch.append(sum(file.stat().st_size for file in path.parent.iterdir()))
        return into

    evaluate.allocate = watched
    rng = np.random.default_rng(0)
    sets = np.array_split(np.arange(n_texts), N_SETS)
    data = [([f"text {i}" for i in rows], rng.integers(0, N_LABELS, len(rows))) for rows in sets]
    with tempfile.TemporaryDirectory() as folder:
        frame = pd.DataFrame(data, columns=["sentences", "labels"])
        frame.to_parquet(f"{folder}/test.parquet")
        task = StandIn("ArxivClusteringS2S", folder, readouts=READOUTS[:1])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.monotonic()
        scoring = ScoringSettings(waiting_gb=waiting_gb)
        score({"arxiv": task}, Path(folder), N_LAYERS, scoring=scoring, threads=threads)
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    sys.stdout.write(
        f"all vectors {n_texts * 4 * N_LAYERS * WIDTH / 1e6:.0f} MB, limit "
        f"{waiting_gb * 1e3:.0f} MB, peak scratch {max(scratch) / 1e6:.0f} MB in "
        f"{len(scratch)} units; memory of this process +{more / 1e3:.0f} MB, of a scoring "
        f"process {child / 1e3:.0f} MB; {time.monotonic() - started:.0f} s\n"
    )


# Shares


def measured(task: MtebTask) -> tuple[float, float]:
    """Processor seconds of recording, and of scoring all layers in all readouts."""
    start = time.process_time()
    (unit,) = task.units(10**9)
    recording = time.process_time() - start
    vectors = Vectors(noise(len(unit.keys)), {key: row for row, key in enumerate(unit.keys)})
    with one_thread():
        task.score(unit.selection, vectors, ScoringSettings())  # reads the data
        start = time.process_time()
        task.score(unit.selection, vectors, ScoringSettings())
    return recording, N_LAYERS * len(READOUTS) * (time.process_time() - start)


def embedding_seconds(name: str, tflops: float) -> float:
    """Seconds of a GPU, as planned."""
    size = task_size(name)
    assert size is not None
    return 2 * PARAMETERS * size.tokens / (tflops * 1e12)


def scoring_seconds(name: str) -> float:
    """Processor seconds, as planned."""
    size = task_size(name)
    assert size is not None
    return N_LAYERS * len(READOUTS) * size.seconds


def held_of_plan(embedding: Mapping[str, float], cores: int) -> float:
    """Seconds until the 32 tasks are embedded and scored, as planned, without recording.

    Scores of a unit are computed in order, when it is embedded. Clusterings have several units.
    """
    embedded = done = 0.0
    for name in PAPER:
        size = task_size(name)
        assert size is not None
        n_bytes = 4 * WIDTH * N_LAYERS * len(READOUTS) * size.texts
        n_units = 1 + int(n_bytes / UNIT_BYTES) if "Clustering" in name else 1
        for _ in range(n_units):
            embedded += embedding[name] / n_units
            done = max(embedded, done) + scoring_seconds(name) / cores / n_units
    return max(embedded, done)


def print_shares(folder: Path, tflops: float, cores: int, *, run: bool) -> None:
    """Print a line for each task, one for all, and one for a run."""
    warnings.simplefilter("ignore")
    here = {path.name for path in folder.iterdir()}
    paths = {name: str((folder / name).resolve()) for name in PAPER if name in here}
    embedding = {name: embedding_seconds(name, tflops) for name in PAPER}
    recorded, scored = dict[str, float](), dict[str, float]()
    sys.stdout.write(f"{'seconds of':38s} recording  embedding  scoring (one core)\n")
    for name, path in paths.items():
        recorded[name], scored[name] = measured(MtebTask(name, path))
        sys.stdout.write(
            f"{name:38s} {recorded[name]:9.1f} {embedding[name]:10.1f} {scored[name]:8.0f} "
            f"(plan {scoring_seconds(name):.0f})\n"
        )
        sys.stdout.flush()
    here_embedding = sum(embedding[name] for name in paths)
    held = sum(recorded.values()) + max(here_embedding, sum(scored.values()) / cores)
    sys.stdout.write(
        f"these tasks: {sum(recorded.values()):.0f}, {here_embedding:.0f}, "
        f"{sum(scored.values()):.0f} s; with {cores} processes a GPU is held "
        f"{held / here_embedding:.2f} times as long as it embeds\n"
    )
    embedded, planned = sum(embedding.values()), sum(map(scoring_seconds, PAPER))
    sys.stdout.write(
        f"all 32, as planned, without recording: {embedded:.0f} and {planned:.0f} s, "
        f"{held_of_plan(embedding, cores) / embedded:.2f} times\n"
    )
    if not run:
        return
    # Scoring takes so many times as long as embedding, of one core.
    slower = sum(scored.values()) / here_embedding / (planned / embedded) * cores / RUN_PROCESSES
    slower *= RUN_LAYERS / N_LAYERS
    with tempfile.TemporaryDirectory() as output:
        log = Path(output, "log")
        tasks = {
            name: StandIn(name, path, seconds=embedding[name] * slower, log=str(log))
            for name, path in paths.items()
        }
        start = time.monotonic()
        scoring = ScoringSettings(waiting_gb=4 * RUN_LAYERS / N_LAYERS)
        score(tasks, Path(output), RUN_LAYERS, scoring=scoring, threads=RUN_PROCESSES)
        held = (time.monotonic() - start) / sum(map(float, log.read_text().split()))
    sys.stdout.write(f"run with a stand-in: held {held:.2f} times as long as it embeds\n")


def main() -> None:
    """Read the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    shares = commands.add_parser("shares")
    shares.add_argument("--tasks", type=Path, required=True, help="folder of mirrored tasks")
    shares.add_argument("--tflops", type=float, default=30)
    shares.add_argument("--cores", type=int, default=12)
    shares.add_argument("--run", action="store_true")
    memory = commands.add_parser("memory")
    memory.add_argument("--texts", type=int, default=7327)
    memory.add_argument("--waiting-gb", type=float, default=0.04)
    memory.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.command == "shares":
        print_shares(options.tasks, options.tflops, options.cores, run=options.run)
    else:
        print_memory(options.texts, options.waiting_gb, options.threads)


if __name__ == "__main__":
    main()
