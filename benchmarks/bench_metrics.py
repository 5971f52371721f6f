"""Time the metrics against plain implementations of the same definitions, on the same arrays.

One process, made-up arrays of a real run's size (N prompts, D dimensions, V views, 25 layers).
Plain code gets all cores as BLAS threads; ours gets them as the workflow uses them: the table of
metrics a layer a core, prompt entropy and curvature in the code of the extraction, which makes
them from the batches of a pass. Ours is timed on several layers, plain code on one, and token
states on a part of the prompts where all would take too long; times are per layer, the best of
some runs, since whatever else the machine does only adds. Prints a table; --output writes JSON as
well.

"faster" is by the clock, and needs the cores to itself. "core s" is the processor time of ours
over all cores, which a busy machine changes less; "floor" that of the matrix products,
eigenvalues, exponentials or bytes that the formula cannot do without, at the rate of one core,
measured here.
"by core" is the processor time of plain code over that of ours.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

# Before torch: it sets what the scripts set.
import layerwise.run.script  # isort: skip  # noqa: F401
import numpy as np
import plain_metrics as plain
import torch
from threadpoolctl import threadpool_limits

from layerwise.activations import eigen, forward
from layerwise.activations.reduce import descending
from layerwise.activations.representation import Packed, pack
from layerwise.metrics.catalog.dime import dime, permutations_of
from layerwise.metrics.catalog.infonce import infonce
from layerwise.metrics.catalog.lidar import lidar
from layerwise.metrics.formulas import entropy_from_eigenvalues

log = logging.getLogger("bench_metrics")

SHORTEST, LONGEST = 30, 120


@dataclass
class Times:
    """Seconds by the clock, and of all cores together."""

    clock: float
    cores: float

    def __mul__(self, factor: float) -> Times:
        return Times(self.clock * factor, self.cores * factor)


@dataclass
class Row:
    """One comparison, a layer."""

    metric: str
    plain: Times
    ours: Times
    wanted: float | None
    floor: float
    same: bool
    note: str

    @property
    def faster(self) -> float:
        """Ratio of wall times."""
        return self.plain.clock / self.ours.clock

    @property
    def by_core(self) -> float:
        """Ratio of processor times."""
        return self.plain.cores / self.ours.cores


class Clock:
    """Times code by the cores and repeats that were asked for."""

    def __init__(self, threads: int, repeats: int) -> None:
        self.threads, self.repeats = threads, repeats

    def best(self, work: Callable[[], Any], repeats: int | None = None) -> Times:
        """Shortest of some runs."""
        clocks, cores = [], []
        for _ in range(repeats or self.repeats):
            start, used = time.perf_counter(), time.process_time()
            work()
            clocks.append(time.perf_counter() - start)
            cores.append(time.process_time() - used)
        return Times(min(clocks), min(cores))

    def ours(self, work: Callable[[int], Any], layers: int) -> Times:
        """A layer's time, layers spread over threads with one BLAS thread each."""
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(self.threads) as pool:
            return self.best(lambda: list(pool.map(work, range(layers)))) * (1 / layers)

    def plain(self, work: Callable[[], Any], repeats: int | None = None) -> Times:
        """Time of plain code, with all cores as BLAS threads."""
        with threadpool_limits(self.threads, "blas"):
            return self.best(work, repeats)


class Rates:
    """Speed of one core of this machine, the unit of the floor."""

    def __init__(self, d: int, clock: Clock) -> None:
        self.clock = clock
        rng = np.random.default_rng(0)
        A, values = rng.normal(size=(4000, d)), rng.normal(size=(512, 512))
        copy = np.empty_like(A)
        with threadpool_limits(1, "blas"):
            # Multiplications and additions of a symmetric product AᵀA; half of it is computed.
            self.symmetric = 4000 * d * d / clock.best(lambda: A.T @ A).cores
        self.exponential = values.size / clock.best(lambda: np.exp(values), 30).cores
        self.copy = A.nbytes / clock.best(lambda: np.copyto(copy, A), 10).cores

    def eigenvalues(self, n: int, count: int = 1) -> float:
        """Seconds for the eigenvalues of `count` symmetric matrices n x n."""
        A = np.random.default_rng(0).normal(size=(n, n))
        with threadpool_limits(1, "blas"):
            return count * self.clock.best(lambda: np.linalg.eigvalsh(A)).cores


def make_views(layer: int, n: int, v: int, d: int) -> np.ndarray:
    """Pooled embeddings of V views, shape (V, N, D), with a spectrum that decays."""
    rng = np.random.default_rng(layer)
    scale = (np.arange(1, d + 1) ** -0.5).astype(np.float32)
    base = rng.standard_normal((1, n, d), dtype=np.float32) * scale + scale
    return base + 0.3 * rng.standard_normal((v, n, d), dtype=np.float32) * scale


def make_states(layer: int, lengths: Sequence[int], d: int) -> list[np.ndarray]:
    """Token states of prompts, each T x D."""
    rng = np.random.default_rng(layer)
    scale = (np.arange(1, d + 1) ** -0.5).astype(np.float32)
    return [rng.standard_normal((t, d), dtype=np.float32) * scale + scale for t in lengths]


def make_lengths(n: int) -> np.ndarray:
    """Tokens of each prompt."""
    return np.random.default_rng(0).integers(SHORTEST, LONGEST + 1, size=n)


def in_batches(states: list[np.ndarray]) -> list[Packed]:
    """States as a forward pass on a CPU hands them over: batches of some 1,024 tokens, padded."""
    made = []
    for batch in forward.batches([len(Z) for Z in states], forward.BUDGET["cpu"]):
        padded = np.zeros((len(batch), len(states[batch[0]]), states[0].shape[1]), np.float32)
        for row, index in zip(padded, batch, strict=True):
            row[: len(states[index])] = states[index]
        lengths = torch.tensor([len(states[index]) for index in batch])
        made.append(pack(torch.from_numpy(padded), lengths))
    return made


@torch.inference_mode()
def our_prompt_entropy(layers: list[list[Packed]]) -> list[float]:
    """Mean entropy of each layer, as extraction and metrics compute it."""
    values: list[list[np.ndarray]] = [[] for _ in layers]
    for together in zip(*layers, strict=True):
        grams = [eigen.gram(batch.states) for batch in together]
        (spectra,) = eigen.eigenvalues(torch.cat(grams))
        sizes = [len(batch.states) for batch in together]
        for found, spectrum in zip(values, spectra.split(sizes), strict=True):
            found.append(entropy_from_eigenvalues(descending(spectrum).numpy()))
    return [float(np.concatenate(found).mean()) for found in values]


@torch.inference_mode()
def our_curvature(layers: list[list[Packed]]) -> list[float]:
    """Mean curvature of each layer, as the extraction computes it."""
    return [float(torch.cat([_mean_angles(batch) for batch in layer]).mean()) for layer in layers]


def _mean_angles(batch: Packed) -> torch.Tensor:
    return eigen.curvature(eigen.token_products(batch.states), batch.lengths)


def agree(a: float, b: float) -> bool:
    """True if both routes give the same number."""
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-8)


def compare_views(a: argparse.Namespace, clock: Clock, rates: Rates) -> list[Row]:
    """LiDAR, DiME and InfoNCE."""
    n, d, v, layers = a.prompts, a.hidden, a.views, a.our_layers
    views = [make_views(k, n, v, d) for k in range(layers)]
    first, A, B = views[0], views[0][0], views[0][1]
    orders = permutations_of(n, 10, 0)
    few = first[:, : min(n, 50)]
    rows = [
        Row(
            "LiDAR",
            clock.plain(lambda: plain.lidar(first), 1),
            clock.ours(lambda k: lidar(views[k]), layers),
            50,
            n * (v - 1) * d * d / rates.symmetric + rates.eigenvalues(min(n, d)),
            agree(plain.lidar(few), lidar(few)),
            f"{n * (v - 1)} x {d} symmetric product, spectrum of {min(n, d)}",
        ),
        Row(
            "DiME",
            clock.plain(lambda: plain.dime(A, B, orders)),
            clock.ours(lambda k: dime(views[k][0], views[k][1]), layers),
            3,
            rates.eigenvalues(n, 11),
            agree(plain.dime(A, B, orders), dime(A, B)),
            f"11 spectra of {n}",
        ),
    ]
    ours = clock.ours(lambda k: infonce(views[k][0], views[k][1]), layers)
    floor = 4 * n * n * d / rates.symmetric + 2 * n * n / rates.exponential
    for name, wanted, work, note in (
        ("InfoNCE", 2, plain.infonce, "against one anchor after the other"),
        ("InfoNCE, at once", None, plain.infonce_at_once, "against the whole matrix at once"),
    ):
        same = agree(work(A, B), infonce(A, B))
        rows.append(
            Row(name, clock.plain(lambda w=work: w(A, B)), ours, wanted, floor, same, note)
        )
    return rows


def compare_states(a: argparse.Namespace, clock: Clock, rates: Rates) -> list[Row]:
    """Prompt entropy and curvature, from token states."""
    d, layers = a.hidden, a.our_layers
    lengths = make_lengths(a.prompts)
    part = lengths[: max(1, a.prompts // 5)]
    share = float(lengths.sum() / part.sum())
    states = [make_states(k, part, d) for k in range(layers)]
    note = f"on {len(part)} prompts, scaled to {a.prompts} with {lengths.sum()} tokens"
    steps, counts = np.unique((lengths + 5) // 10 * 10, return_counts=True)
    spectra = sum(map(rates.eigenvalues, steps.tolist(), counts.tolist()))
    products = float((lengths**2).sum()) * d / rates.symmetric
    # The float32 states are read once; a prompt's differences stay in the cache.
    moved = int(lengths.sum()) * d * 4 / rates.copy
    ours_in = [in_batches(layer) for layer in states]
    torch.set_num_threads(clock.threads)
    return [
        Row(
            name,
            clock.plain(lambda w=work: w(states[0])) * share,
            clock.best(lambda o=ours: o(ours_in)) * (share / layers),
            wanted,
            floor,
            agree(work(states[0]), ours(ours_in)[0]),
            note,
        )
        for name, wanted, work, ours, floor in (
            ("prompt entropy", 3, plain.prompt_entropy, our_prompt_entropy, spectra + products),
            ("curvature", 20, plain.curvature, our_curvature, moved),
        )
    ]


def compare_errors(a: argparse.Namespace) -> list[tuple[str, float, float]]:
    """Name, seconds of the value alone and with its standard error: processor time of one core.

    Of single metrics and, as ``all``, of those of embeddings and views, at one layer.
    """
    from layerwise.config.settings import MetricsSettings
    from layerwise.metrics import layer as layers
    from layerwise.metrics import table
    from layerwise.metrics.layer import Layer
    from layerwise.metrics.registry import all_metrics

    views = make_views(0, a.prompts, a.views + 1, a.hidden)
    known = all_metrics()
    embedded = [n for n, m in known.items() if {"pooled", "pair", "views"} & set(m.inputs)]

    def seconds(names: Sequence[str]) -> float:
        used = []
        for _ in range(a.repeats):
            layer = Layer(InMemory(views), MetricsSettings())
            start = time.process_time()
            table.compute_layer(layer, [known[name] for name in names])
            used.append(time.process_time() - start)
        return min(used)

    groups = {n: [n] for n in ("infonce", "lidar", "dime", "rankme", "cka_last", "two_nn")}
    with threadpool_limits(1, "blas"):
        rows = []
        for name, names in {**groups, "all": embedded}.items():
            with mock.patch.object(layers, "PARTS", 0):
                value = seconds(names)
            rows.append((name, value, seconds(names)))
    return rows


class InMemory:
    """Embeddings of views, read like an activations file; layer 1 has the first view's."""

    arrays: frozenset[str] = frozenset()
    layers = range(2)
    lacks: frozenset[str] = frozenset()

    def __init__(self, views: np.ndarray) -> None:
        self.all_views = views
        self.n_views, n, self.hidden = views.shape
        self.prompts = tuple(map(str, range(n)))

    def pooled(self, _: str, __: str, layer: int, view: int = 0) -> np.ndarray:
        """Embeddings of one view."""
        embeddings: np.ndarray = self.all_views[view or layer]
        return embeddings

    def views(self, *_: Any) -> np.ndarray:
        """Embeddings of all views."""
        return self.all_views

    def n_tokens(self, *_: Any) -> np.ndarray:
        """One token of each prompt."""
        return np.ones(len(self.prompts), dtype=int)


def whole_stage(a: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    """All metrics of a file, both protocols, against a forward pass of a model of that size."""
    from layerwise.activations import store as layout
    from layerwise.config.settings import MetricsSettings
    from layerwise.metrics import table

    n, d, v, layers = a.prompts, a.hidden, a.views, a.our_layers
    lengths = make_lengths(n)
    inside = np.arange(LONGEST)[None] < lengths[:, None]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "activations.h5"
        labels = {
            "protocol": ("paper", "reference"),
            "tokens": ("all",),
            "layer": range(layers),
            "view": range(v + 1),
            "prompt": [str(i) for i in range(n)],
            "hidden": range(d),
            "rank": range(LONGEST),
        }
        attributes = {"model": "m", "revision": "r", "corpus": "c"}
        with layout.create(path, labels, attributes) as file:
            for k in range(layers):
                views = make_views(k, n, v + 1, d)
                for protocol in range(2):
                    file["pooled"][protocol, 0, k] = views * 0.1**protocol
                    spectra = np.where(inside, 1.0 / np.arange(1, LONGEST + 1), 0.0)
                    file["spectrum"][protocol, 0, k] = spectra
                file["curvature"][:, :, k] = 1.0
                file["norm"][k] = inside
                file["n_tokens"][:, 0, k] = lengths
        with layout.Activations(path) as activations:
            seconds = clock.best(
                lambda: table.compute(activations, MetricsSettings(), a.threads)
            ).clock
    forward = forward_pass(a, clock, lengths)
    scale = a.layers / layers
    return {
        "seconds": seconds * scale,
        "forward_seconds": forward,
        "share": seconds * scale / forward,
        "wanted": 0.05,
        "note": f"{layers} layers timed, scaled to {a.layers}; both protocols, one choice of "
        f"tokens, all metrics with standard errors; forward passes of {v + 1} texts a prompt, "
        "timed on 4 prompts and scaled, without what the extraction adds to them",
    }


def forward_pass(a: argparse.Namespace, clock: Clock, lengths: np.ndarray) -> float:
    """Seconds that a transformer of this width and depth takes for all views of all prompts."""
    import transformers

    torch.set_num_threads(a.threads)
    config = transformers.GPTNeoXConfig(
        hidden_size=a.hidden,
        num_hidden_layers=a.layers - 1,
        intermediate_size=4 * a.hidden,
        num_attention_heads=max(1, a.hidden // 64),
        vocab_size=1000,
    )
    model = transformers.AutoModel.from_config(config).eval()
    mean = int(lengths.mean())
    ids = torch.randint(0, 1000, (4, mean))
    with torch.inference_mode():
        seconds = clock.best(lambda: model(input_ids=ids), clock.repeats + 1).clock
    return seconds / (4 * mean) * int(lengths.sum()) * (a.views + 1)


def as_text(
    rows: list[Row], with_errors: list[tuple[str, float, float]], stage: dict[str, Any] | None
) -> str:
    """The table."""
    lines = [
        f"{'metric':17}{'plain s':>9}{'ours s':>9}{'faster':>8}{'wanted':>8}{'by core':>9}"
        f"{'core s':>9}{'floor':>9}{'x floor':>9}  same value, note"
    ]
    lines += [
        f"{r.metric:17}{r.plain.clock:9.3f}{r.ours.clock:9.4f}{r.faster:7.1f}x"
        f"{'' if r.wanted is None else f'{r.wanted:.0f}x':>8}{r.by_core:8.1f}x"
        f"{r.ours.cores:9.4f}{r.floor:9.4f}{r.ours.cores / r.floor:9.2f}"
        f"  {'yes' if r.same else 'NO'}, {r.note}"
        for r in rows
    ]
    lines += ["", f"{'value alone, with error':24}{'value s':>9}{'both s':>9}{'ratio':>8}"]
    lines += [f"{name:24}{v:9.3f}{both:9.3f}{both / v:8.2f}" for name, v, both in with_errors]
    if stage:
        lines += [
            "",
            f"whole stage: {stage['seconds']:.1f} s; forward pass: "
            f"{stage['forward_seconds']:.0f} s; that is "
            f"{stage['share']:.1%} (wanted: at most {stage['wanted']:.0%})",
            stage["note"],
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=1000, help="N (default 1000)")
    parser.add_argument("--hidden", type=int, default=768, help="D (default 768)")
    parser.add_argument("--views", type=int, default=16, help="V (default 16)")
    parser.add_argument("--layers", type=int, default=25, help="L + 1 (default 25)")
    parser.add_argument("--our-layers", type=int, default=4, help="layers timed (default 4)")
    parser.add_argument("--threads", type=int, default=2, help="cores (default 2)")
    parser.add_argument("--repeats", type=int, default=3, help="the best of so many (default 3)")
    parser.add_argument("--no-stage", action="store_true", help="leave out the whole stage")
    parser.add_argument("--output", type=Path, help="also write the results here (JSON)")
    a = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    clock = Clock(a.threads, a.repeats)
    log.info(
        "%d prompts, %d views, %d dimensions, %d cores", a.prompts, a.views, a.hidden, a.threads
    )
    rates = Rates(a.hidden, clock)
    rows = [*compare_views(a, clock, rates), *compare_states(a, clock, rates)]
    with_errors = compare_errors(a)
    stage = None if a.no_stage else whole_stage(a, clock)
    sys.stdout.write(as_text(rows, with_errors, stage))
    if a.output:
        record = {
            "options": {k: v for k, v in vars(a).items() if k != "output"},
            "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
            "metrics": [{**asdict(r), "faster": r.faster, "by_core": r.by_core} for r in rows],
            "errors": with_errors,
            "stage": stage,
        }
        a.output.parent.mkdir(parents=True, exist_ok=True)
        a.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
