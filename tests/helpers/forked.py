"""A Python whose large libraries are imported once, for ``layerwise``, Snakemake and its jobs.

``python`` in `command`'s folder hands such a call to a process that forks. A job then starts in a
tenth of a second in place of six seconds of a core.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

SHARED = "LAYERWISE_TEST_PYTHON"
"""Variable with the path of the ``python`` that all workers of pytest share."""

LIBRARIES = (
    "torch",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "datasets",
    "h5py",
    "matplotlib.pyplot",
    "mteb",
    "nlpaug.augmenter.word",
    "pyarrow.parquet",
    "scipy.stats",
    "sklearn.linear_model",
    "snakemake.cli",
    "layerwise.cli",
    "layerwise.figures.kinds",
    "layerwise.models.load",
    "layerwise.run.script",
    "layerwise.run.snakemake",
    "layerwise.run.validate",
)
SNAKEMAKE = ["-m", "snakemake"]
LAYERWISE = ["-c", "from layerwise.cli import main; main()"]
CLIENT = """\
#!{python} -IS
import json, os, socket, sys
if not sys.argv[1].endswith(".py") and sys.argv[1:3] not in {calls}:
    os.execv("{python}", ["{python}", *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX)
server.connect("{address}")
socket.send_fds(server, [b"0"], [0, 1, 2])
server.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode())
server.shutdown(socket.SHUT_WR)
sys.exit(int(server.recv(9) or 1))
"""


def command(
    folder: Path, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.Popen[bytes]:
    """Write ``python`` into a folder and start the process behind it.

    Parameters
    ----------
    environment : mapping
        What libraries read when they are imported, such as HF_HOME.
    """
    address = folder / "socket"
    client = folder / "python"
    client.write_text(
        CLIENT.format(python=sys.executable, address=address, calls=[SNAKEMAKE, LAYERWISE])
    )
    client.chmod(0o755)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(address))
    listening.listen()
    with listening:
        return subprocess.Popen(
            [sys.executable, __file__], stdin=listening.fileno(), env={**os.environ, **environment}
        )


def serve(listening: socket.socket) -> None:
    """Run each script that a client names in a fork."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        client, _ = listening.accept()
        if os.fork():
            client.close()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        listening.close()
        run(client)


def forget_library(paths: list[str]) -> None:
    """Let another copy of the library be imported, if the first of these paths has one."""
    library = Path(importlib.import_module("layerwise").__file__ or "").parents[1]
    if paths and Path(paths[0]).resolve() != library:
        packages = {path.name for path in library.iterdir()}
        for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
            del sys.modules[name]


def run(client: socket.socket) -> None:
    """Be ``python`` with a client's arguments, folder, environment and streams."""
    _, streams, _, _ = socket.recv_fds(client, 1, 3)
    with client.makefile("rb") as sent:
        arguments, folder, environment = json.loads(sent.read())
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    forget_library(paths)
    sys.executable = shutil.which("python") or sys.executable
    atexit._clear()  # those of the libraries
    sys.argv, status = arguments, 1
    try:
        if arguments[:2] in (SNAKEMAKE, LAYERWISE):
            sys.argv, sys.path[:1] = arguments[1:], [folder, *paths]
            module = "snakemake.cli" if arguments[0] == "-m" else "layerwise.cli"
            importlib.import_module(module).main()
        else:
            sys.path[:1] = [str(Path(arguments[0]).resolve().parent), *paths]
            runpy.run_path(arguments[0], run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = ended.code or 0
        if isinstance(status, str):
            sys.stderr.write(f"{status}\n")
    except Exception:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    client.sendall(b"%d" % (status if isinstance(status, int) else 1))
    os._exit(0)  # without the seconds in which Python takes torch apart


if __name__ == "__main__":
    for name in LIBRARIES:
        importlib.import_module(name)
    sys.modules["snakemake.cli"].get_argument_parser()  # imports the plugins, too
    sys.modules["layerwise.metrics.registry"].all_metrics()
    for group in ("kinds", "media", "stages"):
        sys.modules["layerwise.addons"].load(group)
    serve(socket.socket(fileno=os.dup(0)))
