"""Which device a job computes on. On a machine with several GPUs each job claims one of its own.

Snakemake counts GPUs (``--resources gpu=2``) but does not tell a job which one to use. So a job
takes the first whose lock file it can lock. The kernel releases the lock when the job ends, in
whatever way. Lock files are named by the GPU's UUID, so that jobs which see different GPUs under
the same number (``CUDA_VISIBLE_DEVICES``, SLURM) do not wait for each other.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from filelock import BaseFileLock, FileLock, Timeout

from layerwise.errors import LayerwiseError

log = logging.getLogger(__name__)

WAIT_S = 1.0
SAY_EVERY_S = 60.0


@dataclass
class Claim:
    """A device, and the locks that make it this job's own for as long as this object lives."""

    device: torch.device
    locks: list[BaseFileLock] = field(default_factory=list, repr=False)

    def release(self) -> None:
        """Let others have it."""
        for lock in self.locks:
            lock.release()
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


def _lock(folder: Path, uuid: str) -> BaseFileLock | None:
    # Every user of the machine must be able to open it, whatever the umask of who came first.
    lock = FileLock(folder / f"layerwise-gpu-{uuid}.lock", mode=0o666, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return None
    except PermissionError as error:
        raise LayerwiseError(
            f"The lock file {lock.lock_file} of a GPU may not be opened ({error.strerror}), but "
            "every user of this machine must be able to write it; have its owner delete it or "
            f"run: chmod a+rw {lock.lock_file}"
        ) from error
    return lock
