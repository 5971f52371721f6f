"""A corpus in shards: each an activations file of its own, joined without copying.

``results/activations/{model}/{revision}/{corpus}.shards/{shard}.h5`` hold successive prompts of
the corpus, and ``{corpus}.h5`` beside that folder shows them as one: its arrays are HDF5 virtual
datasets. Whoever reads it sees what a single job would have written, but for the rounding that
comes of other batches. The shards must stay where they are.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from layerwise import hdf5
from layerwise.activations.extract import extract
from layerwise.activations.store import SCHEMA, VERSION
from layerwise.config.extraction import ExtractSettings
from layerwise.errors import LayerwiseError
from layerwise.models.load import LoadedModel

# What must be the same in all shards, beside the sizes of their arrays.
SAME = ("model", "revision", "corpus", "weights_sha256", "dtype", "readout", "corpus_sha256")
# Attributes of a shard that are not the whole's.
OWN = {"schema", "schema_version", "complete", hdf5.SEAL}


def split(n: int, shards: int) -> list[range]:
    """Successive ranges of nearly equal size that cover ``range(n)``."""
    ends = [n * k // shards for k in range(shards + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(ends)]


def extract_shard(
    loaded: LoadedModel,
    *,
    prompts: Sequence[str],
    views: Sequence[Sequence[Any]],
    settings: ExtractSettings,
    shard: int,
    **given: Any,
) -> None:
    """Extract one of the shards that `settings` asks for.

    Parameters
    ----------
    prompts, views
        Of the whole corpus.
    shard : int
        Which, from 0.
    given : Any
        What else `layerwise.activations.extract.extract` takes.
    """
    part = split(len(prompts), settings.shards)[shard]
    # The states that are kept are those of the corpus' first prompts.
    kept = min(max(settings.keep_states - part.start, 0), len(part))
    where = slice(part.start, part.stop)
    extract(
        loaded, prompts=prompts[where], views=[view[where] for view in views],
        settings=settings.model_copy(update={"keep_states": kept}), **given,
    )  # fmt: skip


def join(shards: Sequence[Path], target: Path, attributes: Mapping[str, Any]) -> None:
    """Write the file that shows the shards of a corpus as one.

    Arrays over prompts, and the states of prompts, stand one shard after the other; the dimension
    ``rank`` is that of the shard with the longest prompt, and eigenvalues beyond a shard's own are
    0, as they are beyond a prompt's.

    Parameters
    ----------
    shards : sequence of paths
        In the order of their prompts.
    attributes : mapping
        In place of those of the first shard: the joined file's own key.

    Raises
    ------
    LayerwiseError
        If a shard is missing, incomplete or damaged, or they are not of one model on one corpus.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(hdf5.open_checked(p, SCHEMA, VERSION, {})) for p in shards]
        _check_alike(shards, files)
        names = [os.path.relpath(path, target.parent) for path in shards]
        seals = {n: file.attrs[hdf5.SEAL] for n, file in zip(names, files, strict=True)}
        record = {k: v for k, v in files[0].attrs.items() if k not in OWN} | dict(attributes)
        record[hdf5.PARTS] = json.dumps(seals)
        with hdf5.create(target, SCHEMA, VERSION, record) as whole:
            # Scales first, to which arrays are attached; the file's own before those of groups.
            order = sorted(_arrays(files[0]), key=lambda a: (not a[1].is_scale, a[0].count("/")))
            for at, item in order:
                if item.is_scale:
                    _join_scale(whole, at, [file[at] for file in files])
                else:
                    _join_array(whole, at, [file[at] for file in files], names)


def _arrays(file: h5py.File) -> Iterator[tuple[str, h5py.Dataset]]:
    """Every array by every path that leads to it: a sublayer's scales are the file's own."""

    def of(group: h5py.Group) -> Iterator[tuple[str, h5py.Dataset]]:
        for name, item in group.items():
            if isinstance(item, h5py.Group):
                yield from of(item)
            else:
                yield f"{group.name.rstrip('/')}/{name}", item

    return of(file)


def _check_alike(paths: Sequence[Path], files: Sequence[h5py.File]) -> None:
    for path, file in zip(paths, files, strict=True):
        for name in SAME:
            first, here = files[0].attrs.get(name), file.attrs.get(name)
            if here != first:
                raise LayerwiseError(
                    f"{path} has {name} {here!r} and {paths[0]} has {first!r}: they are no shards "
                    "of one extraction; delete them and run snakemake again."
                )


def _join_scale(whole: h5py.File, at: str, scales: Sequence[h5py.Dataset]) -> None:
    name = at.rsplit("/", 1)[-1]
    if at != f"/{name}":
        # The same scale under a second name, so that a group opened alone has it.
        whole[at] = whole[f"/{name}"]
        return
    values = [scale.asstr()[()] if scale.dtype.kind == "O" else scale[()] for scale in scales]
    labels = values[0]
    if name == "prompt":
        labels = np.concatenate(values)
    elif name == "state":
        labels = np.arange(sum(map(len, values)))
    elif name in ("rank", "prefix"):
        labels = max(values, key=len)
    hdf5.add_scale(whole, name, list(labels) if labels.dtype == object else labels)


def _join_array(
    whole: h5py.File, at: str, parts: Sequence[h5py.Dataset], names: Sequence[str]
) -> None:
    first = parts[0]
    dims = [dim[0].name.rsplit("/", 1)[-1] for dim in first.dims]
    group = whole.require_group(at.rsplit("/", 1)[0] or "/")
    along = dims.index("prompt" if "prompt" in dims else "state")
    shape = tuple(len(group[dim]) if dim in group else len(whole[dim]) for dim in dims)
    if at == "/state_prompt":
        starts = np.cumsum([0, *(len(part.file["prompt"]) for part in parts[:-1])])
        owners = [part[()] + start for part, start in zip(parts, starts, strict=True)]
        joined = group.create_dataset(at, data=np.concatenate(owners).astype(first.dtype))
    else:
        layout = h5py.VirtualLayout(shape, first.dtype)
        start = 0
        for part, name in zip(parts, names, strict=True):
            stop = start + part.shape[along]
            if part.size:
                where = [slice(0, size) for size in part.shape]
                where[along] = slice(start, stop)
                layout[tuple(where)] = h5py.VirtualSource(name, at, part.shape)
            start = stop
        # Beyond a shard's rank are no eigenvalues; all else is covered.
        joined = group.create_virtual_dataset(at, layout, fillvalue=0)
    for axis, dim in enumerate(dims):
        joined.dims[axis].attach_scale(group[dim] if dim in group else whole[dim])
    for key in ("unit", "description"):
        joined.attrs[key] = first.attrs[key]
