"""The embeddings file: every distinct text of a task at every layer of one model.

``results/embeddings/{model}/{revision}/{task}.h5``

Dimensions (each a dimension scale of that name, holding its labels):

======= ===========================================================================
reading a way to take a vector from a layer, as ``tokens/pooling/readout``
layer   0 (embedding output) to L (last block)
text    SHA-256 of the text (`layerwise.files.sha256_text`), in hexadecimal
hidden  0 … D-1
======= ===========================================================================

Arrays:

========= ============================ =====================================================
embedding reading, layer, text, hidden the text's embedding as the model gave it, float32
tokens    reading                      which tokens count: ``all``, ``drop_first``, …
pooling   reading                      how token states became one vector: ``mean``, …
readout   reading                      which states were read: ``residual``, ``final_norm``, …
========= ============================ =====================================================

Below layer L a reading of the readout ``output`` is the residual stream. Where the file has the
reading of the same tokens and pooling from ``residual``, those layers are stored there alone (and
NaN here, which takes no room on the disk); `Embeddings.layer` and `twin` know.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt

from layerwise import hdf5
from layerwise.errors import LayerwiseError

SCHEMA = "layerwise.embeddings"
VERSION = 3

Array = npt.NDArray[Any]


class Reading(NamedTuple):
    """One way to take a text's vector from a layer of a model."""

    tokens: str = "all"
    pooling: str = "mean"
    readout: str = "residual"

    def __str__(self) -> str:
        return "/".join(self)


def readings(
    tokens: Sequence[str], poolings: Sequence[str], readouts: Sequence[str]
) -> list[Reading]:
    """Every choice of tokens with every pooling and readout, in this order."""
    return list(itertools.starmap(Reading, itertools.product(tokens, poolings, readouts)))


def twin(reading: Reading, readings: Sequence[Reading]) -> Reading | None:
    """The reading that has the same embeddings at all layers but the last, if it is there."""
    residual = reading._replace(readout="residual")
    return residual if reading.readout == "output" and residual in readings else None


def first_stored(readings: Sequence[Reading], n_layers: int) -> list[int]:
    """The first layer that is stored of each reading: the last for one that has a twin."""
    return [n_layers - 1 if twin(reading, readings) else 0 for reading in readings]


@contextmanager
def create(
    path: Path,
    *,
    readings: Sequence[Reading],
    n_layers: int,
    texts_keys: Sequence[str],
    hidden: int,
    attributes: Mapping[str, Any],
) -> Iterator[h5py.File]:
    """Create the file, to be filled by `fill`.

    Parameters
    ----------
    readings : sequence of Reading
    n_layers : int
        L + 1, the embedding output included.
    texts_keys : sequence of str
        SHA-256 of each distinct text, in the order in which they are embedded.
    hidden : int
        D, the width of the model.
    attributes : mapping
        At least ``model``, ``revision`` and ``task``.

    Raises
    ------
    LayerwiseError
        If the folder cannot be written.
    ValueError
        If a key or reading comes twice.
    """
    for name, given in (("texts_keys", texts_keys), ("readings", readings)):
        if len(set(given)) != len(given):
            raise ValueError(f"{name} holds one twice")
    with hdf5.create(path, SCHEMA, VERSION, attributes) as file:
        hdf5.add_scale(file, "reading", [str(reading) for reading in readings])
        hdf5.add_scale(file, "layer", np.arange(n_layers))
        hdf5.add_scale(file, "text", list(texts_keys))
        hdf5.add_scale(file, "hidden", np.arange(hidden))
        for name in Reading._fields:
            values = [getattr(reading, name) for reading in readings]
            labels = file.create_dataset(name, data=values, dtype=hdf5.STRING)
            labels.dims[0].attach_scale(file["reading"])
        hdf5.add_array(
            file, "embedding", ("reading", "layer", "text", "hidden"), "f4",
            unit="activation", description="embedding of each text, as the model gave it",
            whole=("text", "hidden"),
        )  # fmt: skip
        yield file


def copy_known(file: h5py.File, keys: Sequence[str], seen: Mapping[str, Path]) -> None:
    """Copy the embeddings of texts that other files of the same model and readings hold.

    Parameters
    ----------
    file : as `create` yields it, of these keys
    seen : mapping from a text's key to the file that holds it
    """
    by_file: dict[Path, list[int]] = {}
    for place, key in enumerate(keys):
        if key in seen:
            by_file.setdefault(seen[key], []).append(place)
    for path, places in by_file.items():
        with h5py.File(path, "r") as other:
            row = {key: place for place, key in enumerate(other["text"].asstr()[:])}
            # HDF5 reads rows in their own order.
            pairs = sorted((row[keys[place]], place) for place in places)
            for layer in range(other["embedding"].shape[1]):
                values = other["embedding"][:, layer, [a for a, _ in pairs]]
                order = np.argsort([b for _, b in pairs])
                file["embedding"][:, layer, [pairs[k][1] for k in order]] = values[:, order]


def fill(file: h5py.File, places: Sequence[int], slabs: Sequence[Array]) -> None:
    """Write the embeddings of some texts.

    Parameters
    ----------
    places : sequence of int, ascending
        Which of the file's texts they are of.
    slabs : sequence of arrays, shape (layers, number of texts, D)
        One a reading: its layers from `first_stored` on.
    """
    n_layers = file["layer"].shape[0]
    for place, slab in enumerate(slabs):
        file["embedding"][place, n_layers - len(slab) :, places] = slab


class Embeddings:
    """Read an embeddings file, one layer at a time.

    Use it as a context manager.

    Raises
    ------
    LayerwiseError
        If the file is not a complete embeddings file of this schema, or is about another
        model, revision or task than the ones asked for.
    """

    def __init__(
        self,
        path: Path,
        *,
        model: str | None = None,
        revision: str | None = None,
        task: str | None = None,
    ) -> None:
        wanted = {"model": model, "revision": revision, "task": task}
        expected = {k: v for k, v in wanted.items() if v is not None}
        self._file = hdf5.open_checked(path, SCHEMA, VERSION, expected)
        self.path = Path(path)
        self.attributes: dict[str, Any] = dict(self._file.attrs)
        self.model = str(self.attributes["model"])
        self.revision = str(self.attributes["revision"])
        self.task = str(self.attributes["task"])
        labels = (self._file[name].asstr()[:] for name in Reading._fields)
        self.readings = tuple(Reading(*row) for row in zip(*labels, strict=True))
        self.keys: tuple[str, ...] = tuple(self._file["text"].asstr()[:])
        self.n_layers = int(self._file["layer"].shape[0])
        self.hidden = int(self._file["hidden"].shape[0])

    def __enter__(self) -> Embeddings:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def layer(self, reading: Reading, layer: int, n: int | None = None) -> Array:
        """Embeddings of all texts, or the first `n`, at a layer, in the order of `keys`.

        Returns
        -------
        array, shape (N, D), float32

        Raises
        ------
        LayerwiseError
            If the file has no such reading or layer, or is damaged.
        """
        if reading not in self.readings or not 0 <= layer < self.n_layers:
            raise LayerwiseError(
                f"{self.path} has no layer {layer} read as {reading}; it has the layers 0 to "
                f"{self.n_layers - 1}, read as {'; '.join(map(str, self.readings))}."
            )
        if layer < self.n_layers - 1:
            reading = twin(reading, self.readings) or reading
        at = (self.readings.index(reading), layer)
        return hdf5.read(self._file["embedding"], (*at, slice(n)))

    def alike(self) -> dict[tuple[Reading, int], tuple[Reading, int]]:
        """For each reading and layer the first, by layer and reading, of the same embeddings.

        The same are those that `twin` says, a post-norm model's last layer and output, the last
        token whatever is dropped before it, …
        """
        units = list(itertools.product(self.readings, range(self.n_layers)))
        units.sort(key=lambda unit: unit[1])
        if len(self.readings) == 1:
            return {unit: unit for unit in units}
        few: dict[str, list[tuple[Reading, int]]] = {}
        found = {}
        for reading, layer in units:
            of = twin(reading, self.readings) if layer < self.n_layers - 1 else None
            if of is not None:
                found[reading, layer] = (of, layer)
                continue
            # Few texts tell nearly all that differ; the rest are read whole.
            group = few.setdefault(self.fingerprint(self.layer(reading, layer, 32)), [])
            mine = self.layer(reading, layer, None if group else 0)
            same = (unit for unit in group if np.array_equal(self.layer(*unit), mine))
            found[reading, layer] = next(same, (reading, layer))
            if found[reading, layer] == (reading, layer):
                group.append((reading, layer))
        return {unit: found[first] for unit, first in found.items()}

    def fingerprint(self, embeddings: Array) -> str:
        """SHA-256 over a layer's embeddings and the texts they belong to, in hexadecimal."""
        digest = hashlib.sha256("".join(self.keys).encode())
        digest.update(np.ascontiguousarray(embeddings).data)
        return digest.hexdigest()
