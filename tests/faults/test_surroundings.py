"""What surrounds a run goes wrong: disks, readers, a second run, the clock.

Whatever happens: no wrong value, no finished work lost, one sentence instead of a traceback. The
faults are real ones (small file systems, mounts, another clock), so most tests want root on Linux.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from broken import Faulty, copy_to, sentences, unbroken
from same_values import assert_same

FAKETIME = shutil.which("faketime")
# The clock that tells the date jumps; the one that threads wait by never does.
WAIT_BY_REAL_TIME = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
SCORES = "scores/second/step2/LeeNewsSimilarity.parquet"


def may_mount() -> bool:
    done = subprocess.run(
        ["unshare", "--mount", "true"], capture_output=True, check=False
    ) if shutil.which("unshare") else None  # fmt: skip
    return done is not None and done.returncode == 0 and os.geteuid() == 0


needs_root = pytest.mark.skipif(not may_mount(), reason="mounts file systems: wants root on Linux")


@pytest.fixture
def project(tmp_path: Path) -> Faulty:
    """A copy of the unbroken project, with its results and Snakemake's notes on them."""
    return copy_to(tmp_path / "project")


@pytest.fixture
def small_disk(project: Faulty) -> Iterator[Path]:
    """An empty file system of 64 KiB for the results."""
    shutil.rmtree(project.results)
    shutil.rmtree(project.folder / ".snakemake")
    project.results.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(project.results)]
    subprocess.run(mount, check=True)
    yield project.results
    subprocess.run(["umount", "--lazy", str(project.results)], check=True)


def said_plainly(output: str) -> None:
    assert "Traceback" not in output, output[-5000:]
    assert "bug in layerwise" not in output, output[-5000:]


@needs_root
def test_a_disk_that_fills_up(project: Faulty, small_disk: Path) -> None:
    """The disk is full again and again, at another place each time, and grows a little."""
    done: dict[str, tuple[int, int]] = {}
    failures = 0
    for size in (64, 200, 500, 1000, 1600, 2300, 3500, 6000, 9000, 12000, 64000):
        remount = ["mount", "-o", f"remount,size={size}k", str(small_disk)]
        subprocess.run(remount, check=True)
        status, output = project.try_snakemake()
        said_plainly(output)
        assert not project.half_files()
        now = project.finished()
        assert all(now.get(name) == stamp for name, stamp in done.items())
        done = now
        if status:
            failures += 1
            told = [s for s in sentences(output) if "No space left on device" in s]
            assert told or "No space left" in output, output[-5000:]
            assert all("free some space" in s for s in told)
    assert failures >= 5
    assert status == 0, output[-5000:]
    assert_same(project.values(), unbroken())


WRITE = """
import subprocess, sys
from layerwise import hdf5
with hdf5.create(sys.argv[1] + "/a.h5", "s", 1, {}) as file:
    hdf5.add_scale(file, "row", range(1000))
    hdf5.add_scale(file, "column", range(100))
    whole = ("row", "column")
    array = hdf5.add_array(file, "x", whole, "f4", unit="1", description="", whole=whole)
    array[:] = 1
    del array  # here HDF5 writes, and fails, and h5py raises nothing
    subprocess.run(["mount", "-o", "remount,size=8m", sys.argv[1]], check=True)
print("closed in good order")
"""


@needs_root
def test_a_disk_that_was_full_for_a_moment_leaves_no_hole(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(tmp_path)]
    subprocess.run(mount, check=True)
    try:
        done = subprocess.run(
            [sys.executable, "-c", WRITE, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "closed in good order" not in done.stdout
        assert "DiskError: Could not write" in done.stderr
        assert "No space left on device; free some space" in done.stderr
        assert not list(tmp_path.iterdir())
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@needs_root
@pytest.mark.parametrize("missing", ["tables", "report", "figures"])
def test_a_results_folder_that_cannot_be_written(project: Faulty, missing: str) -> None:
    shutil.rmtree(project.results / missing)
    kept = project.values()
    read_only = "mount --bind results results && mount -o remount,ro,bind results && exec "
    command = ["unshare", "--mount", "sh", "-c", read_only + '"$@"', "sh", *project.command()]
    done = subprocess.run(
        command, cwd=project.folder, env=project.environment(),
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    output = done.stdout + done.stderr
    assert done.returncode
    said_plainly(output)
    # Snakemake itself says it if a file that it would have to replace is there.
    assert "Write-protected output" in output or "results cannot be written" in output, output
    assert_same(project.values(), kept)
    project.snakemake()
    assert_same(project.values(), unbroken())


@pytest.mark.parametrize(
    ("name", "then"),
    [
        ("activations/second/step0/mine.h5", "metrics/second/step0/mine.parquet"),
        ("embeddings/second/step2/LeeNewsSimilarity.h5", SCORES),
        ("metrics/second/step2/mine.parquet", "associations/both.parquet"),
        (SCORES, "associations/both.parquet"),
        ("corpora/mine.parquet", "corpora/mine.views.parquet"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("how", ["altered", "cut"])
def test_a_damaged_file_is_named_and_not_computed_with(
    project: Faulty, name: str, then: str, how: str
) -> None:
    """As on a run that goes on: what comes after the damaged file is yet to be made."""
    path = project.results / name
    content = bytearray(path.read_bytes())
    if how == "cut":
        del content[len(content) // 2 :]
    else:
        # In the midst of the largest block of data, where nothing but a checksum would tell.
        content[largest_block(path)] ^= 4
    path.chmod(0o644)
    path.write_bytes(content)
    forget(project, then)
    status, output = project.try_snakemake()
    said_plainly(output)
    if status:
        told = sentences(output)
        remedy = "delete it and run snakemake again"
        assert any(f"results/{name}" in s and remedy in s for s in told), output[-5000:]
        # What the sentence says is what helps.
        path.unlink()
        project.snakemake()
    else:
        # A file that cannot be opened has no key, and is made again unasked.
        assert how == "cut"
        assert "does not say what it was made from" in output
    assert_same(project.values(), unbroken())


def forget(project: Faulty, name: str) -> None:
    """Remove a file, and all that is made of it in the end: what it is not needed for is not
    made."""
    (project.results / name).unlink()
    for part in ("associations", "choices", "figures", "tables", "report"):
        shutil.rmtree(project.results / part)
    if name.startswith("corpora/"):
        for part in ("activations", "metrics"):
            shutil.rmtree(project.results / part)


def largest_block(path: Path) -> int:
    """A place in the file that holds values."""
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            arrays = [a for a in file.values() if isinstance(a, h5py.Dataset) and a.chunks]
            largest = max(arrays, key=lambda a: a.size)
            chunk = largest.id.get_chunk_info(0)
            return int(chunk.byte_offset + chunk.size // 2)
    return path.stat().st_size // 4


def script(project: Faulty, rule: str) -> subprocess.Popen[str]:
    """Start one corpus of a job of the workflow's, whether it is due or not."""
    about = ["--model", "second", "--revision", "step0", "--corpus", "mine"]
    return subprocess.Popen(
        [sys.executable, f"scripts/{rule}.py", "--config", "results/config.json", *about],
        cwd=project.folder, env=project.environment(), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def test_an_hdf5_file_held_open_by_a_reader(project: Faulty) -> None:
    path = project.results / "activations" / "second" / "step0" / "mine.h5"
    with h5py.File(path, locking=True) as reader:
        before = reader["pooled"][()]
        old = path.stat().st_ino
        running = script(project, "run_model")
        output = running.communicate(timeout=600)[0]
        assert running.returncode == 0, output
        assert path.stat().st_ino != old
        np.testing.assert_array_equal(reader["pooled"][()], before)
    assert_same(project.values(), unbroken())
    assert project.jobs() == {}


def test_two_runs_started_at_once(project: Faulty) -> None:
    """In one folder the second is told that the first is at work; values are those of one run."""
    shutil.rmtree(project.results)
    shutil.rmtree(project.folder / ".snakemake")
    runs = [
        subprocess.Popen(
            project.command(), cwd=project.folder, env=project.environment(),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    said = [run.communicate(timeout=900)[0] for run in runs]
    ended = [run.returncode for run in runs]
    assert 0 in ended, said
    for status, output in zip(ended, said, strict=True):
        said_plainly(output)
        if status:
            assert "lock" in output
    project.snakemake()
    assert_same(project.values(), unbroken())
    assert not list(project.results.rglob("*.partial"))


def test_two_writers_of_one_file_at_once(project: Faulty) -> None:
    """Past the lock, as on two machines: each file is one writer's, whole."""
    for rule in ("run_model", "compute_metrics"):
        runs = [script(project, rule) for _ in range(2)]
        for run in runs:
            said = run.communicate(timeout=600)[0]
            said_plainly(said)
            assert run.returncode == 0, said
        assert not project.half_files()
    assert project.jobs() == {}
    assert_same(project.values(), unbroken())
    assert not list(project.results.rglob("*.partial"))


def test_two_runs_at_once_past_the_lock(project: Faulty) -> None:
    for part in ("activations", "metrics", "associations", "figures", "tables"):
        shutil.rmtree(project.results / part)
    runs = [
        subprocess.Popen(
            project.command("--nolock"), cwd=project.folder, env=project.environment(),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    for run in runs:
        said_plainly(run.communicate(timeout=900)[0])
    project.snakemake()
    assert_same(project.values(), unbroken())


def test_files_whose_times_jump_are_not_made_again(project: Faulty) -> None:
    """As after a copy, an unpacked archive, or on a server whose clock is wrong."""
    moments = random.Random(0)
    for path in [*project.results.rglob("*"), project.folder / "mine.txt"]:
        if path.is_file():
            then = time.time() + moments.uniform(-1, 1) * 10**8
            os.utime(path, (then, then))
    assert project.jobs() == {}
    assert "Nothing to be done" in project.snakemake()
    # Nor does what is due wait for the time that a file bears.
    marker = project.results / "jobs" / "compute_metrics" / "second" / "step0" / "0.json"
    os.utime(marker, (time.time() + 10**8,) * 2)
    forget(project, "metrics/second/step0/mine.parquet")
    assert project.jobs()["compute_metrics"] == 1
    project.snakemake()
    assert_same(project.values(), unbroken())


@pytest.mark.skipif(FAKETIME is None, reason="wants faketime (apt-get install faketime)")
def test_a_clock_that_jumps_back_in_the_middle(project: Faulty) -> None:
    """Half of the work is done in what is then the future."""
    shutil.rmtree(project.results)
    shutil.rmtree(project.folder / ".snakemake")
    project.snakemake("--until", "run_model", "list_task_texts", "train_second")
    first = project.finished()
    assert len(first) > 5
    done = subprocess.run(
        [str(FAKETIME), "-f", "-3d", *project.command()],
        cwd=project.folder, env=project.environment() | WAIT_BY_REAL_TIME, capture_output=True,
        text=True, check=False, timeout=900,
    )  # fmt: skip
    output = done.stdout + done.stderr
    said_plainly(output)
    # Snakemake takes no output that is older than its input.
    assert done.returncode == 0 or "clock skew" in output, output[-5000:]
    now = project.finished()
    assert {name: now[name] for name in first} == first
    assert not project.half_files()
    # The clock goes right again.
    project.snakemake()
    now = project.finished()
    assert {name: now[name] for name in first} == first
    assert_same(project.values(), unbroken())
    assert "Nothing to be done" in project.snakemake()


@needs_root
def test_a_full_tmp() -> None:
    """No byte is left in /tmp: either nobody needs it, or one sentence."""
    folder = Path(tempfile.mkdtemp(prefix="layerwise-", dir="/var/tmp"))
    try:
        project = copy_to(folder / "project")
        shutil.rmtree(project.results)
        shutil.rmtree(project.folder / ".snakemake")
        full = (
            "mount -t tmpfs -o size=16k tmpfs /tmp && (cat /dev/zero >/tmp/full || true) && exec "
        )
        command = ["unshare", "--mount", "sh", "-c", full + '"$@"', "sh", *project.command()]
        done = subprocess.run(
            command, cwd=project.folder, env=project.environment(),
            capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        output = done.stdout + done.stderr
        said_plainly(output)
        if done.returncode:
            assert "No space left" in output
        assert not project.half_files()
        project.snakemake()
        assert_same(project.values(), unbroken())
    finally:
        shutil.rmtree(folder)
