"""The embeddings file: every distinct text of a task at every layer of one model.

``results/embeddings/{model}/{revision}/{task}.h5``

A task of many texts is in parts, so that no file grows beyond `PART_BYTES`: the file of the task
holds its first texts and says in its attribute ``parts`` how many there are, ``{task}/1.h5`` the
next texts, and so on. Each part is a whole file of this layout; the first is written last.

Dimensions (each a dimension scale of that name, holding its labels):

======= ===========================================================================
reading a way to take a vector from a layer, as ``tokens/pooling/readout``
layer   0 (embedding output) to L (last block)
text    SHA-256 of the text (`layerwise.files.sha256_text`), in hexadecimal
hidden  0 … D-1
======= ===========================================================================

Arrays:

========= ============================ =====================================================
embedding reading, layer, text, hidden the text's embedding as the model gave it, float32; or, in
                                       half precision, float16: see below
center    reading, layer, hidden       half precision alone: the mean embedding of `PROBES`
scale     reading, layer, text         half precision alone: a power of two
tokens    reading                      which tokens count: ``all``, ``drop_first``, …
pooling   reading                      how token states became one vector: ``mean``, …
readout   reading                      which states were read: ``residual``, ``final_norm``, …
========= ============================ =====================================================

Below layer L a reading of the readout ``output`` is the residual stream. Where the file has the
reading of the same tokens and pooling from ``residual``, those layers are stored there alone (and
NaN here, which takes no room on the disk); `Embeddings.layer` and `twin` know.

In half precision an embedding is ``center + scale * embedding``, so that each component is right
to 2^-11 of its distance from the center: embeddings of one model point in nearly the same
direction, and what tells them apart is small beside what they have in common. The scale of a row
brings its largest component just below 2^15, float16's range, whatever the model's activations
are; it is 0 for a text whose embedding is zero.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt

from layerwise import hdf5
from layerwise.errors import LayerwiseError

SCHEMA = "layerwise.embeddings"
VERSION = 4

# As much as one file holds; a job that is killed loses the part at hand.
PART_BYTES = 4 * 10**9
# Rows that are taken from half precision at a time.
ROWS = 8192

# Half precision keeps what embeddings differ by from the mean of these texts'. Any would do that
# are ordinary; always the same, so that files of one model fit together.
PROBES = (
    "The weather was fine, and the children played in the garden until it was dark.",
    "How do I change the password of my account?",
    "A new method for the estimation of parameters in nonlinear systems.",
    "good",
    "He said that he would not come, and she did not ask him why.",
    "The company reported a profit of 3.5 million dollars in the second quarter of 2019.",
    "@anna thanks so much!! see you tomorrow :)",
    "Mice that lacked the gene had fewer cells of this type than their siblings.",
    "What is the best way to learn to play the guitar?",
    "Turn off the light in the kitchen",
    "The river rises in the mountains in the north of the country and flows into the sea.",
    "I have been waiting for two weeks and the parcel still has not arrived.",
    "Deep convolutional networks for the recognition of objects in images: a survey",
    "Police said on Monday that two men had been arrested near the station.",
    "error when compiling a C++ program with templates",
    "It is one of the oldest churches in the town, built of stone in the twelfth century.",
)

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
    center: Array | None = None,
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
    center : array, shape (readings, layers, D), optional
        As `center_of` gives it, for half precision; None for float32.

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
            file, "embedding", ("reading", "layer", "text", "hidden"),
            "f4" if center is None else "f2", unit="activation" if center is None else "1",
            description="embedding of each text, as the model gave it" if center is None
            else "(embedding of each text - center) / scale",
            whole=("text", "hidden"),
        )  # fmt: skip
        if center is not None:
            hdf5.add_array(
                file, "center", ("reading", "layer", "hidden"), "f4", unit="activation",
                description="mean embedding of a few fixed texts", whole=("hidden",),
            )[:] = center  # fmt: skip
            hdf5.add_array(
                file, "scale", ("reading", "layer", "text"), "f4", unit="activation",
                description="a power of two; 0 if the embedding is zero", whole=("text",),
            )  # fmt: skip
        yield file


def bytes_per_text(
    readings: Sequence[Reading], n_layers: int, hidden: int, *, half: bool = True
) -> int:
    """Bytes that a text takes on the disk: of each layer and reading that is stored, D components
    and, in half precision, a scale."""
    stored = sum(n_layers - first for first in first_stored(readings, n_layers))
    return stored * (2 * hidden + 4 if half else 4 * hidden)


def part(path: Path, number: int) -> Path:
    """The file of a task's part, from 0 on; `path` is the task's own."""
    return path.with_suffix("") / f"{number}.h5" if number else path


def parts_in(path: Path) -> list[Path]:
    """The files of a task's parts that are there."""
    return [*path.with_suffix("").glob("[0-9]*.h5"), *([path] if path.is_file() else [])]


def is_part(path: Path, attributes: Mapping[str, Any], keys: Sequence[str]) -> bool:
    """Whether a part is there, whole, of this job and these texts, from before it was killed."""
    same = {k: attributes[k] for k in ("model", "revision", "task", "key", "parts")}
    if not path.is_file():
        return False
    try:
        with hdf5.open_checked(path, SCHEMA, VERSION, same) as file:
            return list(file["text"].asstr()[:]) == list(keys)
    except LayerwiseError:
        return False


def remove(path: Path) -> None:
    """Remove a task's embeddings, all parts of them."""
    # First the one that says that the task is done: whoever is stopped leaves parts, not a whole
    # that lacks some.
    for file in reversed(parts_in(path)):
        file.unlink()
    with suppress(OSError):  # not there, or someone else's files in it
        path.with_suffix("").rmdir()


def center_of(slabs: Sequence[Array]) -> Array:
    """The mean embedding at each layer of each reading, shape (readings, layers, D), float32.

    Parameters
    ----------
    slabs : sequence of arrays, shape (layers, number of texts, D)
        As for `fill`.
    """
    n_layers = max(map(len, slabs))
    means = [slab.mean(axis=1, dtype=np.float64).astype(np.float32) for slab in slabs]
    return np.stack([np.pad(mean, ((n_layers - len(mean), 0), (0, 0))) for mean in means])


def halved(values: Array, center: Array) -> tuple[Array, Array]:
    """Embeddings in half precision.

    Parameters
    ----------
    values : array, shape (layers, N, D), float32
    center : array, shape (layers, D), float32

    Returns
    -------
    tuple of arrays
        Shape (layers, N, D), float16, and their scales, shape (layers, N), float32.
    """
    apart = values - center[:, None]
    exponents = np.frexp(np.abs(apart).max(axis=2))[1]
    scale = np.ldexp(np.float32(1), np.maximum(exponents, -100) - 15)
    rows = (apart / scale[..., None]).astype(np.float16)
    return rows, np.where(values.any(axis=2), scale, np.float32(0))


Known = dict[str, Path]
"""The file that held a text's embedding when it was seen, by the text's key.

In which row, the file alone says: it may have been replaced since, by one of other texts.
"""


def known_in(
    folder: Path, fits: Callable[[Mapping[str, Any]], bool]
) -> tuple[Known, Array | None]:
    """The embeddings that are in a folder already, and the center of those in half precision.

    Parameters
    ----------
    folder : Path
        Of a model at a checkpoint.
    fits : function of a file's attributes
        Whether it is of the model and readings that are wanted.
    """
    exact: Known = {}
    halved: Known = {}
    center: Array | None = None
    for path in sorted(folder.rglob("*.h5")):
        with suppress(LayerwiseError), hdf5.open_checked(path, SCHEMA, VERSION, {}) as file:
            if fits(file.attrs):
                if center is None and "center" in file:
                    center = file["center"][:]
                found = halved if "center" in file else exact
                found.update(dict.fromkeys(file["text"].asstr()[:], path))
    return halved | exact, center


def copy_known(file: h5py.File, keys: Sequence[str], known: Known) -> list[int]:
    """Copy the embeddings of texts that other files of the same model and readings hold.

    Returns
    -------
    list of int
        The places of the other texts. A file that was removed meanwhile has none, nor has one in
        half precision if this one is not, or has another center.
    """
    by_file: dict[Path | None, list[int]] = {}
    for place, key in enumerate(keys):
        by_file.setdefault(known.get(key), []).append(place)
    missing = by_file.pop(None, [])
    for path, wanted in by_file.items():
        try:
            other = h5py.File(path, "r")
        except FileNotFoundError:
            missing += wanted
            continue
        with other:
            if "center" in other and not (
                "center" in file
                and np.array_equal(other["center"][:], file["center"][:], equal_nan=True)
            ):
                missing += wanted
                continue
            row_of = {key: row for row, key in enumerate(other["text"].asstr()[:])}
            places = [place for place in wanted if keys[place] in row_of]
            rows = [row_of[keys[place]] for place in places]
            missing += set(wanted) - set(places)
            # A layer at a time: less memory than all, and HDF5 is slow to pick rows.
            for at in _stored(file):
                values = {"embedding": hdf5.read(other["embedding"], at)[rows]}
                if "center" in other:
                    values["scale"] = hdf5.read(other["scale"], at)[rows]
                elif "center" in file:
                    half, scale = halved(values["embedding"][None], file["center"][at][None])
                    values = {"embedding": half[0], "scale": scale[0]}
                for name, copied in values.items():
                    whole = file[name][at]
                    whole[places] = copied
                    file[name][at] = whole
    return sorted(missing)


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
    # HDF5 is slow to pick rows one by one.
    unbroken = len(places) and places[-1] - places[0] == len(places) - 1
    rows = slice(places[0], places[-1] + 1) if unbroken else places
    for place, slab in enumerate(slabs):
        first = n_layers - len(slab)
        if "center" in file:
            slab, scale = halved(slab, file["center"][place, first:])
            file["scale"][place, first:, rows] = scale
        file["embedding"][place, first:, rows] = slab


class Embeddings:
    """Read a task's embeddings, one layer at a time, from all parts.

    Use it as a context manager.

    Raises
    ------
    LayerwiseError
        If a file is not a complete embeddings file of this schema, or is about another
        model, revision or task than the ones asked for, or a part is missing.
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
        self.path = Path(path)
        with ExitStack() as stack:
            first = stack.enter_context(hdf5.open_checked(path, SCHEMA, VERSION, expected))
            self.attributes: dict[str, Any] = dict(first.attrs)
            # All parts are of one job.
            same = {k: first.attrs[k] for k in ("model", "revision", "task", "key", "parts")
                    if k in first.attrs}  # fmt: skip
            self._files = [first] + [
                stack.enter_context(hdf5.open_checked(part(self.path, k), SCHEMA, VERSION, same))
                for k in range(1, int(self.attributes.get("parts", 1)))
            ]
            self._stack = stack.pop_all()
        self.model = str(self.attributes["model"])
        self.revision = str(self.attributes["revision"])
        self.task = str(self.attributes["task"])
        self.readings = _readings(first)
        self.keys = tuple(key for file in self._files for key in file["text"].asstr()[:])
        self.n_layers = int(first["layer"].shape[0])
        self.hidden = int(first["hidden"].shape[0])

    def __enter__(self) -> Embeddings:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all parts; what was read when they were opened stays."""
        self._stack.close()

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
        wanted = len(self.keys[:n])
        values = np.empty((wanted, self.hidden), np.float32)
        start = 0
        for file in self._files:
            stop = min(start + len(file["text"]), wanted)
            for begin in range(start, stop, ROWS):
                rows = slice(begin - start, min(begin + ROWS, stop) - start)
                _read_whole(file, (*at, rows), values[begin : start + rows.stop])
            start = stop
        return values

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


def _read_whole(file: h5py.File, at: tuple[int, int, slice], into: Array) -> None:
    """Read some rows of a reading and layer as float32."""
    if "center" not in file:
        hdf5.read_into(file["embedding"], at, into)
        return
    values = hdf5.read(file["embedding"], at)
    scale = hdf5.read(file["scale"], at)[:, None]
    center = hdf5.read(file["center"], at[:2])
    into[:] = np.where(scale > 0, center + scale * values.astype(np.float32), np.float32(0))


def _readings(file: h5py.File) -> tuple[Reading, ...]:
    labels = (file[name].asstr()[:] for name in Reading._fields)
    return tuple(Reading(*row) for row in zip(*labels, strict=True))


def _stored(file: h5py.File) -> list[tuple[int, int]]:
    """Which readings' layers are stored, by their places."""
    n_layers = file["layer"].shape[0]
    firsts = first_stored(_readings(file), n_layers)
    return [(k, layer) for k, first in enumerate(firsts) for layer in range(first, n_layers)]
