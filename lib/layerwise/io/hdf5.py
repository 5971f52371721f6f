"""HDF5 files: atomic writes, labelled dimensions, checksums, and checks on reading.

All of a file has a checksum: metadata and attributes by HDF5's format, arrays and labels by
Fletcher-32. Texts have a fixed length, since those of variable length are in a heap without a
checksum, and HDF5 may not return from reading a damaged heap.

Files are not locked, since network file systems often refuse it: each has one writer, which
`layerwise.io.files.replacing` checks, and is replaced whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from layerwise.errors import DiskError, LayerwiseError, first_line
from layerwise.io.files import DISK_REMEDY, disk_fault, is_file, replacing

REMEDY = "delete it and run snakemake again."
# Whatever h5py may raise on a file that is not as it was written.
UNLOCKED = {"locking": False}
"""Options of `h5py.File`, in xarray ``driver_kwds``."""
DAMAGE = (OSError, KeyError, ValueError, RuntimeError, TypeError)


@contextmanager
def create(
    path: Path,
    schema: str,
    version: int,
    attributes: Mapping[str, Any],
    base: Path | None = None,
) -> Iterator[h5py.File]:
    """Write an HDF5 file next to `path` and move it there when the block ends.

    Parameters
    ----------
    base : Path, optional
        A file to begin with a copy of.

    Raises
    ------
    LayerwiseError
        If the folder cannot be written.
    """
    try:
        with replacing(path) as partial:
            if base is not None:
                shutil.copyfile(base, partial)
            mode = "w" if base is None else "r+"
            with h5py.File(partial, mode, libver=("v110", "v110"), **UNLOCKED) as file:
                described = {"schema": schema, "schema_version": version, **attributes}
                for key, value in described.items():
                    set_attribute(file, key, value)
                yield file
    except RuntimeError as error:  # as HDF5 says it if a file cannot be closed
        fault = disk_fault(error)
        if not fault:
            raise
        raise DiskError(f"Could not write {path}: {fault}; {DISK_REMEDY}") from error


def write(array: h5py.Dataset, index: Any, values: Any) -> None:
    """Write values to an array, down to the file.

    Otherwise some chunks are written when the array is released, where h5py cannot raise. If the
    disk had room again by the time the file is closed, it would have a hole.
    """
    array[index] = values
    array.flush()


def set_attribute(item: h5py.Group | h5py.Dataset, key: str, value: Any) -> None:
    """Set an attribute; a text gets a fixed length."""
    item.attrs[key] = _fixed([value]).reshape(()) if isinstance(value, str) else value


def attributes(file: h5py.File) -> dict[str, Any]:
    """The attributes of a file, texts as str."""
    values = dict(file.attrs)
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in values.items()}


def _fixed(texts: Sequence[str]) -> npt.NDArray[Any]:
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    return np.array(encoded, h5py.string_dtype("utf-8", max([1, *map(len, encoded)])))


def add_scale(
    file: h5py.Group,
    name: str,
    values: Sequence[Any] | npt.NDArray[Any],
    description: str = "",
) -> None:
    """Add the dimension scale `name` with its labels."""
    data = np.asarray(values)
    is_text = data.dtype.kind in "US"
    data = _fixed(data.tolist()) if is_text else data
    checked = {"chunks": data.shape, "fletcher32": True} if data.size else {}
    scale = file.create_dataset(name, data=data, **checked)
    scale.flush()  # as `write`
    if is_text:
        set_attribute(scale, "_Encoding", "utf-8")  # xarray makes str of it
    scale.make_scale(name)
    if description:
        set_attribute(scale, "description", description)


def add_array(
    file: h5py.Group,
    name: str,
    dims: Sequence[str],
    dtype: npt.DTypeLike,
    *,
    unit: str,
    description: str,
    whole: Sequence[str] = (),
) -> h5py.Dataset:
    """Add an array over named dimensions, whose sizes are those of their scales.

    In a group, a scale of the group's own comes before the file's of the same name.

    A chunk holds all of the dimensions named in `whole` (up to 1 MiB) and one entry of every
    other. Each chunk has a checksum (Fletcher-32), so a changed byte is an error on reading.
    """
    scales = [file[d] if d in file else file.file[d] for d in dims]
    shape = tuple(scale.shape[0] for scale in scales)
    chunk = [size if dim in whole else 1 for dim, size in zip(dims, shape, strict=True)]
    limit = 2**20 // np.dtype(dtype).itemsize
    for axis, dim in enumerate(dims):
        if dim in whole and np.prod(chunk) > limit and dim != whole[-1]:
            chunk[axis] = max(1, int(chunk[axis] * limit // np.prod(chunk)))
    array = file.create_dataset(
        name,
        shape=shape,
        dtype=dtype,
        chunks=tuple(max(1, c) for c in chunk) if all(shape) else None,
        fletcher32=bool(all(shape)),
        fillvalue=np.nan if np.dtype(dtype).kind == "f" else None,
    )
    for axis, (name_of_axis, scale) in enumerate(zip(dims, scales, strict=True)):
        array.dims[axis].attach_scale(scale)
        array.dims[axis].label = name_of_axis
    set_attribute(array, "unit", unit)
    set_attribute(array, "description", description)
    return array


def open_checked(path: Path, schema: str, version: int, expected: Mapping[str, str]) -> h5py.File:
    """Open a file for reading, after a check that it is what the caller expects.

    Parameters
    ----------
    expected : mapping
        Attributes that must have the given value, such as ``{"model": "pythia-14m"}``.

    Raises
    ------
    LayerwiseError
        If the file is missing, damaged, of another schema or version, or about another model,
        revision or corpus. The message names the file and the reason.
    """
    if not is_file(path):
        raise LayerwiseError(
            f"There is no file {path}; run the rule that makes it.", code="missing_file"
        )
    wanted = {"schema": schema, "schema_version": version, **expected}
    with readable(path), opened(path) as file:
        stored = attributes(file)
    for key, value in wanted.items():
        if stored.get(key) != value:
            raise LayerwiseError(
                f"{path} has the {key} {stored.get(key)!r}, wanted was {value!r}; {REMEDY}",
                code="mismatch",
            )
    with readable(path):
        return opened(path)


def opened(path: Path) -> h5py.File:
    """Open a file for reading without a lock; with one if this process has it open so."""
    try:
        return h5py.File(path, **UNLOCKED)
    except OSError as error:
        if "locking flag values" not in str(error):
            raise
        return h5py.File(path)


@contextmanager
def readable(path: str | Path) -> Iterator[None]:
    """Name the file that cannot be read in the block.

    Raises
    ------
    LayerwiseError
        If HDF5 or a checksum fails; the message says to delete the file.
    """
    try:
        yield
    except DAMAGE as error:
        raise LayerwiseError(
            f"{path} is damaged, or no HDF5 file ({first_line(error)}); {REMEDY}",
            code="unreadable",
        ) from error
