"""Intervals and tests over prompts, on prompts of which the truth is known.

    python tests/calibration/prompts.py --repeats 400 docs/studies/calibration.csv

Each row: check, prompts, layers, share of the repeats, what it should be.
"""

from __future__ import annotations

import argparse
import csv
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from layerwise.association import similarity
from layerwise.figures.alpha_robustness import _rank_correlations, _reversals
from layerwise.figures.block_parts import _lowering, _steps
from layerwise.figures.findings import _change, _extremes
from layerwise.figures.training_course import _corrected, _course, appears, paths
from layerwise.figures.value_distribution import _summary
from layerwise.statistics.corrections import holm
from layerwise.statistics.groups import dip_p, effect
from layerwise.statistics.prompts import largest, means, resampled
from layerwise.statistics.valleys import valley

Floats = npt.NDArray[np.float64]
Rng = np.random.Generator
Check = Callable[[int, int, Rng], bool]


def noise(n: int, layers: int, rng: Rng) -> Floats:
    """Prompts differ by a level, a slope and a skewed walk over layers, as entropies do."""
    level = rng.normal(size=(n, 1)) + rng.normal(size=(n, 1)) * np.linspace(-1, 1, layers)
    steps = rng.exponential(size=(n, layers)) - 1
    return np.asarray(0.3 * level + 0.1 * np.cumsum(steps, axis=1) + 0.1 * steps)


def hill(layers: int) -> Floats:
    """A dip of depth 0.3 at a third of the depth, its right shoulder the lower one."""
    depth = np.linspace(0, 1, layers)
    at = layers // 3
    return np.where(depth <= depth[at], 0.5 * (1 - depth / depth[at]),
                    0.3 * (depth - depth[at]) / (1 - depth[at]))  # fmt: skip


def difference(n: int, layers: int, rng: Rng) -> bool:
    """Coverage: mean difference at a layer."""
    found = means(noise(n, layers, rng) + 0.1)
    at = layers // 2
    return bool(found.low[at] <= 0.1 <= found.high[at])


def any_layer(n: int, layers: int, rng: Rng) -> bool:
    """False positive: any layer said to differ, where none does."""
    return bool((holm(means(noise(n, layers, rng)).p) < 0.05).any())


def valley_of_flat(n: int, layers: int, rng: Rng) -> bool:
    """False positive: a valley in a flat curve."""
    return valley(noise(n, layers, rng), resamples=1).depth.p < 0.05


def valley_of_slope(n: int, layers: int, rng: Rng) -> bool:
    """False positive: a valley in a curve that falls."""
    slope = np.linspace(0.2, 0, layers)
    return valley(noise(n, layers, rng) + slope, resamples=1).depth.p < 0.05


def valley_depth(n: int, layers: int, rng: Rng) -> bool:
    """Coverage: depth of a valley."""
    found = valley(noise(n, layers, rng) + hill(layers), resamples=1).depth
    return found.low <= 0.3 <= found.high


def valley_place(n: int, layers: int, rng: Rng) -> bool:
    """Coverage: place of a valley."""
    found = valley(noise(n, layers, rng) + hill(layers), resamples=300)
    true = (layers // 3) / (layers - 1)
    return found.place_low - 1e-9 <= true <= found.place_high + 1e-9


def valley_of_drop(n: int, layers: int, rng: Rng) -> bool:
    """False positive: a valley in a curve that drops and then is flat."""
    drop = np.where(np.arange(layers) < 2, 1.0, 0.0)
    return valley(noise(n, layers, rng) + drop, resamples=1).depth.p < 0.05


def valley_depth_of_flat(n: int, layers: int, rng: Rng) -> bool:
    """Coverage: depth 0 of a flat curve."""
    found = valley(noise(n, layers, rng), resamples=1).depth
    return found.low <= 0 <= found.high


def _paths(n: int, layers: int, rng: Rng, down: float) -> Floats:
    """Each prompt's path of a training that goes down by so much, and up by half of it."""
    own = noise(n, layers, rng)
    cube = np.stack([own + d + 0.1 * rng.normal(size=own.shape) for d in (0, -down, -down / 2)])
    steps = np.diff(cube, axis=0)
    passes = holm(np.concatenate([means(s).p for s in steps])).reshape(2, -1) < 0.05
    return paths(steps, passes)


def no_change(n: int, layers: int, rng: Rng) -> bool:
    """False positive: any layer has a path, where nothing changes."""
    return bool(_paths(n, layers, rng, 0.0).any())


def path_length(n: int, layers: int, rng: Rng) -> bool:
    """Coverage: a layer's path, down by 0.4 and up by 0.2."""
    found = means(_paths(n, layers, rng, 0.4))
    at = layers // 2
    return bool(found.low[at] <= 0.6 <= found.high[at])


def training(n: int, layers: int, rng: Rng, change: float) -> pd.DataFrame:
    """What a title of a training is made of, all layers of which change by so many errors."""
    own = noise(n, layers, rng)
    drift = rng.normal(size=(5, n, layers)).cumsum(axis=0)
    drift += np.arange(5)[:, None, None] * change * np.sqrt(2 / n)
    cubes = {("m", "all", str(k)): pd.DataFrame(own + d) for k, d in enumerate(drift)}
    return _corrected(_course(cubes, "m", "all", list("01234")).assign(model="m", reading="all"))


def late_less_early(change: float) -> Check:
    def check(n: int, layers: int, rng: Rng) -> bool:
        table = training(n, layers, rng, change)
        return bool(table.loc[table["what"] == "late less early", "passes"].any())

    check.__doc__ = "False positive: early layers said to change more or less, all changing alike."
    return check


def something_stays(n: int, layers: int, rng: Rng) -> bool:
    """False positive: the title of three models and checkpoints has a valley or a sink stay."""
    names, found = list("012"), []
    for model in "abc":
        cubes = {(model, reading, r): pd.DataFrame(noise(n, layers, rng))
                 for reading in ("all", "drop_first") for r in names}  # fmt: skip
        found.append(_course(cubes, model, "all", names).assign(model=model, reading="all"))
    table = _corrected(pd.concat(found, ignore_index=True))
    return any(
        appears(part, names) for _, part in
        table[table["what"].isin(["valley", "sink"])].groupby(["what", "model"])
    )  # fmt: skip


def sink(n: int, layers: int, rng: Rng) -> bool:
    """False positive: a sink at the best of all layers, where the first token takes nothing."""
    return largest(noise(n, layers, rng))[0].p < 0.05


def sink_size(n: int, layers: int, rng: Rng) -> bool:
    """Coverage: the largest of all layers' means."""
    found = largest(noise(n, layers, rng) + hill(layers))[0]
    return found.low <= hill(layers).max() <= found.high


def any_hump(n: int, layers: int, rng: Rng) -> bool:
    """False positive: any layer said to have two humps, where all have one."""
    return bool((holm([dip_p(v)[1] for v in noise(n, layers, rng).T]) < 0.05).any())


def delta(n: int, layers: int, rng: Rng) -> bool:
    """Coverage: Cliff's delta of a skewed property, 0.5."""
    upper = np.arange(n) < n // 3
    # Exponentials with rates in the ratio r: P(a > b) = r / (1 + r) = 0.75.
    found = effect(np.where(upper, 3.0, 1.0) * rng.exponential(size=n), upper)
    return found.low <= 0.5 <= found.high


def delta_of_counts(n: int, layers: int, rng: Rng) -> bool:
    """False positive: a property with many ties and another spread, equally likely above."""
    upper = np.arange(n) < n // 4
    return effect(np.round(rng.normal(size=n) * np.where(upper, 3, 1)), upper).p < 0.05


WIDTH = 24


@cache
def _maps() -> tuple[Floats, Floats]:
    rng = np.random.default_rng(7)
    return rng.normal(size=(8, WIDTH)), rng.normal(size=(8, WIDTH))


def embeddings(n: int, rng: Rng) -> tuple[Floats, Floats]:
    """Two layers that share eight directions of unequal strength, and have noise of their own."""
    shared = rng.normal(size=(n, 8)) * 0.8 ** np.arange(8)
    a, b = _maps()
    return (shared @ a + 2 * rng.normal(size=(n, WIDTH)),
            shared @ b + 2 * rng.standard_t(5, size=(n, WIDTH)))  # fmt: skip


@cache
def _truth(measure: str) -> float:
    rng = np.random.default_rng(1)
    many = [similarity.compare(*(e[None] for e in embeddings(800, rng)))[measure].value[0, 0]
            for _ in range(12)]  # fmt: skip
    return float(np.mean(many))


def similar(measure: str) -> Check:
    def check(n: int, layers: int, rng: Rng) -> bool:
        found = similarity.compare(*(e[None] for e in embeddings(n, rng)))[measure]
        return bool(abs(found.value[0, 0] - _truth(measure)) <= 1.959964 * found.stderr[0, 0])

    check.__doc__ = f"Coverage: {measure} of two layers."
    return check


def unrelated(n: int, layers: int, rng: Rng) -> bool:
    """False positive: debiased CKA of unrelated layers above 0 (one-sided, .025)."""
    X, Y = rng.normal(size=(1, n, WIDTH)), rng.standard_t(5, size=(1, n, 4 * WIDTH))
    found = similarity.compare(X, Y)["cka_debiased"]
    return bool(found.value[0, 0] > 1.959964 * found.stderr[0, 0])


def rank_correlation(n: int, layers: int, rng: Rng) -> bool:
    """Coverage: rank correlation of two mean curves over layers."""
    one, other = hill(layers), hill(layers) + 0.4 * np.linspace(0, 1, layers)
    true = _rank_correlations(one[None], other[None])[0]
    own = noise(n, layers, rng)
    two = own + other + 0.2 * rng.normal(size=own.shape)
    weights = resampled(n, 300)
    drawn = _rank_correlations(weights @ (own + one), weights @ two)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return bool(low - 1e-9 <= true <= high + 1e-9)


def _curve(values: Floats) -> pd.DataFrame:
    """Mean and error by layer, as the tables of metrics have them."""
    n, layers = values.shape
    return pd.DataFrame(
        {"layer": range(layers), "value": values.mean(axis=0), "n": n,
         "stderr": values.std(axis=0, ddof=1) / np.sqrt(n)}
    )  # fmt: skip


def perturbed(shared: float) -> Check:
    """No perturbation changes a metric on average; so much of a prompt's departure stays."""

    def check(n: int, layers: int, rng: Rng) -> bool:
        told = []
        for _ in range(2):  # models of a title
            own = hill(layers) + np.sqrt(shared) * noise(n, layers, rng)
            pair = [_curve(own + np.sqrt(1 - shared) * noise(n, layers, rng)) for _ in range(2)]
            told += _change("m", *pair, comparisons=2)["told"]
        return bool(told)

    check.__doc__ = "False positive: the title of perturbed prompts names a layer."
    return check


def part_of_blocks(count: int) -> Check:
    def check(n: int, layers: int, rng: Rng) -> bool:
        parts = {str(i): _curve(noise(n, layers, rng)) for i in range(count)}
        means = {k: float(p["value"].mean()) for k, p in parts.items()}
        errors = {k: float(p["stderr"].mean()) for k, p in parts.items()}
        return any(_extremes(means, errors)[1].values())

    check.__doc__ = f"False positive: the title calls one of {count} parts of blocks the lowest."
    return check


def _stream(n: int, layers: int, rng: Rng, mixer: Floats) -> dict[str, object]:
    """What is found of blocks whose mixer changes the stream by so much at each layer and whose
    MLP changes nothing on average."""
    steps = np.diff(noise(n, 2 * layers - 1, rng), axis=1)
    steps[:, ::2] += mixer
    whole = np.concatenate([np.zeros((n, 1)), np.cumsum(steps, axis=1)], axis=1)
    whole += rng.normal(size=(n, 1))
    parts = {"block": whole[:, ::2], "mixer_residual": whole[:, 1::2]}
    rows = []
    for name, values in parts.items():
        prompt, layer = np.indices(values.shape)
        rows.append(
            pd.DataFrame(
                {"prompt_id": prompt.ravel(), "layer": layer.ravel() + (name != "block"),
                 "sublayer": name, "value": values.ravel()}
            )
        )  # fmt: skip
    return _steps(pd.concat(rows), {"model": "m"})[1]


def step_of_none(n: int, layers: int, rng: Rng) -> bool:
    """False positive: the title names a step that makes the stream fall, where nothing does."""
    found = _stream(n, layers, rng, np.zeros(layers - 1))
    return found["fall"]["low"] > 0 and bool(_lowering(found, 1))


def step_of_other(n: int, layers: int, rng: Rng) -> bool:
    """False positive: the title names the MLP, where the mixer alone lowers the stream."""
    found = _stream(n, layers, rng, np.diff(hill(layers)))
    return found["fall"]["low"] > 0 and "what the MLP adds" in _lowering(found, 1)


def humps_by_checkpoint(n: int, layers: int, rng: Rng) -> bool:
    """False positive: two humps at some layer of some of 11 checkpoints, all having one."""
    ps: list[float] = []
    drift, own = noise(n, layers, rng), noise(n, layers, rng)
    names = dict.fromkeys(("model", "revision", "corpus", "reading", "sublayer", "metric",
                           "protocol"), "")  # fmt: skip
    for step in np.linspace(0, 1, 11):
        values = own + step * drift + 0.1 * noise(n, layers, rng)
        layer = np.indices(values.shape)[1]
        table = pd.DataFrame(
            {**names, "layer": layer.ravel(), "depth": layer.ravel() / (layers - 1),
             "value": values.ravel()},
        )  # fmt: skip
        ps += list(_summary(table)["p"])
    return bool((holm(ps) < 0.05).any())


def change_of_places(n: int, layers: int, rng: Rng) -> bool:
    """False positive: two models change places, that differ at one order and at no other."""
    curves = {}
    for model in ("a", "b"):
        own = noise(n, layers, rng)
        for alpha in (0.5, 1.0, 2.0, np.inf):
            lead = 0.5 * (model == "a" and alpha == 0.5)
            values = own + lead + 0.3 * noise(n, layers, rng)
            curves["m" + model, "main", "all", alpha] = pd.DataFrame(values)
    return bool(_reversals(curves))


CHECKS: dict[str, tuple[Check, str]] = {
    "difference at a layer": (difference, "0.95"),
    "any layer differs, none does": (any_layer, "at most 0.05"),
    "valley claimed, flat curve": (valley_of_flat, "at most 0.05"),
    "valley claimed, falling curve": (valley_of_slope, "at most 0.05"),
    "valley claimed, drop and flat": (valley_of_drop, "at most 0.05"),
    "depth of a valley": (valley_depth, "at least 0.95"),
    "depth of no valley": (valley_depth_of_flat, "at least 0.95"),
    "place of a valley": (valley_place, "at least 0.95"),
    "any path, nothing changes": (no_change, "at most 0.05"),
    "path of a layer": (path_length, "0.95"),
    "early and late, alike": (late_less_early(20.0), "0.05"),
    "early and late, alike, small changes": (late_less_early(3.0), "at most 0.05"),
    "early and late, nothing changes": (late_less_early(0.0), "at most 0.05"),
    "title: a valley or a sink stays, neither": (something_stays, "at most 0.05"),
    "sink claimed, none": (sink, "at most 0.05"),
    "size of a sink": (sink_size, "at least 0.95"),
    "any layer with two humps, none": (any_hump, "at most 0.05"),
    "Cliff's delta": (delta, "0.95"),
    "groups told apart, alike": (delta_of_counts, "0.05"),
    "debiased CKA": (similar("cka_debiased"), "0.95"),
    "RSA": (similar("rsa"), "0.95"),
    "CKA above 0, unrelated": (unrelated, "at most 0.025"),
    "rank correlation of curves": (rank_correlation, "0.95"),
    "title: other prompts' tokens, alike": (perturbed(0.0), "at most 0.05"),
    "title: perturbed prompts, alike": (perturbed(0.8), "at most 0.05"),
    "title: one of two parts of blocks, alike": (part_of_blocks(2), "at most 0.05"),
    "title: one of six parts of blocks, alike": (part_of_blocks(6), "at most 0.05"),
    "title: what makes the fall, nothing": (step_of_none, "at most 0.05"),
    "title: what makes the fall, the other": (step_of_other, "at most 0.05"),
    "title: two humps at 11 checkpoints, one": (humps_by_checkpoint, "at most 0.05"),
    "title: models change places, they do not": (change_of_places, "at most 0.05"),
}
NUMBERS, LAYERS = (40, 96), (7, 31)


def rows(repeats: int, only: str = "") -> Iterator[dict[str, object]]:
    """A row a check and size."""
    for name, (check, wanted) in CHECKS.items():
        if only not in name:
            continue
        for n in NUMBERS:
            for layers in LAYERS:
                rng = np.random.default_rng(zlib.crc32(f"{name} {n} {layers}".encode()))
                share = np.mean([check(n, layers, rng) for _ in range(repeats)])
                yield {"check": name, "prompts": n, "layers": layers, "repeats": repeats,
                       "share": f"{share:.3f}", "wanted": wanted}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--only", default="", help="checks whose name holds this")
    parser.add_argument("table", type=Path)
    given = parser.parse_args()
    found = []
    for row in rows(given.repeats, given.only):
        sys.stderr.write("\t".join(map(str, row.values())) + "\n")
        found.append(row)
    with given.table.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(found[0]))
        writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    main()
