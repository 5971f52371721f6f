"""Which device a job computes on. On a machine with several GPUs each job claims one of its own.

Snakemake counts GPUs (``--resources gpu=2``) but does not tell a job which is its. So a job takes
the first whose lock file it can lock. The kernel releases the lock when the job ends, however it
ends. GPUs are known by their UUID, so that jobs which see different ones under the same number
(``CUDA_VISIBLE_DEVICES``, SLURM) do not wait for each other.
"""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import torch

from layerwise.errors import LayerwiseError

log = logging.getLogger(__name__)

WAIT_S = 1.0
SAY_EVERY_S = 60.0


@dataclass
class Claim:
    """A device, and the locks that make it this job's own for as long as this object lives."""

    device: torch.device
    locks: list[IO[str]] = field(default_factory=list, repr=False)

    def release(self) -> None:
        """Let others have it."""
        for lock in self.locks:
            lock.close()
        self.locks.clear()


def pick(device: str, *, spread: bool = False) -> Claim:
    """Turn ``auto``, ``cpu``, ``cuda`` or ``cuda:1`` into a device of this job's own; log which.

    Parameters
    ----------
    device : str
        ``auto`` and ``cuda`` take the first GPU that no other job has claimed, and wait if all
        are; ``cuda:N`` takes that one.
    spread : bool
        Claim every GPU that is visible, for a model that one cannot hold.

    Raises
    ------
    LayerwiseError
        If a GPU is asked for by name and is not there: it is never replaced by the CPU.
    """
    there = torch.cuda.is_available()
    wanted = torch.device("cuda" if there else "cpu") if device == "auto" else torch.device(device)
    if wanted.type != "cuda":
        log.info("device: %s (asked for: %s)", wanted, device)
        return Claim(wanted)
    if not there:
        raise LayerwiseError(
            f"device is {device!r}, but torch sees no GPU here; set device to 'cpu' or 'auto'."
        )
    uuids = [str(torch.cuda.get_device_properties(i).uuid) for i in range(device_count())]
    if wanted.index is not None and wanted.index >= len(uuids):
        raise LayerwiseError(
            f"device is {device!r}, but torch sees {len(uuids)} GPU(s) here, counted from 0; "
            "set device to 'cuda' or to one that is there."
        )
    claimed = claim(uuids, only=wanted.index, every=spread)
    log.info("device: %s (asked for: %s)", claimed.device, device)
    return claimed


def device_count() -> int:
    """GPUs that this job may see."""
    return torch.cuda.device_count()


def claim(
    uuids: Sequence[str],
    *,
    only: int | None = None,
    every: bool = False,
    folder: Path | None = None,
) -> Claim:
    """Lock a GPU: the first that is free, one by its number, or all of them; wait until it is.

    Parameters
    ----------
    uuids : sequence of str
        The identities of the visible GPUs, in torch's order.
    folder : Path, optional
        Where the lock files are; by default the system's folder for temporary files.
    """
    place = folder or Path(tempfile.gettempdir())
    said = 0.0
    while True:
        if every:
            tried = [_lock(place, uuid) for uuid in uuids]
            held = Claim(torch.device("cuda", 0), [lock for lock in tried if lock is not None])
            if len(held.locks) == len(uuids):
                return held
            held.release()
        else:
            for index in range(len(uuids)) if only is None else (only,):
                lock = _lock(place, uuids[index])
                if lock is not None:
                    return Claim(torch.device("cuda", index), [lock])
        if time.monotonic() - said > SAY_EVERY_S or not said:
            said = time.monotonic()
            log.info("waiting for a GPU: other jobs have claimed those that are here")
        time.sleep(WAIT_S)


def _lock(folder: Path, uuid: str) -> IO[str] | None:
    path = folder / f"layerwise-gpu-{uuid}.lock"
    try:
        handle = os.fdopen(_open(path))
    except PermissionError as error:
        raise LayerwiseError(
            f"The lock file {path} of a GPU may not be opened ({error.strerror}), but every user "
            "of this machine must be able to read it; have its owner delete it or run: "
            f"chmod a+r {path}"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    return handle


def _open(path: Path) -> int:
    """Open a lock file, whoever made it, or make one that every user can open."""
    # For writing where that is allowed, since NFS takes no exclusive lock without. Never with
    # O_CREAT on a file that is there: kernels refuse that for another user's file in /tmp.
    try:
        return os.open(path, os.O_RDWR)
    except PermissionError:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        log.debug("there is no lock file %s yet", path)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return os.open(path, os.O_RDONLY)
    # The umask takes from the mode that open is given.
    os.fchmod(descriptor, 0o666)
    return descriptor
