"""Device of a job. On a machine with several GPUs, each job claims a different one.

Snakemake counts GPUs (``--resources gpu=2``) but does not tell a job which one to use. So a job
takes the first whose lock file it can lock. The kernel releases the lock however the job ends.
Lock files are named by the GPU's UUID, because jobs may see different GPUs under the same number
(``CUDA_VISIBLE_DEVICES``, SLURM).
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
LOG_EVERY_S = 60.0


@dataclass
class Claim:
    """A device, reserved for this job by locks as long as this object lives."""

    device: torch.device
    locks: list[BaseFileLock] = field(default_factory=list, repr=False)

    def release(self) -> None:
        """Release the device."""
        for lock in self.locks:
            lock.release()
        self.locks.clear()


def pick(device: str, *, spread: bool = False) -> Claim:
    """Reserve a device for ``auto``, ``cpu``, ``cuda`` or ``cuda:1``, and log it.

    Parameters
    ----------
    device : str
        ``auto`` and ``cuda`` take the first GPU that no other job has claimed, and wait if there
        is none; ``cuda:N`` takes that GPU.
    spread : bool
        Claim all visible GPUs, for a model that is larger than one.

    Raises
    ------
    LayerwiseError
        If a requested GPU does not exist. The CPU never replaces it.
    """
    there = torch.cuda.is_available()
    wanted = torch.device("cuda" if there else "cpu") if device == "auto" else torch.device(device)
    if wanted.type != "cuda":
        log.info("device: %s (asked for: %s)", wanted, device)
        return Claim(wanted)
    if not there:
        raise LayerwiseError(
            f"device is {device!r}, but torch sees no GPU here; set device to 'cpu' or 'auto'.",
            code="no_device",
        )
    uuids = [
        str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())
    ]
    if wanted.index is not None and wanted.index >= len(uuids):
        raise LayerwiseError(
            f"device is {device!r}, but torch sees {len(uuids)} GPU(s) here, counted from 0; "
            "set device to 'cuda' or to one that is there.",
            code="no_device",
        )
    claimed = claim(uuids, only=wanted.index, every=spread)
    log.info("device: %s (asked for: %s)", claimed.device, device)
    return claimed


def claim(
    uuids: Sequence[str],
    *,
    only: int | None = None,
    every: bool = False,
    folder: Path | None = None,
) -> Claim:
    """Lock the first free GPU, one by its number, or all; wait until it is free.

    Parameters
    ----------
    uuids : sequence of str
        UUIDs of the visible GPUs, in torch's order.
    folder : Path, optional
        Folder of the lock files; by default the system's temporary folder.
    """
    place = folder or Path(tempfile.gettempdir())
    wanted = range(len(uuids)) if only is None else [only]
    logged = -LOG_EVERY_S
    while True:
        held: dict[int, BaseFileLock] = {}
        for number in wanted:
            if (every or not held) and (lock := _lock(place, uuids[number])):
                held[number] = lock
        claimed = Claim(torch.device("cuda", min(held, default=0)), list(held.values()))
        if len(held) == (len(wanted) if every else 1):
            return claimed
        claimed.release()
        if time.monotonic() - logged > LOG_EVERY_S:
            logged = time.monotonic()
            log.info("waiting for a GPU: other jobs have claimed all")
        time.sleep(WAIT_S)


def _lock(folder: Path, uuid: str) -> BaseFileLock | None:
    # Every user of the machine must be able to open it, whatever the umask of its creator.
    lock = FileLock(folder / f"layerwise-gpu-{uuid}.lock", mode=0o666, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return None
    return lock
