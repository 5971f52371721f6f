"""Readings of several layers, made of the stored embeddings when a layer is scored.

Each is a function of the layer l, and so a curve over depth:

============= ======================================================================
one           layer l itself
mean K        mean of the last K layers up to l, or of as many as there are
mean all      mean of all layers up to l, the embedding output included
concat last   layer l beside the last layer as the model hands it out (``output``)
concat N      layer l beside layer N
concat class  the other tokens at layer l beside the class token there
============= ======================================================================

Where embeddings are scaled to unit length before they are scored, so is each layer before it is
joined: else the layers with the largest norms, in decoders the last ones, would be all there is.
Nothing but a running sum and the layer being read is in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from layerwise.errors import LayerwiseError
from layerwise.tasks.layout import Array, Embeddings, Reading
from layerwise.vocabulary import ONE

log = logging.getLogger(__name__)

OUTPUT, CLASS = "output", "class"
CACHED = 256  # rows


class Unit(NamedTuple):
    """What is scored: a layer under a reading, alone or with others."""

    reading: Reading
    layer: int
    layers: str = ONE


Part = tuple[Reading, int]


def parts(unit: Unit, file: Embeddings) -> list[Part]:
    """The single layers that a unit is made of, in order.

    Raises
    ------
    LayerwiseError
        If the file lacks one of them.
    """
    reading, layer, layers = unit
    how, _, which = layers.partition(" ")
    if layers == ONE:
        return [(reading, layer)]
    if how == "mean":
        first = 0 if which == "all" else max(0, layer - int(which) + 1)
        return [(reading, at) for at in range(first, layer + 1)]
    if which == CLASS:
        return [(reading, layer), (reading._replace(tokens=CLASS), layer)]
    last = file.n_layers - 1
    output = reading._replace(readout=OUTPUT), last
    other = output if which == "last" else (reading, int(which))
    if other[0] not in file.readings or other[1] > last:
        raise LayerwiseError(
            f"scoring.layers: {layers!r} came, but {file.path} of {file.model} has no layer "
            f"{other[1]} read as {other[0]}; it has the layers 0 to {last}, read as "
            f"{'; '.join(map(str, file.readings))}."
        )
    return [(reading, layer), other]


def units(file: Embeddings, layers: Iterable[str]) -> list[Unit]:
    """All that is scored of a file.

    Single layers come layer by layer; those with others reading by reading, so that a running sum
    can go on. Those beside a class token are left out of a file without one, which the log says.
    """
    found = []
    for way in layers:
        if way == f"concat {CLASS}":
            beside = [
                r for r in file.readings
                if r.tokens != CLASS and r._replace(tokens=CLASS) in file.readings
            ]  # fmt: skip
            found += [Unit(r, at, way) for r in beside for at in range(file.n_layers)]
            if not beside:
                log.warning(
                    "%s has no class token beside other tokens in %s; it has no scores of %r",
                    file.model, file.path, way,
                )  # fmt: skip
        elif way == ONE:
            found += [Unit(r, at) for at in range(file.n_layers) for r in file.readings]
        else:
            found += [Unit(r, at, way) for r in file.readings for at in range(file.n_layers)]
    return found


def first_alike(
    wanted: Sequence[Unit], file: Embeddings, alike: Mapping[Part, Part]
) -> dict[Unit, Unit]:
    """For each unit the first that has the same embeddings.

    Parameters
    ----------
    alike : mapping
        As `layerwise.tasks.layout.Embeddings.alike` gives it.
    """
    first: dict[tuple[str, tuple[Part, ...]], Unit] = {}
    found = {}
    for unit in wanted:
        made_of = tuple(alike[part] for part in parts(unit, file))
        if len(made_of) == 1:
            found[unit] = Unit(*made_of[0])
            continue
        how = unit.layers.split()[0]
        found[unit] = first.setdefault((how, made_of), unit)
    return found


class Joiner:
    """Reads the embeddings of units from a file.

    Parameters
    ----------
    normalize : bool
        Whether layers are scaled to unit length before they are joined.
    """

    def __init__(self, file: Embeddings, *, normalize: bool) -> None:
        self._file, self._normalize = file, normalize
        self._parts: list[Part] = []
        self._sum: Array | None = None

    def read(self, unit: Unit) -> Array:
        """Embeddings of all texts, shape (N, D), or (N, 2 D) of a concatenation, float32.

        In an array of their own, which may be written to.
        """
        if unit.layers == ONE:
            return self._file.layer(unit.reading, unit.layer)
        made_of = parts(unit, self._file)
        if unit.layers.startswith("concat"):
            return np.concatenate([self._layer(part) for part in made_of], axis=1)
        return self._added(made_of) / np.float32(len(made_of))

    def _layer(self, part: Part) -> Array:
        values = self._file.layer(*part)
        return normalized(values) if self._normalize else values

    def _added(self, made_of: list[Part]) -> Array:
        """The sum of some layers, going on from the last one if it begins with the same."""
        known = len(self._parts)
        if self._sum is None or made_of[:known] != self._parts:
            known, self._sum = 0, np.zeros((len(self._file.keys), self._file.hidden), np.float32)
        for part in made_of[known:]:
            self._sum += self._layer(part)
        self._parts = made_of
        return self._sum


def normalized(embeddings: Array, into: Array | None = None) -> Array:
    """Rows scaled to unit length, shape (N, D), float32; a zero row stays zero.

    Written into `into`, which may be `embeddings`, or into a new array.
    """
    made = np.empty(embeddings.shape, np.float32) if into is None else into
    # Some rows at a time, so that their float64 stays in the cache.
    for start in range(0, len(embeddings), CACHED):
        rows = embeddings[start : start + CACHED].astype(np.float64)
        norms = np.sqrt(np.vecdot(rows, rows))
        rows /= np.where(norms > 0, norms, 1)[:, None]
        made[start : start + CACHED] = rows
    return made
