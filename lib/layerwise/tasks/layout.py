"""The embeddings file: every distinct text of a task at every layer of one model.

``results/embeddings/{model}/{revision}/{task}.h5``

Dimensions (each a dimension scale of that name, holding its labels):

======= ===========================================================================
tokens  which tokens of a text count: ``all``, ``drop_first``, ``drop_sinks``
layer   0 (embedding output) to L (last block)
text    SHA-256 of the text (`layerwise.files.sha256_text`), in hexadecimal
hidden  0 … D-1
======= ===========================================================================

Arrays:

========= =========================== ======================================================
embedding tokens, layer, text, hidden the text's embedding as the model gave it, float32
pooling   tokens                      how token states became one vector: ``mean``, …
readout   tokens                      which states were read: ``residual``, ``final_norm``
========= =========================== ======================================================

An entry along ``tokens`` is one way to read the model, a `Reading`. Where a file holds several
poolings or readouts, the same choice of tokens stands there once for each of them.
"""

from __future__ import annotations

import hashlib
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
VERSION = 1

Array = npt.NDArray[Any]


class Reading(NamedTuple):
    """One way to read a text's embedding out of a model."""

    tokens: str = "all"
    pooling: str = "mean"
    readout: str = "residual"


@contextmanager
def create(
    path: Path,
    *,
    tokens: Sequence[str],
    n_layers: int,
    texts_keys: Sequence[str],
    hidden: int,
    attributes: Mapping[str, Any],
    pooling: Sequence[str] | str = "mean",
    readout: Sequence[str] | str = "residual",
) -> Iterator[h5py.File]:
    """Create the file, to be filled as ``file["embedding"][:, :, a:b, :] = slab``.

    Parameters
    ----------
    tokens : sequence of str
        Choices of which tokens count.
    n_layers : int
        L + 1, the embedding output included.
    texts_keys : sequence of str
        SHA-256 of each distinct text, in the order in which they are embedded.
    hidden : int
        D, the width of the model.
    attributes : mapping
        At least ``model``, ``revision`` and ``task``.
    pooling, readout : str or sequence of str
        One for all choices of tokens, or one for each.

    Raises
    ------
    LayerwiseError
        If the folder cannot be written.
    ValueError
        If a key comes twice, or pooling or readout are not as many as the choices of tokens.
    """
    if len(set(texts_keys)) != len(texts_keys):
        raise ValueError("texts_keys has a key twice: each distinct text is embedded once")
    with hdf5.create(path, SCHEMA, VERSION, attributes) as file:
        hdf5.add_scale(file, "tokens", list(tokens))
        hdf5.add_scale(file, "layer", np.arange(n_layers))
        hdf5.add_scale(file, "text", list(texts_keys))
        hdf5.add_scale(file, "hidden", np.arange(hidden))
        for name, given in (("pooling", pooling), ("readout", readout)):
            values = [given] * len(tokens) if isinstance(given, str) else list(given)
            if len(values) != len(tokens):
                raise ValueError(f"{len(values)} of {name} for {len(tokens)} choices of tokens")
            labels = file.create_dataset(name, data=values, dtype=hdf5.STRING)
            labels.dims[0].attach_scale(file["tokens"])
        hdf5.add_array(
            file, "embedding", ("tokens", "layer", "text", "hidden"), "f4",
            unit="activation", description="embedding of each text, as the model gave it",
            whole=("text", "hidden"),
        )  # fmt: skip
        yield file


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

    def layer(self, reading: Reading, layer: int) -> Array:
        """Embeddings of all texts at a layer, shape (N, D), float32, in the order of `keys`.

        Raises
        ------
        LayerwiseError
            If the file has no such reading or layer, or is damaged.
        """
        if reading not in self.readings or not 0 <= layer < self.n_layers:
            have = "; ".join("/".join(r) for r in self.readings)
            raise LayerwiseError(
                f"{self.path} has no layer {layer} read as {'/'.join(reading)}; "
                f"it has the layers 0 to {self.n_layers - 1}, read as {have}."
            )
        at = (self.readings.index(reading), layer)
        return hdf5.read(self._file["embedding"], at)

    def fingerprint(self, embeddings: Array) -> str:
        """SHA-256 over a layer's embeddings and the texts they belong to, in hexadecimal."""
        digest = hashlib.sha256("".join(self.keys).encode())
        digest.update(np.ascontiguousarray(embeddings).data)
        return digest.hexdigest()
