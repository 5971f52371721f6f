"""Shares of a job that scores a model of Pythia-410m's shape: recording, embedding, scoring.

25 layers of 1,024 dimensions in two readouts, on real tasks. Recording (which reads the data) and
scoring are measured, in processor seconds, on noise around a few directions; embedding is
computed from the sizes of tasks, as `layerwise plan` does. For all 32 tasks of the paper, scoring
is computed too. A GPU is held while texts are recorded or embedded, and while it waits for scores.

With --run, `evaluate` scores the tasks with two processes while a stand-in for the GPU computes
for as long as embedding takes: slower, for two processes in place of so many cores, and so that
scoring and embedding are to each other as in the 32 tasks.

python benchmarks/bench_shares.py --tasks ../shared/tasks --run
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import layerwise.run.script  # isort: skip  # noqa: F401  (before numpy: it sets threads)
import numpy as np

from layerwise.activations.representation import Representation
from layerwise.config.models import FolderSource, Model
from layerwise.config.settings import ExtractSettings, ScoringSettings
from layerwise.tasks.catalog import PAPER, size_of
from layerwise.tasks.evaluate import evaluate
from layerwise.tasks.mteb_task import MtebTask
from layerwise.tasks.task import Vectors, one_thread

WIDTH, N_LAYERS, N_READOUTS, PARAMETERS = 1024, 25, 2, 410e6
UNIT_BYTES = 2e9  # half of scoring.waiting_gb
# Of a run: few layers, so that it takes minutes.
RUN_LAYERS, RUN_PROCESSES = 2, 2


@dataclass(frozen=True)
class StandIn(MtebTask):
    """A task that a stand-in for a GPU embeds: it computes for some seconds and writes noise."""

    seconds: float = 0.0
    log: str = ""

    def representations(self, _: Any) -> list[Representation]:
        return [Representation(readout=readout) for readout in ("residual", "final_norm")]

    def width(self, _: Any) -> int:
        return WIDTH

    def read(self, _setup: Any, inputs: Any, _prompts: Any, into: Any) -> Iterator[int]:
        start = time.monotonic()
        end = time.process_time() + self.seconds
        into[:] = noise(len(inputs))
        while time.process_time() < end:
            pass
        with Path(self.log).open("a") as file:
            file.write(f"{time.monotonic() - start}\n")
        yield len(inputs)


def noise(n: int) -> Any:
    """Vectors around a few directions, shape (n, WIDTH), float32."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(n, 20)) @ rng.normal(size=(20, WIDTH))
    return (values + rng.normal(size=values.shape)).astype(np.float32)


def shares(task: MtebTask) -> tuple[float, float]:
    """Processor seconds of recording, and of scoring all layers in all readouts."""
    start = time.process_time()
    (unit,) = task.units(10**9)
    recording = time.process_time() - start
    vectors = Vectors(noise(len(unit.keys)), {key: row for row, key in enumerate(unit.keys)})
    with one_thread():
        task.score(unit.selection, vectors, ScoringSettings())  # reads the data
        start = time.process_time()
        task.score(unit.selection, vectors, ScoringSettings())
    return recording, N_LAYERS * N_READOUTS * (time.process_time() - start)


def embedding_seconds(name: str, tflops: float) -> float:
    """Seconds of a GPU, as planned."""
    size = size_of(name)
    assert size is not None
    return 2 * PARAMETERS * size.tokens / (tflops * 1e12)


def scoring_seconds(name: str) -> float:
    """Processor seconds, as planned."""
    size = size_of(name)
    assert size is not None
    return N_LAYERS * N_READOUTS * size.seconds


def run(tasks: dict[str, StandIn], folder: Path) -> float:
    """How long a stand-in for a GPU is held, in units of the time that it embeds."""
    anatomy = SimpleNamespace(
        n_layers=RUN_LAYERS, hidden=WIDTH, kind="noise", layout=SimpleNamespace(streams=1)
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
    start = time.monotonic()
    evaluate(
        lambda: loaded,
        tasks,
        extraction=ExtractSettings(),
        scoring=ScoringSettings(waiting_gb=4 * RUN_LAYERS / N_LAYERS),
        keys=dict.fromkeys(tasks, ""),
        key="",
        output=folder / "scores.parquet",
        threads=RUN_PROCESSES,
    )
    held = time.monotonic() - start
    return held / sum(map(float, (folder / "log").read_text().split()))


def main() -> None:
    """Print a line for each task, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=Path, required=True, help="folder of mirrored tasks")
    parser.add_argument("--tflops", type=float, default=30)
    parser.add_argument("--cores", type=int, default=12)
    parser.add_argument("--run", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    cores = options.cores
    here = {path.name for path in options.tasks.iterdir()}
    names = [name for name in PAPER if name in here]
    embedding = {name: embedding_seconds(name, options.tflops) for name in PAPER}
    recorded, scored = dict[str, float](), dict[str, float]()
    sys.stdout.write(f"{'seconds of':38s} recording  embedding  scoring (one core)\n")
    for name in names:
        task = MtebTask(name, str((options.tasks / name).resolve()))
        recorded[name], scored[name] = shares(task)
        sys.stdout.write(
            f"{name:38s} {recorded[name]:9.1f} {embedding[name]:10.1f} {scored[name]:8.0f} "
            f"(plan {scoring_seconds(name):.0f})\n"
        )
        sys.stdout.flush()
    here_embedding = sum(embedding[name] for name in names)
    held = sum(recorded.values()) + max(here_embedding, sum(scored.values()) / cores)
    sys.stdout.write(
        f"these tasks: {sum(recorded.values()):.0f}, {here_embedding:.0f}, "
        f"{sum(scored.values()):.0f} s; with {cores} processes a GPU is held "
        f"{held / here_embedding:.2f} times as long as it embeds\n"
    )
    # Scores of a unit are computed in order, when it is embedded. Clusterings have several units.
    embedded = done = 0.0
    for name in PAPER:
        size = size_of(name)
        assert size is not None
        n_bytes = 4 * WIDTH * N_LAYERS * N_READOUTS * size.texts
        n_units = 1 + int(n_bytes / UNIT_BYTES) if "Clustering" in name else 1
        for _ in range(n_units):
            embedded += embedding[name] / n_units
            done = max(embedded, done) + scoring_seconds(name) / cores / n_units
    ratio = sum(map(scoring_seconds, PAPER)) / embedded
    sys.stdout.write(
        f"all 32, as planned, without recording: {embedded:.0f} and {ratio * embedded:.0f} s, "
        f"{max(embedded, done) / embedded:.2f} times\n"
    )
    if not options.run:
        return
    # Scoring takes so many times as long as embedding, of one core.
    slower = sum(scored.values()) / here_embedding / ratio * cores / RUN_PROCESSES
    slower *= RUN_LAYERS / N_LAYERS
    with tempfile.TemporaryDirectory() as folder:
        tasks = {
            name: StandIn(
                name,
                str((options.tasks / name).resolve()),
                seconds=embedding[name] * slower,
                log=f"{folder}/log",
            )
            for name in names
        }
        held = run(tasks, Path(folder))
    sys.stdout.write(f"run with a stand-in: held {held:.2f} times as long as it embeds\n")


if __name__ == "__main__":
    main()
