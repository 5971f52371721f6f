"""Atomic writes, and the provenance of files.

Every result is written next to its target and moved over it at the end: a reader never sees half a
file, and a failed run never costs a finished one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from glob import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock

from layerwise.errors import DiskError, LayerwiseError, causes

log = logging.getLogger(__name__)

DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EFBIG}
DISK_REMEDY = (
    "free some space, lift the limit (ulimit -f), or choose a folder that can be written."
)
NO_MEMORY = re.compile(
    r"(can't|cannot|could not|unable to|failed to) (allocate|start new thread|map segment)"
    r"|not enough memory|out of memory|bad_alloc|pthread_create failed|thread: Resource temp",
    re.IGNORECASE,
)


LARGE = 10**9
# Folders and files that archives and file managers leave in others.
LEFT_BY_PROGRAMS = {"__MACOSX", "@eaDir", "Thumbs.db", "desktop.ini"}
SHA256 = re.compile(r"[0-9a-f]{64}")

LOCK = "lock"
UNLOCKED_S = 60.0
"""Seconds in which a new folder of `scratch` gets its lock at the latest."""

LIBRARIES = ("layerwise", "torch", "transformers", "numpy", "h5py", "mteb", "nlpaug")


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a path next to `target`; move it over `target` if the block ends well, else remove it.

    The move is `os.replace`, so `target` is at all times either the old file or the new one.
    The path next to it is of this process. What a killed process of this machine left is removed.

    Raises
    ------
    DiskError
        If the folder cannot be written (read-only, full), or another process writes the file.
        Other errors of the block, such as of a file that it reads, are raised unchanged.
    """
    target = Path(target)
    partial = target.with_name(f".{target.name}.{_machine()}-{os.getpid()}.partial")
    ours = True
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for other in target.parent.glob(f".{escape(target.name)}.{_machine()}-*.partial"):
            pid = int(other.stem.rpartition("-")[2])
            if is_running(pid):
                raise DiskError(
                    f"Could not write {target}: process {pid} is writing it; wait for the other "
                    f"run to end. If it is another program by now, delete {other}."
                )
            other.unlink(missing_ok=True)
        ours = False
        yield partial
        ours = True
        with partial.open("rb") as handle:
            os.fsync(handle.fileno())
        partial.replace(target)
    except OSError as error:
        fault = disk_fault(error)
        if not (ours or fault or error.filename == str(partial)):
            raise
        reason = fault or " ".join(str(error.strerror or error).split())
        raise DiskError(f"Could not write {target}: {reason}; {DISK_REMEDY}") from error
    finally:
        if partial.exists():
            partial.unlink()


@contextmanager
def replacing_folder(target: Path) -> Iterator[Path]:
    """As `replacing`, of a folder: yield an empty one next to `target`, always the same.

    What a killed process left is removed.
    """
    target = target.absolute()
    beside = target.with_name(f".{target.name}.partial")
    new = beside / "new"
    shutil.rmtree(beside, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        yield new
        if target.is_dir():
            target.replace(beside / "old")
        new.replace(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def write_text(target: Path, text: str) -> None:
    """Write a text in UTF-8, whole or not at all."""
    with replacing(target) as partial:
        partial.write_text(text, encoding="utf-8")


@cache
def _machine() -> str:
    return sha256_text(platform.node())[:4]


def is_running(pid: int) -> bool:
    """True if another process of this machine has the number."""
    with contextlib.suppress(PermissionError):  # of another user
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return pid != os.getpid()


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a temporary folder; remove it at the end, and those that killed processes left.

    A process locks its folder. A folder of this machine without a lock was left by a process that
    was killed. Where locks are refused, no folder is removed.
    """
    prefix = f"layerwise-{platform.node()}-"
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        # gpu-1 is another machine than gpu.
        if "-" in folder.name.removeprefix(prefix):
            continue
        # Another user's cannot be opened, and a new one may have no lock yet.
        with contextlib.suppress(OSError, NotImplementedError):
            if time.time() - folder.stat().st_mtime > UNLOCKED_S:
                with FileLock(folder / LOCK, blocking=False):
                    shutil.rmtree(folder)
                log.info("removed %s, which a killed process had left", folder)
    with tempfile.TemporaryDirectory(prefix=prefix) as made, ExitStack() as stack:
        with contextlib.suppress(OSError, NotImplementedError):
            stack.enter_context(FileLock(Path(made, LOCK)))
        yield Path(made)


def disk_fault(error: BaseException) -> str | None:
    """Return the disk fault behind an error ('No space left on device'), if there is one.

    Libraries written in other languages (HDF5, Arrow, safetensors) give the number in their
    messages only.
    """
    for link in causes(error):
        match = re.search(r"\b(?:os error|errno)\s*=?\s*(\d+)", str(link), re.IGNORECASE)
        number = int(match[1]) if match else getattr(link, "errno", None)
        if number in DISK:
            return os.strerror(number)
    return None


def memory_fault(error: BaseException) -> bool:
    """True if a lack of memory caused an error, which libraries raise as errors of many types."""
    for link in causes(error):
        if isinstance(link, MemoryError) or getattr(link, "errno", None) == errno.ENOMEM:
            return True
        if isinstance(link, OSError | RuntimeError | ImportError) and NO_MEMORY.search(str(link)):
            return True
    return False


# Unlike pathlib's, these are False for a path that no file system accepts.
is_folder, is_file = os.path.isdir, os.path.isfile


def user_cache() -> Path:
    """Folder for what a user's projects share, which other users cannot write.

    Raises
    ------
    OSError
        If there is no such folder and none can be made, as without a home.
    """
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:
        raise OSError(str(error)) from error
    folder = home / "layerwise"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o002:
        raise OSError(f"other users can write {folder}")
    return folder


def read_text(path: Path) -> str:
    """The text of a file that a user names.

    Raises
    ------
    LayerwiseError
        If it is missing, or no text in UTF-8.
    """
    if not is_file(path):
        raise LayerwiseError(
            f"There is no file {path}; relative paths start at the current folder.",
            code="missing_file",
        )
    check_text(path)
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LayerwiseError(
            f"{path} cannot be read as a text: {error}.", code="unreadable"
        ) from error


def check_text(path: Path) -> None:
    """Refuse a file with NUL bytes at its beginning, as UTF-16 has: they are valid UTF-8."""
    with Path(path).open("rb") as file:
        if b"\0" in file.read(4096):
            raise LayerwiseError(
                f"{path} has NUL bytes, as texts in UTF-16 have; save it as UTF-8.",
                code="unreadable",
            )


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with Path(path).open("rb") as handle:
        if (size := os.fstat(handle.fileno()).st_size) > LARGE:
            log.warning("Hashing %s (%.0f GB), once.", path, size / 1e9)
        return hashlib.file_digest(handle, "sha256").hexdigest()


def cached_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, computed once for each state of the file (`_state`)."""
    return cached(_state(path), lambda: sha256_file(path))


def visible_files(folder: Path) -> list[Path]:
    """Files below a folder in the order of their names, without what programs leave behind:
    hidden files and folders, and those that file managers make."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in files if not any(map(_is_junk, path.relative_to(folder).parts)))


def _is_junk(name: str) -> bool:
    return name.startswith(".") or name in LEFT_BY_PROGRAMS


def folder_sha256(folder: Path) -> str:
    """SHA-256 of the names and contents of a folder's files, computed once for their states."""
    visible = (path for path in visible_files(folder) if path.suffix != ".lock")
    files = {path.relative_to(folder).as_posix(): path for path in visible}
    states = sha256_text(*(text for name, p in files.items() for text in (name, _state(p))))
    lines = (f"{name} {sha256_file(p)}" for name, p in files.items())
    return cached(states, lambda: sha256_text("\n".join(lines)))


def _state(path: Path) -> str:
    """A file's path, inode, size, and times of modification and change, as a hash.

    The time of change cannot be set: a file that was replaced by one of the same size and
    modification time has another state.
    """
    state = path.stat()
    numbers = (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    return sha256_text(str(path.resolve()), *map(str, numbers))


def cached(name: str, compute: Callable[[], str]) -> str:
    """A SHA-256 from the user's cache, or computed and stored there.

    Parameters
    ----------
    name : str
        Hash of all that decides it, hexadecimal.
    compute : callable
        Returns the hash, hexadecimal.
    """
    with contextlib.suppress(OSError, UnicodeDecodeError):
        stored = (user_cache() / "hashes" / name).read_text("ascii")
        # A write that was cut off is shorter; after a crash of the machine, it may be of zeros.
        if SHA256.fullmatch(stored):
            return stored
    computed = compute()
    # A cache that cannot be written costs time and nothing else.
    with contextlib.suppress(OSError):
        folder = user_cache() / "hashes"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(computed, "ascii")
    return computed


def sha256_bytes(content: bytes) -> str:
    """SHA-256 of bytes, hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def sha256_text(*parts: str) -> str:
    """Hexadecimal SHA-256 of strings, each preceded by its length, so no two lists collide.

    Lone surrogates are legal in Python strings and are kept (`surrogatepass`).
    """
    digest = hashlib.sha256()
    for text in parts:
        raw = text.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.hexdigest()


@cache
def versions() -> dict[str, str]:
    """The versions of the `LIBRARIES` that are installed; reading them takes milliseconds."""
    installed = {}
    for library in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            installed[library] = version(library)
    return installed


def provenance(**facts: Any) -> dict[str, str]:
    """Return the provenance that every file stores: library versions, platform, command, `facts`.

    Values other than strings are written as JSON.
    """
    record: Mapping[str, Any] = {
        "versions": versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        **facts,
    }
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in record.items()}
