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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import BaseFileLock, FileLock, Timeout

from layerwise.errors import LayerwiseError

log = logging.getLogger(__name__)

WAIT_S = 1.0
LOG_EVERY_S = 60.0


@dataclass(frozen=True)
class Claim:
    """A device, reserved for this job by locks as long as this object lives."""

    device: torch.device
    locks: Sequence[BaseFileLock] = ()


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
    n = torch.cuda.device_count()
    wanted = torch.device(("cuda" if n else "cpu") if device == "auto" else device)
    if wanted.type == "cuda" and (wanted.index or 0) >= n:
        raise LayerwiseError(
            f"device is {device!r}, but torch sees {n} GPU(s) here, counted from 0; set device to "
            "'cpu', 'auto' or one that is there.",
            code="no_device",
        )
    claimed = Claim(wanted)
    if wanted.type == "cuda":
        numbers = range(n) if wanted.index is None else [wanted.index]
        uuids = {i: str(torch.cuda.get_device_properties(i).uuid) for i in numbers}
        claimed = claim(uuids, every=spread)
    log.info("device: %s (asked for: %s)", claimed.device, device)
    return claimed


def claim(uuids: Mapping[int, str], *, every: bool = False, folder: Path | None = None) -> Claim:
    """Lock the first free GPU, or all; wait until it is free.

    Parameters
    ----------
    uuids : mapping
        UUIDs of GPUs by their number in torch.
    folder : Path, optional
        Folder of the lock files; by default the system's temporary folder.
    """
    folder = folder or Path(tempfile.gettempdir())
    logged = -LOG_EVERY_S
    while True:
        held: dict[int, BaseFileLock] = {}
        for number, uuid in uuids.items():
            # Every user of the machine must be able to open it, whatever the umask of its creator.
            lock = FileLock(folder / f"layerwise-gpu-{uuid}.lock", mode=0o666, thread_local=False)
            with suppress(Timeout):
                lock.acquire(blocking=False)
                held[number] = lock
            if held and not every:
                break
        if len(held) == (len(uuids) if every else 1):
            return Claim(torch.device("cuda", min(held)), list(held.values()))
        for busy in held.values():
            busy.release()
        if time.monotonic() - logged > LOG_EVERY_S:
            logged = time.monotonic()
            log.info("waiting for a GPU: other jobs have claimed all")
        time.sleep(WAIT_S)
