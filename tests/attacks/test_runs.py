"""Runs beside runs, limits, signals, environments: one sentence, and never a wrong value."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest
from attack import RIGHT, SENTENCE, Tally, is_a_sentence, tally
from conftest import ROOT

from layerwise import files
from layerwise.errors import LayerwiseError
from layerwise.files import memory_fault, replacing
from layerwise.workflow.run import Start

__all__ = ["tally"]

AREA = "runs and limits"
LAW = "studies: {law: {kind: power_law}}\n"


def environment(**more: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PYTHONPATH": str(ROOT / "lib"), "PATH": path, "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own, **more}


def python(
    folder: Path, code: str, *, limits: dict[int, int] | None = None, wrap: tuple[str, ...] = (),
    options: tuple[str, ...] = (), **env: str,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    def limit() -> None:
        for which, value in (limits or {}).items():
            resource.setrlimit(which, (value, value))

    return subprocess.run(
        [*wrap, sys.executable, *options, "-c", textwrap.dedent(code)], cwd=folder,
        env=environment(**env), capture_output=True, text=True, check=False, timeout=120,
        preexec_fn=limit,
    )  # fmt: skip


def one_sentence(output: str) -> str:
    """The one error that a script's log has."""
    assert "Traceback" not in output, output[-3000:]
    said = [
        line.partition("ERROR layerwise: ")[2] for line in output.splitlines() if "ERROR" in line
    ]
    assert len(said) == 1, output[-3000:]
    is_a_sentence(said[0])
    return said[0]


# Two projects, one results folder


def test_one_results_folder_is_one_runs(
    tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(f"results: {tmp_path}/shared\n{LAW}")
    hold = """
        import sys, yaml
        from layerwise.workflow.run import Start
        start = Start(yaml.safe_load(open("config.yaml")), ["config.yaml"])
        start.take_hold()
        print("held", flush=True)
        sys.stdin.read()
    """
    first = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(hold)], cwd=tmp_path / "a", env=environment(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert first.stdin is not None
    assert first.stdout is not None
    assert first.stdout.readline() == "held\n"
    monkeypatch.chdir(tmp_path / "b")
    given = {"results": f"{tmp_path}/shared", "studies": {"law": {"kind": "power_law"}}}
    message, _ = tally.attack(AREA, lambda: Start(given, ["config.yaml"]).take_hold())
    assert message is not None
    assert "Another run" in message
    first.kill()
    first.wait()
    message, _ = tally.attack(AREA, lambda: Start(given, ["config.yaml"]).take_hold())
    assert message is None


# Two machines, or containers, with one name


def test_writers_on_machines_of_one_name(tally: Tally, tmp_path: Path) -> None:
    """Neither touches the other's unfinished file, though names and process ids are equal."""
    target = tmp_path / "file"
    with replacing(target) as ours:
        ours.write_text("ours")
        machine = ours.name.split(".")[2]
        theirs = ours.with_name(ours.name.replace(machine, machine[:-8] + "0" * 8))
        assert theirs != ours
        theirs.write_text("theirs")
        dead = ours.with_name(ours.name.replace(f".{os.getpid()}.", ".999999999."))
        dead.write_text("dead")
        others = theirs.with_name(theirs.name.replace(f".{os.getpid()}.", ".999999999."))
        others.write_text("perhaps at work")
        with replacing(tmp_path / "file2") as more:
            more.write_text("x")
    with replacing(target) as again:
        again.write_text("again")
    assert target.read_text() == "again"
    assert not dead.exists()
    assert theirs.read_text() == "theirs"
    assert others.read_text() == "perhaps at work"
    tally.note(AREA, RIGHT)


def may_unshare() -> bool:
    try:
        done = subprocess.run(["unshare", "--pid", "--fork", "true"], check=False, timeout=20)
    except OSError:
        return False
    return done.returncode == 0


@pytest.mark.skipif(not may_unshare(), reason="wants leave to make process namespaces (root)")
def test_writers_in_two_containers(tally: Tally, tmp_path: Path) -> None:
    code = """
        import os, time
        from pathlib import Path
        from layerwise.files import replacing
        with replacing(Path("file")) as partial:
            partial.write_text("x" * 1000)
            Path(os.environ["READY"]).write_text(partial.name)
            deadline = time.monotonic() + 60
            while not Path(os.environ["GO"]).exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            partial.write_text(os.environ["READY"])
    """
    runs = [
        subprocess.Popen(
            ["unshare", "--pid", "--fork", sys.executable, "-c", textwrap.dedent(code)],
            cwd=tmp_path, env=environment(READY=name, GO="go"), stderr=subprocess.PIPE, text=True,
        )
        for name in ("one", "two")
    ]  # fmt: skip
    for _ in range(600):
        if all((tmp_path / name).exists() for name in ("one", "two")):
            break
        time.sleep(0.1)
    names = {(tmp_path / name).read_text() for name in ("one", "two")}
    assert len(names) == 2
    (tmp_path / "go").write_text("")
    for run in runs:
        _, said = run.communicate(timeout=60)
        assert run.returncode == 0, said
    assert (tmp_path / "file").read_text() in ("one", "two")
    assert not list(tmp_path.glob("*.partial"))
    tally.note(AREA, RIGHT)


# Memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(), OSError(12, "Cannot allocate memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        ImportError("libtorch.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"), RuntimeError("std::bad_alloc"),
    ],
    ids=str,
)  # fmt: skip
def test_lack_of_memory_is_known(error: BaseException) -> None:
    assert memory_fault(error)
    wrapped = ValueError("in a library")
    wrapped.__cause__ = error
    assert memory_fault(wrapped)


def test_other_errors_are_not_lack_of_memory() -> None:
    assert not memory_fault(ValueError("out of memory is a text here"))
    assert not memory_fault(RuntimeError("shapes differ"))


SCRIPT = """
    import argparse
    from pathlib import Path
    from layerwise import cli
    def main(given):
        {body}
    cli.run(main, argparse.Namespace(log=None))
"""
BODIES = {
    "memory": "bytearray(10**13)",
    "numpy": "import numpy; numpy.ones(10**13)",
    "torch": "import torch; torch.ones(10**13)",
    "arrow": "import pyarrow; pyarrow.allocate_buffer(10**13)",
}


@pytest.mark.parametrize(
    "what",
    [pytest.param(w, marks=pytest.mark.slow if w in ("torch", "arrow") else ()) for w in BODIES],
)
def test_memory_that_there_is_not(tally: Tally, tmp_path: Path, what: str) -> None:
    limit = 8 * 2**30
    done = python(tmp_path, SCRIPT.format(body=BODIES[what]), limits={resource.RLIMIT_AS: limit})
    assert done.returncode == 1, done.stderr[-3000:]
    assert "memory" in one_sentence(done.stderr)
    tally.note(AREA, SENTENCE)


WRITERS = {
    "text": "from layerwise.files import replacing\n        with replacing(Path('f')) as p: p.write_text('x' * 10**6)",
    "parquet": "import numpy, pandas\n        from layerwise import tables\n        tables.write(Path('f.parquet'), pandas.DataFrame({'a': numpy.random.default_rng(0).random(10**5)}))",
    "csv": "import numpy, pandas\n        from layerwise import tables\n        tables.write_csv(Path('f.csv'), pandas.DataFrame({'a': numpy.random.default_rng(0).random(10**5)}))",
    "figure": "from layerwise.figures import power_law, style\n        style.save(power_law.draw().figure, Path('f.png'), Path('f.pdf'))",
    "hdf5": "import h5py, numpy\n        from layerwise.files import replacing\n        with replacing(Path('f.h5')) as p, h5py.File(p, 'w') as f: f['a'] = numpy.ones(10**6)",
    "safetensors": "import numpy\n        from safetensors.numpy import save_file\n        save_file({'a': numpy.ones(10**6)}, 'f.safetensors')",
}  # fmt: skip


@pytest.mark.parametrize("what", WRITERS)
def test_files_that_may_not_grow(tally: Tally, tmp_path: Path, what: str) -> None:
    """As under `ulimit -f`."""
    body = SCRIPT.format(body=WRITERS[what])
    done = python(tmp_path, body, limits={resource.RLIMIT_FSIZE: 20_000})
    assert done.returncode == 1, done.stderr[-3000:]
    assert "File too large" in one_sentence(done.stderr)
    assert not list(tmp_path.glob("*.partial"))
    assert not [p for p in tmp_path.iterdir() if p.suffix in (".parquet", ".png", ".pdf", ".csv")]
    tally.note(AREA, SENTENCE)


# Environments

ENVIRONMENTS: list[dict[str, str]] = [
    {"SOURCE_DATE_EPOCH": "abc"}, {"SOURCE_DATE_EPOCH": ""}, {"SOURCE_DATE_EPOCH": "-1"},
    {"SOURCE_DATE_EPOCH": "9" * 30}, {"PYTHONOPTIMIZE": "2"}, {"PYTHONOPTIMIZE": "1"},
    {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"}, {"LC_ALL": "no_such.locale"}, {"TZ": "Mars/Phobos"},
    {"MPLBACKEND": "no_such"}, {"HOME": "/nonexistent"}, {"COLUMNS": "x"}, {"TERM": "x"},
    {"PYTHONWARNINGS": "error"}, {"PYTHONHASHSEED": "1"}, {"TMPDIR": "/nonexistent"},
    {"MPLCONFIGDIR": "/nonexistent/x"}, {"PYTHONIOENCODING": "ascii"},
]  # fmt: skip
DRAW = """
    import hashlib
    from pathlib import Path
    from layerwise.cli import run
    from layerwise.config import Config
    from layerwise.figures import power_law, style
    import argparse
    def main(given):
        drawn = power_law.draw()
        style.save(drawn.figure, Path("f.png"), Path("f.pdf"), {"key": "x"})
        print(hashlib.sha256(drawn.table.to_csv().encode()).hexdigest())
        config = Config.of({"studies": {"law": {"kind": "power_law"}}})
        from layerwise.workflow.plan import Plan
        from layerwise.workflow.targets import targets
        plan = Plan(config)
        print([plan.key(job) for job in targets(config)])
    run(main, argparse.Namespace(log=None))
"""


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> str:
    done = python(tmp_path_factory.mktemp("usual"), DRAW)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("env", ENVIRONMENTS, ids=str)
def test_environments(tally: Tally, tmp_path: Path, usual: str, env: dict[str, str]) -> None:
    done = python(tmp_path, DRAW, **env)
    if done.returncode:
        one_sentence(done.stderr)
        tally.note(AREA, SENTENCE)
    else:
        assert done.stdout == usual
        tally.note(AREA, RIGHT)


@pytest.mark.parametrize("env", [{"SOURCE_DATE_EPOCH": "abc"}, {"PYTHONOPTIMIZE": "2"}], ids=str)
def test_some_environments(tally: Tally, tmp_path: Path, usual: str, env: dict[str, str]) -> None:
    test_environments(tally, tmp_path, usual, env)


# Files that may not be read


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can become somebody else")
@pytest.mark.slow
def test_files_of_others(tally: Tally) -> None:
    folder = Path(tempfile.mkdtemp(prefix="layerwise-"))
    folder.chmod(0o755)
    for name in ("s.csv", "t.jsonl", "t.parquet", "config.yaml"):
        (folder / name).write_text("x")
        (folder / name).chmod(0)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    (folder / "model" / "config.json").chmod(0)
    (folder / "closed").mkdir(mode=0)
    reads = [
        "content.of_file(Path('s.csv'))", "content.of_folder(Path('model'))",
        "content.of_folder(Path('closed'))", "load_file(Path('t.jsonl'))",
        "load_file(Path('t.parquet'))", "load_file(Path('closed/t.txt'))",
        "read_table(Path('s.csv'))", "read_config([Path('config.yaml')])",
        "read_config([Path('closed/config.yaml')])", "locate(FolderSource(folder='closed/x'))",
        "check_writable(Path('closed/results'))",
    ]  # fmt: skip
    # The interpreter may lie where nobody else may look: imported first, then read as nobody.
    for read in reads:
        code = f"""
            import os
            from pathlib import Path
            import pandas, pyarrow.parquet
            from layerwise.association.published import read_table
            from layerwise.config import read_config
            from layerwise.config.models import FolderSource
            from layerwise.corpora.sources import load_file
            from layerwise.errors import LayerwiseError
            from layerwise.files import check_writable
            from layerwise.models.source import locate
            from layerwise.workflow import content
            os.setgid(65534); os.setuid(65534)
            try:
                {read}
            except LayerwiseError as error:
                print(error)
        """
        done = python(folder, code)
        assert done.returncode == 0, (read, done.stderr[-2000:])
        is_a_sentence(done.stdout.strip())
        tally.note(AREA, SENTENCE)


def test_the_message_of_a_bug_is_kept_for_bugs(tmp_path: Path) -> None:
    done = python(tmp_path, SCRIPT.format(body="raise ZeroDivisionError('of ours')"))
    assert done.returncode == 2
    assert "this is a bug in layerwise" in done.stderr


def test_a_disk_that_is_full_is_one_sentence() -> None:
    error = files.disk_fault(OSError(27, "File too large"))
    assert error == "File too large"
    with pytest.raises(LayerwiseError, match="Could not write"), replacing(Path("/proc/x/y")):
        pass
